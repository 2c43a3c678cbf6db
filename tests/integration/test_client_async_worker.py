from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

import foqs
from foqs.client.aio.settler import AsyncLeasedItem
from foqs.model.errors import InternalError
from tests.support.client_host import HostThread, WatchedQueue, running_host
from tests.support.waiting import PATIENCE_S, until_true


@pytest.fixture
def queue() -> WatchedQueue:
    return WatchedQueue()


@pytest.fixture
def host(queue: WatchedQueue) -> Iterator[HostThread]:
    before = set(threading.enumerate())
    with running_host(queue) as host:
        yield host
    # Threads of an earlier test may still end.
    until_true(lambda: set(threading.enumerate()) <= before)


@pytest.fixture
def client(host: HostThread) -> Iterator[foqs.Client]:
    with foqs.Client(host.address) as client:
        yield client


def fill(client: foqs.Client, count: int) -> None:
    client.enqueue_many("ns", [foqs.NewItem("t", b"%d" % n) for n in range(count)])


def test_async_iteration_flushes_acks_and_releases_the_rest(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def scenario() -> None:
        async with foqs.AsyncClient(host.address) as client:
            async with client.consume("ns", ["t"], batch_count=5) as items:
                number = 0
                async for item in items:
                    await item.extend()
                    if number == 2:
                        break
                    number += 1
                    item.ack()
            assert (items.stats.received, items.stats.acked, items.stats.released) == (5, 2, 3)

    fill(client, 10)
    asyncio.run(scenario())
    assert not queue.leased


def run_async_worker(address: str, count: int, handler: object, **settings: object) -> foqs.AsyncWorker:
    async def main() -> foqs.AsyncWorker:
        calls = []

        async def counting(item: AsyncLeasedItem) -> None:
            calls.append(item)
            try:
                await handler(item)  # type: ignore[operator]
            finally:
                if len(calls) == count:
                    worker.stop()

        async with asyncio.timeout(PATIENCE_S), foqs.AsyncClient(address) as client:
            worker = foqs.AsyncWorker(client, "ns", "t", counting, wait_ms=50, **settings)
            await worker.run()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return worker

    return asyncio.run(main())


def test_an_async_worker_handles_every_item_once_and_acks_it(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    seen: list[bytes] = []

    async def handler(item: AsyncLeasedItem) -> None:
        seen.append(item.payload)

    fill(client, 200)
    worker = run_async_worker(host.address, 200, handler, concurrency=4)
    assert sorted(seen, key=int) == [b"%d" % n for n in range(200)]
    assert worker.stats.acked == 200
    assert not queue.leased


def test_an_async_handler_that_fails_gives_its_item_back(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        if item.payload == b"0":
            raise asyncio.CancelledError
        raise InternalError("defect")

    fill(client, 2)
    worker = run_async_worker(host.address, 2, handler, concurrency=1)
    assert worker.stats.nacked == 2
    assert not queue.leased


def test_the_lease_is_extended_while_an_async_handler_runs(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        assert await asyncio.to_thread(queue.extended.wait, PATIENCE_S)

    fill(client, 1)
    worker = run_async_worker(host.address, 1, handler, concurrency=1, lease_ms=1_000)
    assert worker.stats.acked == 1


def test_an_async_handler_that_does_not_end_is_cancelled_and_its_item_released(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def main() -> foqs.AsyncWorker:
        async def handler(item: AsyncLeasedItem) -> None:
            worker.stop()
            await asyncio.Event().wait()

        async with foqs.AsyncClient(host.address) as client:
            worker = foqs.AsyncWorker(client, "ns", "t", handler, wait_ms=50, drain_ms=1_000)
            with pytest.raises(foqs.CutOffError) as told:
                await worker.run()
            assert len(told.value.item_ids) == 1
        return worker

    fill(client, 1)
    worker = asyncio.run(main())
    assert worker.stats.released == 1
    assert not queue.leased


def test_an_async_worker_that_cannot_work_at_all_says_why(host: HostThread) -> None:
    async def main() -> None:
        async def handler(item: AsyncLeasedItem) -> None:
            raise AssertionError

        async with foqs.AsyncClient(host.address) as client:
            await foqs.AsyncWorker(client, "nowhere", "t", handler).run()

    with pytest.raises(foqs.UnknownNamespaceError):
        asyncio.run(main())


def test_a_plain_handler_ends_an_async_worker_and_acks_nothing(host: HostThread, client: foqs.Client) -> None:
    async def main() -> foqs.AsyncWorker:
        async with foqs.AsyncClient(host.address) as client:
            worker = foqs.AsyncWorker(client, "ns", "t", lambda item: None, wait_ms=50)  # type: ignore[arg-type, return-value]
            with pytest.raises(TypeError, match=r"make it `async def`, or give it to foqs\.Worker"):
                await worker.run()
        return worker

    fill(client, 1)
    worker = asyncio.run(main())
    assert (worker.stats.acked, worker.stats.nacked) == (0, 1)


def test_a_handler_that_exits_ends_an_async_worker(host: HostThread, client: foqs.Client) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        raise SystemExit(3)

    fill(client, 1)
    with pytest.raises(SystemExit):
        run_async_worker(host.address, 1_000, handler, concurrency=1)


def test_a_signal_drains_an_async_worker(host: HostThread, client: foqs.Client) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    fill(client, 1)
    worker = run_async_worker(host.address, 1_000, handler, concurrency=1)
    assert worker.stats.acked == 1
