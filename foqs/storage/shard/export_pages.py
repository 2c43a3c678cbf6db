"""Pages of an export: the items of a key range in the order of their keys, rows and packed items together.

A page is planned on the event loop, where packed items are known, and read on a thread, from one snapshot. The next
page begins after its last key, so any reader can continue without this page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from foqs.model import ids
from foqs.model.calls import ItemContent, ItemState
from foqs.shard.port import ItemRow
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import CONTENT_COLUMNS, FAILURE_COLUMNS, ITEM_COLUMNS, names, stored_row
from foqs.storage.sessions.whole_reads import only_row
from foqs.storage.shard.script import key_conditions

RunStatement = Callable[..., Any]

SCAN_ROWS = 5_000
"""Rows that one page examines at most, in the order of their keys, wanted or not."""
CHUNK_ROWS = 100
"""Rows in one answer of the server. The reading thread lets the event loop run between two answers."""
FIRST_CHUNK_ROWS = 10
"""Rows in the first answer, whose size determines the size of the next ones."""
EPOCHS_SAMPLED_MAX = 64
"""Epochs of keys that a sample examines separately. The last one stands for all later epochs."""
CELLS_PER_EPOCH = 32
"""Parts of an epoch's keys; a sample measures each part once."""
SAMPLE_ROWS = 50
"""Rows after a key whose spread measures the density of keys there."""

_LANES = {ItemState.READY: "lane > 0", ItemState.LEASED: "lane > 0", ItemState.DELAYED: "lane = 0",
          ItemState.DEAD: "lane < 0"}  # fmt: skip


class ExportCriteria(NamedTuple):
    """The request for a page of a shard's rows."""

    after_key: int
    to_key: int
    limit: int
    bytes_max: int
    states: frozenset[ItemState]
    """Only the shard's state distinguishes ready from leased items, so a request for one state gets both."""
    topics: frozenset[int] | None
    """Numbers of the topics, limits.EXPORT_TOPICS_MAX at most; None for all topics of `namespace` with `prefix`."""
    namespace: int
    prefix: bytes
    by_lane: bool
    """True to find keys by the lanes of the topics, which hold few rows, instead of walking all keys."""
    with_payload: bool
    with_metadata: bool
    keys: tuple[list[int], int] | None = None
    """The only keys to read, in order, and the key up to which they are complete. They belong to the wanted topics."""


class KeyPage(NamedTuple):
    """All wanted rows with keys up to `up_to`, in the order of their keys."""

    rows: list[ItemRow]
    up_to: int


def merged_by_key(packed: KeyPage, stored: KeyPage, criteria: ExportCriteria) -> KeyPage:
    """Merge the packed rows and the rows stored a moment later into one page; a stored row replaces its packed item."""
    up_to = min(packed.up_to, stored.up_to)
    found = {row.key: row for row in [*packed.rows, *stored.rows] if row.key <= up_to}
    rows: list[ItemRow] = []
    size_bytes = 0
    for key in sorted(found):
        row = found[key]
        size_bytes += row.size_bytes
        if len(rows) == criteria.limit or (rows and size_bytes > criteria.bytes_max):
            return KeyPage(rows, rows[-1].key)
        rows.append(row)
    return KeyPage(rows, up_to)


def is_wanted(row: ItemRow, states: frozenset[ItemState]) -> bool:
    """True if the row's lane is the lane of one of the states."""
    if row.lane < 0:
        return ItemState.DEAD in states
    if row.lane == 0:
        return ItemState.DELAYED in states
    return ItemState.READY in states or ItemState.LEASED in states


def without_contents(row: ItemRow, criteria: ExportCriteria) -> ItemRow:
    """Return the row with only the wanted parts of its content."""
    payload, metadata, trace_context = row.content
    kept = (payload if criteria.with_payload else b"", metadata if criteria.with_metadata else b"", trace_context)
    return row._replace(content=ItemContent(*kept))


# ---- reading rows, within a snapshot ----


def read_stored(rows: RunStatement, criteria: ExportCriteria, pause: Callable[[], None]) -> KeyPage:
    """Return the rows of a page. `pause` is called between the server's answers."""
    if criteria.topics is not None and not criteria.topics:
        return KeyPage([], criteria.to_key)
    if criteria.keys is not None:
        keys, up_to = criteria.keys
    elif criteria.by_lane:
        keys, up_to = _keys_by_lane(rows, criteria)
    else:
        keys, up_to = _keys_by_walk(rows, criteria)
    return _contents(rows, criteria, keys, up_to, pause)


