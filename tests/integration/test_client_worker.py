from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import foqs
from foqs.client.aio.settler import AsyncLeasedItem
from foqs.client.sync.consumer import Consumer
from foqs.client.sync.settler import LeasedItem
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


# --- iterating ---


def test_leaving_the_loop_flushes_acks_and_releases_the_rest(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 10)
    with client.consume("ns", "t", batch_count=5) as items:
        for number, item in enumerate(items):
            if number == 2:
                break
            item.ack()
    assert (items.stats.received, items.stats.acked, items.stats.released) == (5, 2, 3)
    assert not queue.leased
    assert all(nack.release for nack in queue.nacks)


def test_breaking_out_of_a_plain_loop_cleans_up_at_once(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 3)
    for item in client.consume("ns", "t"):
        item.nack(delay_ms=7)
        break
    assert not queue.leased
    assert sorted((nack.delay_ms, nack.release) for nack in queue.nacks) == [(0, True), (0, True), (7, False)]


def test_an_exception_in_the_loop_releases_its_item(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 1)

    def fail(items: Consumer) -> None:
        with items:
            for _ in items:
                raise ZeroDivisionError

    items = client.consume("ns", "t")
    with pytest.raises(ZeroDivisionError):
        fail(items)
    assert items.stats.released == 1


def test_another_thread_can_stop_the_iteration(client: foqs.Client, host: HostThread) -> None:
    consumer = client.consume("ns", "t", wait_ms=200)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(list, consumer)
        host.call(host.queue.long_poll_began.wait())
        consumer.stop()
        assert result.result(PATIENCE_S) == []


def test_an_item_can_be_extended_while_it_is_held(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 1)
    with client.consume("ns", "t") as items:
        for item in items:
            item.extend()
            queue.leased.clear()
            with pytest.raises(foqs.StaleLeaseError):
                item.extend(1_000)
            item.ack()
            break
    assert (items.stats.acked, items.stats.lease_lost) == (0, 1)
    assert item.lease_lost


def test_what_keeps_items_from_coming_ends_the_loop(client: foqs.Client) -> None:
    with pytest.raises(foqs.UnknownNamespaceError):
        list(client.consume("nowhere", "t"))


# --- workers ---


def run_worker(client: foqs.Client, count: int, handler: object, **settings: object) -> foqs.Worker:
    """Run a worker until its handler was called `count` times."""
    calls = []

    def counting(item: LeasedItem) -> None:
        calls.append(item)
        try:
            handler(item)  # type: ignore[operator]
        finally:
            if len(calls) == count:
                worker.stop()

    worker = foqs.Worker(client, "ns", "t", counting, wait_ms=50, **settings)
    worker.run()
    return worker


def test_a_worker_handles_every_item_once_and_acks_it(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 200)
    seen: list[bytes] = []
    worker = run_worker(client, 200, lambda item: seen.append(item.payload), concurrency=4)
    assert sorted(seen, key=int) == [b"%d" % n for n in range(200)]
    assert (worker.stats.received, worker.stats.acked) == (200, 200)
    assert not queue.leased


def test_handlers_run_side_by_side_up_to_the_concurrency(client: foqs.Client) -> None:
    fill(client, 4)
    meeting = threading.Barrier(4)
    worker = run_worker(client, 4, lambda item: meeting.wait(PATIENCE_S), concurrency=4)
    assert worker.stats.acked == 4


def test_a_worker_holds_no_more_than_its_capacity(client: foqs.Client, queue: WatchedQueue) -> None:
    in_hand_counts: list[int] = []

    def handler(item: LeasedItem) -> None:
        in_hand_counts.append(worker._in_hand_count)
        if len(in_hand_counts) == 50:
            worker.stop()

    fill(client, 50)
    worker = foqs.Worker(client, "ns", "t", handler, concurrency=1, prefetch_count=2, wait_ms=50)
    worker.run()
    assert max(in_hand_counts) <= 3
    assert max(queue.asked_counts) == 3


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("defect"), (1_000, False, False)),
        (foqs.Retry(77, b"m"), (77, False, False)),
        (foqs.Release(), (0, True, False)),
        (foqs.DeadLetter("no"), (0, False, True)),
    ],
)
def test_a_handler_that_raises_gives_its_item_back(
    host: HostThread, queue: WatchedQueue, raised: Exception, expected: tuple[int, bool, bool]
) -> None:
    def handler(item: LeasedItem) -> None:
        raise raised

    with foqs.Client(host.address, random=lambda: 1.0) as client:
        fill(client, 1)
        worker = run_worker(client, 1, handler, concurrency=1)
    [nack] = queue.nacks
    assert (nack.delay_ms, nack.release, nack.dead_letter) == expected
    assert worker.stats.acked == 0


def test_a_handler_may_settle_its_item_itself(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 1)
    worker = run_worker(client, 1, lambda item: item.nack(delay_ms=5), concurrency=1)
    assert [nack.delay_ms for nack in queue.nacks] == [5]
    assert (worker.stats.nacked, worker.stats.acked) == (1, 0)


