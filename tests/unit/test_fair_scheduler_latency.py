"""What a good client feels of floods, in virtual time: the scheduler as it is, on a loop where everything has a price.

A call is read in one turn of the loop, begun in the next, waits for a commit, and needs a dozen turns more. Prices are
those of a host on one core.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import pytest

from foqs.transport.fair_scheduler import NO_TENANT, CallerQueue, FairScheduler, PenaltyLimits, SchedulerLimits

SECONDS = 2.0
TURN_S = 40e-6
CALLBACK_S = 2e-6
STEP_S = 3e-6
STEPS = 12
THINK_S = 0.02


class VirtualLoop:
    """Turns as uvloop has them: timers in whole milliseconds, what sockets bring, what was to be called soon."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._ready: deque[Callable[[], object]] = deque()
        self._received: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._ready.append(partial(callback, *args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now_s + round(delay, 3), self._count, partial(callback, *args)))

    def receive_at(self, time_s: float, callback: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time_s, self._count, partial(self._received.append, callback)))

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self.now_s += TURN_S
            if not self._ready and not self._received:
                self.now_s = max(self.now_s, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self.now_s:
                heapq.heappop(self._timers)[2]()
            for callbacks in (self._received, self._ready):
                due = list(callbacks)
                callbacks.clear()
                for callback in due:
                    self.now_s += CALLBACK_S
                    callback()


@dataclass(frozen=True, slots=True)
class Price:
    """What calls of a client cost: elements and bytes, as the scheduler counts them, and time."""

    elements: int
    size_bytes: int
    read_s: float
    do_s: float
    commit_s: float


SINGLE = Price(1, 300, 40e-6, 40e-6, 1e-3)
REFUSED_AT_ONCE = Price(1, 300, 40e-6, 15e-6, 0.0)
BATCH = Price(100, 25_000, 250e-6, 700e-6, 3e-3)
BAD_BATCH = Price(1_000, 250_000, 2e-3, 2.5e-3, 0.0)


class Sent:
    def __init__(self, client: Client, queue: CallerQueue, ended: Callable[[], None]) -> None:
        self.client, self.queue, self.ended = client, queue, ended
        self.since_s = client.world.loop.now_s
        self.size_bytes = client.price.size_bytes
        self.is_read = False

    def start(self) -> None:
        self.client.start(self)

    def refuse(self) -> None:
        self.client.world.loop.now_s += 5e-6
        self.ended()


class Client:
    """Calls from one address in one namespace, through the scheduler and the turns that a call takes."""

    def __init__(self, world: World, tenant: int, address: str, price: Price) -> None:
        self.world, self.tenant, self.address, self.price = world, tenant, address, price

    def send(self, ended: Callable[[], None]) -> None:
        scheduler = self.world.scheduler
        call = Sent(self, scheduler.queue_of(self.tenant, self.address, True), ended)
        if scheduler.may_start(call.queue):
            self.start(call)
        else:
            scheduler.wait(call.queue, call)

    def start(self, call: Sent) -> None:
        scheduler, loop = self.world.scheduler, self.world.loop
        if call.is_read:
            scheduler.charge_turn(call.queue)
            self._begin(call)
            return
        began_s = loop.now_s
        loop.now_s += self.price.read_s
        work = scheduler.charge(call.queue, self.price.elements, self.price.size_bytes, began_s)
        if scheduler.is_large(work):
            call.is_read, call.since_s = True, inf
            scheduler.put_off(call.queue, call)
        else:
            self._begin(call)

    def _begin(self, call: Sent) -> None:
        self.world.scheduler.started(call.queue)
        self.world.loop.call_soon(self._do, call)

    def _do(self, call: Sent) -> None:
        self.world.loop.now_s += self.price.do_s
        self.world.loop.call_later(self.price.commit_s, self._step, call, STEPS)

    def _step(self, call: Sent, left: int) -> None:
        self.world.loop.now_s += STEP_S
        if left:
            self.world.loop.call_soon(self._step, call, left - 1)
        else:
            self.world.scheduler.ended(call.queue)
            call.ended()


class World:
    def __init__(self, **bounds: Any) -> None:
        self.loop = VirtualLoop()
        self.scheduler = FairScheduler(self.loop, SchedulerLimits(**bounds), self.loop.time)
        self.latencies_ms: list[float] = []
        self._chance = random.Random(7)

    def good(self, client: Client) -> None:
        """One call after the other, thinking in between."""
        sent_s = self.loop.now_s + THINK_S * self._chance.uniform(0.5, 1.5)

        def ended() -> None:
            self.latencies_ms.append((self.loop.now_s - sent_s) * 1000)
            self.good(client)

        self.loop.receive_at(sent_s, lambda: client.send(ended))

    def flood(self, client: Client, calls: int) -> None:
        """So many calls at once, and another one for each that has ended."""

        def again() -> None:
            self.loop.receive_at(self.loop.now_s + 200e-6, lambda: client.send(again))

        for _ in range(calls):
            again()

    def p99_ms(self) -> float:
        self.loop.run(SECONDS)
        return sorted(self.latencies_ms)[len(self.latencies_ms) * 99 // 100]


Floods = list[tuple[int, str, Price, int]]
FLOODS: dict[str, Floods] = {
    "single enqueues": [(1, "flood", SINGLE, 1_000)],
    "what names no namespace that is known": [(NO_TENANT, "flood", REFUSED_AT_ONCE, 1_000)],
    "the same from many addresses": [(NO_TENANT, f"flood {n}", REFUSED_AT_ONCE, 8) for n in range(200)],
    "batches": [(1, "flood", BATCH, 8)],
    "large bad batches": [(1, "flood", BAD_BATCH, 100)],
    "another namespace behind the same address": [(2, "good", SINGLE, 1_000)],
    "another namespace from many addresses": [(2, f"flood {n}", SINGLE, 8) for n in range(200)],
}


def p99_ms(floods: Floods, **bounds: Any) -> float:
    world = World(**bounds)
    for _ in range(4):
        world.good(Client(world, 1, "good", SINGLE))
    for tenant, address, price, calls in floods:
        world.flood(Client(world, tenant, address, price), calls)
    return world.p99_ms()


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.deep
def test_a_good_clients_p99_grows_by_the_time_of_a_turn_or_two_next_to_a_flood(name: str) -> None:
    alone_ms, beside_ms = p99_ms([]), p99_ms(FLOODS[name])
    assert beside_ms < 2.5 * alone_ms


@pytest.mark.deep
def test_without_penalties_and_without_shorter_turns_it_grows_far_more() -> None:
    """What these are for; and that this model would show it."""
    floods = FLOODS["large bad batches"]
    assert p99_ms(floods, penalties=PenaltyLimits(factor=0.0)) > 2 * p99_ms(floods)
    floods = FLOODS["single enqueues"]
    assert p99_ms(floods, turn_work_shared_max=64) > 1.4 * p99_ms(floods)
