"""Defects of serial topics: of their room, their order, their shard, and of the moments in which they become serial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from foqs.host.admission.placement import Placement
from foqs.host.registry.held_topics import HeldTopics
from foqs.model.calls import PositionErrors
from foqs.model.clock import Now
from foqs.model.errors import NoShardError, UnavailableError
from foqs.model.namespace import Namespace
from foqs.model.topic import ShardTopic
from foqs.shard.port import ItemRow, Transaction
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.change import Changes
from foqs.shard.state.ops.wake import Waking
from foqs.shard.writer.shard_writer import ShardWriter
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, is_serial=True, load_s_max=2.0))

_redrive, _place_serial = Changes.redrive, Placement.place_serial
_write = Waking.write


def _has_shards(profile: Profile) -> bool:
    return profile.shard_count > 1


@in_place_of(ShardTopic, "_serial_room")
def has_room_beside_items_that_are_held(self: ShardTopic) -> int:
    is_held = self.holds_on_dead and self.dead
    return int(not (self.leased or self.delayed or is_held))


@in_place_of(ShardTopic, "_serial_room")
def has_room_while_an_item_waits_for_its_delay(self: ShardTopic) -> int:
    is_held = self.holds_on_dead and self.dead
    return int(not (self.out_count or is_held))


@in_place_of(ShardTopic, "_serial_room")
def has_room_behind_a_dead_letter_that_holds_the_topic(self: ShardTopic) -> int:
    return int(not (self.out_count or self.delayed))


@in_place_of(Waking, "write")
def wakes_an_item_behind_later_ones(self: Waking, transaction: Transaction, now: Now) -> None:
    _write(self, transaction, now)
    transaction.wakes, transaction.wakes_in_place = transaction.wakes + transaction.wakes_in_place, []
    self._in_place = set()


@in_place_of(Changes, "redrive")
def redrives_an_item_behind_later_ones(
    self: Changes, row: ItemRow, now_ms: int, ttl_ms_max: int, completion: Completion, position: int
) -> None:
    topic = self.topic_of(row)
    is_serial, topic.is_serial = topic.is_serial, False
    try:
        _redrive(self, row, now_ms, ttl_ms_max, completion, position)
    finally:
        topic.is_serial = is_serial


@in_place_of(Placement, "place_serial", _has_shards)
def takes_another_shard_while_that_of_the_slot_is_away(
    self: Placement, namespace: Namespace, by_topic: Mapping[str, Sequence[int]], errors: PositionErrors
) -> dict[ShardWriter, list[int]]:
    placed = _place_serial(self, namespace, by_topic, errors)
    for some in by_topic.values():
        if some[0] in errors:
            try:
                writer = self.place(namespace, len(some))
            except (NoShardError, UnavailableError):
                continue
            for at in some:
                del errors[at]
            placed.setdefault(writer, []).extend(some)
    return placed


@in_place_of(HeldTopics, "see")
def makes_topics_serial_with_their_items(self: HeldTopics, number: int, name: str, *, is_live: bool) -> None:
    """Nothing is held."""
