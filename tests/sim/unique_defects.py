"""Defects of ids that items hold: of their rows, of what a check finds, and of items whose slots have moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from foqs.host.registry.slot_moves import SlotMover
from foqs.host.verbs.distant_holders import DistantHolders, HeldElsewhere
from foqs.model.clock import Now
from foqs.model.held import HeldChanges
from foqs.model.item import ShardItem
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.ops.check import Check, Checking
from foqs.shard.state.ops.free import Freeing
from foqs.shard.state.ops.hold import Holds
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, load_s_max=2.0, is_unique=True))

_first_of, _note_ends, _init, _write = Checking._first_of, Holds.note_ends, Holds.__init__, Freeing.write


@in_place_of(Holds, "hold")
def writes_no_row_with_the_item(
    self: Holds, transaction: Transaction, digest: bytes, copies: Sequence[ShardItem]
) -> None:
    self.namespaces.add(copies[0].topic.namespace)


@in_place_of(Holds, "note_ends")
def leaves_their_ids_to_dead_letters(self: Holds, transaction: Transaction) -> None:
    _note_ends(self, transaction)
    if transaction.held is not None:
        transaction.held.ended = list(transaction.deletes)


@in_place_of(Holds, "note_ends")
def leaves_their_ids_to_deleted_items(self: Holds, transaction: Transaction) -> None:
    _note_ends(self, transaction)
    if transaction.held is not None:
        transaction.held.ended = [key for key in transaction.held.ended if key not in transaction.deletes]


@in_place_of(Holds, "note_ends")
def frees_the_id_of_an_item_that_is_given_back(self: Holds, transaction: Transaction) -> None:
    _note_ends(self, transaction)
    if transaction.rewrites:
        transaction.held = transaction.held or HeldChanges()
        transaction.held.ended += [rewrite.key for rewrite in transaction.rewrites]


@in_place_of(Checking, "_first_of")
def does_not_see_the_holder(self: Checking, check: Check, result: TransactionResult) -> Any:
    result.held = {}
    return _first_of(self, check, result)


@in_place_of(Checking, "_first_of")
def takes_a_holder_elsewhere_for_one_of_its_own(self: Checking, check: Check, result: TransactionResult) -> Any:
    return _first_of(self, check, result)[0], False


def _has_new_owners(profile: Profile) -> bool:
    return bool(profile.host_fault_rate or profile.server_fault_rate or profile.drain_rate)


@in_place_of(Holds, "__init__", _has_new_owners)
def does_not_know_after_a_take_over_where_ids_are_held(self: Holds, shard_id: int, namespaces: Iterable[int]) -> None:
    _init(self, shard_id, ())


def _moves_slots(profile: Profile) -> bool:
    return profile.shard_count > 1


@in_place_of(SlotMover, "_copy_held", _moves_slots)
async def moves_slots_without_the_ids_that_items_hold(*_: object) -> None:
    return None


@in_place_of(DistantHolders, "_ended", _moves_slots)
async def takes_items_elsewhere_for_living_ones(*_: object) -> list[HeldElsewhere]:
    return []


@in_place_of(DistantHolders, "_ended", _moves_slots)
async def takes_items_elsewhere_for_ended_ones(
    self: DistantHolders, namespace: object, shard_id: int, held: Sequence[HeldElsewhere]
) -> list[HeldElsewhere]:
    return list(held)


@in_place_of(Freeing, "write")
def says_that_ids_are_free_and_leaves_them_held(self: Freeing, transaction: Transaction, now: Now) -> None:
    _write(self, transaction, now)
    if transaction.held is not None:
        transaction.held.freed = []
