"""The directory of the home of topics: hosts that have ready items, and hosts with consumers that wait for some.

Each topic has one home, which all hosts find by the same hash over the hosts that live. Nothing of it is stored: hosts
report again what they have, and a new home knows as much a moment later. After FOQS's topic discovery, but asked for
single topics, so that the messages grow with the topics that change and not with the square of the hosts.

Pure: times come in, and chance as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from math import inf
from typing import NamedTuple

from foqs.cluster.portions import Portions
from foqs.cluster.sought_topics import WISH_MS_MAX, Seekers, SoughtTopics
from foqs.model import limits
from foqs.model.stocks import Pointer, Stock, Topic

STOCK_MS_MAX = 45 * limits.SECOND_MS
"""A report that was not repeated for so long is forgotten: hosts repeat theirs every 15 s."""
OLDER_MS_MIN = 3 * limits.SECOND_MS
"""Items that have waited for so much longer go before others of their urgency; with less between, chance decides.

Busy hosts are a second apart by chance, and an item that is pulled is handled by two of them.
"""
PROMISE_MS = 300
"""Items that a host was sent for are not told to another one for so long, unless their owner reports them anew."""
TOPICS_OF_HOME_MAX = 200_000
"""Topics with items that one home knows of, of all hosts together; each may have twice an even share of the places.

