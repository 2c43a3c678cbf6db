"""Reports of this host's topics to their homes, and the times at which these are due."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from foqs.cluster.homes.asked_topics import ASKED_MS, AskedTopics
from foqs.cluster.homes.due_topics import DueTopics
from foqs.model import limits
from foqs.model.stocks import NO_STOCK, Reported, Stock, Topic, any_of, is_any, some_stock

FLUSH_MS = 2
"""Topics that change within this time are reported together."""
WAITED_FLUSH_MS = 50
"""Delay of the report on a topic that calls here wait for, because these will take most of its items."""
CHANGE_MS = 200
"""Delay of the report on a change of a topic that was reported before."""
REPEAT_MS = 15 * limits.SECOND_MS
"""Each topic with ready items is reported again within this time."""
REPORTS_PER_SECOND_MAX = 5_000
"""Topics that a host reports in a second; the remaining ones wait."""
REPORTS_AT_ONCE_MAX = 250
"""The topics that are reported in one turn of the event loop."""


class LocalTopics(Protocol):
    """This host's own topics; foqs.host.verbs.host_stocks.Stocks is the real one."""

    def stock(self, topic: Topic) -> Stock: ...

    def is_waited_for(self, topic: Topic) -> bool:
        """True if calls here wait for items of the topic."""

    def weight(self, topic: Topic) -> int:
        """Return its share, relative to other topics of its namespace, of dequeues that name no topic."""


class _Ready:
    """The topics of a namespace, for one consumer group, whose homes have reports of ready items here."""

    __slots__ = ("weight", "weights")

    def __init__(self) -> None:
        self.weights: dict[str, int] = {}
        self.weight = 0
        """The sum of all weights."""

    def note(self, name: str, weight: int) -> bool:
        """Set the weight of a topic with ready items, or 0 without. True if it has changed."""
        before = self.weights.get(name, 0)
        if weight:
            self.weights[name] = weight
        else:
            self.weights.pop(name, None)
        self.weight += weight - before
        return weight != before