def test_the_lease_is_extended_while_the_handler_runs(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 1)
    worker = run_worker(client, 1, lambda item: queue.extended.wait(PATIENCE_S), concurrency=1, lease_ms=1_000)
    assert queue.extended.is_set()
    assert worker.stats.acked == 1


def test_an_item_whose_lease_was_lost_does_not_count_as_done(client: foqs.Client, queue: WatchedQueue) -> None:
    def slow(item: LeasedItem) -> None:
        queue.leased.clear()
        assert queue.extended.wait(PATIENCE_S)

    fill(client, 1)
    worker = run_worker(client, 1, slow, concurrency=1, lease_ms=1_000)
    assert (worker.stats.acked, worker.stats.lease_lost) == (0, 1)


def test_a_lease_that_the_keeper_lost_is_neither_acked_nor_kept(client: foqs.Client, queue: WatchedQueue) -> None:
    def handler(item: LeasedItem) -> None:
        item.lease_lost = True

    fill(client, 1)
    worker = run_worker(client, 1, handler, concurrency=1)
    assert (worker.stats.acked, worker.stats.lease_lost) == (0, 1)
    assert len(queue.leased) == 1


def test_the_lease_of_a_settled_item_is_not_extended(client: foqs.Client, queue: WatchedQueue) -> None:
    fill(client, 2)
    extended: dict[str, set[str]] = {}

    def handler(item: LeasedItem) -> None:
        if item.payload == b"1":
            known_count = len(queue.extended_receipts)
            until_true(lambda: item.receipt in queue.extended_receipts)
            extended[item.receipt] = set(queue.extended_receipts[known_count:])

    run_worker(client, 2, handler, concurrency=1, prefetch_count=0, lease_ms=1_000)
    assert [{held} for held in extended] == [*extended.values()] != []


@pytest.mark.parametrize("released_by", ["the stop", "the handler threads"])
def test_stopping_finishes_what_is_in_work_and_releases_what_is_not(
    client: foqs.Client, queue: WatchedQueue, released_by: str
) -> None:
    fill(client, 6)
    in_work, go_on = threading.Event(), threading.Event()

    def handler(item: LeasedItem) -> None:
        in_work.set()
        assert go_on.wait(PATIENCE_S)

    worker = foqs.Worker(client, "ns", "t", handler, concurrency=1, prefetch_count=5, wait_ms=50)
    if released_by == "the handler threads":
        worker._release_inbox = lambda: None  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(worker.run)
        assert in_work.wait(PATIENCE_S)
        worker.stop()
        with worker._changed:
            assert worker._changed.wait_for(lambda: worker._stopping, PATIENCE_S)
        go_on.set()
        run.result(PATIENCE_S)
    assert (worker.stats.received, worker.stats.acked, worker.stats.released) == (6, 1, 5)
    assert not queue.leased


