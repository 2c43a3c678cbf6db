"""A fair scheduler on a loop whose turns a test takes, with calls of known costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.transport.deficit_round import Member
from foqs.transport.fair_scheduler import (
    CallerQueue,
    FairScheduler,
    PenaltyLimits,
    SchedulerLimits,
)

WAIT_MS = 1_000
NO_PENALTY = PenaltyLimits(factor=0.0)


class Loop:
    """Turns by hand, with a clock that only tests move."""

    def __init__(self, penalties: bool) -> None:
        self.penalties = penalties
        """Whether they last until `end_penalties`."""
        self.now_s = 100.0
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append(partial(callback, *args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        if delay or self.penalties:
            self.later.append((delay, partial(callback, *args)))
        else:
            self.call_soon(callback, *args)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            due, self.soon = self.soon, []
            for callback in due:
                callback()

    def end_penalties(self) -> None:
        due, self.later = self.later, []
        for _, callback in due:
            callback()


class World:
    """A scheduler and what was done of it: names of calls in the order in which they were started or refused."""

    def __init__(self, work_max: int = 20, **bounds: Any) -> None:
        self.loop = Loop(bounds.get("penalties") is not NO_PENALTY)
        given = {"turn_work_max": work_max, "turn_work_shared_max": work_max, "enqueue_wait_ms_max": WAIT_MS}
        self.scheduler = FairScheduler(self.loop, SchedulerLimits(**(given | bounds)), self.loop.time)
        self.started: list[str] = []
        self.refused: list[str] = []
        self.work: Counter[str] = Counter()

    def queue(self, tenant: int = 1, address: str = "a", *, enqueue: bool = True) -> CallerQueue:
        return self.scheduler.queue_of(tenant, address, enqueue)

    def send(self, name: str, queue: CallerQueue, count: int = 1, *, waited_s: float = 0.0) -> None:
        """Let so many calls wait, which have waited so long already."""
        for _ in range(count):
            call = Waiting(self, name, queue)
            call.since_s -= waited_s
            self.scheduler.wait(queue, call)

    def do(self, queue: CallerQueue, elements: int = 0, took_s: float = 0.0) -> int:
        """Do a call now."""
        began_s = self.loop.now_s
        self.loop.now_s += took_s
        return self.scheduler.charge(queue, elements, 0, began_s)

    def keep_sending(self, name: str, queue: CallerQueue, *, elements: int = 0) -> None:
        """Let two calls wait, and one more whenever one is started."""
        for _ in range(2):
            self.scheduler.wait(queue, Endless(self, name, queue, elements))


class Waiting:
    def __init__(self, world: World, name: str, queue: CallerQueue, elements: int = 0) -> None:
        self.world, self.name, self.queue, self.elements = world, name, queue, elements
        self.since_s = world.loop.now_s
        self.size_bytes = 100

    def start(self) -> None:
        self.world.started.append(self.name)
        self.world.work[self.name] += self.world.do(self.queue, self.elements)

    def refuse(self) -> None:
        self.world.refused.append(self.name)


class Endless(Waiting):
    def start(self) -> None:
        super().start()
        self.world.scheduler.wait(self.queue, Endless(self.world, self.name, self.queue, self.elements))


# --- the round ---


class Bucket(Member):
    """Has work of given sizes to do."""

    def __init__(self, costs: list[int]) -> None:
        super().__init__()
        self.costs = costs
        self.done = 0

    def is_ready(self) -> bool:
        return bool(self.costs)