def _keys_by_walk(rows: RunStatement, criteria: ExportCriteria) -> tuple[list[int], int]:
    """Return the wanted keys among the next SCAN_ROWS rows, and the last key examined."""
    last_key, count = only_row(rows(sql.EXPORT_EDGE, (criteria.after_key, criteria.to_key, SCAN_ROWS)), "a page")
    up_to = criteria.to_key if count < SCAN_ROWS else int(last_key)
    if not count:
        return [], up_to
    statement = sql.EXPORT_KEYS if criteria.topics is not None else sql.EXPORT_KEYS_OF_NAMESPACE
    arguments: tuple[object, ...] = (criteria.after_key, up_to, criteria.limit)
    if criteria.topics is None:
        arguments = (
            criteria.after_key,
            up_to,
            criteria.namespace,
            len(criteria.prefix),
            criteria.prefix,
            criteria.limit,
        )
    keys = [key for (key,) in rows(statement.format(_conditions(criteria)), arguments)]
    return keys, keys[-1] if len(keys) == criteria.limit else up_to


def _keys_by_lane(rows: RunStatement, criteria: ExportCriteria) -> tuple[list[int], int]:
    """Return the first keys in the lanes of the topics, and those of the topics' delayed rows."""
    assert criteria.topics is not None
    lanes = []
    if criteria.states & {ItemState.READY, ItemState.LEASED}:
        lanes += list(criteria.topics)
    if ItemState.DEAD in criteria.states:
        lanes += [-number for number in criteria.topics]
    arguments = (criteria.after_key, criteria.to_key, criteria.limit)
    keys: list[int] = []
    for condition in _in("lane", lanes):
        keys += [key for (key,) in rows(sql.EXPORT_LANES.format(condition), arguments)]
    if ItemState.DELAYED in criteria.states:
        for condition in _in("topic", criteria.topics):
            keys += [key for (key,) in rows(sql.EXPORT_DELAYED.format(condition), arguments)]
    keys.sort()
    if len(keys) < criteria.limit:
        return keys, criteria.to_key
    return keys[: criteria.limit], keys[criteria.limit - 1]


def _contents(
    rows: RunStatement, criteria: ExportCriteria, keys: list[int], up_to: int, pause: Callable[[], None]
) -> KeyPage:
    """Return the rows with these keys until their contents fill the page. Sizes are read before contents."""
    columns = columns_of(with_payload=criteria.with_payload, with_metadata=criteria.with_metadata)
    sizes = content_bytes_of(with_payload=criteria.with_payload, with_metadata=criteria.with_metadata)
    found: list[ItemRow] = []
    size_bytes = start = 0
    chunk_rows = FIRST_CHUNK_ROWS
    while start < len(keys):
        chunk = keys[start : start + chunk_rows]
        start += len(chunk)
        fitting: list[int] = []
        for key, row_bytes in _of_keys(rows, sql.EXPORT_SIZES, sizes, chunk):
            if (found or fitting) and size_bytes + row_bytes > criteria.bytes_max:
                found += map(stored_row, _of_keys(rows, sql.EXPORT_ITEMS, columns, fitting))
                return KeyPage(found, found[-1].key)
            size_bytes += row_bytes
            fitting.append(key)
        found += map(stored_row, _of_keys(rows, sql.EXPORT_ITEMS, columns, fitting))
        pause()
        # The server has to read contents to measure them, so ask for few more rows than are likely to fit.
        rows_to_fit = (criteria.bytes_max - size_bytes) * start // max(1, size_bytes)
        chunk_rows = min(CHUNK_ROWS, 1 + max(0, rows_to_fit))
    return KeyPage(found, up_to)


def _of_keys(rows: RunStatement, statement: str, columns: str, keys: list[int]) -> list[Sequence[Any]]:
    """Return the remaining rows with these keys, in order."""
    if not keys:
        return []
    conditions = [condition for condition, _ in key_conditions("id", keys)]
    return [values for condition in conditions for values in rows(statement.format(columns, condition))]


