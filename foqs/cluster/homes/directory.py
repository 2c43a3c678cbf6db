"""The directory of a topic home: hosts that have ready items, and hosts with consumers that wait for some.

Each topic has one home, which all hosts find by the same hash over the living hosts. Nothing here is stored: hosts
repeat their reports, and a new home has the same knowledge a moment later. It follows FOQS's topic discovery, but is
asked for single topics, so that the messages grow with the topics that change and not with the square of the hosts.

Pure: times are arguments, and randomness is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from math import inf
from typing import NamedTuple

from foqs.cluster.homes.host_interests import INTEREST_MS_MAX, HostInterests, WaitingHosts
from foqs.cluster.homes.portions import Portions
from foqs.model import limits
from foqs.model.aging import PLACE_UNIT_MS
from foqs.model.stocks import Pointer, Stock, Topic

STOCK_MS_MAX = 45 * limits.SECOND_MS
"""A report that was not repeated for this long is forgotten; hosts repeat theirs every 15 s."""
OLDER_MS_MIN = 3 * limits.SECOND_MS
"""Items that have waited longer by this much precede others of their urgency; within it the choice is random.

Busy hosts are a second apart by chance, and a pulled item costs work on two hosts.
"""
PROMISE_MS = 300
"""Items for which one host was sent are not offered to another for this long, unless their owner reports again."""
TOPICS_OF_HOME_MAX = 200_000
"""Topics with items that one home knows, for all hosts together; a single host can have twice its even share.

