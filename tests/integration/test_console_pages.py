"""The pages of the console on a queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from foqs.client.queue_items import NewItem
from foqs.console.poller import Poller, timed
from foqs.model.cluster import ShardUse
from foqs.model.errors import UnavailableError
from foqs.testing import MemoryQueue
from tests.support.console_world import ConsoleWorld, MemoryReach

_TRIES = 50
"""More than a client makes of one call."""


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["shop"]) as queue:
        yield queue


@pytest.fixture
def world(queue: MemoryQueue) -> Iterator[ConsoleWorld]:
    with ConsoleWorld(queue) as world:
        yield world


def test_topics_have_their_counts_and_the_worst_comes_first(queue: MemoryQueue, world: ConsoleWorld) -> None:
    client = queue.client()
    for topic, count in (("mail", 3), ("orders", 40)):
        for number in range(count):
            client.enqueue("shop", topic, b"%d" % number)
    text = world.page("/ns/shop/topics")
    assert "2 topics, 43 items" in text
    assert '<a href="/ns/shop/topic/mail"' in text
    document = world.http.get("/ns/shop/topics.json").json()
    assert [(row["name"], row["ready"]) for row in document["topics"]] == [("orders", 40), ("mail", 3)]


def test_two_rounds_over_the_topics_do_not_run_at_the_same_time(queue: MemoryQueue) -> None:
    """The first round can take minutes. The rows that it has taken stay while the next one waits for its end."""
    count = 1_500  # Two pages.
    for first in range(0, count, 500):
        queue.client().enqueue_many("shop", [NewItem(f"t{first + at}", b"x") for at in range(500)])
    rests: list[float] = []

    async def both() -> tuple[int, int]:
        gate = asyncio.Event()

        async def rest(seconds: float) -> None:
            rests.append(seconds)
            await asyncio.sleep(0)
            gate.set()

        poller = Poller(MemoryReach(queue), queue.clock.now_ms, rest)
        await poller.start()
        before = poller.indexes["shop"].round_number
        await asyncio.gather(poller.poll_topics(), poller.poll_topics())
        index = poller.indexes["shop"]
        await poller.stop()
        return index.round_number - before, len(index.rows)

    assert asyncio.run(both()) == (2, count)
    assert rests, "it rests between two calls"


def test_the_wait_for_the_first_row_of_a_page_is_the_time_of_hosts() -> None:
    async def rows() -> AsyncIterator[int]:
        for number in range(3):
            if number == 1:
                await asyncio.sleep(0.05)
            yield number

    async def waits() -> list[float]:
        return [waited_s async for _, waited_s in timed(rows())]

    first, second, third = asyncio.run(waits())
    assert max(first, third) < 0.04 < second


def test_a_namespace_that_is_deleted_leaves_the_pages(queue: MemoryQueue, world: ConsoleWorld) -> None:
    queue.admin().create_namespace("gone")
    assert "gone" in world.page("/")
    assert world.page("/ns/gone/topics")
    queue.admin().delete_namespace("gone")
    for _ in range(40):
        queue.clock.advance(1_000)
        world.poll()
        if "gone" not in world.console.poller.namespaces:
            break
    assert "/ns/gone" not in world.page("/")
    assert world.page("/ns/gone/topics", 404)


def test_every_page_has_a_document_for_programs(queue: MemoryQueue, world: ConsoleWorld) -> None:
    client = queue.client()
    item = client.enqueue("shop", "mail", b"\xff", metadata=b"m", ordering_key="k")
    queue.admin().create_job("shop", "load")
    world.poll()
    for path in (
        "/overview", "/cluster", "/audit", "/ns/shop/topics", "/ns/shop/topic/mail", f"/ns/shop/item/{item}",
        "/ns/shop/consumers", "/ns/shop/jobs", "/ns/shop/jobs/load",
    ):  # fmt: skip
        answer = world.http.get(f"{path}.json")
        assert answer.status_code == 200, f"{path}: {answer.text}"
        assert isinstance(answer.json(), dict), path
    assert world.http.get(f"/ns/shop/item/{item}.json").json()["explanation"]["summary"]


def test_an_item_that_is_not_stored_is_said_to_be_so(world: ConsoleWorld) -> None:
    text = world.page("/ns/shop/item/0-123456", 404)
    assert "acked, was deleted or expired, or was never stored" in text
    assert world.page("/ns/shop/item/nonsense", 400)
    assert world.page("/ns/shop/jobs/none", 404)


def test_find_leads_to_a_topic_an_item_or_a_filter(queue: MemoryQueue, world: ConsoleWorld) -> None:
    item = queue.client().enqueue("shop", "a/b", b"x")
    world.poll()
    for text, target in (
        ("a/b", "/ns/shop/topic?name=a%2Fb"), (item, f"/ns/shop/item/{item}"),
        ("a&b c", "/ns/shop/topics?filter=a%26b+c"), ("", "/"),
    ):  # fmt: skip
        assert world.http.get("/find", params={"ns": "shop", "q": text}).headers["location"] == target


def test_pages_say_which_parts_of_the_cluster_do_not_answer(queue: MemoryQueue, world: ConsoleWorld) -> None:
    queue.client().enqueue("shop", "mail", b"x")
    world.poll()
    queue.fail_next("explain", UnavailableError("the host has gone"), count=_TRIES)
    queue.fail_next("get_rates", UnavailableError("the host has gone"), count=_TRIES)
    text = world.http.get("/ns/shop/topic/mail").text
    assert "Not explained: the host has gone" in text
    assert "Failed<" not in text, "rates that are not known are hidden, and not 0"
    queue.fail_next("list_jobs", UnavailableError("the host has gone"), count=_TRIES)
    answer = world.http.get("/ns/shop/jobs")
    assert answer.status_code == 503
    assert "the host has gone" in answer.text


def test_a_page_of_a_topic_explains_it_with_commands_that_help(queue: MemoryQueue, world: ConsoleWorld) -> None:
    queue.client().enqueue("shop", "mail", b"x")
    queue.admin().set_topic_policy("shop", "mail", dequeue_paused=True, reason="it rains")
    text = world.page("/ns/shop/topic/mail")
    assert "TOPIC_PAUSED" in text
    assert "it rains" in text
    assert "foqs topic resume" in text


def test_a_parked_shard_needs_nobody() -> None:
    with MemoryQueue(["shop"], shard_count=2) as queue, ConsoleWorld(queue) as world:
        queue.admin().update_shard(1, state=ShardUse.PARKED)
        queue.clock.advance(5_000)
        world.poll()
        assert "unserved" not in world.page("/")
        text = world.page("/cluster")
        assert "parked" in text
        assert "not well" not in text
