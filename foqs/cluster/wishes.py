"""The topics that calls wait for here, and what they are told of other hosts that have items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice

from foqs.model.stocks import Pointer, Topic

WISHES_MAX = 10_000
"""Topics that a host asks for at a time. Consumers of more topics are told of items of the others by their own host."""
WISHES_PER_RUN_MAX = 1_000
"""Wishes that are looked at in one go: all of them would hold the event loop for 7 ms."""


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


class _Wish:
    """Who waits here for a topic."""

    __slots__ = ("count", "waiters")

    def __init__(self) -> None:
        self.count = 0
        self.waiters: dict[Wait, int] = {}


class Wishes:
    """All waits of this host by topic. It owns them, and knows which topics their homes are to be asked for."""

    def __init__(self) -> None:
        self._wishes: dict[Topic, _Wish] = {}
        self._unsought: dict[Topic, None] = {}

    def __len__(self) -> int:
        return len(self._wishes)

    def add(self, topics: Mapping[Topic, int]) -> Wait:
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
            self._unsought[topic] = None
        return wait

    def remove(self, wait: Wait) -> None:
        for topic in wait.topics:
            wish = self._wishes.get(topic)
            if wish is not None and (count := wish.waiters.pop(wait, None)) is not None:
                wish.count -= count
                if not wish.waiters:
                    del self._wishes[topic]

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
        """What the homes are to be asked for now, each with how many items are wanted: WISHES_PER_RUN_MAX at most."""
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
