"""Workers handle the items of a key that come together one after the other, and none behind one that failed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta

import pytest

from foqs import AsyncLeasedItem, AsyncWorker, LeasedItem, NewItem, Release, Worker
from foqs.testing import MemoryQueue

NS = "default"
COUNT = 8


class Handled:
    """What handlers have seen: the items that they began, of each key at one time, and those that they have done."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.begun: list[bytes] = []
        self.done: list[bytes] = []
        self.together = 0
        self._at_work: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, item: LeasedItem | AsyncLeasedItem) -> None:
        with self._lock:
            self.begun.append(item.payload)
            self._at_work[item.ordering_key or ""] += 1
            self.together = max(self.together, *self._at_work.values())

    def end(self, item: LeasedItem | AsyncLeasedItem) -> None:
        with self._lock:
            self._at_work[item.ordering_key or ""] -= 1
            if item.payload == b"a3" and self.begun.count(b"a3") == 1:
                if self.how == "nack":
                    item.nack(delay_ms=1_000)
                elif self.how == "release":
                    raise Release
                elif self.how == "error":
                    raise OSError("planned")
            self.done.append(item.payload)

    def handle(self, item: LeasedItem) -> None:
        self.begin(item)
        self.end(item)

    async def handle_async(self, item: AsyncLeasedItem) -> None:
        self.begin(item)
        await asyncio.sleep(0)
        self.end(item)

    def of(self, key: bytes) -> list[bytes]:
        return [one for one in self.done if one.startswith(key)]


def with_runs(queue: MemoryQueue) -> None:
    queue.admin().set_topic_policy(NS, "t", key_batch=COUNT)
    new = [NewItem("t", f"{key}{at}".encode(), ordering_key=key) for at in range(COUNT) for key in "ab"]
    queue.client().enqueue_many(NS, new)


def in_order(key: str) -> list[bytes]:
    return [f"{key}{at}".encode() for at in range(COUNT)]


def test_items_of_a_key_are_handled_one_after_the_other(queue: MemoryQueue) -> None:
    with_runs(queue)
    handled = Handled("done")
    queue.run_until_idle(Worker(queue.client(), NS, "t", handled.handle))
    assert (handled.of(b"a"), handled.of(b"b"), handled.together) == (in_order("a"), in_order("b"), 1)


@pytest.mark.parametrize("how", ["error", "release"])
def test_items_behind_one_that_comes_back_are_released_unhandled(queue: MemoryQueue, how: str) -> None:
    with_runs(queue)
    handled, client = Handled(how), queue.client()
    worker = Worker(client, NS, "t", handled.handle, prefetch_count=2 * COUNT)
    queue.run_until_idle(worker)
    stats = worker.stats
    queue.clock.advance(timedelta(minutes=1))
    queue.run_until_idle(Worker(client, NS, "t", handled.handle))
    assert (handled.of(b"a"), handled.of(b"b"), handled.together) == (in_order("a"), in_order("b"), 1)
    assert len(handled.begun) == 2 * COUNT + 1, "only the item that came back was handled twice"
    assert stats.lease_lost == 0


def test_items_behind_one_that_its_handler_nacks_are_not_handled(queue: MemoryQueue) -> None:
    with_runs(queue)
    handled, client = Handled("nack"), queue.client()
    queue.run_until_idle(Worker(client, NS, "t", handled.handle))
    assert handled.of(b"a") == in_order("a")[:4]
    queue.clock.advance(timedelta(minutes=1))
    queue.run_until_idle(Worker(client, NS, "t", handled.handle))
    assert handled.of(b"a") == [*in_order("a")[:4], *in_order("a")[3:]]


async def test_tasks_handle_items_of_a_key_one_after_the_other(queue: MemoryQueue) -> None:
    with_runs(queue)
    handled = Handled("error")
    async with queue.async_client() as client:
        await queue.run_until_idle_async(AsyncWorker(client, NS, "t", handled.handle_async))
        queue.clock.advance(timedelta(minutes=1))
        await queue.run_until_idle_async(AsyncWorker(client, NS, "t", handled.handle_async))
    assert (handled.of(b"a"), handled.of(b"b"), handled.together) == (in_order("a"), in_order("b"), 1)
