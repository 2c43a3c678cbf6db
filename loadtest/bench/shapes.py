"""What an item costs the server by the shape of its table and statements: foqs's own, and others that were thought of.

Inserts and deletes, a transaction each for a batch, in one session, the deletes by what the shape finds a row with. The
items are of 8 lanes and 3 urgencies, so that neighbours by id are none by lane. Of a pack they go in several steps.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from foqs.dev.local_server import LocalServer
from foqs.model.calls import ItemContent
from foqs.model.item import Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget
from foqs.storage.schema import statements as sql
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.exchange import run_script
from foqs.storage.sessions.session import connect
from foqs.storage.shard.formats import pack_items, pack_keys
from foqs.storage.shard.prepared import PreparedInserts, prepare_inserts
from foqs.storage.shard.script import STATEMENT_IDS_MAX, item_row, key_conditions
from loadtest.bench.raw import PAYLOAD_HEX
from loadtest.bench.usage import usage
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB

BATCH = STATEMENT_IDS_MAX
_LANES, _URGENCIES = 8, 3
_BEGIN_MS = 1_700_000_000_000
_END_MS = 2_000_000_000_000
_LOOK_S, _IDLE_SHARE, _UNPURGED_MAX, _PURGE_S_MAX = 0.2, 0.05, 3, 10.0
Row = tuple[int, int, int, int]
"""(lane, urgency, due_at, id)."""
Insert = Callable[[PreparedInserts, Sequence[Row]], tuple[list[bytes], str]]
"""What is sent ahead of the script, and a statement."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`change` makes it of foqs's tables."""

    name: str
    change: str
    insert: Insert
    delete: Callable[[Sequence[Row]], list[str]]


def _as_text(_: PreparedInserts, rows: Sequence[Row]) -> tuple[list[bytes], str]:
    return [], sql.INSERT_ITEMS.format(",".join([item_row(_item(row)) for row in rows]))


def _prepared(inserts: PreparedInserts, rows: Sequence[Row]) -> tuple[list[bytes], str]:
    ahead = inserts.ahead([_item(row) for row in rows])
    return ahead.packets, sql.INSERT_ITEMS.format(",".join(map(item_row, ahead.rest)))


def _pack(rows: Sequence[Row]) -> tuple[int, bytes]:
    """Its id and its contents."""
    return rows[0][3], pack_items([_item(row) for row in rows])


def _packed(inserts: PreparedInserts, rows: Sequence[Row]) -> tuple[list[bytes], str]:
    ahead = inserts.ahead([], [_pack(rows)])
    return ahead.packets, f"DO {ahead.guard}"


def _packed_as_text(_: PreparedInserts, rows: Sequence[Row]) -> tuple[list[bytes], str]:
    pack_id, contents = _pack(rows)
    return [], sql.INSERT_PACK.format(pack_id, f"x'{contents.hex()}'")


