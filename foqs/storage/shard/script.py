"""A transaction as statements: first its reads, then its writes, which can depend on them.

Only this module writes values into SQL text. It does so by hand, because the driver escapes each value with several
Python calls. Integers are formatted with `%d`, which refuses anything else; bytes become hex literals, which no content
can break out of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs.model import limits, order
from foqs.model.item import ShardItem, keys_of
from foqs.model.seen import BLOCK_IDS
from foqs.model.slot_changes import SlotChanges
from foqs.model.slots import pack_slots
from foqs.shard.port import (
    TIMER_LANE,
    ClaimEntries,
    FetchedRow,
    ItemRow,
    Refill,
    Rewrite,
    SeenRow,
    Transaction,
    TransactionResult,
)
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import (
    CONTENT_COLUMNS,
    FAILURE_COLUMNS,
    INSERTED_COLUMNS,
    ITEM_COLUMNS,
    fetched_row,
    inserted_integers,
    placed_row,
    stored_row,
)
from foqs.storage.sessions.exchange import Rows
from foqs.storage.sessions.whole_reads import check_found, only_row, without_end
from foqs.storage.shard.formats import pack_entries, pack_keys, pack_seen, unpack_seen
from foqs.storage.shard.held_ids import held_reads, held_writes, take_held
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.prepared import PREPARED_INSERT_ROWS, PreparedInserts

STATEMENT_IDS_MAX = 900
"""Ids in one list of SQL. From 1,000 on (in_predicate_conversion_threshold), MariaDB joins with a derived table."""

STATEMENT_RANGES_MAX = 64

_INSERT_SEEN: Final = sql.INSERT_SEEN.format("%s", "%s", "%s", "%s")
_RANGE_KEYS_MIN: Final = 8
_SPARSE: Final = 4
"""Keys spread over this many times their number contain no ranges worth finding."""
_VALUES = ["x'%s'" if column in CONTENT_COLUMNS else "%d" for column in INSERTED_COLUMNS]
_ROW = f"({','.join(_VALUES)})"
"""The values of statements.INSERT_ITEMS."""
_STORED_TEXTS = (*CONTENT_COLUMNS, *FAILURE_COLUMNS)
_STORED_VALUES = [
    "x'%s'" if column in _STORED_TEXTS else "%s" if column.is_nullable else "%d" for column in ITEM_COLUMNS
]
_STORED_ROW = f"({','.join(_STORED_VALUES)})"
"""A row of values for statements.INSERT_STORED_ITEMS."""


# ---- the reads of a transaction ----


def read_statements(transaction: Transaction, plan: PackPlan) -> list[str]:
    """Return READS_BEGIN, the refills, the fetches and READS_END; empty for a transaction without reads."""
    script = [_refill_statement(refill) for refill in transaction.refills]
    if plan.fetches:
        fetched = key_conditions("id", plan.fetches)
        script += [sql.FETCHES_BEGIN, *[sql.FETCH_ITEMS.format(condition) for condition, _ in fetched]]
    if not script:
        return []
    return [sql.READS_BEGIN.format(limits.TRANSACTION_CONTENTS_BYTES_MAX), *script, sql.READS_END]


def take_reads(transaction: Transaction, plan: PackPlan, rows: list[Rows], result: TransactionResult) -> None:
    """Take the rows that `read_statements` found. Raises ShortReadError if any are missing."""
    (result.read_us,) = only_row(rows[-1], "the end of the reads")
    refilled = [without_end(found) for found in rows[1 : 1 + len(transaction.refills)]]
    for refill, found in zip(transaction.refills, refilled, strict=True):
        result.refilled.append(_read_ahead(found, result) if refill.with_payload else found)
    fetched: dict[int, ItemRow | FetchedRow] = {}
    for found in rows[1 + len(transaction.refills) : -1]:
        for integers, *contents in found:
            row = _fetched(map(int, integers.split()[:-1]), contents, result.unread)
            fetched[row.key] = row
    check_found("claimed items", plan.fetches, fetched)
    result.fetched = fetched
    result.read_count = sum(map(len, refilled)) + len(fetched)


def _read_ahead(found: Rows, result: TransactionResult) -> Rows:
    """Return the sort keys of a whole refill, and put its contents into `result.read_ahead`."""
    sort_keys: Rows = []
    for integers, *contents in found:
        urgency, due_at, *others = map(int, integers.split()[:-1])
        row = _fetched(others, contents, result.unread)
        sort_keys.append((urgency, due_at, row.key, 0, 0))
        result.read_ahead[row.key] = row
    return sort_keys


def _fetched(integers: Iterable[int], contents: list[bytes | None], unread: set[int]) -> FetchedRow:
    """Build a row. If its contents were left out for their size, they are empty, and its key is added to `unread`."""
    row = fetched_row(integers, contents)
    if contents[0] is None:
        unread.add(row.key)
    return row


def seen_statements(transaction: Transaction) -> list[str]:
    """Return the reads of held dedup ids, and of blocks of their log; adjacent blocks are one range."""
    by_namespace: dict[int, list[int]] = {}
    for namespace, block in transaction.seen_reads:
        by_namespace.setdefault(namespace, []).append(block)
    script = [] if transaction.held is None else held_reads(transaction.held)
    for namespace, blocks in by_namespace.items():
        conditions = [
            f"first BETWEEN {first * BLOCK_IDS:d} AND {last * BLOCK_IDS + BLOCK_IDS - 1:d}"
            for first, last in _runs(sorted(set(blocks)))
        ]
        script += [
            sql.READ_SEEN.format(namespace, " OR ".join(conditions[start : start + STATEMENT_RANGES_MAX]))
            for start in range(0, len(conditions), STATEMENT_RANGES_MAX)
        ]
    return script


def take_seen(transaction: Transaction, rows: list[Rows], result: TransactionResult, shard_id: int) -> None:
    """Take the rows that `seen_statements` found. Raises ShortReadError if any are missing."""
    held_count = 0 if transaction.held is None else len(held_reads(transaction.held))
    for found in rows[:held_count]:
        take_held(without_end(found), result.held, shard_id)
    for found in rows[held_count:]:
        for values in without_end(found):
            row = seen_row(values)
            result.seen.setdefault((row.namespace, row.first // BLOCK_IDS), []).append(row)


def seen_row(values: Sequence[Any]) -> SeenRow:
    """Convert the columns of READ_SEEN. Raises UnknownFormatError."""
    namespace, first, at_ms, entries = values
    return SeenRow(namespace, first, at_ms, *unpack_seen(entries))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each run of consecutive numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


# ---- its writes ----


@dataclass(frozen=True, slots=True)
class Writes:
    """The commands sent `ahead` of the statements, and all `statements` up to COMMIT.

    The `look_up_count` statements before the last two are look-ups.
    """

    ahead: list[bytes]
    statements: list[str]
    look_up_count: int


def write_script(
    transaction: Transaction,
    plan: PackPlan,
    result: TransactionResult,
    epoch: int,
    shard_id: int,
    prepared: PreparedInserts | None,
    promoted: Sequence[str] = (),
    rewrites: Sequence[str] = (),
) -> Writes:
    """Build the writes. The writer row comes last, and fails the script if it has another epoch than ours.

    It also fails if the statements have found fewer rows to change than they name. The owner knows each of these rows,
    so in that case its knowledge, or its reads, must be wrong.

    `promoted` are the rows for items that leave packs, and `rewrites` the statements of rewrites. There can be
    thousands, so the caller makes them in slices that let the event loop turn.
    """
    script: list[str] = [sql.COUNT_NO_CHANGES]
    changed_count = len(plan.rewrites)
    if transaction.topics_gone:
        changed_count += _add_by_keys(script, sql.DELETE_TOPICS, transaction.topics_gone, "number")
    for namespace, name in transaction.namespaces_new:
        script.append(filled(sql.INSERT_NAMESPACE, namespace, name))
    if transaction.topics_new:
        names = [(topic.number, topic.namespace, topic.name.encode()) for topic in transaction.topics_new]
        script += [filled(sql.INSERT_TOPICS, *values) for values in names]
    ahead: list[bytes] = []
    rows, guard = plan.inserts, sql.NONE_AHEAD
    seen = _seen_rows(transaction, shard_id)
    if prepared is not None and (plan.packs_new or seen or len(rows) >= PREPARED_INSERT_ROWS):
        commands = prepared.ahead(rows, [(pack.id, pack.contents) for pack in plan.packs_new], seen)
        ahead, rows, guard = commands.packets, commands.rest, commands.guard
    if rows:
        script += [sql.INSERT_ITEMS.format(values) for values in chunks_by_bytes([*map(item_row, rows)])]
    if placed := [stored_row_literal(placed_row(item)) for item in transaction.inserts_placed]:
        promoted = [*placed, *promoted]
    if promoted:
        script += [sql.INSERT_STORED_ITEMS.format(values) for values in chunks_by_bytes(promoted)]
    if prepared is None:
        script += [filled(sql.INSERT_PACK.format("%s", "%s"), pack.id, pack.contents) for pack in plan.packs_new]
        script += [filled(_INSERT_SEEN, *values) for values in seen]
    script += _copy_statements(transaction)
    script += _dedup_statements(transaction, shard_id)
    for claim in transaction.claims:
        entries = _entries(claim, result)
        script.append(filled(sql.INSERT_CLAIM, claim.id, claim.due_at, int(claim.is_ahead), entries))
    for claim in transaction.claims_rewritten:
        script.append(filled(sql.REWRITE_CLAIM, _entries(claim, result), claim.id))
    script += rewrites
    if plan.tombstone is not None:
        script.append(filled(sql.INSERT_TOMBSTONE, plan.tombstone.id, pack_keys(plan.tombstone.keys)))
    for wake, keys in ((sql.WAKE_ITEMS, transaction.wakes), (sql.WAKE_IN_PLACE, transaction.wakes_in_place)):
        changed_count += _add_by_keys(script, wake, keys) if keys else 0
    if plan.deletes:
        changed_count += _add_by_keys(script, sql.DELETE_ITEMS, plan.deletes)
    if plan.packs_gone:
        changed_count += _add_by_keys(script, sql.DELETE_PACKS, plan.packs_gone)
    if plan.tombstones_gone:
        changed_count += _add_by_keys(script, sql.DELETE_TOMBSTONES, plan.tombstones_gone)
    if transaction.claims_gone:
        changed_count += _add_by_keys(script, sql.DELETE_CLAIMS, transaction.claims_gone)
    written_count = len(script)
    if plan.look_ups:
        look_up = sql.READ_ITEMS if transaction.look_ups_with_payload else sql.READ_HEADS
        script += [look_up.format(condition) for condition, _ in key_conditions("id", plan.look_ups)]
    look_up_count = len(script) - written_count
    marks = (transaction.number, transaction.delay_checkpoint, transaction.claim_checkpoint)
    if changed_count:
        guard = f"{guard} AND {_all_changed(script, bool(plan.rewrites)).format(changed_count)}"
    else:
        del script[0]
    mark = sql.MARK_TRANSACTION.format(guard)
    script.append(filled(mark, epoch, *marks, transaction.topic_number_last, transaction.steady_ms))
    script.append("COMMIT")
    return Writes(ahead, script, look_up_count)


def _all_changed(script: list[str], has_rewrites: bool) -> str:
    """Return the guard for the rows changed by a script, and remove the counts that the guard makes itself."""
    if script[-1] is not sql.COUNT_CHANGED:
        return sql.ALL_CHANGED
    script.pop()
    if has_rewrites or sql.COUNT_CHANGED in script:
        return sql.LAST_CHANGED
    del script[0]
    return sql.ONLY_CHANGED


def _copy_statements(transaction: Transaction) -> Iterator[str]:
    for namespace, job in transaction.copies_ended:
        yield filled(sql.END_COPY, namespace, job.encode())
    for (namespace, job), up_to in transaction.copies_begun:
        yield filled(sql.BEGIN_COPY, namespace, job.encode(), up_to)
    for (namespace, job), position, count in transaction.copy_steps:
        yield filled(sql.MOVE_COPY, position, count, namespace, job.encode())


def _dedup_statements(transaction: Transaction, shard_id: int) -> Iterator[str]:
    """Yield the changes of dedup ids and their slots, besides the new ids of the log."""
    if transaction.held is not None:
        yield from held_writes(transaction.held, shard_id)
    for span in transaction.seen_gone:
        yield filled(sql.DELETE_SEEN, *span)
    for namespace in transaction.seen_over:
        yield filled(sql.FORGET_ARRIVED, namespace)
    for image, first, end in transaction.seen_parts_gone:
        yield filled(sql.DELETE_SEEN_PARTS, *image, first, end)
    for key, number, body in transaction.seen_parts_new:
        yield filled(sql.INSERT_SEEN_PART, *key, number, body)
    if transaction.slot_changes is not None:
        yield from _slot_statements(transaction.slot_changes)


def _slot_statements(changes: SlotChanges) -> Iterator[str]:
    if changes.arriving is not None:
        move = changes.arriving
        yield filled(sql.BEGIN_ARRIVAL, move.version, move.from_shard, pack_slots(move.slots))
    if changes.appended is not None:
        namespace, version, slots, *numbers = changes.appended
        yield filled(sql.NOTE_ARRIVED, namespace, version, pack_slots(slots), *numbers)
    if changes.kept is not None:
        yield filled(sql.KEEP_SLOTS, changes.kept.version, changes.kept.packed())
    if changes.has_arrived:
        yield sql.END_ARRIVAL


def _seen_rows(transaction: Transaction, shard_id: int) -> list[tuple[int, int, int, bytes]]:
    return [
        (
            row.namespace,
            row.first,
            row.at_ms,
            pack_seen(row.digests, row.shard_ids or [shard_id] * len(row.keys), row.keys, row.copies_counts),
        )
        for row in transaction.seen_new
    ]


def rewrite_statements(rewrites: Sequence[Rewrite]) -> Iterator[str]:
    """Yield one statement per row, but only one for all rows that stay in place and get the same counts and error."""
    recounts: dict[tuple[int, int, bytes | None, int], list[int]] = {}
    for change in sorted(rewrites, key=lambda rewrite: rewrite.key):
        counts = (change.deliveries, change.failed_attempts)
        if change.is_in_place and change.metadata is None:
            recounts.setdefault((*counts, change.error, change.errors_bytes_max), []).append(change.key)
            continue
        sort_key = (change.lane, change.urgency, change.due_at)
        rest = (change.expires_at, change.metadata, change.death_reason)
        if change.error is None:
            yield filled(sql.REWRITE_ITEM, *sort_key, *counts, *rest, change.key)
        else:
            of_error = change.error, change.errors_bytes_max
            yield filled(sql.REWRITE_FAILED_ITEM, *sort_key, *counts, *rest, *of_error, change.key)
        if change.place is not None:
            yield sql.REPLACE_ITEM.format(change.place, change.key)
    for (deliveries, failed_attempts, error, bytes_max), keys in recounts.items():
        statement = sql.RECOUNT_ITEMS if error is None else sql.RECOUNT_FAILED_ITEMS
        values = () if error is None else (_bytes(error), bytes_max)
        for chunk in key_conditions("id", keys):
            yield from (statement.format(deliveries, failed_attempts, *values, *chunk), sql.COUNT_CHANGED)


def take_look_ups(look_up_count: int, rows: list[Rows]) -> dict[int, ItemRow]:
    """Return the rows that the look-ups of a `write_script` found. Raises ShortReadError if any are missing."""
    found = map(without_end, rows[len(rows) - 2 - look_up_count : len(rows) - 2])
    return {row.key: row for part in found for row in map(stored_row, part)}


def _entries(claim: ClaimEntries, result: TransactionResult) -> bytes:
    fetched = result.fetched
    deliveries: list[int] = []
    for item in claim.items:
        deliveries += [(fetched.get(item.key) or item).deliveries + 1] * item.count
    return pack_entries(keys_of(claim.items), deliveries)


def _refill_statement(refill: Refill) -> str:
    urgency, _, due_at, _, key = edge_arguments(refill.edge)
    if refill.lane == TIMER_LANE:
        return filled(sql.REFILL_TIMERS, due_at, due_at, key, refill.limit)
    statement = sql.REFILL_WITH_PAYLOAD if refill.with_payload else sql.REFILL
    return filled(statement, refill.lane, urgency, urgency, due_at, due_at, key, refill.limit)


def edge_arguments(edge: int) -> tuple[int, int, int, int, int]:
    """Return the arguments (urgency, urgency, due_at, due_at, key) of a scan that begins after `edge`."""
    if edge == order.FIRST:
        return -(1 << 31) - 1, -(1 << 31) - 1, -1, -1, 0
    urgency, due_at = order.urgency_of(edge), order.due_at_of(edge)
    return urgency, urgency, due_at, due_at, order.key_of(edge)


# ---- values as SQL text ----


def filled(statement: str, *values: int | bytes | None) -> str:
    """Return the statement with these values in place of its `%s`."""
    return statement % tuple([_integer(value) if isinstance(value, int) else _bytes(value) for value in values])


def item_row(item: ShardItem) -> str:
    assert item.content is not None
    return _ROW % (*inserted_integers(item), *map(bytes.hex, item.content))


def stored_row_literal(row: ItemRow) -> str:
    head = [value if isinstance(value, int) else _bytes(value) for value in row[:-2]]
    return _STORED_ROW % (*head, *map(bytes.hex, row.content), row.errors.hex())


def _integer(value: int) -> str:
    return "%d" % value  # noqa: UP031


def _bytes(value: bytes | None) -> str:
    return "NULL" if value is None else f"x'{value.hex()}'"


def chunks_by_bytes(rows: Sequence[str]) -> Iterator[str]:
    """Join the rows into VALUES lists of at most limits.STATEMENT_BYTES_MAX, or one row if it alone is larger."""
    start = size = 0
    for position, row in enumerate(rows):
        if size and size + len(row) > limits.STATEMENT_BYTES_MAX:
            yield ",".join(rows[start:position])
            start, size = position, 0
        size += len(row) + 1
    if size:
        yield ",".join(rows[start:])


def _add_by_keys(script: list[str], statement: str, keys: Collection[int], column: str = "id") -> int:
    """Add the statements that change the rows with these keys and count them; return the number of keys."""
    changed_count = 0
    for condition, count in key_conditions(column, keys):
        script += [statement.format(condition, count), sql.COUNT_CHANGED]
        changed_count += count
    return changed_count


def key_conditions(column: str, keys: Collection[int]) -> Iterator[tuple[str, int]]:
    """Yield conditions that name all keys, with their counts, sorted so that locks are always taken in one order."""
    if len(keys) == 1:
        (key,) = keys
        yield f"{column} IN ({key:d})", 1
        return
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), STATEMENT_IDS_MAX):
        part = ordered[start : start + STATEMENT_IDS_MAX]
        yield _condition(column, part), len(part)


def _condition(column: str, ordered: Sequence[int]) -> str:
    """Return a condition for the keys, with runs as ranges, because a range costs the server less than a list."""
    if ordered[-1] - ordered[0] >= _SPARSE * len(ordered):
        return f"{column} IN ({_listed(ordered)})"
    ranges: list[str] = []
    singles: list[int] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            if end - start >= _RANGE_KEYS_MIN:
                ranges.append(f"{column} BETWEEN {ordered[start]:d} AND {ordered[end - 1]:d}")
            else:
                singles += ordered[start:end]
            start = end
    if singles:
        ranges.append(f"{column} IN ({_listed(singles)})")
    return " OR ".join(ranges)


def _listed(keys: Sequence[int]) -> str:
    return ",".join(["%d"] * len(keys)) % tuple(keys)
