"""Workers and consumers that are stopped, that share a client, or whose hosts are away; and what handlers raise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import foqs
from foqs.client.worker_core import DRAIN_MS, WorkerSettings
from foqs.model import limits
from tests.support.client_host import HostThread, WatchedQueue, refused_address, running_host
from tests.support.waiting import PATIENCE_S, until, until_true

LONG_REPEATS = foqs.RetryPolicy(deadline_ms=600_000, backoff_ms=300_000, backoff_ms_max=300_000)
"""So long may the pauses of a call be that nobody who waits for one hears a stop."""


@pytest.fixture
def queue() -> WatchedQueue:
    return WatchedQueue()


@pytest.fixture
def host(queue: WatchedQueue) -> Iterator[HostThread]:
    with running_host(queue) as host:
        yield host


@pytest.fixture
def client(host: HostThread) -> Iterator[foqs.Client]:
    with foqs.Client(host.address) as client:
        yield client


def never(_: object) -> None:
    raise AssertionError("there is nothing")


async def async_never(_: object) -> None:
    raise AssertionError("there is nothing")


@pytest.mark.parametrize("connections_max", [1, 2, 3])
def test_calls_that_wait_for_items_never_take_the_last_connection(
    host: HostThread, queue: WatchedQueue, connections_max: int
) -> None:
    """Workers that share a client would otherwise not extend their leases, and lose them all."""
    with (
        foqs.Client(host.address, connections_max=connections_max) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        waiting = [threads.submit(client.dequeue, "ns", "nothing", wait_ms=30_000) for _ in range(4)]
        host.call(asyncio.wait_for(queue.long_poll_began.wait(), PATIENCE_S))
        client.enqueue("ns", "t", b"x", deadline_ms=20_000)  # Less than those wait who have the connections.
        (item,) = client.dequeue("ns", "t")
        assert client.extend("ns", item, 1_000, deadline_ms=20_000) == {}
        client.close()
        for wait in waiting:
            wait.exception(PATIENCE_S)


async def test_calls_of_tasks_that_wait_for_items_never_take_the_last_slots(host: HostThread) -> None:
    async with foqs.AsyncClient(host.address, connections_max=1) as client:
        waits = [asyncio.create_task(client.dequeue("ns", "nothing", wait_ms=30_000)) for _ in range(100)]
        async with asyncio.timeout(PATIENCE_S):
            await client.enqueue("ns", "t", b"x", deadline_ms=20_000)
            assert len(await client.dequeue("ns", "t")) == 1
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def test_the_drain_of_a_worker_is_what_its_docs_say(client: foqs.Client) -> None:
    worker = foqs.Worker(client, "ns", "t", never)
    assert isinstance(worker._settings, WorkerSettings)
    assert worker._settings.drain_ms == DRAIN_MS == 30 * limits.SECOND_MS
    for cls in (foqs.Worker, foqs.AsyncWorker):
        assert "drain or drain_ms (30 s)" in str(cls.__doc__)


def test_a_program_whose_handlers_were_cut_off_fails_and_says_at_which_items(host: HostThread) -> None:
    program = f"""
import threading, foqs
def handler(item):
    worker.stop()
    threading.Event().wait()
client = foqs.Client({host.address!r})
item_id = client.enqueue("ns", "t", b"x")
print(item_id, flush=True)
worker = foqs.Worker(client, "ns", "t", handler, wait_ms=50, drain_ms=50)
worker.run()
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 1
    item_id = ended.stdout.strip()
    assert f"CutOffError: 1 handlers were cut off 50 ms after the stop, at items {item_id}" in ended.stderr


@pytest.mark.parametrize("kind", ["worker", "consumer"])
def test_a_stop_ends_the_pauses_between_repeats(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with foqs.Client(refused_address(), retry=LONG_REPEATS) as client, ThreadPoolExecutor(1) as threads:
        stop: Callable[[], None]
        if kind == "worker":
            worker = foqs.Worker(client, "ns", "t", never)
            run, stop = threads.submit(worker.run), worker.stop
        else:
            consumer = client.consume("ns", "t")
            run, stop = threads.submit(lambda: list(consumer)), consumer.stop  # type: ignore[assignment]
        until_true(lambda: "no items from ns for now" in caplog.text)
        stop()
        assert run.result(PATIENCE_S) in (None, [])


async def test_a_stop_ends_the_pauses_of_an_asyncio_worker(caplog: pytest.LogCaptureFixture) -> None:
    async with foqs.AsyncClient(refused_address(), retry=LONG_REPEATS) as client:
        worker = foqs.AsyncWorker(client, "ns", "t", async_never)
        run = asyncio.create_task(worker.run())
        await until(lambda: "no items from ns for now" in caplog.text)
        worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await run


def test_a_loop_over_a_consumer_goes_on_through_an_outage(queue: WatchedQueue) -> None:
    taken: list[bytes] = []
    first = running_host(queue)
    host = first.__enter__()
    port = host.server.port
    with foqs.Client(host.address) as client, ThreadPoolExecutor(1) as threads:

        def consume() -> None:
            with client.consume("ns", "t", wait_ms=100) as items:
                for item in items:
                    item.ack()
                    taken.append(item.payload)
                    if len(taken) == 2:
                        return

        loop = threads.submit(consume)
        client.enqueue("ns", "t", b"before")
        until_true(lambda: bool(taken))
        first.__exit__(None, None, None)
        again = HostThread(queue)
        again.server._port = port
        again.start()
        try:
            client.enqueue("ns", "t", b"after")
            loop.result(PATIENCE_S)
        finally:
            again.stop()
    assert taken == [b"before", b"after"]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_what_a_handler_raises_means_the_same_for_both_kinds_of_workers(
    host: HostThread, client: foqs.Client, raised: BaseException
) -> None:
    ended: list[BaseException | None] = []
    stats = []

    def outcome_of(run: Callable[[], object]) -> BaseException | None:
        try:
            run()
        except BaseException as error:
            return error
        return None

    def blocking() -> None:
        def handler(item: foqs.LeasedItem) -> None:
            if item.payload == b"last":
                worker.stop()
            else:
                raise raised

        worker = foqs.Worker(client, "ns", "t", handler, concurrency=1, wait_ms=50)
        try:
            worker.run()
        finally:
            stats.append((worker.stats.nacked, worker.stats.acked))

    def with_asyncio() -> None:
        async def main() -> None:
            async def handler(item: foqs.AsyncLeasedItem) -> None:
                if item.payload == b"last":
                    worker.stop()
                else:
                    raise raised

            async with foqs.AsyncClient(host.address) as client:
                worker = foqs.AsyncWorker(client, "ns", "t", handler, concurrency=1, wait_ms=50)
                try:
                    await worker.run()
                finally:
                    stats.append((worker.stats.nacked, worker.stats.acked))

        asyncio.run(main())

    for run in (blocking, with_asyncio):
        client.enqueue("ns", "t", b"x")
        if isinstance(raised, asyncio.CancelledError):
            client.enqueue("ns", "t", b"last")
        ended.append(outcome_of(run))
    assert type(ended[0]) is type(ended[1])
    assert stats[0] == stats[1]
    assert ended[0] is (None if isinstance(raised, asyncio.CancelledError) else raised)
