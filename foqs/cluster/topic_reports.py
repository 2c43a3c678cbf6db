"""Reports of this host's topics to their homes: which ones are due, and when."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from foqs.cluster.asked_topics import ASKED_MS, AskedTopics
from foqs.cluster.due_topics import DueTopics
from foqs.cluster.homes import Reported
from foqs.model import limits
from foqs.model.stocks import ANY_TOPIC, NO_STOCK, Stock, Topic, some_stock

FLUSH_MS = 2
"""Topics that change within this time are reported together."""
WAITED_FLUSH_MS = 50
"""A topic that calls here wait for is reported so much later: most of it will be theirs."""
CHANGE_MS = 200
"""A topic that was reported before, and changes, is reported so much later."""
REPEAT_MS = 15 * limits.SECOND_MS
"""Each topic with ready items is reported again within this time."""
REPORTS_PER_SECOND_MAX = 5_000
"""Topics that a host reports in a second; the others wait."""
REPORTS_AT_ONCE_MAX = 250
"""The topics that are reported in one turn of the event loop."""


class LocalTopics(Protocol):
    """This host's own topics; foqs.host.stocks.Stocks is the real one."""

    def stock(self, topic: Topic) -> Stock: ...

    def is_waited_for(self, topic: Topic) -> bool:
        """Whether calls wait here for items of it."""

    def weight(self, topic: Topic) -> int:
        """Its share, beside other topics of its namespace, of dequeues that name none."""


class _Ready:
    """The topics of a namespace whose homes were told of ready items here."""

    __slots__ = ("weight", "weights")

    def __init__(self) -> None:
        self.weights: dict[str, int] = {}
        self.weight = 0
        """The sum of all weights."""

    def note(self, name: str, weight: int) -> bool:
        """The topic has ready items, and this weight; 0 if it has none. Returns whether that is another than before."""
        before = self.weights.get(name, 0)
        if weight:
            self.weights[name] = weight
        else:
            self.weights.pop(name, None)
        self.weight += weight - before
        return weight != before


