"""Topics that come due in the order in which they were put in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from math import inf

from foqs.model.stocks import Topic


class DueTopics:
    """All topics come due the same time after they were put in.

    There can be 200,000 of these, and each is taken from the front, where a dict would scan over all removed entries.
    """

    __slots__ = ("_delay_s", "_due_s")

    def __init__(self, delay_ms: int) -> None:
        self._delay_s = delay_ms / 1000
        self._due_s: OrderedDict[Topic, float] = OrderedDict()

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._due_s

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._due_s)

    def put(self, topic: Topic, now_s: float) -> None:
        """Put a topic in, unless it is already present."""
        self._due_s.setdefault(topic, now_s + self._delay_s)

    def renew(self, topic: Topic, now_s: float) -> None:
        """Put a topic in, or move it to the end."""
        self._due_s.pop(topic, None)
        self._due_s[topic] = now_s + self._delay_s

    def discard(self, topic: Topic) -> None:
        self._due_s.pop(topic, None)

    def take(self, count: int, now_s: float) -> list[Topic]:
        """Take up to `count` of the due topics."""
        due: list[Topic] = []
        for topic, due_s in self._due_s.items():
            if due_s > now_s or len(due) >= count:
                break
            due.append(topic)
        for topic in due:
            del self._due_s[topic]
        return due

    @property
    def next_s(self) -> float:
        """The time at which the first topic is due."""
        return next(iter(self._due_s.values()), inf)
