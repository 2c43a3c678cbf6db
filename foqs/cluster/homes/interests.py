"""The topics that calls wait for here, and the pointers they get to other hosts that have items."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice

from foqs.cluster.homes.directory import PROMISE_MS
from foqs.model.stocks import Pointer, Topic

INTERESTS_MAX = 10_000
"""Topics that a host asks for at a time. Consumers of further topics get only the items of their own host."""
INTERESTS_PER_RUN_MAX = 1_000
"""Interests that are checked in one run, because checking 10,000 would block the event loop for 7 ms."""


class Wait:
    """A dequeue call that waits for items of other hosts, and gets `pointers` until it is closed."""

    __slots__ = ("_answered", "_arrived", "_is_over", "pointers", "topics", "unanswered_count")

    def __init__(self, topics: Mapping[Topic, int]) -> None:
        self.topics = topics
        self.pointers: dict[tuple[Topic, str], Pointer] = {}
        """The pointers by topic and host; one of the hosts can be unreachable."""
        self.unanswered_count = 0
        """The number of topics whose homes have not answered yet. `Interests` owns it."""
        self._is_over = False
        self._arrived = asyncio.Event()
        self._answered = asyncio.Event()

    def notify(self, pointer: Pointer) -> None:
        self.pointers[pointer.topic, pointer.host_id] = pointer
        self._arrived.set()
        self._answered.set()

    def all_answered(self) -> None:
        """Note that all homes have answered."""
        self._answered.set()

    def take(self) -> list[Pointer]:
        """Take the pointers that arrived since the last call."""
        pointers, self.pointers = list(self.pointers.values()), {}
        self._arrived.clear()
        return pointers

    def drop(self, host_id: str) -> bool:
        """Drop the pointers to this host. True if others are left, or all waiting has ended."""
        self.pointers = {at: pointer for at, pointer in self.pointers.items() if pointer.host_id != host_id}
        if not self.pointers and not self._is_over:
            self._arrived.clear()
        return self._arrived.is_set()

    async def arrived(self) -> None:
        """Return when a pointer arrives, or all waiting ends."""
        await self._arrived.wait()

    async def answered(self) -> None:
        """Return when a pointer arrives, all homes have answered, or all waiting ends."""
        await self._answered.wait()

    def end(self) -> None:
        """Wake every waiter."""
        self._is_over = True
        self._arrived.set()
        self._answered.set()


class _Interest:
    """The calls that wait on this host for a topic."""

    __slots__ = ("count", "unanswered", "waiters")

    def __init__(self) -> None:
        self.count = 0
        self.waiters: dict[Wait, int] = {}
        self.unanswered: list[Wait] = []
        """The waits that began since the home last answered."""


class Interests:
    """All waits of this host by topic. It owns them, and determines the topics for which homes must be asked."""

    def __init__(self) -> None:
        self._interests: dict[Topic, _Interest] = {}
        self._unasked: dict[Topic, None] = {}
        self._unused: OrderedDict[Topic, tuple[Pointer, float]] = OrderedDict()
        """Pointers that calls got and did not use, each with the time until which it is useful. Oldest first."""

    def __len__(self) -> int:
        return len(self._interests)

    def add(self, topics: Mapping[Topic, int], now_s: float) -> Wait:
        """Begin to wait for these topics, each with the number of wanted items."""
        wait = Wait(topics)
        for topic, count in topics.items():
            interest = self._interests.get(topic)
            if interest is None:
                if len(self._interests) >= INTERESTS_MAX:
                    continue
                interest = self._interests[topic] = _Interest()
            interest.waiters[wait] = count
            interest.count += count
            interest.unanswered.append(wait)
            wait.unanswered_count += 1
            self._unasked[topic] = None
            if topic in self._unused:
                pointer, until_s = self._unused.pop(topic)
                if until_s > now_s:
                    wait.notify(pointer)
        if not wait.unanswered_count:
            wait.all_answered()
        return wait

    def answered(self, topics: Iterable[Topic]) -> None:
        """Note that the homes of these topics have answered."""
        for topic in topics:
            if (interest := self._interests.get(topic)) is None:
                continue
            waits, interest.unanswered = interest.unanswered, []
            for wait in waits:
                wait.unanswered_count -= 1
                if not wait.unanswered_count:
                    wait.all_answered()

    def remove(self, wait: Wait) -> None:
        for topic in wait.topics:
            interest = self._interests.get(topic)
            if interest is not None and (count := interest.waiters.pop(wait, None)) is not None:
                interest.count -= count
                if not interest.waiters:
                    del self._interests[topic]

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._interests

    def keep(self, pointers: Iterable[Pointer], now_s: float, for_ms: float = PROMISE_MS) -> None:
        """Keep pointers that a call did not use, for the next call that names their topics.

        The home offers those items to no other host for a while, because this host was sent for them.
        """
        for pointer in pointers:
            self._unused.pop(pointer.topic, None)
            if len(self._unused) < INTERESTS_MAX:
                self._unused[pointer.topic] = pointer, now_s + for_ms / 1000

    def forget_unused(self, now_s: float) -> None:
        """Forget the outdated pointers."""
        while self._unused:
            topic, (_, until_s) = next(iter(self._unused.items()))
            if until_s > now_s:
                return
            del self._unused[topic]

    def again(self, topics: Iterable[Topic]) -> None:
        """Ask again for those topics that calls still wait for."""
        self._unasked.update(dict.fromkeys(topic for topic in topics if topic in self._interests))

    def all_again(self) -> None:
        self._unasked.update(dict.fromkeys(self._interests))

    @property
    def has_unasked(self) -> bool:
        """True if `take_unasked` has something to return."""
        return bool(self._unasked)

    def take_unasked(self) -> dict[Topic, int]:
        """Take the topics to ask the homes for now, with the number of wanted items: up to INTERESTS_PER_RUN_MAX."""
        if len(self._unasked) <= INTERESTS_PER_RUN_MAX:
            taken, self._unasked = list(self._unasked), {}
        else:
            taken = list(islice(self._unasked, INTERESTS_PER_RUN_MAX))
            for topic in taken:
                del self._unasked[topic]
        return {topic: interest.count for topic in taken if (interest := self._interests.get(topic)) is not None}

    def notify(self, pointer: Pointer) -> bool:
        """Pass a pointer to as many waiting calls as the items suffice for. True if others still wait.

        The topic must then be asked for again, because its home assumes that this host does not wait any more.
        """
        interest = self._interests.get(pointer.topic)
        left_count = pointer.stock.ready_count
        for waiter, count in interest.waiters.items() if interest is not None else ():
            if left_count <= 0:
                self._unasked[pointer.topic] = None
                return True
            waiter.notify(pointer)
            left_count -= count
        return False
