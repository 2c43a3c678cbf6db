"""Defects of items in bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from foqs.host.verbs.made import Made
from foqs.model import item as items
from foqs.model import order
from foqs.model.item import ShardItem
from foqs.shard.state import index, journal
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops import claim, insert
from foqs.storage.shard import formats
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, load_s_max=1.5, has_bundles=True))

_part_of = items.part_of
_enter_ids = Made.enter_ids
_add_bundle = formats._add_bundle
_begin = LeaseTable.begin


@in_place_of(LeaseTable, "_divided")
def leaves_the_receipts_of_parts_to_the_whole(self: LeaseTable, item: ShardItem, parts: list[ShardItem]) -> None:
    pass


@in_place_of(items, "part_of")
def gives_a_part_the_payloads_of_the_first_items(item: ShardItem, first: int, count: int) -> ShardItem:
    part = _part_of(item, first, count)
    if item.bundle is not None and item.bundle.payloads and part.content is not None and count == 1:
        part.content = part.content._replace(payload=item.bundle.payloads[0])
    return part


@in_place_of(items, "part_of")
def forgets_the_claim_of_a_part(item: ShardItem, first: int, count: int) -> ShardItem:
    part = _part_of(item, first, count)
    part.claim = None
    return part


@in_place_of(items, "part_of")
def lets_the_leases_of_parts_begin_anew(item: ShardItem, first: int, count: int) -> ShardItem:
    part = _part_of(item, first, count)
    part.lease_due_at += 10_000 if part.lease_due_at else 0
    return part


@in_place_of(ShardIndex, "end_leases")
def ends_the_lease_of_the_first_item_alone(self: ShardIndex, some: Iterable[ShardItem]) -> None:
    for item in some:
        del self.leases[item.key]


@in_place_of(ShardIndex, "add_leases")
def holds_the_first_item_of_a_bundle_alone(self: ShardIndex, some: Iterable[ShardItem]) -> None:
    for item in some:
        self.leases[item.key] = item


@in_place_of(index, "sort_keys_of")
def makes_the_first_item_of_a_bundle_ready_alone(some: Iterable[ShardItem]) -> list[int]:
    return [item.sort_key for item in some]


@in_place_of(journal, "keys_of")
def claims_the_first_item_of_a_bundle_alone(some: Iterable[ShardItem]) -> list[int]:
    return [item.key for item in some]


@in_place_of(insert, "undivided")
def makes_divided_bundles_ready_as_a_whole(some: Iterable[ShardItem]) -> list[ShardItem]:
    return list(some)


@in_place_of(claim, "undivided")
def ends_claims_of_divided_bundles_as_a_whole(some: Iterable[ShardItem]) -> list[ShardItem]:
    return list(some)


@in_place_of(ShardIndex, "_standing")
def claims_bundles_beyond_what_was_chosen(
    self: ShardIndex, item: ShardItem, key: int, sort_keys: Sequence[int], at: int
) -> ShardItem:
    return item if item.key == key else self.divide(item)[key - item.key]


@in_place_of(formats, "_add_bundle")
def packs_bundles_without_their_metadata(parts: list[bytes], item: ShardItem, bundle: Any) -> None:
    metadata, bundle.metadata = bundle.metadata, bytes(len(bundle.metadata))
    _add_bundle(parts, item, bundle)
    bundle.metadata = metadata


@in_place_of(Made, "enter_ids")
def gives_out_the_ids_of_a_bundle_in_another_order(self: Made, shard_id: int, by_position: list[str]) -> None:
    _enter_ids(self, shard_id, by_position)
    for _, positions in self.bundles:
        first, last = positions[0], positions[-1]
        by_position[first], by_position[last] = by_position[last], by_position[first]


@in_place_of(order, "sort_keys")
def places_the_items_of_a_bundle_apart(first: int, count: int) -> range:
    return range(first, first + (count << 17), 1 << 17)
