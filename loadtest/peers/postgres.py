"""PostgreSQL as a queue, the way pgmq and River do it: SKIP LOCKED, claims and acks of many rows, NOTIFY for who waits.

From pgmq: a claim moves the row's `ready_at`, the end of its lease, which is in no index, so that the update is a HOT
one; an ack deletes by id. From River: priorities in the index, delayed rows kept out of it until they are due, COPY for
many rows, and at most one NOTIFY a while and process, after the commit, because a transaction that notifies serialises
its commit.
As in both, an ack by a client whose lease has ended is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from loadtest.peers.adapter import CACHE_MIB, Held, Offer, OneServer
from loadtest.peers.program import Program, find_program, give_to, run
from loadtest.peers.waiting import ClientProcess, joined

USER = "postgres"
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": f"{CACHE_MIB}MB",
    "max_connections": "200",
    "autovacuum_naptime": "2s",
    "jit": "off",
    "listen_addresses": "",
}
_TUNED = "WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0)"
"""For many calls in flight and long runs: claims stay on their page, and what is dead is vacuumed at once."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS item (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    priority integer NOT NULL,
    ready_at timestamptz NOT NULL,
    is_delayed boolean NOT NULL,
    deliveries integer NOT NULL DEFAULT 0,
    payload bytea NOT NULL
) {storage};
CREATE INDEX IF NOT EXISTS item_in_order ON item (topic, priority, id) WHERE NOT is_delayed;
CREATE INDEX IF NOT EXISTS item_delayed ON item (ready_at) WHERE is_delayed;
"""
_ENQUEUE = """
INSERT INTO item (topic, priority, ready_at, is_delayed, payload)
SELECT topic, priority, now() + delay_ms * interval '1 ms', delay_ms > 0, payload
FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::bytea[]) AS offered (topic, priority, delay_ms, payload)
"""
_COPIED = ("topic", "priority", "ready_at", "is_delayed", "payload")
_CLAIM = """
UPDATE item SET ready_at = now() + $3 * interval '1 ms', deliveries = deliveries + 1
WHERE id = ANY(ARRAY(
    SELECT id FROM item WHERE topic = $1 AND NOT is_delayed AND ready_at <= now()
    ORDER BY priority, id LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING payload, id, priority
"""
_CLAIM_OF_ANY = _CLAIM.replace("topic = $1", "topic = ANY($1::text[])")
_ACK = "DELETE FROM item WHERE id = ANY($1::bigint[])"
_NACK = "UPDATE item SET ready_at = now() + $2 * interval '1 ms', is_delayed = $2 > 0 WHERE id = ANY($1::bigint[])"
_FALL_DUE = """
UPDATE item SET is_delayed = false FROM (
    SELECT id FROM item WHERE is_delayed AND ready_at <= now() ORDER BY ready_at LIMIT 5000 FOR UPDATE SKIP LOCKED
) AS due
WHERE item.id = due.id RETURNING item.topic
"""
_NOTIFY = "SELECT pg_notify('item', topic) FROM unnest($1::text[]) AS topic"
_NOTIFY_EVERY_S = 0.005
_FALL_DUE_EVERY_S = 0.1
_COPY_ITEMS_MIN = 50
_POLL_S = 0.2
_SESSIONS_MAX = 4
"""Of a client; chosen for two cores."""


async def open_session(socket: Path) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(host=str(socket), user=USER, database=USER)


async def open_pool(socket: Path, sessions_max: int) -> asyncpg.Pool[asyncpg.Record]:
    """Without the statements that reset a session after each use: none of these leaves anything behind in it."""

    async def reset_nothing(_: object) -> None:
        return None

    return await asyncpg.create_pool(
        host=str(socket),
        user=USER,
        database=USER,
        min_size=sessions_max,
        max_size=sessions_max,
        reset=reset_nothing,
    )


class OnPostgres(OneServer[Program]):
    """What adapters of queues on PostgreSQL have in common: a private cluster with a unix socket in its directory."""

    server_name = "postgres"

    def __init__(self) -> None:
        super().__init__()
        self.lease_ms = 30_000
        self._socket = Path()

    def version(self) -> str:
        return run(find_program("postgres"), "--version")

    def _start_server(self, directory: Path) -> None:
        self._socket = directory
        give_to(USER, directory)
        data = directory / "data"
        if not data.exists():
            run(
                find_program("initdb"), "--pgdata", str(data), "--username", USER, "--auth", "trust",
                "--encoding", "UTF8", "--locale", "C", user=USER,
            )  # fmt: skip
        settings = _SETTINGS | {"unix_socket_directories": str(directory)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [find_program("postgres"), "-D", str(data), *options]
        self._server = Program(command, directory / "log", user=USER)
        self._server.wait_until(lambda: asyncio.run(self._answers()))

    async def _answers(self) -> bool:
        try:
            await (await open_session(self._socket)).close()
        except (OSError, asyncpg.PostgresError):
            return False
        return True


class Postgres(OnPostgres):
    """The table and its statements are above; what a process's clients share is in _Process."""

    name = "postgres"
    durability = "fsync=on, synchronous_commit=on, full_page_writes=on: the commit is answered after the WAL's fsync"
    batch_max = 1_000
    lacks: frozenset[str] = frozenset()
    storage = _TUNED
    """Of the table."""

    def __init__(self) -> None:
        super().__init__()
        self._process: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_process": None}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        self._start_server(directory / "postgres")
        asyncio.run(self._install())

    async def connect(self, in_flight: int) -> PostgresClient:
        self._process = joined(self._process, lambda: _Process(self._socket))
        pool = await open_pool(self._socket, min(in_flight, _SESSIONS_MAX))
        return PostgresClient(pool, self._process, self.lease_ms)

    async def _install(self) -> None:
        session = await open_session(self._socket)
        try:
            await session.execute(_SCHEMA.format(storage=self.storage))
        finally:
            await session.close()


class PlainPostgres(Postgres):
    """The same table as CREATE TABLE makes it: cheaper where few calls are in flight, until its dead rows add up."""

    name = "postgres-plain"
    storage = ""


class _Process(ClientProcess):
    """Of all clients of a process together: telling others of new items, hearing of them, and moving due ones."""

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self._socket = socket
        self._untold: set[str] = set()
        self._news = asyncio.Event()

    def tell(self, topics: set[str]) -> None:
        self._untold |= topics
        self._news.set()
        self._begin("postgres-tell", self._keep_telling)

    def listen(self) -> None:
        self._begin("postgres-listen", self._keep_listening)

    async def _keep_telling(self) -> None:
        session = await open_session(self._socket)
        telling: set[str] = set()
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                telling, self._untold = self._untold, set()
                await session.execute(_NOTIFY, list(telling))
                telling = set()
                await asyncio.sleep(_NOTIFY_EVERY_S)
        finally:
            if left := self._untold | telling:  # What the last client enqueued before it left.
                await session.execute(_NOTIFY, list(left))
            await session.close(timeout=1)

    async def _keep_listening(self) -> None:
        session = await open_session(self._socket)
        try:
            await session.add_listener("item", lambda *heard: self.room.wake(str(heard[3])))
            while True:
                for (topic,) in await session.fetch(_FALL_DUE):
                    self.room.wake(topic)
                await asyncio.sleep(_FALL_DUE_EVERY_S)
        finally:
            await session.close(timeout=1)


class PostgresClient:
    """At most _SESSIONS_MAX sessions: more calls in flight wait here."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], process: _Process, lease_ms: int) -> None:
        self._pool, self._process, self._lease_ms = pool, process, lease_ms

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        topics = [offer.topic for offer in offers]
        if len(offers) >= _COPY_ITEMS_MIN:
            await self._copy(offers)
        else:
            await self._pool.execute(
                _ENQUEUE,
                topics,
                [offer.priority for offer in offers],
                [offer.delay_ms for offer in offers],
                [offer.payload for offer in offers],
            )
        self._process.tell(set(topics))

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        self._process.listen()

        async def find(asked: Sequence[str]) -> list[asyncpg.Record]:
            statement, of = (_CLAIM, asked[0]) if len(asked) == 1 else (_CLAIM_OF_ANY, asked)
            rows: list[asyncpg.Record] = await self._pool.fetch(statement, of, count, self._lease_ms)
            return rows

        rows = await self._process.room.ask(find, topics, count, wait_ms, _POLL_S)
        if count > 1:
            rows.sort(key=lambda row: (row[2], row[1]))  # RETURNING has no order.
        return [Held(payload, number) for payload, number, _ in rows]

    async def ack(self, held: Sequence[Held]) -> None:
        await self._pool.execute(_ACK, [one.receipt for one in held])

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        await self._pool.execute(_NACK, [one.receipt for one in held], delay_ms)

    async def close(self) -> None:
        await self._process.leave()
        await self._pool.close()

    async def _copy(self, offers: Sequence[Offer]) -> None:
        """By this process's clock, which is the server's."""
        now = datetime.now(UTC)
        rows = [
            (topic, priority, now + timedelta(milliseconds=delay_ms), delay_ms > 0, payload)
            for topic, payload, priority, delay_ms, _ in offers
        ]
        async with self._pool.acquire() as session:
            await session.copy_records_to_table("item", columns=_COPIED, records=rows)
