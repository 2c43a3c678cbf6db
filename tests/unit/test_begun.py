"""Handed over is not tried: what a client says of the items on which it begins to work, and what may have ended it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

import foqs
from foqs.client.beginning import SAY_AFTER_MS, SAY_AGAIN_MS, Beginning, Beginnings
from foqs.client.leases import BaseLeasedItem
from foqs.client.settling import SettlementBuffer
from foqs.model.errors import StaleLeaseError
from foqs.shard.state import lease_table
from foqs.testing import MemoryQueue

LEASE_MS = 10_000


def fill(client: foqs.Client, *payloads: bytes) -> None:
    client.enqueue_many("default", [foqs.NewItem("t", payload) for payload in payloads])


def take(client: foqs.Client, count: int = 100, *, says_begun: bool = True) -> list[foqs.Item]:
    return client.dequeue("default", "t", count, lease_ms=LEASE_MS, says_begun=says_begun)


def told(items: list[foqs.Item]) -> list[tuple[bytes, int, bool]]:
    return [(item.payload, item.attempt, item.suspect) for item in items]


def shard_of(queue: MemoryQueue) -> Any:
    (writer,) = queue._traffic.host._host._shards.writers.values()
    return writer.shard


def lose_leases(queue: MemoryQueue) -> None:
    queue.clock.advance(LEASE_MS)


def test_what_was_handed_over_and_not_begun_is_no_failed_attempt(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"a", b"b", b"c")
    items = take(client)
    assert client.extend("default", (), begun=items[1]) == {}
    lose_leases(queue)
    assert told(take(client)) == [(b"a", 1, False)], "nothing comes with a suspect"
    assert told(take(client)) == [(b"b", 2, True)]
    assert told(take(client)) == [(b"c", 1, False)]


def test_who_does_not_say_what_is_begun_has_tried_all_that_was_handed_over(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"a", b"b")
    take(client, says_begun=False)
    lose_leases(queue)
    assert told(take(client, says_begun=False)) == [(b"a", 2, False), (b"b", 2, False)]


def test_an_item_that_never_was_begun_never_becomes_a_dead_letter(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"bystander")
    for _ in range(20):
        assert told(take(client)) == [(b"bystander", 1, False)]
        lose_leases(queue)
    assert queue.admin().list_dead_letters("default", "t").items == []


def test_what_ends_its_consumer_each_time_is_a_dead_letter_after_as_many_attempts_as_there_may_be(
    queue: MemoryQueue,
) -> None:
    client = queue.client()
    attempts_max = queue.admin().get_namespace("default").settings.attempts_max
    assert attempts_max is not None
    fill(client, b"poison", b"bystander")
    crashes_count = 0
    while (items := take(client))[0].payload == b"poison":
        client.extend("default", (), begun=items[0])
        lose_leases(queue)
        crashes_count += 1
    assert crashes_count == attempts_max
    assert told(items) == [(b"bystander", 1, False)]
    (dead,) = queue.admin().list_dead_letters("default", "t").items
    assert dead.payload == b"poison"


def test_a_suspect_goes_alone_also_among_several_topics_and_with_a_prefix(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue_many("default", [foqs.NewItem(topic, topic.encode()) for topic in ("x/1", "x/2", "x/3")])
    items = client.dequeue("default", ["x/1", "x/2", "x/3"], lease_ms=LEASE_MS, says_begun=True)
    client.extend("default", (), begun=items)
    lose_leases(queue)
    for _ in range(2):
        alone = client.dequeue("default", ["x/1", "x/2", "x/3"], 9, lease_ms=LEASE_MS, says_begun=True)
        assert [item.suspect for item in alone] == [True]
        client.release("default", alone)
        (alone_too,) = client.dequeue("default", (), 9, topic_prefix="x/", lease_ms=LEASE_MS, says_begun=True)
        assert alone_too.suspect
        client.release("default", alone_too)


def test_a_suspect_that_its_consumer_outlives_is_none_any_more(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"a", b"b")
    client.extend("default", (), begun=take(client))
    lose_leases(queue)
    (first,), (second,) = take(client), take(client)
    client.nack("default", first)
    client.release("default", second)
    assert told(take(client)) == [(b"a", 3, False)], "it failed in the usual way, and goes with others but the next one"
    assert told(take(client)) == [(b"b", 2, True)], "nobody has worked on it this time"


def test_a_lost_lease_and_the_lease_of_another_are_told_at_the_positions_behind(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"a", b"b")
    first, second = take(client)
    client.ack("default", first)
    errors = client.extend("default", [first, second], LEASE_MS, begun=[second, first], return_errors=True)
    assert {place: type(error) for place, error in errors.items()} == {0: StaleLeaseError, 3: StaleLeaseError}
    client.ack("default", second)
    many = client.extend("default", [second] * 600, LEASE_MS, begun=[second] * 600, return_errors=True)
    assert list(many) == list(range(1_200)), "in two calls"


def test_no_more_suspects_are_remembered_than_there_may_be(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_table, "SUSPECTS_MAX", 1)
    client = queue.client()
    fill(client, b"a", b"b")
    client.extend("default", (), begun=take(client))
    lose_leases(queue)
    assert sum(item.suspect for item in take(client) + take(client)) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_says_what_it_begins_before_it_does_and_handles_suspects_alone(
    queue: MemoryQueue, is_async: bool
) -> None:
    client = queue.client()
    fill(client, b"s1", b"s2", b"s3")
    client.extend("default", (), begun=take(client))
    lose_leases(queue)
    fill(client, *[b"fresh"] * 20)
    at_work: Counter[bytes] = Counter()
    crowds: list[tuple[bytes, int]] = []
    guard = threading.Lock()

    def begin(item: foqs.Item) -> None:
        shard = shard_of(queue)
        with guard:
            if item.suspect:
                assert shard.under_lease[item.receipt].key not in shard.leases.unbegun, "the host knows"
            at_work[item.payload] += 1
            crowds.append((item.payload, at_work.total()))

    def end(item: foqs.Item) -> None:
        with guard:
            at_work[item.payload] -= 1

    def handler(item: foqs.Item) -> None:
        begin(item)
        threading.Event().wait(0.002)
        end(item)

    async def async_handler(item: foqs.Item) -> None:
        begin(item)
        for _ in range(5):
            await asyncio.sleep(0)
        end(item)

    async def run_async() -> None:
        worker = foqs.AsyncWorker(queue.async_client(), "default", "t", async_handler, concurrency=8)
        await queue.run_until_idle_async(worker)

    if is_async:
        asyncio.run(run_async())
    else:
        queue.run_until_idle(foqs.Worker(client, "default", "t", handler, concurrency=8))
    assert len(crowds) == 23
    assert [count for payload, count in crowds if payload != b"fresh"] == [1, 1, 1]


def test_a_consumer_says_what_it_began_once_it_is_in_work_for_a_moment(queue: MemoryQueue) -> None:
    client = queue.client()
    fill(client, b"a", b"b")
    consumer = client.consume("default", "t", lease_ms=LEASE_MS)
    items = iter(consumer)
    first = next(items)
    shard = shard_of(queue)
    assert len(shard.leases.unbegun) == 2
    queue.clock.advance(SAY_AFTER_MS)
    consumer._keeper.begin_later(first)  # The clock of the test tells nobody that it has moved.
    while len(shard.leases.unbegun) == 2:
        threading.Event().wait(0.001)
    first.ack()
    consumer.close()
    assert told(take(client)) == [(b"b", 1, False)]


def leased(receipt: str) -> BaseLeasedItem:
    return BaseLeasedItem("a", receipt, "t", 0, b"", b"", 0, 0, 0, 1, None, SettlementBuffer(), LEASE_MS)


class Answer:
    def __init__(self) -> None:
        self.count = 0

    def put_nowait(self, _: None) -> None:
        self.count += 1


def test_who_waits_to_begin_goes_on_when_the_host_cannot_be_told_and_it_is_said_again() -> None:
    beginnings, answer, item = Beginnings(), Answer(), leased("1-1:1")
    beginnings.add(Beginning(item, 0, answer))
    assert beginnings.next_due_ms() == 0
    due = beginnings.due(100, 10)
    beginnings.said(due, foqs.NotSentError("away"), 100)
    assert answer.count == 1
    assert beginnings.next_due_ms() == 100 + SAY_AGAIN_MS
    assert beginnings.due(100, 10) == []
    (again,) = beginnings.due(100 + SAY_AGAIN_MS, 10)
    beginnings.said([again], {0: StaleLeaseError("lost")}, 2_000)
    assert item.lease_lost
    assert beginnings.next_due_ms() is None
    assert answer.count == 1


def test_nothing_is_said_of_what_is_settled_before_its_time() -> None:
    beginnings, items = Beginnings(), [leased("1-1:1"), leased("1-2:1")]
    for item in items:
        beginnings.add(Beginning(item, SAY_AFTER_MS))
    items[0].settled = True
    assert [beginning.item for beginning in beginnings.due(SAY_AFTER_MS, 10)] == [items[1]]
    assert beginnings.next_due_ms() is None