class TopicReports:
    """Notes changes, and gives what is due. It owns what the homes were told."""

    def __init__(self, local: LocalTopics, now_s: float) -> None:
        self._local = local
        self._known: dict[Topic, int] = {}
        """The topics whose homes were told of ready items here, with how many of those are left there for all that
        they know: other hosts have pulled the others.
        """
        self._reported = DueTopics(REPEAT_MS)
        """The topics of `_known` that are not due to be reported again."""
        self._soon, self._waited, self._changes = DueTopics(FLUSH_MS), DueTopics(WAITED_FLUSH_MS), DueTopics(CHANGE_MS)
        """The topics that have changed: new ones, those that calls here wait for, and those reported before."""
        self._again: list[Topic] = []
        """Topics whose homes may be others by now: they are taken from the end, as many as a second may have."""
        self._again_since_s = inf
        self._ready: dict[int, _Ready] = {}
        """The topics of `_known`, by namespace."""
        self._asked = AskedTopics(now_s)
        """The topics that consumers have named here lately."""
        self._asked_any = DueTopics(ASKED_MS)
        """The namespaces of which they have wanted items of any topic lately, each as its ANY_TOPIC."""
        self._left_count = REPORTS_PER_SECOND_MAX
        self._refilled_s = now_s

    def changed(self, topic: Topic, now_s: float) -> bool:
        """Note that this host's ready items of the topic have changed. Returns whether a report is due by that."""
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
        """Note that another host has taken so many items. Returns whether a report is due by that.

        One that has taken all of which the home knows may wait for more, and the home takes it that there are none. So
        it is told of the next ones at once, and not with the changes that come in any case.
        """
        left_count = self._known.get(topic)
        if left_count is None or left_count <= 0:
            return False
        self._known[topic] = left_count - count
        return left_count <= count and self._emptied(topic, now_s)

    def _emptied(self, topic: Topic, now_s: float) -> bool:
        """Report it at once if there are items that nobody knows of; that there are none is no news."""
        if topic in self._soon or topic in self._waited:
            return False
        if not self._local.stock(topic).ready_count:
            self._changes.put(topic, now_s)
            return False
        queue = self._waited if self._local.is_waited_for(topic) else self._soon
        queue.put(topic, now_s)
        return True

    def asked(self, topics: Iterable[Topic], now_s: float) -> None:
        """Note that consumers ask here for these topics: what is reported of them says so."""
        self._asked.add(topics, now_s)

    def asked_any(self, namespace: int, now_s: float) -> bool:
        """Note that consumers ask here for items of any topic. Returns whether a report is due by that.

        Who has some is asked for at once: consumers have turns between hosts from then on.
        """
        topic = namespace, ANY_TOPIC
        is_due = topic not in self._asked_any and namespace in self._ready
        if is_due:
            self._soon.put(topic, now_s)
        self._asked_any.renew(topic, now_s)
        return is_due

    def not_told(self, topics: Iterable[Topic], now_s: float) -> None:
        """Report these again: their home did not hear of them, and may be another one now."""
        for topic in topics:
            self._changes.put(topic, now_s)

    def tell_all(self, now_s: float) -> None:
        """Report all topics again, because they have other homes now."""
        self._again = list(self._known)
        self._again_since_s = now_s if self._again else inf

    def weight(self, namespace: int) -> int:
        """The weight of the namespace's topics that have ready items here, as far as their homes were told."""
        ready = self._ready.get(namespace)
        return 0 if ready is None else ready.weight

    def look_for_any(self, now_s: float) -> None:
        """Report for consumers that name no topic: the response tells who else has some now.

        It is called each second, and forgets what consumers do not ask for any more.
        """
        for topic in self._asked_any:
            self._soon.put(topic, now_s)
        self._asked_any.take(limits.NAMESPACES_MAX, now_s)
        self._asked.forget(now_s)

    def take_due(self, now_s: float) -> dict[Topic, Reported]:
        """Take some topics that are due, and return what their homes are to be told of them."""
        refill = int((now_s - self._refilled_s) * REPORTS_PER_SECOND_MAX)
        self._left_count = min(REPORTS_PER_SECOND_MAX, self._left_count + refill)
        self._refilled_s = now_s
        count = min(self._left_count, REPORTS_AT_ONCE_MAX)
        due: dict[Topic, None] = {}
        for queue in (self._soon, self._waited, self._changes, self._reported):
            due.update(dict.fromkeys(queue.take(count - len(due), now_s)))
        self._take_again(due, count - len(due))
        self._left_count -= len(due)
        told: dict[Topic, Reported] = {}
        for topic in due:
            stock, was_reported = self.stock(topic), topic in self._known
            if stock.ready_count or was_reported:
                asked = self._asked_any if topic[1] == ANY_TOPIC else self._asked
                told[topic] = Reported(stock, topic in asked)
            if stock.ready_count:
                self._known[topic] = stock.ready_count
                self._changes.discard(topic)
                self._reported.renew(topic, now_s)
            else:
                self._known.pop(topic, None)
                self._reported.discard(topic)
            self._note_ready(topic, now_s, has_some=stock.ready_count > 0)
        return told

    def _take_again(self, due: dict[Topic, None], count: int) -> None:
        if self._again and count > 0:
            due.update(dict.fromkeys(self._again[-count:]))
            del self._again[-count:]
            if not self._again:
                self._again_since_s = inf

    def next_s(self, now_s: float) -> float | None:
        """Return when the next report is due, or None if there is none."""
        if self._again:
            return now_s + FLUSH_MS / 1000
        next_s = min([queue.next_s for queue in (self._soon, self._waited, self._changes, self._reported)])
        return None if next_s == inf else max(next_s, now_s + FLUSH_MS / 1000)

    def due_since_s(self, now_s: float) -> float:
        """The time since which the first of what is due waits; `now_s` if nothing does."""
        return min(self._soon.next_s, self._waited.next_s, self._changes.next_s, self._again_since_s, now_s)

    def stock(self, topic: Topic) -> Stock:
        """What this host has of it, as others are told."""
        if topic[1] == ANY_TOPIC:
            return some_stock(self.weight(topic[0])) if topic[0] in self._ready else NO_STOCK
        return self._local.stock(topic)

    def _note_ready(self, topic: Topic, now_s: float, *, has_some: bool) -> None:
        """Consumers that name no topic are told when a namespace has its first one, and when it has none any more.

        Where they wait for none, they are told of the weight of all of them a moment later.
        """
        number, name = topic
        if name == ANY_TOPIC:
            return
        was_there = number in self._ready
        ready = self._ready.setdefault(number, _Ready())
        is_changed = ready.note(name, self._local.weight(topic) if has_some else 0)
        if not ready.weights:
            del self._ready[number]
        if was_there != (number in self._ready):
            self._soon.put((number, ANY_TOPIC), now_s)
        elif is_changed:
            self._changes.put((number, ANY_TOPIC), now_s)
