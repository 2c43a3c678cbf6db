"""A transaction as statements: first what it reads, then what it writes, which may need what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from foqs.model import limits, order
from foqs.shard.port import (
    TIMER_LANE,
    ClaimEntries,
    FetchedRow,
    ItemRow,
    Refill,
    Rewrite,
    Transaction,
    TransactionResult,
)
from foqs.storage import statements as sql
from foqs.storage.columns import fetched_row, stored_row
from foqs.storage.exchange import Rows
from foqs.storage.formats import pack_entries, pack_keys
from foqs.storage.literals import chunks_by_bytes, item_row, key_conditions
from foqs.storage.packs.pack import PackPlan
from foqs.storage.prepared import Ahead, PreparedInserts

Mogrify = Callable[[str, tuple[object, ...]], str]
"""Puts escaped arguments into a statement."""


def read_statements(transaction: Transaction, plan: PackPlan, mogrify: Mogrify) -> list[str]:
    """READS_BEGIN, the refills, the fetches and READS_END; none where there is nothing to read."""
    script = [mogrify(*_refill_statement(refill)) for refill in transaction.refills]
    if plan.fetches:
        fetched = key_conditions("id", plan.fetches)
        script += [sql.FETCHES_BEGIN, *[sql.FETCH_ITEMS.format(condition) for condition, _ in fetched]]
    if not script:
        return []
    return [sql.READS_BEGIN.format(limits.TRANSACTION_CONTENTS_BYTES_MAX), *script, sql.READS_END]


def take_reads(transaction: Transaction, rows: list[Rows], result: TransactionResult) -> None:
    """What `read_statements` found."""
    ((result.read_us,),) = rows[-1]
    result.read_count = sum(map(len, rows[1:-1]))
    refilled = rows[1 : 1 + len(transaction.refills)]
    for refill, found in zip(transaction.refills, refilled, strict=True):
        result.refilled.append(_read_ahead(found, result) if refill.with_payload else found)
    fetched: dict[int, ItemRow | FetchedRow] = {}
    for found in rows[1 + len(transaction.refills) : -1]:
        for integers, *contents in found:
            row = _fetched(map(int, integers.split()[:-1]), contents, result.unread)
            fetched[row.key] = row
    result.fetched = fetched


def _read_ahead(found: Rows, result: TransactionResult) -> Rows:
    """The sort keys of a whole refill; its contents go to `result.read_ahead`."""
    sort_keys: Rows = []
    for integers, *contents in found:
        urgency, due_at, *others = map(int, integers.split()[:-1])
        row = _fetched(others, contents, result.unread)
        sort_keys.append((urgency, due_at, row.key, 0, 0))
        result.read_ahead[row.key] = row
    return sort_keys


def _fetched(integers: Iterable[int], contents: list[bytes | None], unread: set[int]) -> FetchedRow:
    """A row whose contents are empty, and its key in `unread`, when those before it filled what one may read."""
    row = fetched_row(integers, contents)
    if contents[0] is None:
        unread.add(row.key)
    return row


@dataclass(frozen=True, slots=True)
class Writes:
    """`ahead` are commands that go before the statements, and `statements` all that is up to COMMIT.

    The last two are not look-ups, and as many as `look_up_count` before them are.
    """

    ahead: list[bytes]
    statements: list[str]
    look_up_count: int


def write_script(
    transaction: Transaction,
    plan: PackPlan,
    result: TransactionResult,
    epoch: int,
    mogrify: Mogrify,
    prepared: PreparedInserts | None,
    promoted: Sequence[str],
    rewrites: Sequence[str],
) -> Writes:
    """The writer row comes last: with another epoch than ours in it the statement fails, and nothing is committed.

    `promoted` are the rows of what leaves packs, and `rewrites` the statements of rewrites: they may be thousands, and
    are made before so that the event loop can turn.
    """
    script = [sql.DELETE_TOPICS.format(*chunk) for chunk in key_conditions("number", transaction.topics_gone)]
    script += [mogrify(sql.INSERT_NAMESPACE, (number, name)) for number, name in transaction.namespaces_new]
    script += [
        mogrify(sql.INSERT_TOPICS, (topic.number, topic.namespace, topic.name.encode()))
        for topic in transaction.topics_new
    ]
    packs = [(pack.id, pack.contents) for pack in plan.packs_new]
    ahead = Ahead([], plan.inserts, packs) if prepared is None else prepared.ahead(plan.inserts, packs)
    script += [sql.INSERT_ITEMS.format(values) for values in chunks_by_bytes([*map(item_row, ahead.rest)])]
    script += [sql.INSERT_STORED_ITEMS.format(values) for values in chunks_by_bytes(promoted)]
    insert_pack = sql.INSERT_PACK.format("%s", "%s")
    script += [mogrify(insert_pack, pack) for pack in ahead.packs_rest]
    script += [
        mogrify(sql.INSERT_CLAIM, (claim.id, claim.due_at, int(claim.is_ahead), _entries(claim, result)))
        for claim in transaction.claims
    ]
    script += [mogrify(sql.REWRITE_CLAIM, (_entries(c, result), c.id)) for c in transaction.claims_rewritten]
    script += rewrites
    if plan.tombstone is not None:
        tombstone_id, keys_gone = plan.tombstone
        script.append(mogrify(sql.INSERT_TOMBSTONE, (tombstone_id, pack_keys(keys_gone))))
    for statement, keys in (
        (sql.WAKE_ITEMS, transaction.wakes),
        (sql.DELETE_ITEMS, plan.deletes),
        (sql.DELETE_PACKS, plan.packs_gone),
        (sql.DELETE_TOMBSTONES, plan.tombstones_gone),
        (sql.DELETE_CLAIMS, transaction.claims_gone),
    ):
        script += [statement.format(*chunk) for chunk in key_conditions("id", keys)]
    look_up = sql.READ_ITEMS if transaction.look_ups_with_payload else sql.READ_HEADS
    look_ups = [look_up.format(condition) for condition, _ in key_conditions("id", plan.look_ups)]
    marks = (transaction.number, transaction.delay_checkpoint, transaction.claim_checkpoint)
    last = (transaction.topic_number_last, transaction.steady_ms)
    mark = mogrify(sql.MARK_TRANSACTION.format(ahead.guard), (epoch, *marks, *last))
    return Writes(ahead.packets, [*script, *look_ups, mark, "COMMIT"], len(look_ups))


def rewrite_statements(rewrites: Sequence[Rewrite], mogrify: Mogrify) -> Iterator[str]:
    """A statement a row, but one for all rows that stay where they are and have the same counts then."""
    recounts: dict[tuple[int, int], list[int]] = {}
    for change in sorted(rewrites, key=lambda rewrite: rewrite.key):
        counts = (change.deliveries, change.failed_attempts)
        if change.is_in_place and change.metadata is None:
            recounts.setdefault(counts, []).append(change.key)
            continue
        sort_key = (change.lane, change.urgency, change.due_at)
        rest = (change.expires_at, change.metadata, change.death_reason)
        yield mogrify(sql.REWRITE_ITEM, (*sort_key, *counts, *rest, change.key))
    for counts, keys in recounts.items():
        yield from (sql.RECOUNT_ITEMS.format(*counts, *chunk) for chunk in key_conditions("id", keys))


def take_look_ups(look_up_count: int, rows: list[Rows], result: TransactionResult) -> None:
    """What the look-ups of a `write_script` found."""
    found = rows[len(rows) - 2 - look_up_count : len(rows) - 2]
    result.looked_up = {row.key: row for part in found for row in map(stored_row, part)}


def _entries(claim: ClaimEntries, result: TransactionResult) -> bytes:
    fetched = result.fetched
    keys = [item.key for item in claim.items]
    return pack_entries(keys, [(fetched.get(item.key) or item).deliveries + 1 for item in claim.items])


def _refill_statement(refill: Refill) -> tuple[str, tuple[int, ...]]:
    urgency, _, due_at, _, key = edge_arguments(refill.edge)
    if refill.lane == TIMER_LANE:
        return sql.REFILL_TIMERS, (due_at, due_at, key, refill.limit)
    statement = sql.REFILL_WITH_PAYLOAD if refill.with_payload else sql.REFILL
    return statement, (refill.lane, urgency, urgency, due_at, due_at, key, refill.limit)


def edge_arguments(edge: int) -> tuple[int, int, int, int, int]:
    """The arguments (urgency, urgency, due_at, due_at, key) of a scan of what stands after `edge`."""
    if edge == order.FIRST:
        return -(1 << 31) - 1, -(1 << 31) - 1, -1, -1, 0
    urgency, due_at = order.urgency_of(edge), order.due_at_of(edge)
    return urgency, urgency, due_at, due_at, order.key_of(edge)