def test_items_not_begun_are_released_even_while_a_handler_does_not_end(
    client: foqs.Client, queue: WatchedQueue
) -> None:
    in_work, go_on = threading.Event(), threading.Event()

    def handler(item: LeasedItem) -> None:
        in_work.set()
        assert go_on.wait(PATIENCE_S)

    fill(client, 3)
    # What is not begun has this time to be released.
    worker = foqs.Worker(client, "ns", "t", handler, concurrency=1, wait_ms=50, prefetch_count=2, drain_ms=1_000)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(worker.run)
        assert in_work.wait(PATIENCE_S)
        worker.stop()
        with pytest.raises(foqs.CutOffError, match="raise drain") as told:
            run.result(PATIENCE_S)
        assert told.value.item_ids == [item.id for _, item in queue.leased.values()]
        [stuck] = [thread for thread in threading.enumerate() if "foqs-handler" in thread.name]
        go_on.set()
        stuck.join(PATIENCE_S)
    assert (worker.stats.received, worker.stats.released) == (3, 2)
    assert len(queue.leased) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_and_the_old_handler_is_back_after_it(
    client: foqs.Client, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    fill(client, 1)
    worker = foqs.Worker(client, "ns", "t", lambda item: os.kill(os.getpid(), number), wait_ms=50)
    worker.run()
    assert worker.stats.acked == 1
    assert signal.getsignal(number) is before


def test_a_worker_that_cannot_work_at_all_says_why(client: foqs.Client) -> None:
    with pytest.raises(foqs.UnknownNamespaceError):
        foqs.Worker(client, "nowhere", "t", print).run()


def test_a_worker_goes_on_when_the_host_was_away(host: HostThread, queue: WatchedQueue) -> None:
    policy = foqs.RetryPolicy(deadline_ms=0)
    with foqs.Client(host.address, retry=policy) as client:
        fill(client, 1)
        refuse_once = queue._take
        failures = [foqs.UnavailableError("away")]

        def take(namespace_name: str, topics: object) -> object:
            if failures:
                raise failures.pop()
            return refuse_once(namespace_name, topics)  # type: ignore[arg-type]

        queue._take = take  # type: ignore[method-assign, assignment]
        worker = run_worker(client, 1, lambda item: None, concurrency=1)
    assert worker.stats.acked == 1


async def _work(item: LeasedItem) -> None: ...


def _coroutine(item: LeasedItem) -> object:
    return _work(item)


def _generator(item: LeasedItem) -> Iterator[None]:
    yield


@pytest.mark.parametrize("handler", [_coroutine, _generator])
def test_a_handler_that_has_not_really_run_ends_the_worker_and_acks_nothing(
    client: foqs.Client, queue: WatchedQueue, handler: Any
) -> None:
    fill(client, 1)
    worker = foqs.Worker(client, "ns", "t", handler, wait_ms=50, concurrency=1)
    with pytest.raises(TypeError, match=r"make it a plain function, or give it to foqs\.AsyncWorker"):
        worker.run()
    assert (worker.stats.acked, worker.stats.nacked) == (0, 1)


def test_a_worker_tells_what_it_works_on_and_what_came_of_it(
    client: foqs.Client, host: HostThread, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, 1)
    with caplog.at_level(logging.INFO, "foqs.client"):
        run_worker(client, 1, lambda item: None, concurrency=3, lease=timedelta(seconds=20))
    started, stopped = (record.getMessage() for record in caplog.records)
    assert started == (
        "worker started: namespace ns, topics t, concurrency 3, up to 6 items in hand, lease 20000 ms, "
        f"hosts {host.address}"
    )
    assert stopped.startswith("worker stopped: namespace ns, topics t: ")
    assert "acked=1" in stopped


def test_an_item_whose_lease_was_lost_before_its_turn_is_not_handled(client: foqs.Client, queue: WatchedQueue) -> None:
    handled: list[bytes] = []

    def handler(item: LeasedItem) -> None:
        handled.append(item.payload)
        if item.payload == b"0":
            queue.leased.clear()
            assert queue.extended.wait(PATIENCE_S)
            worker.stop()

    fill(client, 2)
    worker = foqs.Worker(client, "ns", "t", handler, concurrency=1, prefetch_count=1, wait_ms=50, lease_ms=1_000)
    worker.run()
    assert handled == [b"0"]
    assert worker.stats.acked == 0


# --- with asyncio ---


async def test_async_iteration_flushes_acks_and_releases_the_rest(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    fill(client, 10)
    async with foqs.AsyncClient(host.address) as consumer, consumer.consume("ns", ["t"], batch_count=5) as items:
        number = 0
        async for item in items:
            await item.extend()
            if number == 2:
                break
            number += 1
            item.ack()
    assert (items.stats.received, items.stats.acked, items.stats.released) == (5, 2, 3)
    assert not queue.leased


async def run_async_worker(address: str, count: int, handler: object, **settings: object) -> foqs.AsyncWorker:
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


async def test_an_async_worker_handles_every_item_once_and_acks_it(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    seen: list[bytes] = []

    async def handler(item: AsyncLeasedItem) -> None:
        seen.append(item.payload)

    fill(client, 200)
    worker = await run_async_worker(host.address, 200, handler, concurrency=4)
    assert sorted(seen, key=int) == [b"%d" % n for n in range(200)]
    assert worker.stats.acked == 200
    assert not queue.leased


async def test_the_lease_is_extended_while_an_async_handler_runs(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        assert await asyncio.to_thread(queue.extended.wait, PATIENCE_S)

    fill(client, 1)
    worker = await run_async_worker(host.address, 1, handler, concurrency=1, lease_ms=1_000)
    assert worker.stats.acked == 1


async def test_an_async_handler_that_does_not_end_is_cancelled_and_its_item_released(
    host: HostThread, client: foqs.Client, queue: WatchedQueue
) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        worker.stop()
        await asyncio.Event().wait()

    fill(client, 1)
    async with foqs.AsyncClient(host.address) as consumer:
        worker = foqs.AsyncWorker(consumer, "ns", "t", handler, wait_ms=50, drain_ms=1_000)
        with pytest.raises(foqs.CutOffError) as told:
            await worker.run()
    assert len(told.value.item_ids) == 1
    assert worker.stats.released == 1
    assert not queue.leased


async def test_a_plain_handler_ends_an_async_worker_and_acks_nothing(host: HostThread, client: foqs.Client) -> None:
    fill(client, 1)
    async with foqs.AsyncClient(host.address) as consumer:
        worker = foqs.AsyncWorker(consumer, "ns", "t", lambda item: None, wait_ms=50)  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match=r"make it `async def`, or give it to foqs\.Worker"):
            await worker.run()
    assert (worker.stats.acked, worker.stats.nacked) == (0, 1)


async def test_a_signal_drains_an_async_worker(host: HostThread, client: foqs.Client) -> None:
    async def handler(item: AsyncLeasedItem) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    fill(client, 1)
    worker = await run_async_worker(host.address, 1_000, handler, concurrency=1)
    assert worker.stats.acked == 1
