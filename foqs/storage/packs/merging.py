"""What is read of rows, and the packed items that belong among them."""

from __future__ import annotations

from itertools import islice

from foqs.model import order
from foqs.shard.port import FetchedRow, ItemRow, Refill, Transaction, TransactionResult
from foqs.storage.packs.index import PackIndex


def add_packed(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction read of rows. To be called before the index commits the transaction's plan."""
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
        row.metadata, row.payload,
    )  # fmt: skip


def add_looked_up(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction looked up. To be called after the index has committed the transaction's plan."""
    assert result.looked_up is not None
    for key, row in index.rows(transaction.look_ups).items():
        result.looked_up[key] = row if transaction.look_ups_with_payload else _head(row)


def _head(row: ItemRow) -> ItemRow:
    return ItemRow(
        row.key, row.lane, row.urgency, row.due_at, row.topic, row.priority, row.enqueued_at, row.expires_at,
        row.lease_ms, row.at_most_once, row.deliveries, row.failed_attempts, None, b"", b"",
    )  # fmt: skip


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
        size_bytes += len(row.metadata) + len(row.payload)
        is_full = len(merged) == limit or (bool(merged) and size_bytes > bytes_max)
        if is_full or (known_up_to is not None and _place(row) > known_up_to):
            return merged, True
        merged.append(row)
    return merged, packed[1] or stored[1]


def _place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key
