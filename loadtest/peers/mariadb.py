"""MariaDB as a queue, the way Rails's Solid Queue does it: SKIP LOCKED on a table of what is ready, READ COMMITTED.

Jobs keep their payload in one table; a row in one of three others says that a job is ready, scheduled or claimed. A
claim moves rows from `ready` to `claimed`, an ack deletes the job and its claim (Solid Queue with
preserve_finished_jobs=false), the dispatcher moves scheduled rows that are due. More than Solid Queue does: acks are
batched; two statements or more share a round trip (foqs's own session, which reads on the event loop); a claim of many
queues is one statement instead of one for each; of the calls of a process that wait for one queue one polls every 5 ms,
instead of every worker every 100 ms, for MySQL has nothing that notifies. With many queues it is every 100 ms here too.

Claims belong to a process, whose heartbeat is watched; there is no lease.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pymysql.err import OperationalError

from foqs.dev.local_server import LocalServer
from foqs.storage.sessions.exchange import Rows, run_script
from foqs.storage.sessions.session import connect
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB, Held, Offer, OneServer
from loadtest.peers.waiting import ClientProcess, joined

_DATABASE = "solid_queue"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, queue_name VARCHAR(255) NOT NULL, priority INT NOT NULL,
    scheduled_at DATETIME(3), payload BLOB NOT NULL, created_at DATETIME(3) NOT NULL
);
CREATE TABLE IF NOT EXISTS ready_executions (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, job_id BIGINT NOT NULL, queue_name VARCHAR(255) NOT NULL,
    priority INT NOT NULL, created_at DATETIME(3) NOT NULL,
    UNIQUE (job_id), INDEX poll_all (priority, job_id), INDEX poll_by_queue (queue_name, priority, job_id)
);
CREATE TABLE IF NOT EXISTS scheduled_executions (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, job_id BIGINT NOT NULL, queue_name VARCHAR(255) NOT NULL,
    priority INT NOT NULL, scheduled_at DATETIME(3) NOT NULL, created_at DATETIME(3) NOT NULL,
    UNIQUE (job_id), INDEX dispatch (scheduled_at, priority, job_id)
);
CREATE TABLE IF NOT EXISTS claimed_executions (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, job_id BIGINT NOT NULL, process_id BIGINT NOT NULL,
    created_at DATETIME(3) NOT NULL,
    UNIQUE (job_id), INDEX of_process (process_id, job_id)
)
"""
_JOBS = "INSERT INTO jobs (queue_name, priority, scheduled_at, payload, created_at) VALUES "
_AFTER = "NOW(3) + INTERVAL {} MICROSECOND"
_READY = "INSERT INTO ready_executions (job_id, queue_name, priority, created_at) VALUES "
_SCHEDULED = "INSERT INTO scheduled_executions (job_id, queue_name, priority, scheduled_at, created_at) VALUES "
_CLAIMED = "INSERT INTO claimed_executions (job_id, process_id, created_at) VALUES "
_DUE = (
    "SELECT job_id, queue_name, priority FROM scheduled_executions WHERE scheduled_at <= NOW(3) "
    "ORDER BY scheduled_at, priority, job_id LIMIT 500 FOR UPDATE SKIP LOCKED"
)
_POLL_S, _POLL_MANY_S = 0.005, 0.1
_DISPATCH_EVERY_S = 0.1
_SESSIONS_MIN, _CALLS_PER_SESSION = 2, 4
"""Of a client; chosen for two cores: more sessions cost batches, fewer make single calls wait."""
_TRY_AGAIN = (1205, 1213)
"""A lock that took too long, a deadlock."""
_TRIES_MAX = 20


