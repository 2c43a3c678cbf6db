"""Topics that hosts wait for and of which nobody has any, as their home knows them."""

from __future__ import annotations

from foqs.cluster.due_topics import DueTopics
from foqs.model import limits
from foqs.model.stocks import Topic

WISH_MS_MAX = 2 * limits.SECOND_MS
"""A host that waits for a topic says so again every second."""
SOUGHT_TOPICS_MAX = 50_000
"""Topics of which nobody has any that a home keeps the wishes for. Those that wait ask again every second."""

Seekers = dict[str, tuple[int, float]]
"""How many items each host waits for, and until when that holds."""


class SoughtTopics:
    """The wishes for such topics, in the order in which they end. The directory owns it.

    Consumers can name any number of topics, and nobody can tell which ones there will be items of. So these have a
    bound of their own, and a namespace may have as many as it leaves free: one alone gets half of the places, two that
    want more than there are get a third each, and one that comes later always finds some. A topic that is asked for
    again in time keeps its place.
    """

    __slots__ = ("_counts", "_ends", "_seekers")

    def __init__(self) -> None:
        self._seekers: dict[Topic, Seekers] = {}
        self._ends = DueTopics(WISH_MS_MAX)
        """The same topics: each ends when it was not asked for again for so long."""
        self._counts: dict[int, int] = {}
        """How many of them each namespace has."""

    def __len__(self) -> int:
        return len(self._seekers)

    def add(self, host_id: str, topic: Topic, count: int, now_s: float) -> None:
        """Note that a host waits for so many items, if there is a place for the topic."""
        seekers = self._seekers.get(topic)
        if seekers is None:
            self.put(topic, {host_id: (count, now_s + WISH_MS_MAX / 1000)}, now_s)
        else:
            seekers[host_id] = count, now_s + WISH_MS_MAX / 1000
            self._ends.renew(topic, now_s)

    def put(self, topic: Topic, seekers: Seekers, now_s: float) -> None:
        """Note who waits for a topic that is not here yet, if there is a place for it."""
        namespace = topic[0]
        kept_count = self._counts.get(namespace, 0)
        if kept_count < SOUGHT_TOPICS_MAX - len(self._seekers):
            self._seekers[topic] = seekers
            self._ends.renew(topic, now_s)
            self._counts[namespace] = kept_count + 1

    def take(self, topic: Topic) -> Seekers:
        """Take out a topic, and return the hosts that wait for it."""
        seekers = self._seekers.pop(topic, None)
        if seekers is None:
            return {}
        self._ends.discard(topic)
        self._leave(topic)
        return seekers

    def forget(self, count: int, now_s: float) -> bool:
        """Forget so many of those that have ended. Returns whether there may be more."""
        ended = self._ends.take(count, now_s)
        for topic in ended:
            del self._seekers[topic]
            self._leave(topic)
        return len(ended) == count

    def _leave(self, topic: Topic) -> None:
        namespace = topic[0]
        self._counts[namespace] -= 1
        if not self._counts[namespace]:
            del self._counts[namespace]