class TopicReports:
    """Notes changes, and returns due reports. It owns the record of reports."""

    def __init__(self, local: LocalTopics, now_s: float) -> None:
        self._local = local
        self._known: dict[Topic, int] = {}
        """The topics that their homes know with ready items here, and the number that is left of these by the homes'
        knowledge: other hosts have pulled the difference.
        """
        self._reported = DueTopics(REPEAT_MS)
        """The topics of `_known` that are not due to be reported again."""
        self._soon, self._waited, self._changes = DueTopics(FLUSH_MS), DueTopics(WAITED_FLUSH_MS), DueTopics(CHANGE_MS)
        """The changed topics: new ones, those that calls here wait for, and those reported before."""
        self._again: list[Topic] = []
        """Topics that can have other homes now, taken from the end within the limit per second."""
        self._again_since_s = inf
        self._ready: dict[Topic, _Ready] = {}
        """The topics of `_known`, by the topic that stands for all of a namespace and group."""
        self._asked = AskedTopics(now_s)
        """The topics that consumers have recently named here."""
        self._asked_any = DueTopics(ASKED_MS)
        """The topics that stand for all those of which consumers have recently wanted items of any topic."""
        self._left_count = REPORTS_PER_SECOND_MAX
        self._refilled_s = now_s

    def changed(self, topic: Topic, now_s: float) -> bool:
        """Note that this host's ready items of the topic have changed. True if that makes a report due."""
        if self._known.get(topic, 0) > 0:
            queue = self._changes
        elif topic in self._known:
            return self._emptied(topic, now_s)
        elif self._local.is_waited_for(topic):
            queue = self._waited
        else:
            queue = self._soon
        if topic in queue:
            return False
        queue.put(topic, now_s)
        return True

    def pulled(self, topic: Topic, count: int, now_s: float) -> bool:
        """Note that another host has taken `count` items. True if that makes a report due.

        A host that has taken all known items can be waiting for more, and the home assumes that none are left. So the
        next items are reported at once, and not with the routine changes.
        """
        left_count = self._known.get(topic)
        if left_count is None or left_count <= 0:
            return False
        self._known[topic] = left_count - count
        return left_count <= count and self._emptied(topic, now_s)

    def _emptied(self, topic: Topic, now_s: float) -> bool:
        """Report the topic at once if it has items unknown to its home; a lack of items is not urgent."""
        if topic in self._soon or topic in self._waited:
            return False
        if not self._local.stock(topic).ready_count:
            self._changes.put(topic, now_s)
            return False
        queue = self._waited if self._local.is_waited_for(topic) else self._soon
        queue.put(topic, now_s)
        return True

    def asked(self, topics: Iterable[Topic], now_s: float) -> None:
        """Note that consumers ask here for these topics, which is part of the reports on them."""
        self._asked.add(topics, now_s)

    def asked_any(self, topic: Topic, now_s: float) -> bool:
        """Note that consumers ask here for items of any topic; `topic` stands for all. True if a report becomes due.

        The home is asked for other hosts with items at once, because consumers have turns between hosts from then on.
        """
        is_due = topic not in self._asked_any and topic in self._ready
        if is_due:
            self._soon.put(topic, now_s)
        self._asked_any.renew(topic, now_s)
        return is_due

    def not_reported(self, topics: Iterable[Topic], now_s: float) -> None:
        """Report these topics again, because the report failed, and their home can be another one now."""
        for topic in topics:
            self._changes.put(topic, now_s)

    def report_all(self, now_s: float) -> None:
        """Report all topics again, because they have other homes now."""
        self._again = list(self._known)
        self._again_since_s = now_s if self._again else inf

    def weight(self, topic: Topic) -> int:
        """Return the weight of all topics for which this one stands that have ready items here by the reports."""
        ready = self._ready.get(topic)
        return 0 if ready is None else ready.weight

    def refresh_any(self, now_s: float) -> None:
        """Report for consumers that name no topic; the response names the other hosts that have items now.

        Call it every second; it also forgets topics and namespaces that consumers do not ask for any more.
        """
        for topic in self._asked_any:
            self._soon.put(topic, now_s)
        self._asked_any.take(limits.NAMESPACES_MAX, now_s)
        self._asked.forget(now_s)

    def take_due(self, now_s: float) -> dict[Topic, Reported]:
        """Take some due topics, and return the reports on them for their homes."""
        refill = int((now_s - self._refilled_s) * REPORTS_PER_SECOND_MAX)
        self._left_count = min(REPORTS_PER_SECOND_MAX, self._left_count + refill)
        self._refilled_s = now_s
        count = min(self._left_count, REPORTS_AT_ONCE_MAX)
        due: dict[Topic, None] = {}
        for queue in (self._soon, self._waited, self._changes, self._reported):
            due.update(dict.fromkeys(queue.take(count - len(due), now_s)))
        self._take_again(due, count - len(due))
        self._left_count -= len(due)
        taken: dict[Topic, Reported] = {}
        for topic in due:
            stock, was_reported = self.stock(topic), topic in self._known
            if stock.ready_count or was_reported:
                asked = self._asked_any if is_any(topic[1]) else self._asked
                taken[topic] = Reported(stock, topic in asked)
            if stock.ready_count:
                self._known[topic] = stock.ready_count
                self._changes.discard(topic)
                self._reported.renew(topic, now_s)
            else:
                self._known.pop(topic, None)
                self._reported.discard(topic)
            self._note_ready(topic, now_s, has_some=stock.ready_count > 0)
        return taken

    def _take_again(self, due: dict[Topic, None], count: int) -> None:
        if self._again and count > 0:
            due.update(dict.fromkeys(self._again[-count:]))
            del self._again[-count:]
            if not self._again:
                self._again_since_s = inf

    def next_s(self, now_s: float) -> float | None:
        """Return when the next report is due, or None if no topic has one."""
        if self._again:
            return now_s + FLUSH_MS / 1000
        next_s = min([queue.next_s for queue in (self._soon, self._waited, self._changes, self._reported)])
        return None if next_s == inf else max(next_s, now_s + FLUSH_MS / 1000)

    def due_since_s(self, now_s: float) -> float:
        """Return the time since which the first due report has waited; `now_s` if none does."""
        return min(self._soon.next_s, self._waited.next_s, self._changes.next_s, self._again_since_s, now_s)

    def stock(self, topic: Topic) -> Stock:
        """Return this host's stock of the topic, as it is reported."""
        if is_any(topic[1]):
            return some_stock(self.weight(topic)) if topic in self._ready else NO_STOCK
        return self._local.stock(topic)

    def _note_ready(self, topic: Topic, now_s: float, *, has_some: bool) -> None:
        """Report for consumers that name no topic if a namespace gets its first topic here, or loses its last one.

        In between, the changed weight of all its topics is reported a moment later.
        """
        number, name = topic
        if is_any(name):
            return
        all_topics = number, any_of(name)
        was_there = all_topics in self._ready
        ready = self._ready.setdefault(all_topics, _Ready())
        is_changed = ready.note(name, self._local.weight(topic) if has_some else 0)
        if not ready.weights:
            del self._ready[all_topics]
        if was_there != (all_topics in self._ready):
            self._soon.put(all_topics, now_s)
        elif is_changed:
            self._changes.put(all_topics, now_s)
