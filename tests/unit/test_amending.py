"""A settlement that the host refuses is sent again without what it refuses, so the item does not come back at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

import foqs
from foqs.client.settling import SettleStats
from foqs.testing import MemoryQueue

DELAY_MS_MAX = 60_000
METADATA_BYTES_MAX = 100


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue() as queue:
        queue.admin().update_namespace("default", delay_ms_max=DELAY_MS_MAX, metadata_bytes_max=METADATA_BYTES_MAX)
        yield queue


def run(queue: MemoryQueue, handler: Callable[[foqs.LeasedItem], object], **options: object) -> SettleStats:
    worker = foqs.Worker(queue.client(), "default", "t", handler, concurrency=1, **options)  # type: ignore[arg-type]
    queue.run_until_idle(worker)
    return worker.stats


def raises(error: Exception) -> Callable[[object], None]:
    def handler(_: object) -> None:
        raise error

    return handler


LONG = timedelta(days=1)


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        pytest.param(raises(foqs.Retry(delay=LONG)), {}, id="the delay of a Retry"),
        pytest.param(raises(foqs.Release(delay=LONG)), {}, id="the delay of a Release"),
        pytest.param(raises(foqs.Retry(delay=LONG, metadata=b"m" * 101)), {}, id="both"),
        pytest.param(lambda item: item.nack(delay=LONG), {}, id="an item's own nack"),
        pytest.param(lambda item: item.release(delay=LONG), {}, id="an item's own release"),
        pytest.param(
            raises(ValueError("x")), {"backoff": foqs.NackBackoff(delay=LONG, delay_max=LONG)}, id="the backoff"
        ),
    ],
)
def test_a_delay_beyond_the_namespaces_is_as_long_as_it_may_be(
    queue: MemoryQueue, handler: Callable[[object], None], options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    client = queue.client()
    client.enqueue("default", "t", b"x", metadata=b"before")
    stats = run(queue, handler, **options)
    assert (stats.received, stats.nacked + stats.released, stats.unsettled) == (1, 1, 0)
    assert f"delayed by {DELAY_MS_MAX} ms instead of" in caplog.text
    queue.clock.advance(DELAY_MS_MAX - 1_000)
    assert client.dequeue("default", "t") == []
    queue.clock.advance(1_000)
    (item,) = client.dequeue("default", "t")
    assert item.metadata == b"before"


def test_metadata_beyond_the_namespaces_is_left_out_and_the_rest_stands(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    client = queue.client()
    client.enqueue("default", "t", b"x", metadata=b"before")
    stats = run(queue, raises(foqs.Retry(delay_ms=5_000, metadata=b"m" * 101)))
    assert (stats.nacked, stats.unsettled) == (1, 0)
    assert "without its new metadata of 101 bytes" in caplog.text
    assert client.dequeue("default", "t") == []
    queue.clock.advance(5_000)
    (item,) = client.dequeue("default", "t")
    assert (item.metadata, item.attempt) == (b"before", 2)


def test_metadata_that_cannot_be_read_any_more_is_left_out(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    client = queue.client()
    for payload in (b"spoilt", b"good"):
        client.enqueue("default", "t", payload, metadata=b"before")
    with client.consume("default", "t") as items:
        for item in items:
            if item.payload == b"good":
                item.ack()
                break
            view = memoryview(b"gone")
            item.nack(delay_ms=5_000, metadata=view)  # type: ignore[arg-type]
            view.release()
    assert "without its new metadata, which is gone" in caplog.text
    assert items.stats == SettleStats(received=2, acked=1, nacked=1)
    queue.clock.advance(5_000)
    (again,) = client.dequeue("default", "t")
    assert (again.metadata, again.attempt) == (b"before", 2)


def test_the_others_of_a_batch_are_settled_as_they_said(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue_many("default", [foqs.NewItem("t", b"%d" % n) for n in range(3)])
    with client.consume("default", "t") as items:
        for number, item in enumerate(items):
            item.nack(delay=LONG if number == 1 else timedelta(0), metadata=b"%d" % number)
            if number == 2:
                break
    assert (items.stats.nacked, items.stats.unsettled) == (3, 0)
    assert sorted(item.metadata for item in client.dequeue("default", "t", 9)) == [b"0", b"2"]
    queue.clock.advance(DELAY_MS_MAX)
    assert b"1" in [item.metadata for item in client.dequeue("default", "t", 9)]


def test_what_the_namespace_allows_need_not_be_known(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue("default", "t", b"x")
    queue.fail_next("get_namespace", foqs.UnavailableError("the meta database is away"), count=1_000)
    stats = run(queue, raises(foqs.Retry(delay=LONG, metadata=b"m" * 101)))
    assert stats.unsettled == 0
    assert stats.nacked >= 1


def test_a_dead_letter_stays_one_and_an_asyncio_worker_does_the_same(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue("default", "t", b"x")

    async def handler(item: foqs.AsyncLeasedItem) -> None:
        item.nack(dead_letter=True, metadata=b"m" * 101)

    async def main() -> SettleStats:
        worker = foqs.AsyncWorker(queue.async_client(), "default", "t", handler)
        await queue.run_until_idle_async(worker)
        return worker.stats

    stats = asyncio.run(main())
    assert (stats.dead_lettered, stats.unsettled) == (1, 0)
    assert len(queue.admin().list_dead_letters("default", "t").items) == 1
