"""The topics that calls wait for here, and what they are told of other hosts that have items."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice

from foqs.cluster.directory import PROMISE_MS
from foqs.model.stocks import Pointer, Topic

WISHES_MAX = 10_000
"""Topics that a host asks for at a time. Consumers of more topics are told of items of the others by their own host."""
WISHES_PER_RUN_MAX = 1_000
"""Wishes that are looked at in one go: all of them would hold the event loop for 7 ms."""


class Wait:
    """A dequeue call that waits for items of other hosts: `pointers` come until it is closed."""

    __slots__ = ("_answered", "_arrived", "_is_over", "pointers", "topics", "unanswered_count")

    def __init__(self, topics: Mapping[Topic, int]) -> None:
        self.topics = topics
        self.pointers: dict[tuple[Topic, str], Pointer] = {}
        """The pointers by topic and host: one of the hosts may be out of reach."""
        self.unanswered_count = 0
        """The topics whose homes have not said yet who has items. `Wishes` owns it."""
        self._is_over = False
        self._arrived = asyncio.Event()
        self._answered = asyncio.Event()

    def tell(self, pointer: Pointer) -> None:
        self.pointers[pointer.topic, pointer.host_id] = pointer
        self._arrived.set()
        self._answered.set()

    def all_answered(self) -> None:
        """All homes have said who has items, if anybody has."""
        self._answered.set()

    def take(self) -> list[Pointer]:
        """Take the pointers that homes have told since the last call."""
        pointers, self.pointers = list(self.pointers.values()), {}
        self._arrived.clear()
        return pointers

    def drop(self, host_id: str) -> bool:
        """Drop what was told of this host. Returns whether something is left, or all waiting has ended."""
        self.pointers = {at: pointer for at, pointer in self.pointers.items() if pointer.host_id != host_id}
        if not self.pointers and not self._is_over:
            self._arrived.clear()
        return self._arrived.is_set()

    async def arrived(self) -> None:
        """Return when something was told, or all waiting ends."""
        await self._arrived.wait()

    async def answered(self) -> None:
        """Return when something was told, or all homes have answered, or all waiting ends."""
        await self._answered.wait()

    def end(self) -> None:
        """Nobody is to wait any more."""
        self._is_over = True
        self._arrived.set()
        self._answered.set()


class _Wish:
    """The calls that wait on this host for a topic."""

    __slots__ = ("count", "unanswered", "waiters")

    def __init__(self) -> None:
        self.count = 0
        self.waiters: dict[Wait, int] = {}
        self.unanswered: list[Wait] = []
        """The waits that began since the home answered last."""


class Wishes:
    """All waits of this host by topic. It owns them, and knows which topics their homes are to be asked for."""

    def __init__(self) -> None:
        self._wishes: dict[Topic, _Wish] = {}
        self._unsought: dict[Topic, None] = {}
        self._unused: OrderedDict[Topic, tuple[Pointer, float]] = OrderedDict()
        """Hosts that calls were told of and have not gone to, and until when that is of use. Oldest first."""

    def __len__(self) -> int:
        return len(self._wishes)

    def add(self, topics: Mapping[Topic, int], now_s: float) -> Wait:
        """Begin to wait for these topics, each with how many items are wanted."""
        wait = Wait(topics)
        for topic, count in topics.items():
            wish = self._wishes.get(topic)
            if wish is None:
                if len(self._wishes) >= WISHES_MAX:
                    continue
                wish = self._wishes[topic] = _Wish()
            wish.waiters[wait] = count
            wish.count += count
            wish.unanswered.append(wait)
            wait.unanswered_count += 1
            self._unsought[topic] = None
            if topic in self._unused:
                pointer, until_s = self._unused.pop(topic)
                if until_s > now_s:
                    wait.tell(pointer)
        if not wait.unanswered_count:
            wait.all_answered()
        return wait

    def answered(self, topics: Iterable[Topic]) -> None:
        """The homes of these topics have said who has items, if anybody has."""
        for topic in topics:
            if (wish := self._wishes.get(topic)) is None:
                continue
            waits, wish.unanswered = wish.unanswered, []
            for wait in waits:
                wait.unanswered_count -= 1
                if not wait.unanswered_count:
                    wait.all_answered()

    def remove(self, wait: Wait) -> None:
        for topic in wait.topics:
            wish = self._wishes.get(topic)
            if wish is not None and (count := wish.waiters.pop(wait, None)) is not None:
                wish.count -= count
                if not wish.waiters:
                    del self._wishes[topic]

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._wishes

    def keep(self, pointers: Iterable[Pointer], now_s: float, for_ms: float = PROMISE_MS) -> None:
        """A call has not gone to these hosts: the next one that names their topics hears of them at once.

        The home tells nobody of their items for a while, because this host was to come for them.
        """
        for pointer in pointers:
            self._unused.pop(pointer.topic, None)
            if len(self._unused) < WISHES_MAX:
                self._unused[pointer.topic] = pointer, now_s + for_ms / 1000

    def forget_unused(self, now_s: float) -> None:
        """Forget what is of no use any more."""
        while self._unused:
            topic, (_, until_s) = next(iter(self._unused.items()))
            if until_s > now_s:
                return
            del self._unused[topic]

    def again(self, topics: Iterable[Topic]) -> None:
        """Ask for those of them that somebody waits for once more."""
        self._unsought.update(dict.fromkeys(topic for topic in topics if topic in self._wishes))

    def all_again(self) -> None:
        self._unsought.update(dict.fromkeys(self._wishes))

    @property
    def has_unsought(self) -> bool:
        """Whether there is something for `take_unsought`."""
        return bool(self._unsought)

    def take_unsought(self) -> dict[Topic, int]:
        """The topics to ask the homes for now, with the number of items wanted: WISHES_PER_RUN_MAX at most."""
        if len(self._unsought) <= WISHES_PER_RUN_MAX:
            taken, self._unsought = list(self._unsought), {}
        else:
            taken = list(islice(self._unsought, WISHES_PER_RUN_MAX))
            for topic in taken:
                del self._unsought[topic]
        return {topic: wish.count for topic in taken if (wish := self._wishes.get(topic)) is not None}

    def tell(self, pointer: Pointer) -> bool:
        """Tell as many who wait as there are items for. Returns whether others wait still.

        Those are to be asked for again: the home takes it that this host waits no more.
        """
        wish = self._wishes.get(pointer.topic)
        left_count = pointer.stock.ready_count
        for waiter, count in wish.waiters.items() if wish is not None else ():
            if left_count <= 0:
                self._unsought[pointer.topic] = None
                return True
            waiter.tell(pointer)
            left_count -= count
        return False
