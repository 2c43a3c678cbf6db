"""How long each verb holds the event loop of a host that knows many topics, namespaces and leases.

The host runs in this process, so that each callback of its loop can be timed: by the CPU time of the loop's thread,
which neither a busy machine nor other threads lengthen. The loop is asyncio's own: uvloop has the same callbacks, but
lets nobody time them.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foqs import AdminClient, Client
from foqs.bootstrap import Host
from foqs.cli.running import tune_interpreter
from foqs.client.queue_items import NewItem
from foqs.config import HostConfig
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.calls import ItemState
from foqs.model.limits import KIB
from foqs.wire.codec import LENGTH_BYTES, Codec, structs
from loadtest.stress.holds import Holds
from loadtest.stress.reading import make_namespaces
from loadtest.stress.stand import NO_QUOTA, SHARD_COUNT
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import make_databases, wait_until_owned

HOLD_MS_MAX = 5.0
_NAMESPACE = "tenant"
_QUEUE_VERBS = {"enqueue", "dequeue", "ack", "nack", "extendLease"}
"""With a thousand items each: told, without a bound."""
_FULL, _LARGE, _DEAD = "full", "large", "dead"
_PAGE = limits.PAGE_ITEMS_MAX
_BATCH = limits.BATCH_ITEMS_MAX
_LEASE_MS = limits.LEASE_MS_MAX
_LARGE_BYTES = 64 * KIB
_CALL_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Course:
    topics_count: int = 100_000
    namespaces_count: int = limits.NAMESPACES_MAX - 100
    leases_count: int = 200_000
    calls: int = 20
    """Of each verb, one after the other."""
    rest_s: float = 10.0


class _Ward:
    """A host on a thread of its own."""

    def __init__(self, config: HostConfig) -> None:
        self.loop = Holds()
        self.port = 0
        self._config = config
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="host")

    def __enter__(self) -> _Ward:
        self._thread.start()
        if not self._started.wait(_CALL_S_MAX) or not self.port:
            raise FaultError("the host did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with self.loop.timed():
                self.loop.run_until_complete(self._serve())
        finally:
            self._started.set()
            self.loop.close()

    async def _serve(self) -> None:
        host = Host(self._config)
        try:
            await host.start()
            self.port = host.port
            self._started.set()
            await self._stop.wait()
        finally:
            await host.stop()


class _Caller:
    """One connection, one call at a time."""

    def __init__(self, port: int) -> None:
        self._codec = Codec()
        self._socket = socket.create_connection(("127.0.0.1", port), _CALL_S_MAX)

    def close(self) -> None:
        self._socket.close()

    def __call__(self, verb: str, request: Any) -> Any:
        """Raises the error of the answer."""
        self._socket.sendall(self._codec.encode_call(verb, request, 1))
        reply = self._codec.decode_reply(self._receive(int.from_bytes(self._receive(LENGTH_BYTES), "big")))
        if reply.error is not None:
            raise reply.error
        return reply.response

    def _receive(self, size_bytes: int) -> bytes:
        data = bytearray(size_bytes)
        view, at = memoryview(data), 0
        while at < size_bytes:
            at += self._socket.recv_into(view[at:]) or _ended()
        return bytes(data)


def _ended() -> int:
    raise FaultError("the host closed the connection")


def run(course: Course) -> Verdict:
    """One verb after the other, next to nothing else; `at rest` and `server hangs` are no verbs."""
    tune_interpreter()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-holds-")))
        server = stack.enter_context(LocalServer(home / "mysql", buffer_pool_mib=512, log_file_mib=512))
        databases = make_databases(server, dict.fromkeys(range(SHARD_COUNT), server))
        make_namespaces(course.namespaces_count, databases.meta_url)
        ward = stack.enter_context(
            _Ward(HostConfig(meta_url=databases.meta_url, shards=dict(databases.shard_urls), port=0))
        )
        address = f"127.0.0.1:{ward.port}"
        wait_until_owned(address)
        began_s = time.monotonic()
        _fill(address, course)
        caller = _Caller(ward.port)
        stack.callback(caller.close)
        verdict = Verdict("loop-holds")
        verdict.facts["seconds to fill the host"] = time.monotonic() - began_s
        leases = sum(shard.open_leases for shard in caller("getHostStatus", structs.HostStatusRequest()).shards)
        verdict.facts["open leases"] = leases
        for kind, work in _works(course, caller, server):
            ward.loop.take()
            work_began_s = time.monotonic()
            work()
            took_ms = (time.monotonic() - work_began_s) * 1_000
            held_ms, what = ward.loop.take()
            verdict.rows.append({"of": kind, "longest hold ms": held_ms, "all calls ms": took_ms, "in": what})
            if kind not in _QUEUE_VERBS:
                verdict.bounds.append(Bound(f"longest hold of the loop, {kind}, ms", held_ms, HOLD_MS_MAX))
    return verdict


def _fill(address: str, course: Course) -> None:
    with Client(address) as client, AdminClient(address) as admin:
        admin.create_namespace(_NAMESPACE, enqueues_per_minute_max=NO_QUOTA, payload_bytes_max=limits.PAYLOAD_BYTES_MAX)
        for first in range(0, course.topics_count, _BATCH):
            news = [NewItem(_topic(number), b"x" * 200) for number in range(first, first + _BATCH)]
            client.enqueue_many(_NAMESPACE, news)
        leased = [f"leased-{number}" for number in range(20)]
        for number in range(course.leases_count // _BATCH):
            topic = leased[number % len(leased)]
            client.enqueue_many(_NAMESPACE, [NewItem(topic, b"x" * 50)] * _BATCH)
            _take(client, topic, _BATCH, f"worker-{number}")
        client.enqueue_many(_NAMESPACE, [NewItem(_FULL, b"x" * 200)] * (2 * _PAGE))
        for _ in range(4):
            client.enqueue_many(_NAMESPACE, [NewItem(_LARGE, b"x" * _LARGE_BYTES)] * 100)


def _take(client: Client, topic: str, count: int, consumer: str) -> list[Any]:
    taken: list[Any] = []
    while len(taken) < count:
        wanted = count - len(taken)
        taken += client.dequeue(_NAMESPACE, topic, wanted, lease_ms=_LEASE_MS, wait_ms=10_000, consumer=consumer)
    return taken


def _topic(number: int) -> str:
    return f"topic-{number:06d}"


def _works(course: Course, caller: _Caller, server: LocalServer) -> Iterator[tuple[str, Callable[[], None]]]:
    s, each = structs, range(course.calls)
    topics = [_topic(number * course.topics_count // course.calls) for number in each]
    names = [f"n{number * course.namespaces_count // course.calls:05d}" for number in each]

    def times(verb: str, request: Callable[[int], Any]) -> tuple[str, Callable[[], None]]:
        def work() -> None:
            for number in each:
                caller(verb, request(number))

        return verb, work

    yield "at rest", lambda: time.sleep(course.rest_s)
    yield times("getActiveTopics", lambda n: s.ActiveTopicsRequest(_NAMESPACE, "", _PAGE, topics[n]))
    prefixed = s.ActiveTopicsRequest(_NAMESPACE, "topic-0", _PAGE)
    yield "getActiveTopics, prefix", times("getActiveTopics", lambda n: prefixed)[1]
    yield times("getHostStatus", lambda n: s.HostStatusRequest())
    yield times("listShards", lambda n: s.ListShardsRequest())
    yield times("listNamespaces", lambda n: s.ListNamespacesRequest("", _PAGE, names[n]))
    yield times("getNamespace", lambda n: s.GetNamespaceRequest(_NAMESPACE))
    settings = s.NamespaceSettings()
    yield times("updateNamespace", lambda n: s.UpdateNamespaceRequest(_NAMESPACE, settings))
    yield times("createNamespace", lambda n: s.CreateNamespaceRequest(f"new-{n}"))
    yield times("deleteNamespace", lambda n: s.DeleteNamespaceRequest(f"new-{n}"))
    yield times("createJob", lambda n: s.CreateJobRequest(_NAMESPACE, f"job-{n}"))
    yield times("updateJob", lambda n: s.UpdateJobRequest(_NAMESPACE, f"job-{n}", rows_count=n))
    yield times("getJob", lambda n: s.GetJobRequest(_NAMESPACE, f"job-{n}"))
    yield times("listJobs", lambda n: s.ListJobsRequest(_NAMESPACE, _PAGE))
    yield times("getRates", lambda n: s.GetRatesRequest(_NAMESPACE, None, "", 4, _PAGE))
    yield times("listConsumers", lambda n: s.ListConsumersRequest(_NAMESPACE, "", "", _PAGE))
    yield times("explain", lambda n: s.ExplainRequest(_NAMESPACE, topics[n]))
    yield "explain, namespace", times("explain", lambda n: s.ExplainRequest(_NAMESPACE))[1]
    yield times("peekItems", lambda n: s.PeekItemsRequest(_NAMESPACE, _FULL, _PAGE))
    yield "peekItems, large", times("peekItems", lambda n: s.PeekItemsRequest(_NAMESPACE, _LARGE, _PAGE))[1]
    found = caller("peekItems", s.PeekItemsRequest(_NAMESPACE, _FULL, 1)).items
    yield times("planExport", lambda n: s.PlanExportRequest(_NAMESPACE, limits.EXPORT_SPLITS_MAX))
    splits = caller("planExport", s.PlanExportRequest(_NAMESPACE, 1)).splits
    yield times("exportItems", lambda n: s.ExportItemsRequest(_NAMESPACE, splits[n % len(splits)], 0, _PAGE))
    leased = [int(ItemState.LEASED)]
    ask = [s.ExportItemsRequest(_NAMESPACE, split, 0, _PAGE, states=leased) for split in splits]
    yield "exportItems, leased", times("exportItems", lambda n: ask[n % len(ask)])[1]
    yield times("getItem", lambda n: s.GetItemRequest(_NAMESPACE, found[0].id))
    yield from _of_batches(caller, server)


def _of_batches(caller: _Caller, server: LocalServer) -> Iterator[tuple[str, Callable[[], None]]]:
    """Calls that need what the one before them did, with the most that a call may name."""
    s = structs
    taken: list[Any] = []
    ids: list[str] = []

    def enqueue() -> None:
        ids[:] = caller("enqueue", s.EnqueueRequest(_NAMESPACE, [s.NewItem(_DEAD, b"x" * 200)] * _BATCH)).ids

    def dequeue() -> None:
        taken.clear()
        while len(taken) < _BATCH:
            demand = s.TopicDemand(_DEAD, _BATCH - len(taken))
            taken.extend(caller("dequeue", s.DequeueRequest(_NAMESPACE, [demand], _LEASE_MS, 10_000)).items)

    def receipts() -> list[str]:
        return [one.receipt for one in taken]

    def nack() -> None:
        caller("nack", s.NackRequest(_NAMESPACE, [s.Nack(receipt, dead_letter=True) for receipt in receipts()]))

    yield "enqueue", enqueue
    yield "dequeue", dequeue
    yield "extendLease", lambda: caller("extendLease", s.ExtendRequest(_NAMESPACE, receipts(), _LEASE_MS))
    yield "nack", nack
    yield "listDeadLetters", lambda: caller("listDeadLetters", s.ListDeadLettersRequest(_NAMESPACE, _DEAD, _PAGE))
    yield "redriveDeadLetters", lambda: caller("redriveDeadLetters", s.RedriveDeadLettersRequest(_NAMESPACE, _DEAD))
    dequeue()
    yield "ack", lambda: caller("ack", s.AckRequest(_NAMESPACE, receipts()))
    enqueue()
    yield "deleteItems", lambda: caller("deleteItems", s.DeleteItemsRequest(_NAMESPACE, ids))
    enqueue()
    dequeue()
    nack()
    yield "purgeDeadLetters", lambda: caller("purgeDeadLetters", s.PurgeDeadLettersRequest(_NAMESPACE, _DEAD))
    yield "server hangs", lambda: _hang(caller, server)


def _hang(caller: _Caller, server: LocalServer) -> None:
    """All breakers open, and close again."""
    for pause, states in ((server.pause, {"sick"}), (server.resume, {"owned"})):
        pause()
        while {shard.state for shard in caller("getHostStatus", structs.HostStatusRequest()).shards} != states:
            time.sleep(0.02)
    time.sleep(1)
