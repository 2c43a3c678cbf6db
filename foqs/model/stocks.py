"""The stocks of topics that hosts report to each other, as values."""

from __future__ import annotations

from typing import NamedTuple

from foqs.model.topic_name import hidden, parts

Topic = tuple[int, str]
"""The number of a namespace and the name of a topic."""
ANY_TOPIC = ""
"""The name that stands for all topics of a namespace together, for consumers that name none. Its group, by the hidden
name, stands for this group of all topics.
"""


def any_of(name: str) -> str:
    """Return the name that stands for all topics together, for the consumer group of this topic."""
    return hidden(ANY_TOPIC, parts(name)[1])


def is_any(name: str) -> bool:
    """Return True for a name that stands for all topics together."""
    return not parts(name)[0]


class Stock(NamedTuple):
    """Ready items of a topic on one host."""

    ready_count: int
    priority: int = 0
    """The priority of the first item, which is the most urgent one unless the topic ages."""
    oldest_at_ms: int = 0
    """The time at which the first item of that priority was due."""
    urgency: int | None = None
    """The place of the first item if the topic ages; None if its priority is its place."""

    @property
    def place(self) -> int:
        """The place of the first item in the order of the topic."""
        return self.priority if self.urgency is None else self.urgency


NO_STOCK = Stock(0)
_ITEMS_PER_WEIGHT = 1_000
_SOME_MAX = 1_000_000_000


def some_stock(weight: int) -> Stock:
    """Return the stock of all topics of a namespace together, by this weight, because no host adds up their items."""
    return Stock(min(_SOME_MAX, weight * _ITEMS_PER_WEIGHT))


def weight_of(stock: Stock) -> int:
    """Return the weight of all topics of a namespace together, at least 1. It reverses `some_stock`."""
    return max(1, -(-stock.ready_count // _ITEMS_PER_WEIGHT))


class Reported(NamedTuple):
    """A host's report on a topic, to the home of the topic."""

    stock: Stock
    is_wanted: bool
    """True if consumers ask for the topic there."""


class Pointer(NamedTuple):
    """A host that has ready items of a topic."""

    topic: Topic
    host_id: str
    stock: Stock
