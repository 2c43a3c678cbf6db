"""Limits of items in flight, step by step: shards on tables in memory, and the books of permits."""

from __future__ import annotations

from foqs.model.permit_book import PermitBook
from foqs.model.stocks import Topic
from foqs.model.topic_name import fair, ordered
from tests.support.shards import NAMESPACE, Shards, plan

TOPIC = "t"


class Limited:
    """Shards whose books of permits answer at once when they are asked."""

    def __init__(self, count: int, **policy: object) -> None:
        self.shards = Shards(count)
        self.shards.allow_item_bytes(1_000)
        self.shards.set_policy(TOPIC, **policy)
        self.shards.pass_ms(40)
        self.books: dict[Topic, PermitBook] = {}

    def grant(self) -> None:
        """Let the books answer all asks."""
        permits = self.shards.dispatcher.permits
        while asks := permits.take_asks(100):
            answers = {
                topic: self.books.setdefault(topic, PermitBook()).ask(ask, self.shards.clock_ms)
                for topic, ask in asks.items()
            }
            self.shards.dispatcher.permits_answered(asks, answers)

    def pass_turns(self, count: int = 5) -> None:
        for _ in range(count):
            self.grant()
            self.shards.pass_ms(40)

    @property
    def out_count(self) -> int:
        """The items of the topic and of its keys that are in flight on all shards."""
        return sum([shard.index.topics[NAMESPACE, TOPIC].out_count for shard in self.shards.states.values()
                    if (NAMESPACE, TOPIC) in shard.index.topics])  # fmt: skip

    @property
    def permits(self) -> dict[int, int]:
        """The permits of each shard in the book."""
        return {shard_id: one.permits for book in self.books.values() for shard_id, one in book.shards.items()}


def test_items_of_a_key_that_is_new_on_a_shard_are_not_claimed_without_permits() -> None:
    for name in (fair(TOPIC, "a"), ordered(TOPIC, "a")):
        limited = Limited(2, in_flight_max=1)
        shards = limited.shards
        shards.enqueue(0, name, count=10)
        shards.pass_ms(40)
        shards.dequeue({TOPIC: 5})
        limited.grant()
        assert limited.out_count == 1, name
        shards.begin(0)
        shards.enqueue(1, name, count=10)
        plan(shards.states[1], shards.dispatcher, shards.now(1))
        assert limited.out_count == 1, name
        assert shards.states[1].index.topics[NAMESPACE, TOPIC].permits == 0, name


def test_items_of_a_key_are_not_claimed_without_permits_before_its_topic_is_announced() -> None:
    for name in (TOPIC, fair(TOPIC, "a")):
        limited = Limited(1, in_flight_max=1)
        shards = limited.shards
        shards.enqueue(0, name, count=2)
        shards.pass_ms(40)
        shards.take_over(announces=False)
        shards.dequeue({name: 5})
        shards.enqueue(0, name, count=10)
        plan(shards.states[0], shards.dispatcher, shards.now(0))
        assert limited.out_count == 0, name
