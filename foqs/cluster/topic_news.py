"""What hosts tell each other of topics, so that a consumer on any host gets the items of all of them.

A host reports to the home of each topic what it has ready, and asks that home for topics which its consumers wait for.
The home answers with a host that has some, or sends a hint later. The waiting host then pulls (foqs/cluster/pulls.py).
Reports and hints may be lost: the state of every home is rebuilt by what is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

import structlog

from foqs.cluster.directory import Directory
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.outage import Outage
from foqs.model.service import Service
from foqs.model.stocks import ANY_TOPIC, NO_STOCK, SOME_STOCK, Pointer, Stock, Topic

FLUSH_MS = 2
"""What was noticed within this time is told together."""
WAITED_FLUSH_MS = 50
"""A topic that calls here wait for is reported so much later: most of it will be theirs."""
CHANGE_MS = 200
"""Changes of what was reported before are told so often."""
REPEAT_MS = 5 * limits.SECOND_MS
"""All that is known is reported again within this time, and wishes every second."""
SEEK_MS = 1 * limits.SECOND_MS
POINTER_MS_MAX = 1 * limits.SECOND_MS
"""What a home has told is believed for so long."""
TOPICS_PER_MESSAGE_MAX = 500
REPORTS_PER_SECOND_MAX = 5_000
"""Topics that a host reports in a second; the others wait."""
WISHES_MAX = 10_000
"""Topics that a host asks for at a time. Consumers of more topics are told of items of the others by their own host."""
SUSPECT_MS = 2 * limits.SECOND_MS
"""A home that cannot be reached is none for so long: all hosts notice that soon, and find the same one in its place."""
SWEEP_TOPICS = 500

_log = structlog.get_logger(__name__)
V = TypeVar("V")


class LocalTopics(Protocol):
    """This host's own topics; foqs.host.stocks.Stocks is the real one."""

    def stock(self, topic: Topic) -> Stock: ...

    def is_waited_for(self, topic: Topic) -> bool:
        """Whether calls wait here for items of it."""


class HomeCalls(Protocol):
    """The hosts as homes of topics, this one included. Calls raise FoqsError when the home is away."""

    @property
    def host_ids(self) -> Sequence[str]:
        """Those that live, in an order that all hosts have."""

    async def report(self, host_id: str, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]: ...

    async def seek(self, host_id: str, wishes: Mapping[Topic, int]) -> Sequence[Pointer]: ...

    async def hint(self, host_id: str, pointers: Sequence[Pointer]) -> None: ...


class Reported(NamedTuple):
    stock: Stock
    is_wanted: bool


def home_of(topic: Topic, host_ids: Sequence[str]) -> str:
    """The host that is the home of a topic: the one with the greatest hash, so that few topics move with a host."""
    name = b"%d/%b" % (topic[0], topic[1].encode())
    seed = crc32(name)
    return max(host_ids, key=lambda host_id: (_mixed(crc32(host_id.encode(), seed)), host_id))


def _mixed(value: int) -> int:
    """Spread a checksum: those of texts that are alike differ in a pattern (after MurmurHash3's finalizer)."""
    value ^= value >> 16
    value = value * 0x85EBCA6B & 0xFFFFFFFF
    value ^= value >> 13
    value = value * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


class _Queue:
    """Topics in the order in which they come due, all of them the same time after they were put in."""

    __slots__ = ("_delay_s", "_due_s")

    def __init__(self, delay_ms: int) -> None:
        self._delay_s = delay_ms / 1000
        self._due_s: dict[Topic, float] = {}

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._due_s

    def put(self, topic: Topic, now_s: float) -> None:
        """Put it in, unless it is there."""
        self._due_s.setdefault(topic, now_s + self._delay_s)

    def renew(self, topic: Topic, now_s: float) -> None:
        """Put it in, or to the end."""
        self._due_s.pop(topic, None)
        self._due_s[topic] = now_s + self._delay_s

    def discard(self, topic: Topic) -> None:
        self._due_s.pop(topic, None)

    def having(self, name: str) -> list[Topic]:
        """Those with this name."""
        return [topic for topic in self._due_s if topic[1] == name]

    def take(self, count: int, now_s: float) -> list[Topic]:
        """So many of those that are due, which are gone then."""
        due: list[Topic] = []
        for topic, due_s in self._due_s.items():
            if due_s > now_s or len(due) >= count:
                break
            due.append(topic)
        for topic in due:
            del self._due_s[topic]
        return due

    @property
    def next_s(self) -> float:
        """When the first is due."""
        return next(iter(self._due_s.values()), inf)


