"""The topics that consumers have recently named on this host."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.model import limits
from foqs.model.stocks import Topic

ASKED_MS = 2 * limits.SECOND_MS
"""Time for which a topic counts as wanted after consumers have asked for it; it can last a few seconds longer."""
ASKED_TOPICS_MAX = 20_000
"""Topics beyond which older ones are forgotten early. As many are dropped in one turn of the event loop."""


class AskedTopics:
    """Two sets: names are added to the new one, which becomes the old one after a while, and is then dropped whole.

    They include names of topics without items, because the first report of a topic must say if it is wanted. So they
    need a bound, because consumers can name any number of topics. Names that are asked for repeatedly stay in them,
    regardless of the number of others. Most calls only add to a set.
    """

    __slots__ = ("_new", "_old", "_turn_s")

    def __init__(self, now_s: float) -> None:
        self._new: set[Topic] = set()
        self._old: set[Topic] = set()
        self._turn_s = now_s + ASKED_MS / 1000
        """The time at which the new set becomes the old one."""

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._new or topic in self._old

    def add(self, topics: Iterable[Topic], now_s: float) -> None:
        """Note some topics, at most as many as one call can name."""
        if len(self._new) >= ASKED_TOPICS_MAX:
            self._turn(now_s)
        self._new.update(topics)

    def forget(self, now_s: float) -> None:
        """Forget topics that were not asked for again, if it is time. Call it every second."""
        if now_s >= self._turn_s:
            self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        self._old, self._new = self._new, set()
        self._turn_s = now_s + ASKED_MS / 1000
