"""The one place that writes values into SQL text: the VALUES of an item insert, and keys.

By hand because the driver escapes each value by several calls of Python. Integers are formatted with `%d`, which
refuses anything else; bytes become hex literals, which no content can leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pymysql.constants import FIELD_TYPE

from foqs.model import limits
from foqs.model.item import ShardItem
from foqs.shard.port import ItemRow
from foqs.storage.columns import CONTENT_COLUMNS, INSERTED_COLUMNS, ITEM_COLUMNS, inserted_integers

_RANGE_KEYS_MIN = 8
_SPARSE = 4
"""Keys among so many times as many numbers have no ranges worth a look."""
_VALUES = ["x'%s'" if column in CONTENT_COLUMNS else "%d" for column in INSERTED_COLUMNS]
_ROW = f"({','.join(_VALUES)})"
"""The values of statements.INSERT_ITEMS."""
_STORED_VALUES = [
    "x'%s'" if column in CONTENT_COLUMNS else "%s" if column.wire_type == FIELD_TYPE.BLOB else "%d"
    for column in ITEM_COLUMNS
]
_STORED_ROW = f"({','.join(_STORED_VALUES)})"
"""Those of statements.INSERT_STORED_ITEMS."""


def item_row(item: ShardItem) -> str:
    assert item.content is not None
    return _ROW % (*inserted_integers(item), *map(bytes.hex, item.content))


def stored_row_literal(row: ItemRow) -> str:
    head = [value if isinstance(value, int) else _bytes(value) for value in row[:-1]]
    return _STORED_ROW % (*head, *map(bytes.hex, row.content))


def _bytes(value: bytes | None) -> str:
    return "NULL" if value is None else f"x'{value.hex()}'"


def chunks_by_bytes(rows: Sequence[str]) -> Iterator[str]:
    """The rows joined into VALUES lists of at most limits.STATEMENT_BYTES_MAX, or one row where it is larger."""
    start = size = 0
    for position, row in enumerate(rows):
        if size and size + len(row) > limits.STATEMENT_BYTES_MAX:
            yield ",".join(rows[start:position])
            start, size = position, 0
        size += len(row) + 1
    if size:
        yield ",".join(rows[start:])


def key_conditions(column: str, keys: Collection[int]) -> Iterator[tuple[str, int]]:
    """Conditions that name all the keys, with their counts. Sorted: keys lock in one order everywhere."""
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), limits.STATEMENT_IDS_MAX):
        part = ordered[start : start + limits.STATEMENT_IDS_MAX]
        yield _condition(column, part), len(part)


def _condition(column: str, ordered: Sequence[int]) -> str:
    """Keys in a row as a range, which costs the server less than a list of them."""
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
