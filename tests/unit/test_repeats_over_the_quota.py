"""Repeats of dedup ids need no room in the quota, and are no way round it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from foqs import Client, NewItem, RetryPolicy
from foqs.host.admission.hosted_quota import RepeatLookUps
from foqs.model.errors import RateLimitedError
from foqs.testing import MemoryQueue

NS = "default"
ONCE = RetryPolicy(deadline_ms=0)


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue() as queue:
        queue.admin().update_namespace(NS, enqueues_per_minute_max=4)
        yield queue


def item(dedup_id: str | None) -> NewItem:
    return NewItem("t", b"x", dedup_id=dedup_id)


def test_a_repeat_gets_the_id_of_the_first_though_the_quota_is_used_up(queue: MemoryQueue) -> None:
    client = queue.client(retry=ONCE)
    ids = {name: client.enqueue(NS, "t", b"x", dedup_id=name) for name in "abcd"}
    with pytest.raises(RateLimitedError):
        client.enqueue(NS, "t", b"x")
    assert client.enqueue(NS, "other", b"y", dedup_id="a") == ids["a"]
    assert sum(stats.ready for stats in client.topics(NS)) == 4


def test_of_a_call_over_the_quota_the_repeats_get_ids_and_nothing_is_made(queue: MemoryQueue) -> None:
    client = queue.client(retry=ONCE)
    ids = [client.enqueue(NS, "t", b"x", dedup_id=name) for name in "abc"]
    client.enqueue(NS, "t", b"x")
    result = client.enqueue_many(NS, [item("a"), item("new"), item(None), item("c")], return_errors=True)
    assert result.ids == [ids[0], "", "", ids[2]]
    assert result.duplicates == [0, 3]
    assert {at: type(error) for at, error in result.errors.items()} == {1: RateLimitedError, 2: RateLimitedError}
    assert result.errors[1].retry_after_ms
    assert [(stats.topic, stats.ready) for stats in client.topics(NS)] == [("t", 4)]
    queue.clock.advance(120_000)
    assert client.enqueue(NS, "t", b"x", dedup_id="new") not in ids, "the refusal left no id"


def test_ids_that_are_new_are_refused_with_the_call_they_are_in(queue: MemoryQueue) -> None:
    client = queue.client(retry=ONCE)
    client.enqueue_many(NS, [item(None)] * 4)
    with pytest.raises(RateLimitedError):
        client.enqueue_many(NS, [item("new"), item("new"), item("newer")])
    assert sum(stats.ready for stats in client.topics(NS)) == 4


def test_looks_for_repeats_are_bounded_by_the_quota(queue: MemoryQueue) -> None:
    client = queue.client(retry=ONCE)
    first = client.enqueue(NS, "t", b"x", dedup_id="a")
    client.enqueue_many(NS, [item(None)] * 3)
    outcomes = [answer_of(client) for _ in range(6)]
    assert outcomes == [first] * 4 + [RateLimitedError] * 2


def answer_of(client: Client) -> object:
    try:
        return client.enqueue(NS, "t", b"x", dedup_id="a")
    except RateLimitedError as error:
        return type(error)


class _Namespace:
    number = 1

    class settings:  # noqa: N801
        enqueues_per_minute_max = 10


def test_looks_count_by_namespace_and_minute() -> None:
    now_s = 0.0
    look_ups, namespace = RepeatLookUps(lambda: now_s), cast(Any, _Namespace())
    assert look_ups.admit(namespace, 9)
    assert not look_ups.admit(namespace, 2)
    assert look_ups.admit(namespace, 1)
    other = cast(Any, _Namespace())
    other.number = 2
    assert look_ups.admit(other, 10)
    now_s = 60.0
    assert look_ups.admit(namespace, 10)
    assert len(look_ups._counts) == 1


@pytest.mark.parametrize("at_ms", [-1, -62_135_596_800_000, -(2**63), 0])
def test_deliver_after_a_time_before_1970_means_now(queue: MemoryQueue, at_ms: int) -> None:
    client = queue.client()
    client.enqueue(NS, "t", b"x", deliver_after_ms=at_ms)
    client.enqueue_many(NS, [NewItem("t", b"y", deliver_after_ms=at_ms)])
    client.enqueue(NS, "t", b"z", deliver_after=datetime(1812, 6, 24, tzinfo=UTC))
    items = client.dequeue(NS, "t", 3)
    assert [item.payload for item in items] == [b"x", b"y", b"z"]
    assert {item.deliver_after_ms for item in items} == {queue.clock.now_ms()}
