"""Topics that hosts wait for and that have no items anywhere, as their home knows them."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from foqs.cluster.homes.due_topics import DueTopics
from foqs.model import limits
from foqs.model.stocks import Topic

WISH_MS_MAX = 2 * limits.SECOND_MS
"""Validity of a host's wish for a topic, which it repeats every second."""
SOUGHT_TOPICS_MAX = 50_000
"""Topics without items for which a home keeps wishes, for all hosts together; a single host can have twice its even
share. Hosts that wait ask again every second.
"""

K = TypeVar("K")
Seekers = dict[str, tuple[int, float]]
"""The number of items that each host waits for, and the time until which that holds."""


class SoughtTopics:
    """The wishes for such topics, in the order in which they end. The directory owns it.

    Consumers can name any number of topics, and it is unknown which of these will have items. So they have a separate
    bound, which is divided among the asking hosts, so that none takes places from others. A namespace can have as many
    of a host's places as it leaves free: a single one gets half, two that want more than exist get a third each, and a
    later one always finds some. A topic that is asked for again in time keeps its place.
    """

    __slots__ = ("_counts", "_ends", "_host_counts", "_seekers", "_share")

    def __init__(self) -> None:
        self._seekers: dict[Topic, Seekers] = {}
        self._ends = DueTopics(WISH_MS_MAX)
        """The same topics; each ends if it was not asked for again for WISH_MS_MAX."""
        self._counts: Counter[tuple[str, int]] = Counter()
        """The number of topics that each host waits for, by namespace."""
        self._host_counts: Counter[str] = Counter()
        """The number of topics that each host waits for."""
        self._share = SOUGHT_TOPICS_MAX
        """The number of places of each host."""

    def __len__(self) -> int:
        return len(self._seekers)

    def has_hosts(self, count: int) -> None:
        """Set the number of living hosts."""
        self._share = 2 * SOUGHT_TOPICS_MAX // max(2, count)

    def add(self, host_id: str, topic: Topic, count: int, now_s: float) -> None:
        """Note that a host waits for `count` items, if the topic gets a place."""
        seekers, wish = self._seekers.get(topic), (count, now_s + WISH_MS_MAX / 1000)
        if seekers is None:
            self.put(topic, {host_id: wish}, now_s)
        elif host_id in seekers or self._takes_place(host_id, topic):
            seekers[host_id] = wish
            self._ends.renew(topic, now_s)

    def put(self, topic: Topic, seekers: Seekers, now_s: float) -> None:
        """Note the hosts that wait for a topic that is not here yet, as far as it gets places."""
        kept = {host_id: wish for host_id, wish in seekers.items() if self._takes_place(host_id, topic)}
        if kept:
            self._seekers[topic] = kept
            self._ends.renew(topic, now_s)

    def take(self, topic: Topic) -> Seekers:
        """Remove a topic, and return the hosts that wait for it."""
        seekers = self._seekers.pop(topic, None)
        if seekers is None:
            return {}
        self._ends.discard(topic)
        self._leave(topic, seekers)
        return seekers

    def forget(self, count: int, now_s: float) -> bool:
        """Forget up to `count` of the topics that have ended. True if more might be left."""
        ended = self._ends.take(count, now_s)
        for topic in ended:
            self._leave(topic, self._seekers.pop(topic))
        return len(ended) == count

    def _takes_place(self, host_id: str, topic: Topic) -> bool:
        """Give the host a place for the topic, if its namespace can have one more. True if it got one."""
        of_namespace = (host_id, topic[0])
        if self._counts.get(of_namespace, 0) >= self._share - self._host_counts.get(host_id, 0):
            return False
        self._counts[of_namespace] += 1
        self._host_counts[host_id] += 1
        return True

    def _leave(self, topic: Topic, seekers: Seekers) -> None:
        for host_id in seekers:
            _count_down(self._counts, (host_id, topic[0]))
            _count_down(self._host_counts, host_id)


def _count_down(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
