"""pgqueuer, a Python library that makes PostgreSQL a queue, by its own Queries: enqueue, dequeue, log_jobs.

Its users have its QueueManager call their functions job by job; what that costs on top is left out here. An ack moves
the job to pgqueuer's log table. There a higher priority is more urgent; its heartbeat timeout serves as the lease.
Whoever waits hears of jobs by pgqueuer's own trigger, which notifies once a statement.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
from pgqueuer.models import Job
from pgqueuer.queries import EntrypointExecutionParameter, Queries
from pgqueuer.types import QueueEntrypoint, QueueManagerId

from loadtest.peers.adapter import Held, Offer
from loadtest.peers.postgres import OnPostgres, open_pool, open_session
from loadtest.peers.waiting import ClientProcess, joined

_CHANNEL = "ch_pgqueuer"
_POLL_S = 0.1
_SESSIONS_MAX = 8
_UNLIMITED = EntrypointExecutionParameter(0)


class PgQueuer(OnPostgres):
    """On the same server as `postgres`, with the schema that pgqueuer installs."""

    name = "pgqueuer"
    durability = "PostgreSQL with fsync=on, synchronous_commit=on, full_page_writes=on; pgqueuer's durable tables"
    batch_max = 500
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self._process: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_process": None}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        self._start_server(directory / "pgqueuer")
        asyncio.run(self._install())

    def version(self) -> str:
        return f"pgqueuer {version('pgqueuer')} on {super().version()}"

    async def connect(self, in_flight: int) -> PgQueuerClient:
        self._process = joined(self._process, lambda: _Process(self._socket))
        pool = await open_pool(self._socket, min(in_flight, _SESSIONS_MAX))
        return PgQueuerClient(pool, self._process, self.lease_ms)

    async def _install(self) -> None:
        pool = await open_pool(self._socket, 1)
        queries = Queries.from_asyncpg_pool(pool)
        if not await queries.schema_is_installed():
            await queries.install()
            await queries.optimize_autovacuum()
        await pool.close()


class _Process(ClientProcess):
    """Of all clients of a process together: hearing of new jobs. The trigger does not tell of which topic."""

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self._socket = socket

    def listen(self) -> None:
        self._begin("pgqueuer-listen", self._listen)

    async def _end(self) -> None:
        for listening in self._tasks.values():
            await (await listening).close()

    async def _listen(self) -> asyncpg.Connection[asyncpg.Record]:
        session = await open_session(self._socket)
        await session.add_listener(_CHANNEL, lambda *_: self.room.wake_each())
        return session


class PgQueuerClient:
    """At most _SESSIONS_MAX sessions: more calls in flight wait here."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], process: _Process, lease_ms: int) -> None:
        self._pool, self._process = pool, process
        self._queries = Queries.from_asyncpg_pool(pool)
        self._lease = timedelta(milliseconds=lease_ms)
        self._manager = QueueManagerId(uuid.uuid4())

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        is_delayed = any(offer.delay_ms for offer in offers)
        await self._queries.enqueue(
            [offer.topic for offer in offers],
            [offer.payload for offer in offers],
            [-offer.priority for offer in offers],
            [timedelta(milliseconds=offer.delay_ms) for offer in offers] if is_delayed else None,
        )

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        self._process.listen()
        limits = {QueueEntrypoint(topic): _UNLIMITED for topic in topics}

        async def find(_: Sequence[str]) -> list[Job]:
            jobs: list[Job] = await self._queries.dequeue(count, limits, self._manager, None, self._lease)
            return jobs

        jobs = await self._process.room.ask(find, [" ".join(topics)], count, wait_ms, _POLL_S)
        jobs.sort(key=lambda job: (-job.priority, job.id))
        return [Held(job.payload or b"", job) for job in jobs]

    async def ack(self, held: Sequence[Held]) -> None:
        await self._queries.log_jobs([(one.receipt, "successful", None) for one in held])

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        for one in held:
            await self._queries.retry_job(one.receipt, timedelta(milliseconds=delay_ms), None)

    async def close(self) -> None:
        await self._process.leave()
        await self._pool.close()
