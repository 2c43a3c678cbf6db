"""Rows of items in the fake databases: made, rewritten, and read in the forms that the statements return."""

from __future__ import annotations

from foqs.model.calls import NO_CONTENT
from foqs.model.failures import with_entry
from foqs.model.item import ShardItem
from foqs.shard.port import TIMER_LANE, ClaimedRow, FetchedRow, ItemRow, Rewrite


def fetched_row(row: ItemRow) -> FetchedRow:
    return FetchedRow._make([getattr(row, name) for name in FetchedRow._fields])._replace(was_dead=int(row.was_dead))


def claimed_row(row: ItemRow) -> ClaimedRow:
    return ClaimedRow._make([getattr(row, name) for name in ClaimedRow._fields])._replace(was_dead=int(row.was_dead))


def without_content(row: ItemRow) -> ItemRow:
    return row._replace(death_reason=None if row.death_reason is None else b"", content=NO_CONTENT, errors=b"")


def new_row(item: ShardItem) -> ItemRow:
    delayed, number = item.due_at > item.enqueued_at, item.topic.number
    assert item.content is not None
    return ItemRow(
        item.key, TIMER_LANE if delayed else number, 0 if delayed else item.priority, item.due_at, number,
        item.priority, item.enqueued_at, item.expires_at, item.lease_ms, int(item.at_most_once), 0, 0, None, None,
        item.content,
    )  # fmt: skip


def _errors_after(row: ItemRow, rewrite: Rewrite) -> bytes:
    return row.errors if rewrite.error is None else with_entry(rewrite.error, row.errors, rewrite.errors_bytes_max)


def rewritten_row(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    sort_key = (row.lane, row.urgency, row.due_at)
    lane, urgency, due_at = sort_key if rewrite.is_in_place else (rewrite.lane, rewrite.urgency, rewrite.due_at)
    content = row.content
    return row._replace(
        lane=lane,
        urgency=urgency,
        due_at=due_at,
        deliveries=rewrite.deliveries,
        failed_attempts=rewrite.failed_attempts,
        content=content if rewrite.metadata is None else content._replace(metadata=rewrite.metadata),
        death_reason=row.death_reason if rewrite.death_reason is None else rewrite.death_reason,
        expires_at=row.expires_at if rewrite.expires_at is None else rewrite.expires_at,
        place=row.place if rewrite.place is None else rewrite.place,
        errors=_errors_after(row, rewrite),
    )
