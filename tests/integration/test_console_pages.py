"""The pages of the console on a queue in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.testing import MemoryQueue
from tests.support.console_world import ConsoleWorld


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
