"""The stocks of topics that hosts tell each other of, as values."""

from __future__ import annotations

from typing import NamedTuple

Topic = tuple[int, str]
"""The number of a namespace and the name of a topic."""
ANY_TOPIC = ""
"""The name that stands for all topics of a namespace together, for consumers that name none."""


class Stock(NamedTuple):
    """Ready items of a topic on one host."""

    ready_count: int
    priority: int = 0
    """The most urgent one."""
    oldest_at_ms: int = 0
    """When the first item of that priority was due."""


NO_STOCK = Stock(0)
_ITEMS_PER_WEIGHT = 1_000
_SOME_MAX = 1_000_000_000


def some_stock(weight: int) -> Stock:
    """The stock of all topics of a namespace together, of this weight. Nobody adds up their items."""
    return Stock(min(_SOME_MAX, weight * _ITEMS_PER_WEIGHT))


def weight_of(stock: Stock) -> int:
    """The weight of all topics of a namespace together, from 1, by `some_stock`."""
    return max(1, -(-stock.ready_count // _ITEMS_PER_WEIGHT))


class Pointer(NamedTuple):
    """A host that has ready items of a topic."""

    topic: Topic
    host_id: str
    stock: Stock
