"""Topics that hosts wait for and that have no items anywhere, as their home knows them."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from foqs.cluster.homes.due_topics import DueTopics
from foqs.model import limits
from foqs.model.stocks import Topic

INTEREST_MS_MAX = 2 * limits.SECOND_MS
"""Validity of a host's interest in a topic, which it repeats every second."""
INTEREST_TOPICS_MAX = 50_000
"""Topics without items for which a home keeps interests, for all hosts together; a single host can have twice its even
share. Hosts that wait ask again every second.
"""

K = TypeVar("K")
WaitingHosts = dict[str, tuple[int, float]]
"""The number of items that each host waits for, and the time until which that holds."""


class HostInterests:
    """The interests in such topics, in the order in which they end. The directory owns it.

    Consumers can name any number of topics, and it is unknown which of these will have items. So they have a separate
    bound, which is divided among the asking hosts, so that none takes places from others. A namespace can have as many
    of a host's places as it leaves free: a single one gets half, two that want more than exist get a third each, and a
    later one always finds some. A topic that is asked for again in time keeps its place.
    """

    __slots__ = ("_counts", "_ends", "_host_counts", "_hosts", "_share")

    def __init__(self) -> None:
        self._hosts: dict[Topic, WaitingHosts] = {}
        self._ends = DueTopics(INTEREST_MS_MAX)
        """The same topics; each ends if it was not asked for again for INTEREST_MS_MAX."""
        self._counts: Counter[tuple[str, int]] = Counter()
        """The number of topics that each host waits for, by namespace."""
        self._host_counts: Counter[str] = Counter()
        """The number of topics that each host waits for."""
        self._share = INTEREST_TOPICS_MAX
        """The number of places of each host."""

    def __len__(self) -> int:
        return len(self._hosts)

    def has_hosts(self, count: int) -> None:
        """Set the number of living hosts."""
        self._share = 2 * INTEREST_TOPICS_MAX // max(2, count)

    def add(self, host_id: str, topic: Topic, count: int, now_s: float) -> None:
        """Note that a host waits for `count` items, if the topic gets a place."""
        waiting_hosts, interest = self._hosts.get(topic), (count, now_s + INTEREST_MS_MAX / 1000)
        if waiting_hosts is None:
            self.put(topic, {host_id: interest}, now_s)
        elif host_id in waiting_hosts or self._takes_place(host_id, topic):
            waiting_hosts[host_id] = interest
            self._ends.renew(topic, now_s)

    def put(self, topic: Topic, waiting_hosts: WaitingHosts, now_s: float) -> None:
        """Note the hosts that wait for a topic that is not here yet, as far as it gets places."""
        kept = {host_id: interest for host_id, interest in waiting_hosts.items() if self._takes_place(host_id, topic)}
        if kept:
            self._hosts[topic] = kept
            self._ends.renew(topic, now_s)

    def take(self, topic: Topic) -> WaitingHosts:
        """Remove a topic, and return the hosts that wait for it."""
        waiting_hosts = self._hosts.pop(topic, None)
        if waiting_hosts is None:
            return {}
        self._ends.discard(topic)
        self._leave(topic, waiting_hosts)
        return waiting_hosts

    def forget(self, count: int, now_s: float) -> bool:
        """Forget up to `count` of the topics that have ended. True if more might be left."""
        ended = self._ends.take(count, now_s)
        for topic in ended:
            self._leave(topic, self._hosts.pop(topic))
        return len(ended) == count

    def _takes_place(self, host_id: str, topic: Topic) -> bool:
        """Give the host a place for the topic, if its namespace can have one more. True if it got one."""
        of_namespace = (host_id, topic[0])
        if self._counts.get(of_namespace, 0) >= self._share - self._host_counts.get(host_id, 0):
            return False
        self._counts[of_namespace] += 1
        self._host_counts[host_id] += 1
        return True

    def _leave(self, topic: Topic, waiting_hosts: WaitingHosts) -> None:
        for host_id in waiting_hosts:
            _count_down(self._counts, (host_id, topic[0]))
            _count_down(self._host_counts, host_id)


def _count_down(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