def _by_tombstones(rows: Sequence[Row]) -> list[str]:
    keys = [row[3] for row in rows]
    steps = range(0, len(keys), len(keys) // _STEPS)
    insert = sql.INSERT_TOMBSTONE.replace("%s", "{}")
    tombstones = [
        insert.format(keys[0] + start, f"x'{pack_keys(keys[start : start + len(keys) // _STEPS]).hex()}'")
        for start in steps
    ]
    ((gone, count),) = key_conditions("id", [keys[0] + start for start in steps])
    return [*tombstones, sql.DELETE_PACKS.format(f"id = {keys[0]}", 1), sql.DELETE_TOMBSTONES.format(gone, count)]


def _by_bits(rows: Sequence[Row]) -> list[str]:
    key = rows[0][3]
    bits = [f"UPDATE pack SET gone = x'{step:02x}{'ff' * (len(rows) // 8)}' WHERE id = {key}" for step in range(_STEPS)]
    return [*bits, sql.DELETE_PACKS.format(f"id = {key}", 1)]


def _by_range(rows: Sequence[Row]) -> list[str]:
    ((condition, count),) = key_conditions("id", [row[3] for row in rows])
    return [sql.DELETE_ITEMS.format(condition, count)]


def _by_id(rows: Sequence[Row]) -> list[str]:
    return [sql.DELETE_ITEMS.format(f"id IN ({', '.join(str(row[3]) for row in rows)})", len(rows))]


def _by_place(rows: Sequence[Row]) -> list[str]:
    return [f"DELETE FROM item WHERE (lane, urgency, due_at, id) IN ({', '.join(map(str, rows))})"]


_CONTENT = ItemContent(bytes.fromhex(PAYLOAD_HEX), b"")
_STEPS = 10
"""In which the items of a pack go, but for its last: each a statement."""
_CLUSTERED = "ALTER TABLE item DROP PRIMARY KEY, DROP KEY lane_order, ADD PRIMARY KEY (lane, urgency, due_at, id)"
_BITS = "ALTER TABLE pack ADD gone VARBINARY(200) NOT NULL DEFAULT ''"
SHAPES = (
    Shape("young items: a pack, prepared, and ten tombstones", "", _packed, _by_tombstones),
    Shape("the same: as SQL text", "", _packed_as_text, _by_tombstones),
    Shape("the same: ten times bits in the pack's row", _BITS, _packed, _by_bits),
    Shape("other items: prepared inserts, deletes by ranges of ids", "", _prepared, _by_range),
    Shape("rows as SQL text, deletes by lists of ids", "", _as_text, _by_id),
    Shape("the same: by id, nothing beside it", "ALTER TABLE item DROP KEY lane_order", _as_text, _by_id),
    Shape("the same: by place, nothing beside it", _CLUSTERED, _as_text, _by_place),
    Shape("the same: by place, the id beside it", f"{_CLUSTERED}, ADD KEY by_id (id)", _as_text, _by_id),
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
                if shape.change:
                    cursor.execute(shape.change)
                inserts = prepare_inserts(session)
                assert inserts is not None
                batches = [_batch(number) for number in range(transactions)]
                scripts = []
                for batch in batches:
                    ahead, statement = shape.insert(inserts, batch)
                    scripts.append((ahead, [statement]))
                inserted_us = _run(server.pid, session, scripts)
                deleted_us = _run(server.pid, session, [([], shape.delete(batch)) for batch in batches])
                for table in ("item", "pack", "tombstone"):
                    cursor.execute(f"SELECT COUNT(*) FROM {table}")
                    assert cursor.fetchone() == (0,)
            rows.append({"shape": shape.name, "insert_us": inserted_us, "delete_us": deleted_us})
    return rows


def _batch(number: int) -> list[Row]:
    keys = range(number * BATCH + 1, (number + 1) * BATCH + 1)
    return [(1 + key % _LANES, key % _URGENCIES, _BEGIN_MS + number, key) for key in keys]


def _item(row: Row) -> ShardItem:
    lane, urgency, due_at, key = row
    topic = ShardTopic(0, lane, 1, str(lane), WindowBudget(), {}, stored=True)
    return ShardItem(key, topic, urgency, due_at, 0, Phase.INSERTING, due_at, _END_MS, content=_CONTENT)


def _run(pid: int, session: Any, scripts: Sequence[tuple[list[bytes], list[str]]]) -> float:
    """Each with a commit."""

    async def send(ahead: list[bytes], statements: list[str]) -> None:
        await run_script(session, [*statements, "COMMIT"], ahead=ahead)

    _wait_until_purged(pid, session)
    before = usage(pid)
    for script in scripts:
        asyncio.run(send(*script))
    _wait_until_purged(pid, session)
    return usage(pid).since(before).cpu_s * 1e6 / (len(scripts) * BATCH)


def _wait_until_purged(pid: int, session: Any) -> None:
    """The purge of what was deleted is a part of its cost, and none of what comes after."""
    deadline_s = time.monotonic() + _PURGE_S_MAX
    with session.cursor() as cursor:
        while time.monotonic() < deadline_s:
            before = usage(pid)
            time.sleep(_LOOK_S)
            is_idle = usage(pid).since(before).cpu_s < _LOOK_S * _IDLE_SHARE
            cursor.execute("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
            ((left_count,),) = cursor.fetchall()
            session.commit()
            if is_idle and left_count < _UNPURGED_MAX:
                return