class _Wish:
    """Who waits here for a topic."""

    __slots__ = ("count", "waiters")

    def __init__(self) -> None:
        self.count = 0
        self.waiters: dict[Wait, int] = {}


class Wait:
    """A dequeue call that waits for items of other hosts: `pointers` come until it is closed."""

    __slots__ = ("_arrived", "pointers", "topics")

    def __init__(self, topics: Mapping[Topic, int]) -> None:
        self.topics = topics
        self.pointers: dict[Topic, Pointer] = {}
        self._arrived = asyncio.Event()

    def tell(self, pointer: Pointer) -> None:
        self.pointers[pointer.topic] = pointer
        self._arrived.set()

    def take(self) -> list[Pointer]:
        """What was told since the last time."""
        pointers, self.pointers = list(self.pointers.values()), {}
        self._arrived.clear()
        return pointers

    async def arrived(self) -> None:
        """Return when something was told, or all waiting ends."""
        await self._arrived.wait()

    def end(self) -> None:
        """Nobody is to wait any more."""
        self._arrived.set()


class TopicNews(Service):
    """Tells homes what this host has and wants, and is the home of its part of all topics.

    The dispatcher tells it of topics that have changed, `Pulls` of calls that wait. It owns what was reported, the
    wishes of this host, and the directory of the topics whose home this host is.
    """

    def __init__(
        self,
        me: str,
        homes: HomeCalls,
        local: LocalTopics,
        choose: Callable[[int], int],
        now_s: Callable[[], float],
    ) -> None:
        """`choose(count)` draws a number from 0 to below that; `now_s` is the time of the event loop."""
        super().__init__("topic-news")
        self._me = me
        self._homes = homes
        self._local = local
        self._now_s = now_s
        self.directory = Directory(choose)
        self._members: tuple[str, ...] = ()
        self._hosts: tuple[str, ...] = ()
        """Those of them that can be homes."""
        self._suspects: dict[str, float] = {}
        """Hosts that could not be reached, each with when it may be a home again."""
        self._home_of: dict[Topic, str] = {}
        self._known: set[Topic] = set()
        """The topics whose homes were told of ready items here."""
        self._reported = _Queue(REPEAT_MS)
        """Those of them that are not due to be reported again."""
        self._soon, self._waited, self._changes = _Queue(FLUSH_MS), _Queue(WAITED_FLUSH_MS), _Queue(CHANGE_MS)
        """The topics that have changed: such as were not reported, such as calls here wait for, and the others."""
        self._wishes: dict[Topic, _Wish] = {}
        self._unsought: dict[Topic, None] = {}
        self._pointers: dict[Topic, tuple[Pointer, float]] = {}
        """The hosts whose items go before those of this one, and until when that is believed."""
        self._ready: dict[int, set[str]] = {}
        """The topics of `_known`, by namespace."""
        self._asked = _Queue(2 * SEEK_MS)
        """The topics that consumers have asked here for lately."""
        self._rung = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._outage = Outage(now_s)
        self._reports_left = REPORTS_PER_SECOND_MAX
        self._refilled_s = now_s()

    # ---- what is noticed here ----

    def changed(self, topic: Topic) -> None:
        """What this host has ready of the topic may be another than before."""
        if topic in self._known:
            queue = self._changes
        elif self._local.is_waited_for(topic):
            queue = self._waited
        else:
            queue = self._soon
        if topic not in queue:
            queue.put(topic, self._now_s())
            self._rung.set()

    def wait(self, topics: Mapping[Topic, int]) -> Wait:
        """Ask the homes for these topics until `leave`, each with how many items are wanted."""
        wait = Wait(topics)
        for topic, count in topics.items():
            wish = self._wishes.get(topic)
            if wish is None:
                if len(self._wishes) >= WISHES_MAX:
                    continue
                wish = self._wishes[topic] = _Wish()
            wish.waiters[wait] = count
            wish.count += count
            self._unsought[topic] = None
        self._rung.set()
        return wait

    def seek_again(self, wait: Wait) -> None:
        """What it was told was of no use."""
        self._unsought.update(dict.fromkeys(topic for topic in wait.topics if topic in self._wishes))
        self._rung.set()

    def leave(self, wait: Wait) -> None:
        """It waits no more."""
        for topic in wait.topics:
            wish = self._wishes.get(topic)
            if wish is not None and (count := wish.waiters.pop(wait, None)) is not None:
                wish.count -= count
                if not wish.waiters:
                    del self._wishes[topic]

    def better(self, topics: Iterable[Topic]) -> Pointer | None:
        """Another host whose items go before those here, of the first of the topics that has one."""
        if not self._pointers:
            return None
        now_s = self._now_s()
        for topic in topics:
            found = self._pointers.get(topic)
            if found is not None and found[1] > now_s:
                return found[0]
        return None

    def asked(self, topics: Iterable[Topic]) -> None:
        """Consumers ask here for these topics."""
        now_s = self._now_s()
        for topic in topics:
            self._asked.renew(topic, now_s)

    def was_empty(self, pointer: Pointer) -> None:
        """The host had nothing of it when it was asked."""
        if (found := self._pointers.get(pointer.topic)) is not None and found[0].host_id == pointer.host_id:
            del self._pointers[pointer.topic]

    # ---- what others tell ----

    def reported(self, host_id: str, stocks: Mapping[Topic, Reported]) -> list[Pointer]:
        """A host tells this one, the home of these topics, what it has. Returns hosts whose items go before."""
        now_s, better = self._now_s(), []
        hints: dict[str, list[Pointer]] = {}
        for topic, (stock, is_wanted) in stocks.items():
            for seeker, pointer in self.directory.report(host_id, topic, stock, now_s):
                hints.setdefault(seeker, []).append(pointer)
            if is_wanted and (found := self.directory.better(host_id, topic, stock, now_s)) is not None:
                better.append(found)
        for seeker, pointers in hints.items():
            if seeker == self._me:
                self.hinted(pointers)
            else:
                self._spawn(self._homes.hint(seeker, pointers))
        return better

    def sought(self, host_id: str, wishes: Mapping[Topic, int]) -> list[Pointer]:
        """A host asks this one, the home of these topics, who has some."""
        now_s = self._now_s()
        found = [self.directory.seek(host_id, topic, count, now_s) for topic, count in wishes.items()]
        return [pointer for pointer in found if pointer is not None]

    def hinted(self, pointers: Iterable[Pointer]) -> None:
        """Homes tell who has items that this host waits for: one waiting call for each topic will go for them."""
        for pointer in pointers:
            self._believe(pointer)
            wish = self._wishes.get(pointer.topic)
            left_count = pointer.stock.ready_count
            for waiter, count in wish.waiters.items() if wish is not None else ():
                if left_count <= 0:
                    self._unsought[pointer.topic] = None  # The home takes it that this host waits no more.
                    self._rung.set()
                    break
                waiter.tell(pointer)
                left_count -= count

    def members(self, host_ids: Sequence[str]) -> None:
        """These hosts live: topics may have other homes, which are told all anew."""
        if tuple(host_ids) != self._members:
            self._members = tuple(host_ids)
            self.directory.keep(set(host_ids))
            self._choose_homes()

    def _choose_homes(self) -> None:
        hosts = tuple(host_id for host_id in self._members if host_id not in self._suspects) or self._members
        if hosts == self._hosts:
            return
        self._hosts = hosts
        self._home_of.clear()
        now_s = self._now_s()
        for topic in self._known:
            self._soon.put(topic, now_s)
        self._unsought.update(dict.fromkeys(self._wishes))
        self._rung.set()

    # ---- telling it ----

    async def _start(self) -> None:
        self._spawn(self._run())
        self._spawn(self._repeat())

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _suspect(self, host_id: str) -> None:
        """It was not reached."""
        if host_id != self._me:
            self._suspects[host_id] = self._now_s() + SUSPECT_MS / 1000
            self._choose_homes()

    def _trust_again(self, now_s: float) -> None:
        ended = [host_id for host_id, until_s in self._suspects.items() if until_s <= now_s]
        for host_id in ended:
            del self._suspects[host_id]
        if ended:
            self._choose_homes()

    def _spawn(self, work: Coroutine[Any, Any, None], host_id: str = "") -> None:
        task = asyncio.create_task(self._done(work, host_id), name=self.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _done(self, work: Coroutine[Any, Any, None], host_id: str) -> None:
        try:
            await work
        except FoqsError as error:
            if host_id and isinstance(error, UnavailableError):
                self._suspect(host_id)
            if self._outage.is_to_be_told(str(error)):
                _log.warning("home_not_told", error=str(error))
        except Exception:
            _log.error("host_defect", work=self.name, exc_info=True)

    async def _run(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            self._seek_all()
            next_s = self._report_due()
            if next_s is not None:
                asyncio.get_running_loop().call_at(next_s, self._rung.set)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(SEEK_MS / 1000)
            now_s = self._now_s()
            self._unsought.update(dict.fromkeys(self._wishes))
            self._trust_again(now_s)
            for topic in self._asked.having(ANY_TOPIC):
                self._soon.put(topic, now_s)  # The response tells who else has some now.
            self._asked.take(REPORTS_PER_SECOND_MAX, now_s)
            self._forget_pointers(now_s)
            self.directory.sweep(SWEEP_TOPICS, now_s)
            self._rung.set()

    def _forget_pointers(self, now_s: float) -> None:
        while self._pointers:
            topic, (_, until_s) = next(iter(self._pointers.items()))
            if until_s > now_s:
                return
            del self._pointers[topic]

    def _believe(self, pointer: Pointer) -> None:
        self._pointers.pop(pointer.topic, None)
        self._pointers[pointer.topic] = pointer, self._now_s() + POINTER_MS_MAX / 1000

    def _home(self, topic: Topic) -> str:
        home = self._home_of.get(topic)
        if home is None:
            home = self._home_of[topic] = home_of(topic, self._hosts)
            if len(self._home_of) > 2 * WISHES_MAX:
                self._home_of.clear()
        return home

    def _seek_all(self) -> None:
        unsought, self._unsought = self._unsought, {}
        if not self._hosts:
            return
        by_home: dict[str, dict[Topic, int]] = {}
        for topic in unsought:
            wish = self._wishes.get(topic)
            if wish is not None:
                by_home.setdefault(self._home(topic), {})[topic] = wish.count
        for home, wishes in by_home.items():
            if home == self._me:
                self.hinted(self.sought(self._me, wishes))
            else:
                for some in _chunks(wishes):
                    self._spawn(self._seek(home, some), home)

    async def _seek(self, home: str, wishes: Mapping[Topic, int]) -> None:
        self.hinted(await self._homes.seek(home, wishes))

    def _report_due(self) -> float | None:
        """Report what is due. Returns when the next is."""
        now_s = self._now_s()
        self._reports_left = min(
            REPORTS_PER_SECOND_MAX, self._reports_left + int((now_s - self._refilled_s) * REPORTS_PER_SECOND_MAX)
        )
        self._refilled_s = now_s
        due: dict[Topic, None] = {}
        for queue in (self._soon, self._waited, self._changes, self._reported):
            due.update(dict.fromkeys(queue.take(self._reports_left - len(due), now_s)))
        by_home: dict[str, dict[Topic, Reported]] = {}
        for topic in due if self._hosts else ():
            stock, was_reported = self._stock(topic), topic in self._known
            if stock.ready_count or was_reported:
                by_home.setdefault(self._home(topic), {})[topic] = Reported(stock, topic in self._asked)
            if stock.ready_count:
                self._known.add(topic)
                self._reported.renew(topic, now_s)
            else:
                self._known.discard(topic)
                self._reported.discard(topic)
            self._note_ready(topic, now_s, has_some=stock.ready_count > 0)
        self._reports_left -= len(due)
        for home, stocks in by_home.items():
            if home == self._me:
                self._learn_better(self.reported(self._me, stocks))
            else:
                for some in _chunks(stocks):
                    self._spawn(self._report(home, some), home)
        next_s = min([queue.next_s for queue in (self._soon, self._waited, self._changes, self._reported)])
        return None if next_s == inf else max(next_s, now_s + FLUSH_MS / 1000)

    def _stock(self, topic: Topic) -> Stock:
        if topic[1] == ANY_TOPIC:
            return SOME_STOCK if topic[0] in self._ready else NO_STOCK
        return self._local.stock(topic)

    def _note_ready(self, topic: Topic, now_s: float, *, has_some: bool) -> None:
        """Consumers that name no topic are told when a namespace has its first one, and when it has none any more."""
        number, name = topic
        if name == ANY_TOPIC:
            return
        names = self._ready.get(number)
        if has_some and names is not None:
            names.add(name)
        elif has_some:
            self._ready[number] = {name}
            self._soon.put((number, ANY_TOPIC), now_s)
        elif names is not None:
            names.discard(name)
            if not names:
                del self._ready[number]
                self._soon.put((number, ANY_TOPIC), now_s)

    async def _report(self, home: str, stocks: Mapping[Topic, Reported]) -> None:
        try:
            self._learn_better(await self._homes.report(home, stocks))
        except FoqsError:
            now_s = self._now_s()
            for topic in stocks:  # It may be the home again, or another one.
                self._changes.put(topic, now_s)
            self._rung.set()
            raise

    def _learn_better(self, pointers: Iterable[Pointer]) -> None:
        for pointer in pointers:
            self._believe(pointer)


def _chunks(values: Mapping[Topic, V]) -> Iterable[dict[Topic, V]]:
    items = list(values.items())
    return [
        dict(items[start : start + TOPICS_PER_MESSAGE_MAX]) for start in range(0, len(items), TOPICS_PER_MESSAGE_MAX)
    ]