Of more of them, consumers on other hosts hear later or not at all.
"""
DOUBT_MS = 1 * limits.SECOND_MS
"""A host to which one that waits was sent for so long, and has said nothing new, goes after all others."""
DOUBTFUL_AGAIN_MS = 500
"""A host that waits is sent to such a host again after so long."""


class _Holder(NamedTuple):
    stock: Stock
    told_s: float
    promised_count: int = 0
    """Items of it for which others have been told to come, until `promised_until_s`: they may not."""
    promised_until_s: float = 0.0
    sent_s: float = inf
    """When a host that waits was sent there first, since this was told: what it takes is told anew soon."""
    last_sent_s: float = -inf

    def is_doubtful(self, now_s: float) -> bool:
        return now_s - self.sent_s >= DOUBT_MS / 1000

    def left(self, now_s: float) -> Stock:
        promised_count = self.promised_count if now_s < self.promised_until_s else 0
        return self.stock._replace(ready_count=max(0, self.stock.ready_count - promised_count))

    def promised(self, count: int, now_s: float) -> _Holder:
        before = self.promised_count if now_s < self.promised_until_s else 0
        return self._replace(
            promised_count=before + count,
            promised_until_s=now_s + PROMISE_MS / 1000,
            sent_s=min(self.sent_s, now_s),
            last_sent_s=now_s,
        )


class _Entry:
    """The hosts of one topic: those that have ready items of it, and those that wait for some."""

    __slots__ = ("holders", "seekers")

    def __init__(self, seekers: Seekers) -> None:
        self.holders: dict[str, _Holder] = {}
        self.seekers = seekers


class Directory:
    """The topics whose home this host is. `TopicNews` owns it and asks it."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        """`choose(count)` draws a number from 0 to below that."""
        self._choose = choose
        self._entries: dict[Topic, _Entry] = {}
        """The topics that somebody has."""
        self._sought = SoughtTopics()
        """Topics that hosts only wait for: however many there are, they take no room from topics that have items."""
        self._members: Set[str] = frozenset()
        self._gone_until_s: dict[str, float] = {}
        """Hosts that live no more: what they have told is passed over, until all of it is too old."""
        self._unswept: list[Topic] = []
        self._portions: Portions[Topic] = Portions(TOPICS_OF_HOME_MAX)
        """The topics that each host has reported."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._sought)

    def report(self, host_id: str, topic: Topic, stock: Stock, now_s: float) -> list[tuple[str, Pointer]]:
        """Note what a host has now. Returns whom to tell of it, of those who wait: as many as there are items."""
        entry = self._entries.get(topic)
        if not stock.ready_count:
            self._forget(host_id, topic, now_s)
            return []
        for oldest in self._portions.put(host_id, topic):
            self._forget(host_id, oldest, now_s)
        if entry is None:
            if len(self._entries) >= 2 * TOPICS_OF_HOME_MAX and (greediest := self._portions.greediest()) is not None:
                self._forget(*greediest, now_s)
            entry = self._entries[topic] = _Entry(self._sought.take(topic))
        entry.holders[host_id] = _Holder(stock, now_s)
        hints: list[tuple[str, Pointer]] = []
        waiting = [
            seeker
            for seeker, (_, until_s) in entry.seekers.items()
            if until_s > now_s and seeker != host_id and seeker not in self._gone_until_s
        ]
        while waiting and (left := entry.holders[host_id].left(now_s)).ready_count:
            seeker = waiting.pop(self._choose(len(waiting)))
            wanted_count, _ = entry.seekers.pop(seeker)
            hints.append((seeker, Pointer(topic, host_id, left)))
            entry.holders[host_id] = entry.holders[host_id].promised(wanted_count, now_s)
        return hints

    def seek(self, host_id: str, topic: Topic, count: int, now_s: float) -> Pointer | None:
        """The host with the best items for one that waits. If there is none, it is told by a hint, for WISH_MS_MAX."""
        entry = self._entries.get(topic)
        if entry is None:
            self._sought.add(host_id, topic, count, now_s)
            return None
        best = self._best(entry, host_id, now_s)
        if best is None or not self._is_worth(entry.holders[best[0]], now_s):
            entry.seekers[host_id] = count, now_s + WISH_MS_MAX / 1000
            return None
        entry.holders[best[0]] = entry.holders[best[0]].promised(count, now_s)
        return Pointer(topic, *best)

    def look(self, host_id: str, topic: Topic, now_s: float) -> Pointer | None:
        """The host with the best items for one that asks around. Nothing is noted: it may go elsewhere."""
        entry = self._entries.get(topic)
        best = self._best(entry, host_id, now_s) if entry is not None else None
        return None if best is None else Pointer(topic, *best)

    def better(self, host_id: str, topic: Topic, stock: Stock, now_s: float) -> Pointer | None:
        """A host whose items should go before those that `host_id` has: more urgent ones, or much older ones."""
        entry = self._entries.get(topic)
        best = self._best(entry, host_id, now_s) if entry is not None else None
        if best is None or not _goes_before(best[1], stock):
            return None
        return Pointer(topic, *best)

    def others(self, host_id: str, topic: Topic, now_s: float) -> list[Pointer]:
        """All other hosts that have some."""
        entry = self._entries.get(topic)
        holders = entry.holders.items() if entry is not None else ()
        return [
            Pointer(topic, other, holder.stock)
            for other, holder in holders
            if other != host_id and now_s - holder.told_s <= STOCK_MS_MAX / 1000 and other not in self._gone_until_s
        ]

    def keep(self, host_ids: Set[str], now_s: float) -> None:
        """Keep only these hosts. What others have told is forgotten later: there may be too many topics to look at."""
        gone = dict.fromkeys(self._members - host_ids, now_s + STOCK_MS_MAX / 1000)
        known = {**self._gone_until_s, **gone}
        self._gone_until_s = {
            host_id: until_s for host_id, until_s in known.items() if until_s > now_s and host_id not in host_ids
        }
        self._members = frozenset(host_ids)
        self._portions.has_hosts(len(host_ids))
        self._sought.has_hosts(len(host_ids))

    def sweep(self, count: int, now_s: float) -> None:
        """Look at so many of the topics that somebody has, in turn, for what is too old."""
        if not self._unswept:
            self._unswept = list(self._entries)
        some, self._unswept = self._unswept[:count], self._unswept[count:]
        for topic in some:
            entry = self._entries.get(topic)
            if entry is None:
                continue
            for host_id in [at for at, told in entry.holders.items() if now_s - told.told_s > STOCK_MS_MAX / 1000]:
                del entry.holders[host_id]
                self._portions.drop(host_id, topic)
            for host_id in [at for at, (_, until_s) in entry.seekers.items() if until_s <= now_s]:
                del entry.seekers[host_id]
            self._drop_empty(topic, entry, now_s)

    def forget_wishes(self, count: int, now_s: float) -> bool:
        """Forget so many topics that nobody has and nobody asks for any more. Returns whether there may be others."""
        return self._sought.forget(count, now_s)

    def _forget(self, host_id: str, topic: Topic, now_s: float) -> None:
        """A host has nothing of a topic any more, as far as it is known here."""
        self._portions.drop(host_id, topic)
        if (entry := self._entries.get(topic)) is not None:
            entry.holders.pop(host_id, None)
            self._drop_empty(topic, entry, now_s)

    @staticmethod
    def _is_worth(holder: _Holder, now_s: float) -> bool:
        """Whether one that waits is to be sent there. Who was there, and found nothing, is not sent again at once."""
        return not holder.is_doubtful(now_s) or now_s - holder.last_sent_s >= DOUBTFUL_AGAIN_MS / 1000

    def _drop_empty(self, topic: Topic, entry: _Entry, now_s: float) -> None:
        if entry.holders:
            return
        del self._entries[topic]
        if seekers := {host_id: wish for host_id, wish in entry.seekers.items() if wish[1] > now_s}:
            self._sought.put(topic, seekers, now_s)

    def _best(self, entry: _Entry, but: str, now_s: float) -> tuple[str, Stock] | None:
        """One of the most urgent stocks of others, at random among those that are about as old as the oldest."""
        stocks = [
            (host_id, left)
            for host_id, holder in entry.holders.items()
            if host_id != but
            and host_id not in self._gone_until_s
            and now_s - holder.told_s <= STOCK_MS_MAX / 1000
            and (left := holder.left(now_s)).ready_count
        ]
        if not stocks:
            return None
        sure = [(host_id, left) for host_id, left in stocks if not entry.holders[host_id].is_doubtful(now_s)]
        stocks = sure or stocks
        priority = min([stock.priority for _, stock in stocks])
        urgent = [(host_id, stock) for host_id, stock in stocks if stock.priority == priority]
        oldest_ms = min([stock.oldest_at_ms for _, stock in urgent])
        old = [(host_id, stock) for host_id, stock in urgent if stock.oldest_at_ms <= oldest_ms + OLDER_MS_MIN]
        return old[self._choose(len(old))]


def _goes_before(one: Stock, other: Stock) -> bool:
    if not other.ready_count:
        return True
    if one.priority != other.priority:
        return one.priority < other.priority
    return one.oldest_at_ms + OLDER_MS_MIN < other.oldest_at_ms


def best_of(pointers: Iterable[Pointer]) -> Pointer | None:
    """The one whose items should go first."""
    return min(pointers, key=lambda at: (at.stock.priority, at.stock.oldest_at_ms), default=None)
