"""Defects of routing: of who makes the slot table, of which one holds, and of where items with dedup ids go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from foqs.contract.requests import NewItem
from foqs.host.admission.account import Charge
from foqs.host.admission.placement import Placement
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.verbs import enqueues, serial_part
from foqs.host.verbs.enqueues import Enqueues
from foqs.model.calls import EnqueueResult, PositionErrors
from foqs.model.errors import FoqsError, NotWrittenError
from foqs.model.namespace import DedupWhenAway, Namespace
from foqs.model.slots import SlotTable, first_table
from foqs.shard.state.engine import ShardState
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of, plant


def _has_shards(profile: Profile) -> bool:
    return profile.shard_count > 1


_place_ids, _enqueue_once, _of_slot = Placement.place_ids, Enqueues._enqueue_once, serial_part.of_slot
_keep = Slots._keep


@in_place_of(NamespaceCalls, "_make_slots")
async def makes_a_table_without_asking_the_owners(self: NamespaceCalls) -> None:
    table = first_table(list(self._slots._shards.writers))
    await self._calls.run(lambda meta: meta.slots.restore(table))
    await self._namespaces.refresh()


@in_place_of(Slots, "note")
def goes_by_the_table_of_the_lower_version(self: Slots, table: SlotTable, source: str) -> None:
    if table.version and (not self.table.version or table.version < self.table.version):
        self.table = table


@in_place_of(Slots, "note")
def forgets_its_table_with_the_meta_database(self: Slots, table: SlotTable, source: str) -> None:
    self.table = table


@in_place_of(Slots, "_keep")
async def takes_for_granted_that_the_shard_keeps_its_copy(self: Slots, shard: ShardState) -> None:
    if self.table.version:
        self._kept[shard.shard_id] = (shard, self.table)
    else:
        await _keep(self, shard)


def _takes_by_its_own_table(self: Slots, shard: ShardState, slot: int) -> bool:
    return bool(self.table.version) and self.table.shards[slot] == shard.shard_id


plant(
    __name__,
    "sends_ids_to_shards_whose_copies_it_has_not_read",
    lambda: patch.multiple(Slots, keeps=lambda self, shard: True, takes=_takes_by_its_own_table),
    _has_shards,
)


@in_place_of(Placement, "place_ids", _has_shards)
def sends_all_ids_of_a_call_where_the_first_one_goes(
    self: Placement,
    namespace: Namespace,
    news: Sequence[NewItem],
    positions: Sequence[int],
    errors: Any,
    away: Any = (),
) -> Any:
    placed, anywhere = _place_ids(self, namespace, news, positions[:1], errors, away)
    if not placed:
        return _place_ids(self, namespace, news, positions, errors, away)
    return dict.fromkeys(placed, positions), anywhere


@in_place_of(Placement, "place_ids", _has_shards)
def sends_ids_elsewhere_although_the_namespace_refuses(
    self: Placement,
    namespace: Namespace,
    news: Sequence[NewItem],
    positions: Sequence[int],
    errors: Any,
    away: Any = (),
) -> Any:
    settings = replace(namespace.settings, dedup_when_away=DedupWhenAway.ACCEPT)
    return _place_ids(self, replace(namespace, settings=settings), news, positions, errors, away)


@in_place_of(Placement, "place_ids", _has_shards)
def accepts_items_without_their_ids_although_the_shard_is_there(
    self: Placement,
    namespace: Namespace,
    news: Sequence[NewItem],
    positions: Sequence[int],
    errors: Any,
    away: Any = (),
) -> Any:
    placed, anywhere = _place_ids(self, namespace, news, positions, errors, away)
    if namespace.settings.dedup_when_away is DedupWhenAway.ACCEPT and len(placed) > 1:
        anywhere += placed.pop(next(iter(placed)))
    return placed, anywhere


@in_place_of(enqueues, "_by_id", _has_shards)
def makes_all_of_equal_ids_of_a_call_that_it_accepts(
    namespace: Namespace, news: Sequence[NewItem], positions: Sequence[int]
) -> list[list[int]]:
    return [[position] for position in positions]


@in_place_of(Enqueues, "_enqueue_once", _has_shards)
async def moves_an_evicted_batch_with_ids_to_another_shard(
    self: Enqueues,
    namespace: Namespace,
    items: Sequence[NewItem],
    serial: frozenset[str],
    result: EnqueueResult,
    charge: Charge,
    costs: Any,
    away: Any = (),
) -> None:
    failed: FoqsError | None = None
    with patch.object(enqueues, "of_slot", lambda error: error):
        try:
            await _enqueue_once(self, namespace, items, serial, result, charge, costs, away)
        except FoqsError as error:
            failed = error
    evicted = [position for position, error in result.errors.items() if isinstance(error, NotWrittenError)]
    errors: PositionErrors = result.errors
    for position in evicted:
        del errors[position]
    if evicted:
        await self._enqueue_anywhere(namespace, items, evicted, result, ())
    elif failed is not None:
        raise failed