class MariaDB(OneServer[LocalServer]):
    """One server, as foqs has it in its benches: the same settings, the same memory."""

    name = "mariadb"
    server_name = "mysql"
    durability = "innodb_flush_log_at_trx_commit=1, doublewrite on, no binlog: the commit is answered after the fsync"
    batch_max = 250
    lacks = frozenset({"lease"})

    def __init__(self) -> None:
        super().__init__()
        self._url = ""
        self._process: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_process": None}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        self._server = LocalServer(
            directory / "mariadb",
            buffer_pool_mib=CACHE_MIB,
            log_file_mib=LOG_MIB,
            options=["--in-predicate-conversion-threshold=0"],
        )
        self._server.start()
        self._url = self._server.create_database(_DATABASE)
        with self._server.connect(_DATABASE) as session, session.cursor() as cursor:
            for statement in _SCHEMA.split(";"):
                cursor.execute(statement)

    def version(self) -> str:
        return self._running.binary.version

    async def connect(self, in_flight: int) -> MariaDBClient:
        self._process = joined(self._process, lambda: _Process(self._url))
        count = min(in_flight, max(_SESSIONS_MIN, in_flight // _CALLS_PER_SESSION))
        return MariaDBClient(_Sessions(self._url, count), self._process)


class _Sessions:
    """At most so many; more calls in flight wait here."""

    def __init__(self, url: str, count_max: int) -> None:
        self._url = url
        self._free = [connect(url) for _ in range(count_max)]
        self._turn = asyncio.Semaphore(count_max)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """A session that is not used by others and has no transaction open, before and after; in turn."""
        async with self._turn:
            session = self._free.pop() or connect(self._url)
            try:
                yield session
            except BaseException:
                session.close()
                session = None
                raise
            finally:
                self._free.append(session)

    async def transact(self, *statements: str) -> list[Rows]:
        """All or nothing, again after a deadlock, as Rails would."""
        for number in itertools.count(1):
            try:
                async with self.one() as session:
                    return await run_script(session, ["BEGIN", *statements, "COMMIT"])
            except OperationalError as error:
                if error.args[0] not in _TRY_AGAIN or number == _TRIES_MAX:
                    raise
        raise AssertionError

    def close(self) -> None:
        for session in self._free:
            if session is not None:
                session.close()


class _Process(ClientProcess):
    """Of all clients of a process together: the dispatcher, and who waits."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.polled: set[str] = set()
        """Lists of topics that a waiting call asks for already."""
        self._sessions = _Sessions(url, 1)

    def begin_dispatching(self) -> None:
        self._begin("mariadb-dispatcher", self._keep_dispatching)

    async def _end(self) -> None:
        await super()._end()
        self._sessions.close()

    async def _keep_dispatching(self) -> None:
        while True:
            due: Rows = []
            try:
                async with self._sessions.one() as session:
                    _, due = await run_script(session, ["BEGIN", _DUE])
                    ids = _listed(job for job, _, _ in due)
                    ready = _READY + ",".join([_ready(job, topic.decode(), urgency) for job, topic, urgency in due])
                    move = [ready, _delete("scheduled_executions", "job_id", ids)]
                    await run_script(session, [*move, "COMMIT"] if due else ["COMMIT"])
            except OperationalError as error:
                if error.args[0] not in _TRY_AGAIN:
                    raise
            for topic in {topic for _, topic, _ in due}:
                self.room.wake(topic.decode())
            await asyncio.sleep(0 if due else _DISPATCH_EVERY_S)


class MariaDBClient:
    def __init__(self, sessions: _Sessions, process: _Process) -> None:
        self._sessions, self._process = sessions, process
        self._process_id = os.getpid()

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        jobs = _JOBS + ",".join([_job(offer) for offer in offers])
        async with self._sessions.one() as session:
            *_, ((first,),) = await run_script(session, ["BEGIN", jobs, "SELECT LAST_INSERT_ID()"])
            # The ids of one INSERT are consecutive: innodb_autoinc_lock_mode=1.
            numbered = list(enumerate(offers, first))
            ready = [_ready(job, offer.topic, offer.priority) for job, offer in numbered if not offer.delay_ms]
            later = [
                _later(job, offer.topic, offer.priority, offer.delay_ms) for job, offer in numbered if offer.delay_ms
            ]
            rows = [_READY + ",".join(ready)] * bool(ready) + [_SCHEDULED + ",".join(later)] * bool(later)
            await run_script(session, [*rows, "COMMIT"])

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        self._process.begin_dispatching()
        room, polled, listed = self._process.room, self._process.polled, _topics(topics)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1_000
        room.forget(topics)
        while not (rows := await self._claim(listed, count)):
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return []
            if listed in polled:
                await room.wait(topics, left_s)
                continue
            polled.add(listed)
            await asyncio.sleep(min(left_s, _POLL_S if len(topics) == 1 else _POLL_MANY_S))
            polled.discard(listed)
        held = [Held(payload, (key, topic.decode(), priority)) for key, topic, priority, payload in rows]
        for topic in {one.receipt[1] for one in held}:
            room.wake(topic)
        return held

    async def ack(self, held: Sequence[Held]) -> None:
        ids = _listed(one.receipt[0] for one in held)
        await self._sessions.transact(_delete("claimed_executions", "job_id", ids), _delete("jobs", "id", ids))

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        receipts = [one.receipt for one in held]
        ids = _listed(job for job, _, _ in receipts)
        if delay_ms:
            back = _SCHEDULED + ",".join([_later(job, topic, priority, delay_ms) for job, topic, priority in receipts])
        else:
            back = _READY + ",".join([_ready(*receipt) for receipt in receipts])
        await self._sessions.transact(_delete("claimed_executions", "job_id", ids), back)

    async def close(self) -> None:
        await self._process.leave()
        self._sessions.close()

    async def _claim(self, listed: str, count: int) -> Rows:
        find = (
            f"SELECT id, job_id FROM ready_executions WHERE queue_name IN ({listed}) "
            f"ORDER BY priority, job_id LIMIT {count} FOR UPDATE SKIP LOCKED"
        )
        try:
            async with self._sessions.one() as session:
                _, found = await run_script(session, ["BEGIN", find])
                if not found:
                    await run_script(session, ["COMMIT"])
                    return []
                results = await run_script(session, self._move_to_claimed(found))
        except OperationalError as error:
            if error.args[0] not in _TRY_AGAIN:
                raise
            return []
        return results[-1]

    def _move_to_claimed(self, found: Rows) -> list[str]:
        return [
            _CLAIMED + ",".join([f"({job},{self._process_id},NOW(3))" for _, job in found]),
            _delete("ready_executions", "id", _listed(key for key, _ in found)),
            "COMMIT",
            f"SELECT id, queue_name, priority, payload FROM jobs WHERE id IN ({_listed(job for _, job in found)}) "
            "ORDER BY priority, id",
        ]


def _delete(table: str, column: str, ids: str) -> str:
    """By the index of that column: a small table would be read, and locked, whole."""
    index = "PRIMARY" if column == "id" else column
    return f"DELETE t FROM {table} AS t FORCE INDEX ({index}) WHERE t.{column} IN ({ids})"


def _topics(topics: Sequence[str]) -> str:
    return ",".join([f"'{topic}'" for topic in topics])


def _job(offer: Offer) -> str:
    scheduled_at = _AFTER.format(offer.delay_ms * 1_000) if offer.delay_ms else "NULL"
    return f"('{offer.topic}',{offer.priority},{scheduled_at},x'{offer.payload.hex()}',NOW(3))"


def _ready(job: int, topic: str, priority: int) -> str:
    return f"({job},'{topic}',{priority},NOW(3))"


def _later(job: int, topic: str, priority: int, delay_ms: int) -> str:
    return f"({job},'{topic}',{priority},{_AFTER.format(delay_ms * 1_000)},NOW(3))"


def _listed(ids: Any) -> str:
    return ",".join(map(str, ids))
