"""Defects of ordering keys: of the order within a key, and of its copies for groups."""

from __future__ import annotations

from functools import partial

from foqs.model.groups import Copy, NamespaceGroups
from foqs.model.namespace import SettingsTable
from foqs.model.policy import TopicPolicy
from foqs.model.topic_name import base_of, is_keyed
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, is_serial=True, load_s_max=2.0))

_serial_policy, _copies = SettingsTable.serial_policy, NamespaceGroups.copies


@in_place_of(SettingsTable, "serial_policy")
def lets_several_items_of_a_key_out(self: SettingsTable, number: int, name: str) -> TopicPolicy | None:
    return None if is_keyed(name) else _serial_policy(self, number, name)


@in_place_of(NamespaceGroups, "copies")
def copies_items_to_groups_without_their_keys(self: NamespaceGroups, topic: str) -> tuple[Copy, ...] | None:
    return _copies(self, base_of(topic))