def content_bytes_of(*, with_payload: bool, with_metadata: bool) -> str:
    """Return the SQL expression for the bytes of the contents and failures to read."""
    unread = {"payload": not with_payload, "metadata": not with_metadata}
    sized = (*CONTENT_COLUMNS, *FAILURE_COLUMNS)
    return " + ".join([f"OCTET_LENGTH({name})" for name in names(sized) if not unread.get(name)])


def columns_of(*, with_payload: bool, with_metadata: bool) -> str:
    """Return the columns of an item, with an empty value in place of each unwanted content."""
    empty = {"payload": not with_payload, "metadata": not with_metadata}
    return ", ".join(["x''" if empty.get(name) else name for name in names(ITEM_COLUMNS)])


def _conditions(criteria: ExportCriteria) -> str:
    wanted = dict.fromkeys([_LANES[state] for state in sorted(criteria.states)])
    conditions = [] if len(wanted) == len(set(_LANES.values())) else [f"({' OR '.join(wanted)})"]
    if criteria.topics is not None:
        conditions += [f"({condition})" for condition in _in("topic", criteria.topics)]
    return " AND ".join(conditions) or "TRUE"


def _in(column: str, numbers: Sequence[int] | frozenset[int]) -> list[str]:
    """Return a condition that lists the numbers, or no condition if the list is empty. Numbers can be negative."""
    return [f"{column} IN ({', '.join([f'{number:d}' for number in sorted(numbers)])})"] if numbers else []


# ---- the spread of a shard's keys ----


class Cell(NamedTuple):
    """About `items_count` items have keys after `from_key`, up to `to_key`."""

    from_key: int
    to_key: int
    items_count: float


def sample_keys(rows: RunStatement, to_key: int) -> list[Cell]:
    """Estimate the spread of the rows up to `to_key` over their keys, by examining few rows.

    Keys of one epoch are dense, and the range between two epochs is empty, so each epoch is sampled separately.
    """
    cells: list[Cell] = []
    after_key, epochs_count = 0, 0
    while (first := rows(sql.EXPORT_NEXT_KEY, (after_key, to_key, 0))) and epochs_count < EPOCHS_SAMPLED_MAX:
        epochs_count += 1
        ((first_key,),) = first
        end_key = min(to_key, ((first_key >> ids.SEQUENCE_BITS) + 1 << ids.SEQUENCE_BITS) - 1)
        if epochs_count == EPOCHS_SAMPLED_MAX:
            end_key = to_key
        ((last_key,),) = rows(sql.EXPORT_LAST_KEY, (first_key - 1, end_key))
        cells += _cells(rows, first_key - 1, last_key)
        after_key = end_key
    return cells


def _cells(rows: RunStatement, after_key: int, last_key: int) -> list[Cell]:
    width = max(1, -(-(last_key - after_key) // CELLS_PER_EPOCH))
    cells: list[Cell] = []
    for start in range(after_key, last_key, width):
        end = min(start + width, last_key)
        found = rows(sql.EXPORT_NEXT_KEY, (start, end, SAMPLE_ROWS - 1))
        if found:  # Assume the same density of keys in the rest of the cell.
            count = SAMPLE_ROWS * (end - start) / (found[0][0] - start)
        else:
            count = float(len(rows(sql.EXPORT_FEW_KEYS, (start, end, SAMPLE_ROWS))))
        cells.append(Cell(start, end, count))
    return cells


def even_bounds(cells: Sequence[Cell], to_key: int, parts: int) -> list[tuple[int, int, float]]:
    """Cut the keys up to `to_key` into at most `parts` ranges (from, to] with about the same number of items each.

    Returns each range with its share of all items.
    """
    total = sum(cell.items_count for cell in cells)
    parts = min(parts, int(total))
    if parts <= 1:
        return [(0, to_key, 1.0)]
    bounds: list[int] = [0]
    shares: list[float] = [0.0]
    seen = 0.0
    for cell in sorted(cells):
        while len(bounds) < parts and cell.items_count and seen + cell.items_count >= total * len(bounds) / parts:
            wanted = total * len(bounds) / parts
            at = cell.from_key + round((cell.to_key - cell.from_key) * (wanted - seen) / cell.items_count)
            bounds.append(max(bounds[-1], min(at, to_key)))
            shares.append(wanted / total)
        seen += cell.items_count
    bounds.append(to_key)
    shares.append(1.0)
    ranges = zip(bounds, bounds[1:], shares, shares[1:], strict=False)
    return [(low, high, end - start) for low, high, start, end in ranges if low < high]
