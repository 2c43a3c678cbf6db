"""Defects of moves of slots: of who takes ids when, and of what is known of those that came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.host.registry.slot_moves import SlotMover
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.slots import SlotMove
from foqs.shard.port import SlotArrival, Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.slot_move import SlotMoves, SlotMoving
from foqs.testing.fake_reader import FakeReader
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of


def _has_shards(profile: Profile) -> bool:
    return profile.shard_count > 1


_copy, _write, _committed = SlotMover._copy, SlotMoving.write, SlotMoving.committed


@in_place_of(Dedup, "holds_slots", _has_shards)
def gives_slots_while_ids_of_them_are_on_their_way(self: Dedup, slots: frozenset[int]) -> bool:
    return False


@in_place_of(Dedup, "_check_open", _has_shards)
def takes_ids_of_slots_that_come_and_go(self: Dedup, digests: Sequence[bytes]) -> None:
    return None


@in_place_of(FakeReader, "read_arrival", _has_shards)
def forgets_with_a_take_over_that_slots_are_on_their_way(self: FakeReader) -> SlotArrival | None:
    return None


@in_place_of(SlotMover, "_copy", _has_shards)
async def copies_no_ids_that_came_while_it_copied(
    self: SlotMover, writer: Any, shard: Any, arrival: SlotArrival, source: Any
) -> int:
    if -1 not in arrival.read_to:
        await _copy(self, writer, shard, arrival, source)
    arrival.read_to[-1] = 0
    return 0


@in_place_of(SlotMoving, "committed", _has_shards)
def stores_the_ids_that_came_and_does_not_know_them(self: SlotMoving, result: TransactionResult, now: Now) -> None:
    for row in self._rows:
        row.digests[:] = [bytes(16) for _ in row.digests]
    _committed(self, result, now)


@in_place_of(SlotMoving, "write", _has_shards)
def stores_ids_of_a_namespace_without_its_name(self: SlotMoving, transaction: Transaction, now: Now) -> None:
    before = list(transaction.namespaces_new)
    _write(self, transaction, now)
    transaction.namespaces_new = before


@in_place_of(SlotMoving, "write", _has_shards)
def writes_the_items_of_ids_that_came_as_its_own(self: SlotMoving, transaction: Transaction, now: Now) -> None:
    _write(self, transaction, now)
    transaction.seen_new = [row._replace(shard_ids=[0] * len(row.keys)) if row.shard_ids else row
                            for row in transaction.seen_new]  # fmt: skip


@in_place_of(SlotMoving, "rolled_back", _has_shards)
def takes_slots_for_given_although_the_transaction_failed(self: SlotMoving, error: FoqsError) -> None:
    self._index.events.done(self._work.completion)


@in_place_of(SlotMoves, "expect", _has_shards)
def begins_a_move_in_memory_alone(self: SlotMoves, move: SlotMove, completion: Completion) -> None:
    self.close(frozenset(move.slots))
    completion.open_count += 1
    self._index.events.done(completion)
