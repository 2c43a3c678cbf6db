"""Questions to other hosts for topics that calls here wait for in vain, at a bounded pace.

The home of a topic does not always know which hosts have items: a link is cut on which they would be reported, or two
hosts see different members and so find different homes. Either can last for hours, and a waiting host cannot
distinguish it from a topic without items. So it asks the others in turn, for as long as it waits. They answer with
their own items and the ones they know of, and note nothing.

Pure: times are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from foqs.model import limits
from foqs.model.stocks import Topic

PROBE_MS = 1 * limits.SECOND_MS
"""The pause between two rounds of questions."""
PROBE_AFTER_MS = 1 * limits.SECOND_MS
"""Other hosts are asked for a topic after its home has not helped for this long."""
PROBED_MS = 3 * limits.SECOND_MS
"""Other hosts are asked for a topic until this long after the last call for it; the next call gets the result."""
PROBE_TOPICS_MAX = 2_000
"""The most topics that one round asks for; a topic is counted once for each host that is asked for it."""
PROBE_HOSTS_MAX = 20
"""The most hosts that one round asks."""
PROBED_TOPICS_MAX = 10_000
"""The most topics that are remembered."""


class _Probed(NamedTuple):
    since_s: float
    last_s: float
    found_at: str = ""
    """The host that had items when it was last asked; each round asks it."""


class Probes:
    """The topics that are probed in vain, and the hosts whose turn it is to be asked. `TopicHomes` owns it.

    A round asks some of the other hosts, in the order of their ids, for all topics that are due, so that few messages
    are sent. If the topics are too many for that, it asks one host for some topics, and the next round continues.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._probed: OrderedDict[Topic, _Probed] = OrderedDict()
        """The topics, least recently checked first."""
        self._left_count = 0
        """The number of topics that the next host is still to be asked for."""
        self._last_host = me

    def __len__(self) -> int:
        return len(self._probed)

    def want(self, topics: Iterable[Topic], now_s: float) -> None:
        """Note that calls want these topics, and that this host has no items for them."""
        for topic in topics:
            known = self._probed.get(topic)
            if known is not None:
                self._probed[topic] = known._replace(last_s=now_s)
            elif len(self._probed) < PROBED_TOPICS_MAX:
                self._probed[topic] = _Probed(now_s, now_s)

    def found(self, topic: Topic, host_id: str) -> None:
        """Note that `host_id` has items of a topic, although the topic's home did not name it."""
        if (known := self._probed.get(topic)) is not None:
            self._probed[topic] = known._replace(found_at=host_id)

    def served(self, topic: Topic, host_id: str) -> bool:
        """Note that a call got items of the topic from `host_id`. True if that host was found by asking it.

        Otherwise the home helps, and no host has to be asked.
        """
        known = self._probed.get(topic)
        if known is not None and known.found_at == host_id:
            return True
        self._probed.pop(topic, None)
        return False

    def take_round(
        self, hosts: Sequence[str], is_waited_for: Callable[[Topic], bool], now_s: float
    ) -> dict[str, list[Topic]]:
        """Return the topics to ask each of `hosts` for now, which are all other hosts that can be reached."""
        asked: dict[str, list[Topic]] = {}
        ring = self._ring(hosts)
        due = self._take_due(is_waited_for, now_s)
        if not ring or not due:
            return asked
        turn = ring[: max(1, min(PROBE_HOSTS_MAX, PROBE_TOPICS_MAX // len(due)))]
        asked = {host_id: list(due) for host_id in turn}
        for topic in due:
            found_at = self._probed[topic].found_at
            if found_at in ring and found_at not in turn:
                asked.setdefault(found_at, []).append(topic)
        self._left_count -= len(due)
        if self._left_count <= 0:
            self._last_host = turn[-1]
            self._left_count = len(self._probed)
        return asked

    def _ring(self, hosts: Sequence[str]) -> list[str]:
        """Return the other hosts in the order of the questions, beginning behind the last one asked."""
        others = sorted(host_id for host_id in hosts if host_id != self._me)
        behind = [host_id for host_id in others if host_id > self._last_host]
        return behind + others[: len(others) - len(behind)]

    def _take_due(self, is_waited_for: Callable[[Topic], bool], now_s: float) -> list[Topic]:
        """Return some topics that have been probed for long enough, and forget topics that are not probed any more."""
        due: list[Topic] = []
        for topic, probed in list(islice(self._probed.items(), PROBE_TOPICS_MAX)):
            if is_waited_for(topic):
                self._probed[topic] = probed._replace(last_s=now_s)
            elif now_s - probed.last_s > PROBED_MS / 1000:
                del self._probed[topic]
                continue
            self._probed.move_to_end(topic)
            if now_s - probed.since_s >= PROBE_AFTER_MS / 1000:
                due.append(topic)
        return due
