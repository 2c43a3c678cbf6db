"""Topics that calls wait for in vain: other hosts are asked for them directly, at a bounded pace.

The home of a topic may not know who has items: a link is cut on which they would be reported, or two hosts see
different members and so find different homes. Either can last for hours, and a host that waits cannot tell it from a
topic that nobody has items of. So it asks the others in turn, as long as it waits. They say what they have themselves
and what they know, and note nothing.

Pure: times come in.
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
"""A topic whose home has not helped for so long is asked for elsewhere."""
SOUGHT_MS = 3 * limits.SECOND_MS
"""It is asked for so long after the last call for it: the next call hears what was found."""
PROBE_TOPICS_MAX = 2_000
"""Topics that one round asks for, a topic that two hosts are asked for counted twice."""
PROBE_HOSTS_MAX = 20
"""Hosts that one round asks at most."""
PROBED_TOPICS_MAX = 10_000
"""Topics that are noted."""


class _Sought(NamedTuple):
    since_s: float
    last_s: float
    found_at: str = ""
    """The host that had items when it was asked last: it is asked in each round."""


class Probes:
    """Which topics are sought in vain, and whose turn it is to be asked for them. `TopicNews` owns it.

    A round asks some of the other hosts, in the order of their ids, for all topics that are due, so that there are few
    messages. If there are too many topics for that, it asks one host for some of them, and the next round goes on.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._sought: OrderedDict[Topic, _Sought] = OrderedDict()
        """Those that were looked at longest ago come first."""
        self._left_count = 0
        """Topics that the next host is still to be asked for."""
        self._last_host = me

    def __len__(self) -> int:
        return len(self._sought)

    def want(self, topics: Iterable[Topic], now_s: float) -> None:
        """Calls want these, and there is nothing of them here."""
        for topic in topics:
            known = self._sought.get(topic)
            if known is not None:
                self._sought[topic] = known._replace(last_s=now_s)
            elif len(self._sought) < PROBED_TOPICS_MAX:
                self._sought[topic] = _Sought(now_s, now_s)

    def found(self, topic: Topic, host_id: str) -> None:
        """That host has items of it, which the topic's home did not tell."""
        if (known := self._sought.get(topic)) is not None:
            self._sought[topic] = known._replace(found_at=host_id)

    def served(self, topic: Topic, host_id: str) -> bool:
        """A call got items of it from that host. Returns whether that host was found by asking it.

        Else the home helps, and nobody has to be asked.
        """
        known = self._sought.get(topic)
        if known is not None and known.found_at == host_id:
            return True
        self._sought.pop(topic, None)
        return False

    def take_round(
        self, hosts: Sequence[str], is_waited_for: Callable[[Topic], bool], now_s: float
    ) -> dict[str, list[Topic]]:
        """The topics to ask each of these hosts for now, which are all others that can be reached."""
        asked: dict[str, list[Topic]] = {}
        ring = self._ring(hosts)
        due = self._take_due(is_waited_for, now_s)
        if not ring or not due:
            return asked
        turn = ring[: max(1, min(PROBE_HOSTS_MAX, PROBE_TOPICS_MAX // len(due)))]
        asked = {host_id: list(due) for host_id in turn}
        for topic in due:
            found_at = self._sought[topic].found_at
            if found_at in ring and found_at not in turn:
                asked.setdefault(found_at, []).append(topic)
        self._left_count -= len(due)
        if self._left_count <= 0:
            self._last_host = turn[-1]
            self._left_count = len(self._sought)
        return asked

    def _ring(self, hosts: Sequence[str]) -> list[str]:
        """The hosts in the order in which they are to be asked: those behind the last one come first."""
        others = sorted(host_id for host_id in hosts if host_id != self._me)
        behind = [host_id for host_id in others if host_id > self._last_host]
        return behind + others[: len(others) - len(behind)]

    def _take_due(self, is_waited_for: Callable[[Topic], bool], now_s: float) -> list[Topic]:
        """Some topics that have been sought for long enough. What nobody seeks any more is forgotten."""
        due: list[Topic] = []
        for topic, sought in list(islice(self._sought.items(), PROBE_TOPICS_MAX)):
            if is_waited_for(topic):
                self._sought[topic] = sought._replace(last_s=now_s)
            elif now_s - sought.last_s > SOUGHT_MS / 1000:
                del self._sought[topic]
                continue
            self._sought.move_to_end(topic)
            if now_s - sought.since_s >= PROBE_AFTER_MS / 1000:
                due.append(topic)
        return due
