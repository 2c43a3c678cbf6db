"""Limits of items in flight, step by step: shards on tables in memory, and the books of permits."""

from __future__ import annotations

from foqs.model.permit_book import PermitBook
from foqs.model.stocks import Topic
from foqs.model.topic_name import fair, ordered
from foqs.shard.state.events import Events
from tests.support.shards import NAMESPACE, Shards, plan
from tests.unit.test_fair_turns import ack

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


def test_the_permits_of_a_forgotten_topic_are_given_back_also_if_an_answer_is_lost() -> None:
    limited = Limited(1, in_flight_max=2)
    shards = limited.shards
    shards.enqueue(0, TOPIC)
    call = shards.dequeue({TOPIC: 1})
    limited.pass_turns()
    assert call.items is not None
    ack(shards, call.items)
    limited.pass_turns()
    assert limited.permits == {0: 1}
    topic = shards.states[0].index.topics[NAMESPACE, TOPIC]
    shards.states[0].index.topic_table.remove(topic)
    events = Events()
    events.topics_gone.append(topic)
    shards.dispatcher.on_events(events)
    asks = shards.dispatcher.permits.take_asks(100)
    shards.dispatcher.permits_answered(asks, {})
    limited.grant()
    assert limited.permits == {}


def test_an_owner_that_renews_its_epoch_takes_the_answer_of_its_ask_under_way() -> None:
    limited = Limited(1, in_flight_max=3)
    shards = limited.shards
    shards.enqueue(0, TOPIC, count=3)
    shards.pass_ms(40)
    shards.dequeue({TOPIC: 2})
    asks = shards.dispatcher.permits.take_asks(100)
    shards.states[0].begin_epoch(shards.states[0].epoch + 1)
    book = limited.books[NAMESPACE, TOPIC] = PermitBook()
    shards.dispatcher.permits_answered(asks, {topic: book.ask(ask, 0) for topic, ask in asks.items()})
    assert limited.out_count == 2
    shards.dequeue({TOPIC: 1})
    limited.pass_turns(40)
    assert limited.permits == {0: 3}


def test_an_item_of_a_serial_topic_has_a_permit_also_when_the_topic_is_serial_no_more() -> None:
    limited = Limited(2, in_flight_max=1, serial=True)
    shards = limited.shards
    shards.enqueue(0, TOPIC)
    limited.pass_turns()
    first = shards.dequeue({TOPIC: 1})
    limited.pass_turns()
    assert len(first.items or []) == 1
    assert limited.permits == {0: 1}
    shards.set_policy(TOPIC, serial=False)
    limited.pass_turns()
    shards.enqueue(1, TOPIC, count=3)
    limited.pass_turns()
    second = shards.dequeue({TOPIC: 3})
    limited.pass_turns()
    assert (second.items, limited.out_count) == (None, 1)


def test_a_serial_topic_asks_for_no_more_permits_than_a_run_needs() -> None:
    for batch, expected in ((1, 1), (3, 3), (9, 5)):
        limited = Limited(1, in_flight_max=5, serial=True, key_batch=batch)
        shards = limited.shards
        shards.enqueue(0, TOPIC, count=20)
        limited.pass_turns()
        call = shards.dequeue({TOPIC: 9})
        limited.pass_turns(20)
        shards.dequeue({TOPIC: 9})
        limited.pass_turns(20)
        assert (len(call.items or []), limited.permits) == (expected, {0: expected}), batch
