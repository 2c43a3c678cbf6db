"""The raw ceiling R: what plain SQL on the same item table does, without a queue around it.

4 connections in 2 processes; each transaction inserts 1,000 items, selects, updates and deletes them by id, by lists of
ids as a queue has them, and the update moves a column of the second index, as a lease in the row does. Other SQL is
faster: `FORMS`.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.queues import Queue as Results
from types import TracebackType
from typing import Any, Self, TypeVar

from pymysql.constants import ER
from pymysql.err import OperationalError

from foqs.dev.local_server import LocalServer
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from loadtest.bench.usage import usage
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB

T = TypeVar("T")

RAW_SECONDS = 4.0
BATCH = 1_000
PAYLOAD_HEX = (b"x" * 200).hex()
INSERT_INTO = (
    "INSERT INTO item (id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, at_most_once, "
    "metadata, payload) VALUES "
)


@dataclass(frozen=True)
class Form:
    """Of the statements. What `by_range` needs no queue has: that what is taken together stands in a row."""

    by_range: bool = False
    leaves_index: bool = False
    """The update is of a column that no index has."""


R = Form()
FORMS: Mapping[str, Form] = {
    "R": R,
    "by ranges": Form(by_range=True),
    "index left alone": Form(leaves_index=True),
    "both": Form(by_range=True, leaves_index=True),
}


class Ceiling:
    """A context manager that keeps a server for any number of measurements."""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="foqs-bench-raw-")
        self._server = LocalServer(self._directory.name, buffer_pool_mib=CACHE_MIB, log_file_mib=LOG_MIB)
        try:
            self._server.start()
            self._url = self._server.url("raw")
            apply(self._url, SchemaKind.SHARD)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._server.stop()
        self._directory.cleanup()

    def around(self, seconds: float, work: Callable[[], T]) -> tuple[dict[str, float], T]:
        """R, measured half before and half after the work, and what the work returned.

        A virtual machine may be half as fast a minute later: `raw_steadiness` is the lower of the two rates as a part
        of the higher.
        """
        before = self.measure(seconds / 2)
        done = work()
        after = self.measure(seconds / 2)
        raw = {name: (before[name] + after[name]) / 2 for name in before}
        rates = (before["raw_per_s"], after["raw_per_s"])
        return raw | {"raw_steadiness": min(rates) / max(rates)}, done

    def measure(self, seconds: float, form: Form = R) -> dict[str, float]:
        """Items a second through their whole life, and the CPU that each costs the server and the clients."""
        context = multiprocessing.get_context("spawn")
        results: Results[Any] = context.Queue()
        arguments = [(self._url, number, seconds, form, results) for number in range(2)]
        processes = [context.Process(target=_process, args=those) for those in arguments]
        before = usage(self._server.pid)
        for process in processes:
            process.start()
        ends = [results.get(timeout=seconds + 60) for _ in range(4)]
        for process in processes:
            process.join()
        used = usage(self._server.pid).since(before)
        items_count = sum(count for count, _, _ in ends)
        return {
            "raw_per_s": sum(count / elapsed_s for count, elapsed_s, _ in ends),
            "raw_servers_us": used.cpu_s / items_count * 1e6,
            "raw_clients_us": sum(cpu_s for _, _, cpu_s in ends) / items_count * 1e6,
        }


def _process(url: str, number: int, seconds: float, form: Form, results: Results[Any]) -> None:
    threads = [threading.Thread(target=_work, args=(url, 2 * number + n, seconds, form, results)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(url: str, number: int, seconds: float, form: Form, results: Results[Any]) -> None:
    session = connect(url)
    count, first = 0, (number + 1) << 40
    began_s, cpu_began_s = time.monotonic(), time.thread_time()
    with session.cursor() as cursor:
        while time.monotonic() - began_s < seconds:
            try:
                _live(cursor, range(first + count, first + count + BATCH), form)
                session.commit()
            except OperationalError as error:
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise
                continue  # It is rolled back: deletes that meet in the second index may lock each other.
            count += BATCH
    results.put((count, time.monotonic() - began_s, time.thread_time() - cpu_began_s))
    session.close()


def _live(cursor: Any, keys: range, form: Form) -> None:
    """The whole life of a batch."""
    values = ",".join([f"({key},1,{key % 10},5,1,1,5,5,0,0,'',x'{PAYLOAD_HEX}')" for key in keys])
    these = f"id BETWEEN {keys[0]} AND {keys[-1]}" if form.by_range else f"id IN ({','.join(map(str, keys))})"
    cursor.execute(INSERT_INTO + values)
    cursor.execute(f"SELECT id, deliveries, metadata, payload FROM item WHERE {these}")
    cursor.fetchall()
    cursor.execute(f"UPDATE item SET deliveries = 1{'' if form.leaves_index else ', due_at = 6'} WHERE {these}")
    cursor.execute(f"DELETE FROM item WHERE {these} ORDER BY id LIMIT {BATCH}")
