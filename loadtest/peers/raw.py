"""Plain SQL on foqs's item table: the ceiling. No queue finds the next item: clients tell each other the ids by pipes.

Every statement commits before it is answered, a claim's too. What it does without: an order, leases that end, retries.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import Struct
from typing import Any

from foqs.dev.local_server import LocalServer
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from loadtest.bench.raw import INSERT_INTO
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB, Held, Offer, OneServer

_RANGE = Struct("!QI")
"""The first id and how many; pipes take and give it whole."""
_PIPE_BYTES = 1 << 20
_CLIENTS_BITS, _ITEMS_BITS = 22, 40


class Raw(OneServer[LocalServer]):
    """As an adapter, so that plain SQL goes through the same workloads by the same clients."""

    name = "raw"
    server_name = "mysql"
    durability = "one SQL transaction a call, innodb_flush_log_at_trx_commit=1, doublewrite on, no binlog"
    batch_max = 1_000
    lacks = frozenset({"priority", "delay", "lease", "nack_delay", "many_topics"})

    def __init__(self) -> None:
        super().__init__()
        self._url = ""
        self._pipes: dict[str, Path] = {}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        server = LocalServer(directory / "mysql", buffer_pool_mib=CACHE_MIB, log_file_mib=LOG_MIB)
        server.start()
        self._server, self._url = server, server.url("raw")
        apply(self._url, SchemaKind.SHARD)
        self._pipes = {topic: directory / f"{topic}.pipe" for topic in topics}
        for path in self._pipes.values():
            os.mkfifo(path)
        self._kept_open = [_open(path) for path in self._pipes.values()]

    def stop(self) -> None:
        for file in self.__dict__.pop("_kept_open", []):
            os.close(file)
        super().stop()

    def version(self) -> str:
        return self._running.binary.version

    async def connect(self, in_flight: int) -> RawClient:
        client = RawClient(self._url, self._pipes, in_flight)
        await client.open_sessions(in_flight)
        return client


class RawClient:
    """A session and a thread for each call in flight."""

    def __init__(self, url: str, pipes: dict[str, Path], in_flight: int) -> None:
        self._url = url
        self._pipes = {topic: _open(path) for topic, path in pipes.items()}
        self._threads = ThreadPoolExecutor(in_flight, "raw")
        self._of_thread = threading.local()
        self._sessions: list[Any] = []
        self._next_id = secrets.randbits(_CLIENTS_BITS) << _ITEMS_BITS

    async def open_sessions(self, count: int) -> None:
        """All of them: what is measured begins later."""
        all_there = threading.Barrier(count)

        def open_one() -> None:
            self._session()
            all_there.wait()

        await asyncio.gather(*[self._do(open_one) for _ in range(count)])

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        by_topic: dict[str, list[Offer]] = {}
        for offer in offers:
            by_topic.setdefault(offer.topic, []).append(offer)
        first, self._next_id = self._next_id, self._next_id + len(offers)
        ranges, rows = [], []
        for topic, alike in by_topic.items():
            ranges.append((topic, first, len(alike)))
            rows += [
                f"({first + n},1,{offer.priority},5,1,1,5,5,0,0,'',x'{offer.payload.hex()}')"
                for n, offer in enumerate(alike)
            ]
            first += len(alike)
        await self._do(self._commit, INSERT_INTO + ",".join(rows))
        for topic, begin, count in ranges:
            os.write(self._pipes[topic], _RANGE.pack(begin, count))

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        (topic,) = topics
        found: list[Held] = await self._do(self._claim, self._pipes[topic], count, wait_ms)
        return found

    async def ack(self, held: Sequence[Held]) -> None:
        ids = ",".join([str(one.receipt) for one in held])
        await self._do(self._commit, f"DELETE FROM item WHERE id IN ({ids}) ORDER BY id LIMIT {len(held)}")

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        raise NotImplementedError("plain SQL does without retries")

    async def close(self) -> None:
        self._threads.shutdown()
        for session in self._sessions:
            session.close()
        for file in self._pipes.values():
            os.close(file)

    async def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _session(self) -> Any:
        session = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = connect(self._url)
            session.autocommit(True)
            self._sessions.append(session)
        return session

    def _commit(self, statement: str) -> None:
        with self._session().cursor() as cursor:
            cursor.execute(statement)

    def _claim(self, pipe: int, count: int, wait_ms: int) -> list[Held]:
        ids = _take(pipe, count, wait_ms)
        if not ids:
            return []
        listed = ",".join(map(str, ids))
        with self._session().cursor() as cursor:
            cursor.execute(f"UPDATE item SET deliveries = 1, due_at = 6 WHERE id IN ({listed})")
            cursor.execute(f"SELECT payload, id FROM item WHERE id IN ({listed})")
            return [Held(payload, key) for payload, key in cursor.fetchall()]


def _open(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return file


def _take(pipe: int, count: int, wait_ms: int) -> list[int]:
    """At most `count` ids; what a range has more goes back."""
    ids: list[int] = []
    deadline_s = time.monotonic() + wait_ms / 1000
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(ids) < count:
        try:
            first, found = _RANGE.unpack(os.read(pipe, _RANGE.size))
        except BlockingIOError:
            left_s = deadline_s - time.monotonic()
            if ids or left_s <= 0:
                break
            poll.poll(left_s * 1000)
            continue
        taken = min(found, count - len(ids))
        ids += range(first, first + taken)
        if taken < found:
            os.write(pipe, _RANGE.pack(first + taken, found - taken))
    return ids
