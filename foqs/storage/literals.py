"""The one place that writes values into SQL text: the VALUES of an item insert.

By hand because it is a quarter of the cost of bound parameters (design.md, measured costs). Integers are
formatted with `%d`, which refuses anything else; bytes become hex literals, which no content can leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foqs.core import limits
from foqs.core.item import Item

_ROW = "(%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,x'%s',x'%s')"


def item_row(item: Item, *, delayed: bool) -> str:
    assert item.payload is not None
    topic = item.topic.number
    return _ROW % (
        item.key,
        0 if delayed else topic,
        0 if delayed else item.priority,
        item.due_at,
        topic,
        item.priority,
        item.enqueued_at,
        item.expires_at,
        item.lease_ms,
        item.at_most_once,
        item.metadata.hex(),
        item.payload.hex(),
    )


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


def id_chunks(keys: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The keys, sorted, as texts for IN (...) with their counts: sorted keys lock in one order everywhere."""
    ordered = sorted(keys)
    for start in range(0, len(ordered), limits.STATEMENT_IDS_MAX):
        part = ordered[start : start + limits.STATEMENT_IDS_MAX]
        yield ",".join([f"{key:d}" for key in part]), len(part)
