"""Defects of a shard's store: of its index of packs, and of what it says of a transaction of unknown outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

from foqs.shard.port import ItemRow, Rewrite, Transaction, TransactionResult
from foqs.storage.shard.export_pages import ExportCriteria, KeyPage, merged_by_key
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackedPlaces, PackIndex
from foqs.testing import fake_reader
from foqs.testing.fake_store import FakeStore
from tests.sim.planting import in_place_of

_plan = PackIndex.plan


@in_place_of(PackIndex, "plan")
def forgets_what_has_left_a_pack(self: PackIndex, transaction: Transaction) -> PackPlan:
    plan = _plan(self, transaction)
    if plan.tombstone is not None:
        del plan.tombstone.keys[1:]
    return plan


@in_place_of(PackIndex, "plan")
def forgets_too_early_what_has_left_a_pack(self: PackIndex, transaction: Transaction) -> PackPlan:
    plan = _plan(self, transaction)
    plan.tombstones_gone = list(self._tombstones)
    return plan


@in_place_of(PackIndex, "plan")
def gives_no_row_to_what_is_rewritten(self: PackIndex, transaction: Transaction) -> PackPlan:
    with patch.object(transaction, "rewrites", [at for at in transaction.rewrites if at.key not in self._packed]):
        return _plan(self, transaction)


@in_place_of(pack_index, "rewritten")
def promotes_items_as_they_were(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    return row


@in_place_of(PackIndex, "after")
def reads_on_past_packed_items(self: PackIndex, lane: int, edge: int) -> Iterator[int]:
    return iter(())


@in_place_of(FakeStore, "outcome")
def forgets_what_a_lost_transaction_packed(self: FakeStore, transaction: Transaction) -> TransactionResult | None:
    happened = self._reopened_number >= transaction.number
    return self._result if happened else None


@in_place_of(PackIndex, "fail")
def takes_what_failed_for_done(self: PackIndex, plan: PackPlan) -> None:
    self.commit(plan)


@in_place_of(PackIndex, "page")
def shows_rows_alone(self: PackIndex, lane: int, edge: int, limit: int, bytes_max: int) -> tuple[list[ItemRow], bool]:
    return [], False


@in_place_of(PackIndex, "export_places")
def exports_rows_alone(
    self: PackIndex, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]
) -> PackedPlaces:
    return PackedPlaces([], criteria.to_key)


@in_place_of(fake_reader, "merged_by_key")
def exports_beyond_what_both_parts_of_a_page_know(
    packed: KeyPage, stored: KeyPage, criteria: ExportCriteria
) -> KeyPage:
    return merged_by_key(packed._replace(up_to=criteria.to_key), stored._replace(up_to=criteria.to_key), criteria)


@in_place_of(FakeStore, "_promote_all")
def leaves_packs_to_the_next_owner(self: FakeStore) -> None:
    return None


@in_place_of(FakeStore, "outcome")
def takes_an_unknown_commit_for_failed(self: FakeStore, transaction: Transaction) -> TransactionResult | None:
    self.packs.fail(self.packs.plan(transaction))
    return None


@in_place_of(FakeStore, "outcome")
def takes_an_unknown_commit_for_done(self: FakeStore, transaction: Transaction) -> TransactionResult | None:
    self.packs.commit(self.packs.plan(transaction))
    return self._result
