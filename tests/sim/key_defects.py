"""Defects of ordering keys: of the order within a key, of its copies for groups, and of the slots of keys that move."""

from __future__ import annotations

from functools import partial

from foqs.host.registry.held_topics import HeldTopics
from foqs.model.groups import Copy, NamespaceGroups
from foqs.model.namespace import SettingsTable
from foqs.model.policy import TopicPolicy
from foqs.model.topic_name import base_of, is_keyed
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, is_serial=True, load_s_max=2.0))

_serial_policy, _copies, _see = SettingsTable.serial_policy, NamespaceGroups.copies, HeldTopics.see


def _has_shards(profile: Profile) -> bool:
    return profile.shard_count > 1


@in_place_of(SettingsTable, "serial_policy")
def lets_several_items_of_a_key_out(self: SettingsTable, number: int, name: str) -> TopicPolicy | None:
    return None if is_keyed(name) else _serial_policy(self, number, name)


@in_place_of(NamespaceGroups, "copies")
def copies_items_to_groups_without_their_keys(self: NamespaceGroups, topic: str) -> tuple[Copy, ...] | None:
    return _copies(self, base_of(topic))


@in_place_of(HeldTopics, "see", _has_shards)
def gives_slots_without_gates_for_their_keys(self: HeldTopics, number: int, name: str, *, is_live: bool) -> None:
    if not is_keyed(name):
        _see(self, number, name, is_live=is_live)
