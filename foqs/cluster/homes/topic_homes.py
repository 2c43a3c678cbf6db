"""Reports of topics between hosts, so that a consumer on any host gets the items of all hosts.

A host reports its ready items of each topic to the topic's home, and asks that home for topics which its consumers wait
for. The home answers with a host that has some, or sends a notice later. The waiting host then pulls
(foqs/cluster/routing/pulls.py). Reports and notices can safely be lost, because repetition restores the state of every
home.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.cluster.homes.directory import Directory
from foqs.cluster.homes.home_table import CHECK_MS, HomeCall, HomeTable
from foqs.cluster.homes.host_turns import HostTurns, Turn
from foqs.cluster.homes.interests import Interests, Wait
from foqs.cluster.homes.probes import PROBE_MS, PROBED_MS, Probes
from foqs.cluster.homes.topic_reports import LocalTopics, TopicReports
from foqs.cluster.peers.courier import Courier, CourierBounds
from foqs.cluster.peers.guarded_peers import GuardedPeer
from foqs.model import limits
from foqs.model.stocks import Pointer, Reported, Topic, is_any, weight_of

FIND_MS = 1 * limits.SECOND_MS
"""The pause between repetitions of all interests."""
POINTER_MS_MAX = 1 * limits.SECOND_MS
"""The time for which the pointers of a home are believed."""
OTHERS_MS_MAX = 3 * limits.SECOND_MS
"""Time for which a host is believed to have items of any topic; reports repeat it every second, sometimes late."""
TOPICS_PER_MESSAGE_MAX = 500
NOTICE_BOUNDS = CourierBounds(
    kept_max=10_000, message_max=TOPICS_PER_MESSAGE_MAX, answer_ms_max=1 * limits.SECOND_MS, retry_ms=0
)
"""A notice that has failed is not repeated, so the next one need not wait."""
SWEEP_TOPICS = 500
INTERESTS_FORGOTTEN_AT_ONCE = 1_000
"""Ended interests are forgotten every second, up to this many in one turn of the event loop."""

_log = structlog.get_logger(__name__)
V = TypeVar("V")


class TopicHomes(Service):
    """Reports this host's items and interests to homes, and is itself the home of some topics.

    The dispatcher reports changed topics to it, and `Pulls` waiting calls. It owns the record of reports, this host's
    interests, and the directory of the topics whose home this host is.
    """

    def __init__(
        self,
        me: str,
        peer: Callable[[str], GuardedPeer],
        local: LocalTopics,
        choose: Callable[[int], int],
        now_s: Callable[[], float],
    ) -> None:
        """`peer` returns a living host by its id, and raises UnavailableError for any other one.

        `choose(count)` draws a number from 0 to below that; `now_s` is the time of the event loop.
        """
        self._outage = OutageLog(now_s, "home_not_told")
        super().__init__("topic-homes", self._outage.failed)
        self._me = me
        self._peer = peer
        self._now_s = now_s
        self.directory = Directory(choose)
        self._members: tuple[str, ...] = ()
        """The living hosts."""
        self._home = HomeTable()
        self._reports = TopicReports(local, now_s())
        self._interests = Interests()
        self._probes = Probes(me)
        self._pointers: OrderedDict[Topic, tuple[Pointer, float]] = OrderedDict()
        """The hosts whose items precede this host's, each with the time until which that is believed. Oldest first."""
        self._others: OrderedDict[Topic, tuple[dict[str, Pointer], float]] = OrderedDict()
        """The hosts with items of any topic, by the topic that stands for all. Oldest first.

        Each has the time until which that is believed.
        """
        self._turns = HostTurns()
        self._notices = Courier(
            self._tasks,
            self._notify,
            NOTICE_BOUNDS,
            lambda: OutageLog(now_s, "home_not_told"),
            lambda _, newer: newer,
            lambda *_: None,
        )
        """Notices for waiting hosts, by topic and host with items. A lost one is not repeated, but the interest is."""
        self.notices_total: Counter[str] = Counter(sent=0, received=0)
        """The notices by direction."""
        self._reporting_since_s: dict[object, tuple[str, float]] = {}
        """The home and the time of each report without a response."""
        self._check_timers: dict[HomeCall, asyncio.TimerHandle] = {}
        """The timer of the next check of each unanswered call to a home."""
        self._rung = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        """Rings when the next report is due."""

    # ---- events on this host ----

    def changed(self, topic: Topic) -> None:
        """Note that the ready items of a topic on this host can have changed."""
        if self._reports.changed(topic, self._now_s()):
            self._rung.set()

    def wait(self, topics: Mapping[Topic, int]) -> Wait:
        """Ask the homes for these topics until `leave`, each with the number of wanted items."""
        wait = self._interests.add(topics, self._now_s())
        self._probes.want(topics, self._now_s())
        self._rung.set()
        return wait

    def find_again(self, wait: Wait) -> None:
        """Ask the homes again, because the last pointer was useless."""
        self._interests.again(wait.topics)
        self._rung.set()

    def leave(self, wait: Wait) -> None:
        """End a wait."""
        self._interests.remove(wait)
        self.keep_unused(wait.take())

    def keep_unused(self, pointers: Iterable[Pointer]) -> None:
        """Note that a call had these pointers and used another one."""
        self._interests.keep(pointers, self._now_s())

    def better(self, topics: Iterable[Topic]) -> Pointer | None:
        """Return another host whose items precede those here, for the first of the topics that has one."""
        if not self._pointers:
            return None
        now_s = self._now_s()
        for topic in topics:
            found = self._pointers.get(topic)
            if found is not None and found[1] > now_s:
                return found[0]
        return None

    def begin_turn(self, topic: Topic, count: int) -> Turn | None:
        """Begin the turn of a host to give `count` items to a call for any topic. None if only this host has some."""
        others, until_s = self._others.get(topic, ({}, 0.0))
        if not others or until_s <= self._now_s():
            return None
        weights = {host_id: weight_of(pointer.stock) for host_id, pointer in others.items()}
        if weight_here := self._reports.weight(topic):
            weights[self._me] = weight_here
        host_id = self._turns.begin(topic, weights, count)
        return Turn(topic, host_id, others.get(host_id), weights, count)

    def end_turn(self, turn: Turn, count: int) -> None:
        """End a turn in which the call got `count` items."""
        self._turns.end(turn.topic, turn.weights, turn.host_id, max(0, turn.items_max - count))

    def pulled(self, topics: Mapping[Topic, int]) -> None:
        """Note the number of items of each topic that another host has taken from this one."""
        now_s = self._now_s()
        for topic, count in topics.items():
            if self._reports.pulled(topic, count, now_s):
                self._rung.set()

    def asked(self, topics: Iterable[Topic]) -> None:
        """Note that consumers ask for these topics here."""
        self._reports.asked(topics, self._now_s())

    def asked_any(self, topic: Topic) -> None:
        """Note that consumers ask for items of any topic here; `topic` stands for all."""
        if self._reports.asked_any(topic, self._now_s()):
            self._rung.set()

    def was_exhausted(self, pointer: Pointer) -> None:
        """Note that the host has no more items that precede this host's."""
        if is_any(pointer.topic[1]):
            if pointer.topic in self._others:
                self._others[pointer.topic][0].pop(pointer.host_id, None)
            self.changed(pointer.topic)  # The response to the next report names the host if it has new items.
            return
        if (found := self._pointers.get(pointer.topic)) is not None and found[0].host_id == pointer.host_id:
            del self._pointers[pointer.topic]

    def served(self, pointer: Pointer) -> None:
        """Note that a call got items of the topic there. If the home does not name that host, the next call gets it."""
        if self._probes.served(pointer.topic, pointer.host_id):
            self._interests.keep([pointer], self._now_s(), PROBE_MS)

    def age_s(self) -> float:
        """Return the age of the oldest change not yet reported to its home, in seconds."""
        now_s = self._now_s()
        reporting = [since_s for home, since_s in self._reporting_since_s.values() if home in self._home.hosts]
        since_s = min([self._reports.due_since_s(now_s), *reporting])
        return max(0.0, now_s - since_s)

    # ---- calls of other hosts ----

    def reported(self, host_id: str, stocks: Mapping[Topic, Reported]) -> list[Pointer]:
        """Take a host's report on topics whose home this host is. Returns hosts whose items precede.

        For all topics of a namespace together, these are all other hosts with items, because they have turns.
        """
        now_s, better = self._now_s(), []
        notices: dict[str, list[Pointer]] = {}
        for topic, (stock, is_wanted) in stocks.items():
            for waiting_host, pointer in self.directory.report(host_id, topic, stock, now_s):
                notices.setdefault(waiting_host, []).append(pointer)
            if is_wanted and is_any(topic[1]):
                better += self.directory.others(host_id, topic, now_s)
            elif is_wanted and (found := self.directory.better(host_id, topic, stock, now_s)) is not None:
                better.append(found)
        for waiting_host, pointers in notices.items():
            if waiting_host == self._me:
                self.notices_total["sent"] += len(pointers)
                self.notified(pointers)
                continue
            for pointer in pointers:
                self.notices_total["sent"] += self._notices.put(waiting_host, (pointer.topic, pointer.host_id), pointer)
        return better

    async def _notify(self, waiting_host: str, pointers: Mapping[tuple[Topic, str], Pointer]) -> None:
        await self._peer(waiting_host).hint(list(pointers.values()))

    def find(self, host_id: str, interests: Mapping[Topic, int]) -> list[Pointer]:
        """Answer a host that asks this one, the home of these topics, for items; 0 items means that it asks around."""
        now_s = self._now_s()
        found = [
            self.directory.find(host_id, topic, count, now_s) if count else self._find_here(host_id, topic, now_s)
            for topic, count in interests.items()
        ]
        return [pointer for pointer in found if pointer is not None]

    def _find_here(self, host_id: str, topic: Topic, now_s: float) -> Pointer | None:
        """Return the items here, or else a known host; this host's view can differ from that of the topic's home."""
        stock = self._reports.stock(topic)
        return Pointer(topic, self._me, stock) if stock.ready_count else self.directory.peek(host_id, topic, now_s)

    def notified(self, pointers: Iterable[Pointer]) -> None:
        """Take notices to hosts that have items this host waits for; one waiting call for each topic will pull."""
        for pointer in pointers:
            self.notices_total["received"] += 1
            if self._interests.notify(pointer):
                self._rung.set()

    def members(self, host_ids: Sequence[str], homes: Sequence[str]) -> None:
        """Set the living hosts, and the homes among them; all reports are repeated if topics have other homes."""
        if tuple(host_ids) != self._members:
            self._members = tuple(host_ids)
            self.directory.keep(set(host_ids), self._now_s())
            self._notices.keep(set(host_ids))
        if tuple(homes) != self._home.members and self._home.live(homes):
            self._report_all()

    # ---- reports to homes ----

    async def _start(self) -> None:
        self._tasks.repeat(self._until_rung, self._send_due)
        self._tasks.every(FIND_MS, self._refresh)
        self._tasks.spawn(self._ask_around())

    async def _stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _report_all(self) -> None:
        """Report everything again, because topics have other homes now."""
        self._reports.report_all(self._now_s())
        self._interests.all_again()
        self._rung.set()

    def _check_later(self, call: HomeCall) -> None:
        self._check_timers[call] = asyncio.get_running_loop().call_later(CHECK_MS / 1000, self._check, call)

    def _check(self, call: HomeCall) -> None:
        """Check a call that its home has not answered yet."""
        self._check_later(call)
        if self._home.check(call):
            self._report_all()
            self._outage.failed(f"host {call.home} does not answer")

    async def _call(self, home: str, work: Callable[[GuardedPeer], Awaitable[Sequence[Pointer]]]) -> Sequence[Pointer]:
        """Ask a home. If it fails to answer, or is slow, another host replaces it for a while."""
        call = self._home.call(home)
        self._check_later(call)
        has_other_homes = False
        try:
            pointers = await work(self._peer(home))
            has_other_homes = self._home.answered(call)
            return pointers
        except Exception:  # After any error another host is the better home for a while.
            has_other_homes = self._home.suspect(home, self._now_s())
            raise
        finally:
            self._check_timers.pop(call).cancel()
            if self._home.failed(call) or has_other_homes:
                self._report_all()

    async def _until_rung(self) -> None:
        await self._rung.wait()
        self._rung.clear()

    async def _send_due(self) -> None:
        """Send the due reports, and ask for the topics of interest."""
        self._report_due()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        next_s = self._reports.next_s(self._now_s())
        if next_s is not None:
            self._alarm = asyncio.get_running_loop().call_at(next_s, self._rung.set)
        await self._find_all()

    async def _refresh(self) -> None:
        """Begin to repeat all interests, and forget outdated data."""
        now_s = self._now_s()
        self._interests.all_again()
        if self._home.trust_again(now_s):
            self._report_all()
        self._reports.refresh_any(now_s)
        self._forget_pointers(now_s)
        self._interests.forget_unused(now_s)
        self.directory.sweep(SWEEP_TOPICS, now_s)
        self._rung.set()
        await self._forget_interests(now_s)

    async def _ask_around(self) -> None:
        await asyncio.sleep(PROBE_MS / 2000)  # Interests are reported again at other times.
        self._tasks.every(PROBE_MS, self._probe)

    async def _probe(self) -> None:
        """Ask some of the other hosts for the topics that calls wait for in vain."""
        now_s = self._now_s()
        hosts = [host_id for host_id in self._members if host_id not in self._home.away]
        for host_id, topics in self._probes.take_round(hosts, self._interests.__contains__, now_s).items():
            for some in _chunks(dict.fromkeys(topics, 0)):
                self._tasks.spawn(self._ask_for(host_id, some))
                await asyncio.sleep(0)

    async def _ask_for(self, host_id: str, topics: Mapping[Topic, int]) -> None:
        pointers = await self._call(host_id, lambda peer: peer.seek(topics))
        now_s = self._now_s()
        for pointer in pointers:
            self._probes.found(pointer.topic, pointer.host_id)
            if pointer.topic in self._interests:
                self.notified([pointer])
            else:
                self._interests.keep([pointer], now_s, PROBED_MS)

    async def _forget_interests(self, now_s: float) -> None:
        """Forget ended interests at this home; their number can be that of all topics that consumers poll for."""
        while True:
            if not self.directory.forget_interests(INTERESTS_FORGOTTEN_AT_ONCE, now_s):
                return
            await asyncio.sleep(0)

    def _forget_pointers(self, now_s: float) -> None:
        while self._pointers:
            topic, (_, until_s) = next(iter(self._pointers.items()))
            if until_s > now_s:
                break
            del self._pointers[topic]
        while self._others:
            topic, (_, until_s) = next(iter(self._others.items()))
            if until_s > now_s:
                break
            del self._others[topic]

    async def _find_all(self) -> None:
        """Ask the homes for all topics of interest. Between two portions of many interests the loop does other work."""
        by_home: dict[str, dict[Topic, int]] = {}
        portions_count = 0
        while self._interests.has_unasked:
            if portions_count:
                await asyncio.sleep(0)
            portions_count += 1
            for home, interests in self._by_home(self._interests.take_unasked()).items():
                by_home.setdefault(home, {}).update(interests)
        for number, (home, interests) in enumerate(_chunks_of(by_home)):
            if number or portions_count > 1:
                await asyncio.sleep(0)
            if home == self._me:
                self.notified(self.find(self._me, interests))
                self._interests.answered(interests)
            else:
                self._tasks.spawn(self._find(home, interests))

    async def _find(self, home: str, interests: Mapping[Topic, int]) -> None:
        self.notified(await self._call(home, lambda peer: peer.seek(interests)))
        self._interests.answered(interests)

    def _report_due(self) -> None:
        for home, stocks in self._by_home(self._reports.take_due(self._now_s())).items():
            if home == self._me:
                self._note_better(stocks, self.reported(self._me, stocks))
            else:
                for some in _chunks(stocks):
                    self._tasks.spawn(self._report(home, some))

    async def _report(self, home: str, stocks: Mapping[Topic, Reported]) -> None:
        report = object()
        self._reporting_since_s[report] = home, self._now_s()
        try:
            self._note_better(stocks, await self._call(home, lambda peer: peer.report(stocks)))
        except Exception:
            self._reports.not_reported(stocks, self._now_s())
            self._rung.set()
            raise
        finally:
            del self._reporting_since_s[report]

    def _note_better(self, reported: Iterable[Topic], pointers: Iterable[Pointer]) -> None:
        """Take the answer of the home of these topics to a report, which names the hosts whose items precede."""
        until_s, until_any_s = self._now_s() + POINTER_MS_MAX / 1000, self._now_s() + OTHERS_MS_MAX / 1000
        for topic in reported:
            self._pointers.pop(topic, None)
            if is_any(topic[1]):
                self._others.pop(topic, None)
        for pointer in pointers:
            if is_any(pointer.topic[1]):
                others, _ = self._others.setdefault(pointer.topic, ({}, until_any_s))
                others[pointer.host_id] = pointer
            else:
                self._pointers[pointer.topic] = pointer, until_s

    def _by_home(self, values: Mapping[Topic, V]) -> dict[str, dict[Topic, V]]:
        by_home: dict[str, dict[Topic, V]] = {}
        for topic, value in values.items() if self._home.hosts else ():
            by_home.setdefault(self._home.get(topic), {})[topic] = value
        return by_home


def _chunks(values: Mapping[Topic, V]) -> Iterable[dict[Topic, V]]:
    items = iter(values.items())
    while some := dict(islice(items, TOPICS_PER_MESSAGE_MAX)):
        yield some


def _chunks_of(by_home: Mapping[str, Mapping[Topic, V]]) -> Iterable[tuple[str, dict[Topic, V]]]:
    for home, values in by_home.items():
        for some in _chunks(values):
            yield home, some
