"""What hosts tell each other of the topics that they have items of, as values."""

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
SOME_STOCK = Stock(1_000)
"""The stock of all topics of a namespace together, where any has ready items: nobody adds them up."""


class Pointer(NamedTuple):
    """A host that has ready items of a topic."""

    topic: Topic
    host_id: str
    stock: Stock
