"""What is read of rows, and the packed items that belong among them."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from foqs.model import order
from foqs.model.calls import NO_CONTENT
from foqs.shard.port import FetchedRow, ItemRow, Refill, Transaction, TransactionResult
from foqs.storage.packs.index import PackIndex


def add_packed(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction read of rows. To be called before the index commits the transaction's plan."""
    plan = index.plan(transaction)
    result.packed_count, result.promoted_count = plan.packed_count, len(plan.promoted)
    for position, refill in enumerate(transaction.refills):
        _add_to_refill(index, refill, position, result)
    fetched = index.rows([item.key for item in transaction.fetches])
    if fetched:
        result.fetched = {**result.fetched, **fetched}


def _add_to_refill(index: PackIndex, refill: Refill, position: int, result: TransactionResult) -> None:
    packed = list(islice(index.after(refill.lane, refill.edge), refill.limit))
    if not packed:
        return
    found = [(order.urgency_of(at), order.due_at_of(at), order.key_of(at), 0, 0) for at in packed]
    merged = sorted(result.refilled[position] + found)[: refill.limit]
    result.refilled[position] = merged
    if refill.with_payload:
        rows = index.rows([key for _, _, key, _, _ in merged])
        result.read_ahead.update([(key, _fetched(row)) for key, row in rows.items()])


def _fetched(row: ItemRow) -> FetchedRow:
    return FetchedRow(
        row.key, row.enqueued_at, row.expires_at, row.lease_ms, row.at_most_once, row.deliveries, row.failed_attempts,
        row.content,
    )  # fmt: skip


def add_looked_up(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction looked up. To be called after the index has committed the transaction's plan."""
    assert result.looked_up is not None
    for key, row in index.rows(transaction.look_ups).items():
        result.looked_up[key] = row if transaction.look_ups_with_payload else row._replace(content=NO_CONTENT)


Page = tuple[list[ItemRow], bool]
"""Rows in their order, and whether there may be more behind them."""


def merged_pages(packed: Page, stored: Page, limit: int, bytes_max: int) -> Page:
    """One page of what was packed and of what was stored a moment later: an item of both has got a row meanwhile."""
    rows = {row.key: row for row in [*packed[0], *stored[0]]}
    # Behind the last row of a page that goes on, those of the other one need not be the next ones.
    known_up_to = min([_place(page[-1]) for page, more in (packed, stored) if page and more], default=None)
    merged: list[ItemRow] = []
    size_bytes = 0
    for row in sorted(rows.values(), key=_place):
        size_bytes += row.content.size_bytes
        is_full = len(merged) == limit or (bool(merged) and size_bytes > bytes_max)
        if is_full or (known_up_to is not None and _place(row) > known_up_to):
            return merged, True
        merged.append(row)
    return merged, packed[1] or stored[1]


class ExpiredPage(NamedTuple):
    """A page of a walk through all items of a shard."""

    keys: list[int]
    """Of the items that have expired."""
    last_key: int
    """To go on after; 0 when there are no more rows."""
    expires_first_ms: int
    """When the first of the page's items expires or has expired, dead letters excepted; limits.NEVER_MS for none."""


def with_packed(packed: tuple[list[int], int], stored: ExpiredPage) -> ExpiredPage:
    """A page with the packed items too, as `PackIndex.expired` has found them."""
    keys = dict.fromkeys([*packed[0], *stored.keys])
    return ExpiredPage([*keys], stored.last_key, min(packed[1], stored.expires_first_ms))


def _place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key