Consumers on other hosts get the items of further topics later, or never.
"""
DOUBT_MS = 1 * limits.SECOND_MS
"""A host that has not reported since a waiting host was sent there this long ago is chosen last."""
DOUBTFUL_AGAIN_MS = 500
"""A waiting host is sent to such a host again after this long."""


class _Holder(NamedTuple):
    stock: Stock
    reported_s: float
    promised_count: int = 0
    """Items for which other hosts were sent, until `promised_until_s`; the hosts need not take these."""
    promised_until_s: float = 0.0
    sent_s: float = inf
    """The time at which a waiting host was first sent there since the report; items that it takes cause a new report.
    """
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
    """The hosts of one topic: those with ready items, and those that wait for some."""

    __slots__ = ("holders", "waiting_hosts")

    def __init__(self, waiting_hosts: WaitingHosts) -> None:
        self.holders: dict[str, _Holder] = {}
        self.waiting_hosts = waiting_hosts


class Directory:
    """The topics whose home this host is. `TopicHomes` owns it and asks it."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        """`choose(count)` draws a number from 0 to below `count`."""
        self._choose = choose
        self._entries: dict[Topic, _Entry] = {}
        """The topics of which a host has items."""
        self._interests = HostInterests()
        """Topics that hosts only wait for; in any number, they take no room from topics that have items."""
        self._members: Set[str] = frozenset()
        self._gone_until_s: dict[str, float] = {}
        """Hosts that no longer live, each with the time until which its old reports must be ignored."""
        self._unswept: list[Topic] = []
        self._portions: Portions[Topic] = Portions(TOPICS_OF_HOME_MAX)
        """The topics that each host has reported."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._interests)

    def report(self, host_id: str, topic: Topic, stock: Stock, now_s: float) -> list[tuple[str, Pointer]]:
        """Note a host's stock. Returns notices for waiting hosts, for as many as the items suffice."""
        entry = self._entries.get(topic)
        if not stock.ready_count:
            self._forget(host_id, topic, now_s)
            return []
        for oldest in self._portions.put(host_id, topic):
            self._forget(host_id, oldest, now_s)
        if entry is None:
            if len(self._entries) >= 2 * TOPICS_OF_HOME_MAX and (greediest := self._portions.greediest()) is not None:
                self._forget(*greediest, now_s)
            entry = self._entries[topic] = _Entry(self._interests.take(topic))
        entry.holders[host_id] = _Holder(stock, now_s)
        notices: list[tuple[str, Pointer]] = []
        waiting = [
            waiting_host
            for waiting_host, (_, until_s) in entry.waiting_hosts.items()
            if until_s > now_s and waiting_host != host_id and waiting_host not in self._gone_until_s
        ]
        while waiting and (left := entry.holders[host_id].left(now_s)).ready_count:
            waiting_host = waiting.pop(self._choose(len(waiting)))
            wanted_count, _ = entry.waiting_hosts.pop(waiting_host)
            notices.append((waiting_host, Pointer(topic, host_id, left)))
            entry.holders[host_id] = entry.holders[host_id].promised(wanted_count, now_s)
        return notices

    def find(self, host_id: str, topic: Topic, count: int, now_s: float) -> Pointer | None:
        """Return the host with the best items, or note the waiting host for INTEREST_MS_MAX, to send it a notice."""
        entry = self._entries.get(topic)
        if entry is None:
            self._interests.add(host_id, topic, count, now_s)
            return None
        best = self._best(entry, host_id, now_s)
        if best is None or not self._is_worth(entry.holders[best[0]], now_s):
            entry.waiting_hosts[host_id] = count, now_s + INTEREST_MS_MAX / 1000
            return None
        entry.holders[best[0]] = entry.holders[best[0]].promised(count, now_s)
        return Pointer(topic, *best)

    def peek(self, host_id: str, topic: Topic, now_s: float) -> Pointer | None:
        """Return the host with the best items for a host that asks around, without promising the items to it."""
        entry = self._entries.get(topic)
        best = self._best(entry, host_id, now_s) if entry is not None else None
        return None if best is None else Pointer(topic, *best)

    def better(self, host_id: str, topic: Topic, stock: Stock, now_s: float) -> Pointer | None:
        """Return a host whose items precede those of `host_id`, because they are more urgent or much older."""
        entry = self._entries.get(topic)
        best = self._best(entry, host_id, now_s) if entry is not None else None
        if best is None or not _precedes(best[1], stock):
            return None
        return Pointer(topic, *best)

    def others(self, host_id: str, topic: Topic, now_s: float) -> list[Pointer]:
        """Return all other hosts that have items."""
        entry = self._entries.get(topic)
        holders = entry.holders.items() if entry is not None else ()
        return [
            Pointer(topic, other, holder.stock)
            for other, holder in holders
            if other != host_id and now_s - holder.reported_s <= STOCK_MS_MAX / 1000 and other not in self._gone_until_s
        ]

    def keep(self, host_ids: Set[str], now_s: float) -> None:
        """Keep only these hosts. The reports of others are forgotten later, because their number has no low bound."""
        gone = dict.fromkeys(self._members - host_ids, now_s + STOCK_MS_MAX / 1000)
        known = {**self._gone_until_s, **gone}
        self._gone_until_s = {
            host_id: until_s for host_id, until_s in known.items() if until_s > now_s and host_id not in host_ids
        }
        self._members = frozenset(host_ids)
        self._portions.has_hosts(len(host_ids))
        self._interests.has_hosts(len(host_ids))

    def sweep(self, count: int, now_s: float) -> None:
        """Check `count` of the topics that hosts have, in turn, for outdated entries."""
        if not self._unswept:
            self._unswept = list(self._entries)
        some, self._unswept = self._unswept[:count], self._unswept[count:]
        for topic in some:
            entry = self._entries.get(topic)
            if entry is None:
                continue
            for host_id in [
                at for at, holder in entry.holders.items() if now_s - holder.reported_s > STOCK_MS_MAX / 1000
            ]:
                del entry.holders[host_id]
                self._portions.drop(host_id, topic)
            for host_id in [at for at, (_, until_s) in entry.waiting_hosts.items() if until_s <= now_s]:
                del entry.waiting_hosts[host_id]
            self._drop_empty(topic, entry, now_s)

    def forget_interests(self, count: int, now_s: float) -> bool:
        """Forget up to `count` topics that no host has or asks for any more. True if more might be left."""
        return self._interests.forget(count, now_s)

    def _forget(self, host_id: str, topic: Topic, now_s: float) -> None:
        """Note that a host has no items of a topic any more, as far as this host knows."""
        self._portions.drop(host_id, topic)
        if (entry := self._entries.get(topic)) is not None:
            entry.holders.pop(host_id, None)
            self._drop_empty(topic, entry, now_s)

    @staticmethod
    def _is_worth(holder: _Holder, now_s: float) -> bool:
        """True if a waiting host should be sent there; to a doubtful host, only every DOUBTFUL_AGAIN_MS."""
        return not holder.is_doubtful(now_s) or now_s - holder.last_sent_s >= DOUBTFUL_AGAIN_MS / 1000

    def _drop_empty(self, topic: Topic, entry: _Entry, now_s: float) -> None:
        if entry.holders:
            return
        del self._entries[topic]
        if waiting_hosts := {
            host_id: interest for host_id, interest in entry.waiting_hosts.items() if interest[1] > now_s
        }:
            self._interests.put(topic, waiting_hosts, now_s)

    def _best(self, entry: _Entry, but: str, now_s: float) -> tuple[str, Stock] | None:
        """Return one of the most urgent stocks of other hosts, at random among those about as old as the oldest."""
        stocks = [
            (host_id, left)
            for host_id, holder in entry.holders.items()
            if host_id != but
            and host_id not in self._gone_until_s
            and now_s - holder.reported_s <= STOCK_MS_MAX / 1000
            and (left := holder.left(now_s)).ready_count
        ]
        if not stocks:
            return None
        sure = [(host_id, left) for host_id, left in stocks if not entry.holders[host_id].is_doubtful(now_s)]
        stocks = sure or stocks
        first = min([stock.place for _, stock in stocks])
        urgent = [(host_id, stock) for host_id, stock in stocks if stock.place <= last_as_urgent(stock, first)]
        oldest_ms = min([stock.oldest_at_ms for _, stock in urgent])
        old = [
            (host_id, stock)
            for host_id, stock in urgent
            if stock.urgency is not None or stock.oldest_at_ms <= oldest_ms + OLDER_MS_MIN
        ]
        return old[self._choose(len(old))]


def _precedes(one: Stock, other: Stock) -> bool:
    if not other.ready_count:
        return True
    if one.urgency is not None and other.urgency is not None:
        return last_as_urgent(one, one.urgency) < other.urgency
    if one.place != other.place:
        return one.place < other.place
    return one.oldest_at_ms + OLDER_MS_MIN < other.oldest_at_ms


def last_as_urgent(stock: Stock, place: int) -> int:
    """Return the last place that does not count as less urgent than `place`: in a topic that ages, nearly each item
    has a place of its own, and OLDER_MS_MIN is the difference that counts.
    """
    return place if stock.urgency is None else place + OLDER_MS_MIN // PLACE_UNIT_MS


def best_of(pointers: Iterable[Pointer]) -> Pointer | None:
    """Return the pointer whose items come first."""
    return min(pointers, key=lambda at: (at.stock.priority, at.stock.oldest_at_ms), default=None)
