"""What an item costs the server by the shape of its table: foqs's own, and others that were thought of.

Inserts and deletes, a statement and a transaction each, in one session, the deletes by what the shape finds a row
with. The items are of 8 lanes and 3 urgencies, so that neighbours by id are none by lane.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from foqs.core import limits
from foqs.storage import statements as sql
from foqs.storage.local_server import LocalServer
from foqs.storage.migrations import SchemaKind, apply
from foqs.storage.session import connect
from loadtest.bench.raw import PAYLOAD_HEX
from loadtest.bench.usage import usage
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB

BATCH = limits.STATEMENT_IDS_MAX
_LANES, _URGENCIES = 8, 3
_BEGIN_MS = 1_700_000_000_000
_END_MS = 2_000_000_000_000
Row = tuple[int, int, int, int]
"""(lane, urgency, due_at, id)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`changes` make it of the item table."""

    name: str
    changes: str
    delete: Callable[[Sequence[Row]], str]


def _by_id(rows: Sequence[Row]) -> str:
    return sql.DELETE_ITEMS.format(", ".join(str(row[3]) for row in rows), len(rows))


def _by_place(rows: Sequence[Row]) -> str:
    return f"DELETE FROM item WHERE (lane, urgency, due_at, id) IN ({', '.join(map(str, rows))})"


_CLUSTERED = "DROP PRIMARY KEY, DROP KEY lane_order, ADD PRIMARY KEY (lane, urgency, due_at, id)"
SHAPES = (
    Shape("as it is: by id, lane_order beside it", "", _by_id),
    Shape("by id, nothing beside it", "DROP KEY lane_order", _by_id),
    Shape("by place, nothing beside it", _CLUSTERED, _by_place),
    Shape("by place, the id beside it", f"{_CLUSTERED}, ADD KEY by_id (id)", _by_id),
)


def measure(transactions: int) -> list[dict[str, Any]]:
    """CPU microseconds of the server an item, by shape."""
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="foqs-bench-shapes-") as directory,
        LocalServer(directory, buffer_pool_mib=CACHE_MIB, log_file_mib=LOG_MIB) as server,
    ):
        for number, shape in enumerate(SHAPES):
            url = server.url(f"shape_{number}")
            apply(url, SchemaKind.SHARD)
            with closing(connect(url)) as session, session.cursor() as cursor:
                if shape.changes:
                    cursor.execute(f"ALTER TABLE item {shape.changes}")
                batches = [_batch(number) for number in range(transactions)]
                inserted_us = _run(server.pid, session, [_insert(batch) for batch in batches])
                deleted_us = _run(server.pid, session, [shape.delete(batch) for batch in batches])
            rows.append({"shape": shape.name, "insert_us": inserted_us, "delete_us": deleted_us})
    return rows


def _batch(number: int) -> list[Row]:
    keys = range(number * BATCH + 1, (number + 1) * BATCH + 1)
    return [(1 + key % _LANES, key % _URGENCIES, _BEGIN_MS + number, key) for key in keys]


def _insert(rows: Sequence[Row]) -> str:
    values = [
        f"({key},{lane},{urgency},{due_at},{lane},{urgency},{due_at},{_END_MS},0,0,'',x'{PAYLOAD_HEX}')"
        for lane, urgency, due_at, key in rows
    ]
    return sql.INSERT_ITEMS.format(",".join(values))


def _run(pid: int, session: Any, statements: Sequence[str]) -> float:
    before = usage(pid)
    with session.cursor() as cursor:
        for statement in statements:
            assert cursor.execute(statement) == BATCH
            session.commit()
    return usage(pid).since(before).cpu_s * 1e6 / (len(statements) * BATCH)
