"""The topics that consumers have named on this host lately."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.model import limits
from foqs.model.stocks import Topic

ASKED_MS = 2 * limits.SECOND_MS
"""A topic counts as wanted for so long after consumers have asked for it, and for few seconds more."""
ASKED_TOPICS_MAX = 20_000
"""Topics after which the older ones are forgotten before their time. As many are dropped in one turn of the loop."""


class AskedTopics:
    """Two sets: names go into the new one, which becomes the old one after a while, and is dropped as a whole then.

    Names that nobody has items of are in it too, because the first report of a topic is to say whether it is wanted.
    So it has a bound: consumers may name any number of topics. Names that are asked for again and again stay in it
    however many others there are. Most calls only add to a set.
    """

    __slots__ = ("_new", "_old", "_turn_s")

    def __init__(self, now_s: float) -> None:
        self._new: set[Topic] = set()
        self._old: set[Topic] = set()
        self._turn_s = now_s + ASKED_MS / 1000
        """When the new set becomes the old one."""

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._new or topic in self._old

    def add(self, topics: Iterable[Topic], now_s: float) -> None:
        """Note some topics, as many as a call may name at most."""
        if len(self._new) >= ASKED_TOPICS_MAX:
            self._turn(now_s)
        self._new.update(topics)

    def forget(self, now_s: float) -> None:
        """Forget what was not asked for again, if it is time. To be called each second."""
        if now_s >= self._turn_s:
            self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        self._old, self._new = self._new, set()
        self._turn_s = now_s + ASKED_MS / 1000
