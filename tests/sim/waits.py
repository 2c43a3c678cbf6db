"""Waits that are given up, and programs that end in the middle of their work: production's clients on both kinds.

Pollers give up their waits at any time, and have long leases: what is not given back is missed. Programs work in
processes that poison ends. What is checked:

- an item that a program got has no more attempts than programs have worked on it and failed;
- what ends its program each time is a dead letter after as many attempts as there may be, and nothing else ever is;
- a suspect is handled alone;
- all else is done long before the leases of pollers end, and nobody waits at the host for whom nobody waits here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from foqs.client.aio.settler import AsyncLeasedItem
from foqs.client.aio.worker import AsyncWorker
from foqs.client.queue_items import Item
from foqs.model.calls import ItemState
from tests.histories.history import make_payload, uid_of
from tests.sim.caller import NAMESPACE
from tests.sim.loop import Process
from tests.sim.run import Outcome, run_seed
from tests.sim.wires import FrontDoor, WireClient, WirePool

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_ITEMS_COUNT = 40
_POISON_COUNT_MAX = 4
_WORKER_LEASE_MS = 1_000
_POLLER_LEASE_MS = 600_000
_DONE_S_MAX = 60.0
_QUIET_S = 3.0
_WORKED, _POLLED = "worked", "polled"


def run_waits(seed: int) -> Outcome:
    """One run of a seed, without faults but those of clients."""
    return run_seed(seed, script=lambda world: Waits(world).run())


class Waits:
    """The clients of one run, and what they have seen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/waits")
        self._door: FrontDoor = None  # type: ignore[assignment]
        self._host: SimHost = None  # type: ignore[assignment]
        self._poison: set[str] = set()
        self._left: set[str] = set()
        """Uids of items that are to be done."""
        self._tries: Counter[str] = Counter()
        """How often a program has begun to work on an item, by uid, whatever became of it."""
        self._own_ends: Counter[str] = Counter()
        """How often an item ended its program."""
        self._count = 0
        self._attempts_max = self._chance.choice([2, 3])

    async def run(self) -> None:
        world = self._world
        world.delays.calm = True
        host = world.start_host()
        while not host.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        clock = world.loop.time
        with (
            patch("foqs.client.aio.worker.stop_on_signals", lambda _: nullcontext()),
            patch("foqs.transport.connection_table.perf_counter", clock),
            patch("foqs.transport.call_table.perf_counter", clock),
        ):
            self._host, self._door = host, FrontDoor(world, host)
            await self._live()
        if waiting_count := host.host._dispatcher.queues.waiting_count:
            world.complain(f"{waiting_count} dequeues wait at the host, and nobody waits for them")
        await world.drain_host(host)

    async def _live(self) -> None:
        client = WireClient(self._door, self._chance)
        settings = SimpleNamespace(attempts_max=self._attempts_max)
        await self._host.door.admin.update_namespace(NAMESPACE, settings)
        poison = self._chance.sample(range(_ITEMS_COUNT), self._chance.randint(0, _POISON_COUNT_MAX))
        for number in range(_ITEMS_COUNT):
            await self._put(client, number, is_poison=number in poison)
        programs = [asyncio.create_task(self._programs()) for _ in range(self._chance.choice([1, 2, 3]))]
        pollers = [asyncio.create_task(self._poll()) for _ in range(3)]
        until_s = self._world.loop.time() + _DONE_S_MAX
        while self._left and self._world.loop.time() < until_s:
            await asyncio.sleep(0.05)
            if self._left <= self._poison:
                self._left -= {row.uid for row in self._world.stored() if row.state is ItemState.DEAD}
        if self._left:
            self._world.complain(f"not done after {_DONE_S_MAX} s: {sorted(self._left)[:5]}")
        for task in [*pollers, *programs]:
            task.cancel()
        for ended in await asyncio.gather(*pollers, *programs, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                self._world.complain(f"a client ended with {ended!r}")
        await asyncio.sleep(_QUIET_S)
        await self._purge()
        await client.close()

    async def _put(self, client: WireClient, number: int, *, is_poison: bool) -> None:
        """Poison goes to programs alone; of others some go to pollers alone."""
        topic = _WORKED if is_poison or number % 2 else _POLLED
        uid = f"{NAMESPACE}:{number}{'p' if is_poison else ''}"
        self._left.add(uid)
        if is_poison:
            self._poison.add(uid)
        await client.enqueue(NAMESPACE, topic, make_payload(uid, 40))

    # ---- who gives up ----

    async def _poll(self) -> None:
        """The usual loop: a dequeue with a timeout around it, or one that is cancelled."""
        client = WireClient(self._door, self._chance)
        taking: list[asyncio.Task[list[Item]]] = []
        assert isinstance(client._pool, WirePool)
        client._pool.arriving = partial(self._give_up_as_it_arrives, taking)
        try:
            while True:
                for item in await self._take_for_a_while(client, taking):
                    self._got(item)
                    await client.ack(NAMESPACE, item)
                    self._left.discard(uid_of(item.payload))
                await asyncio.sleep(self._chance.choice([0.0, 0.01, 0.3]))
        finally:
            await client._pool.late.close()
            if client._pool.late.expected_count:
                self._world.complain("the host has not answered a dequeue whose wait was given up")
            await client.close()

    def _give_up_as_it_arrives(self, taking: list[asyncio.Task[list[Item]]], come_in: Callable[[], None]) -> None:
        """Whoever waits for a response may give up in the turn of the loop in which it comes."""
        gives_up = self._chance.random() < 0.2
        come_in_first = self._chance.random() < 0.5
        if come_in_first:
            come_in()
        if gives_up and taking:
            taking[-1].cancel()
        if not come_in_first:
            come_in()

    async def _take_for_a_while(self, client: WireClient, taking: list[asyncio.Task[list[Item]]]) -> list[Item]:
        dequeue = client.dequeue(NAMESPACE, _POLLED, 3, lease_ms=_POLLER_LEASE_MS, wait_ms=20_000)
        taking[:] = [asyncio.create_task(dequeue)]
        try:
            await asyncio.wait(taking, timeout=self._chance.random() * 0.03)
        finally:
            taking[0].cancel()
            await asyncio.wait(taking)
        return [] if taking[0].cancelled() else taking[0].result()

    def _got(self, item: Item) -> None:
        uid = uid_of(item.payload)
        if item.attempt > 1 + self._tries[uid]:
            self._world.complain(f"{uid} is attempt {item.attempt}, and {self._tries[uid]} programs have tried it")

    # ---- who ends ----

    async def _programs(self) -> None:
        """One program after the other, each in a process of its own."""
        while True:
            self._count += 1
            program = _Program(self, self._count)
            try:
                await program.ended.wait()
            finally:
                program.kill()

    def died(self, program: _Program, by: str) -> None:
        for item in program.worker._at_work.values():
            uid = uid_of(item.payload)
            self._tries[uid] += uid not in program.at_work  # The host may know already what was about to begin.
        self._own_ends[by] += 1
        # Of a first delivery that ends its program within a moment the host does not hear.
        if self._own_ends[by] > self._attempts_max + 1:
            self._world.complain(f"{by} has ended {self._own_ends[by]} programs, and has {self._attempts_max} attempts")

    # ---- the end ----

    async def _purge(self) -> None:
        dead = [row.uid for row in self._world.stored() if row.state is ItemState.DEAD]
        admin = self._host.door.admin
        for topic in (_WORKED, _POLLED):
            while (await admin.purge_dead_letters(NAMESPACE, topic, None, 100)).count:
                continue
        if sorted(dead) != sorted(self._poison):
            self._world.complain(f"dead letters are {sorted(dead)}, and poison was {sorted(self._poison)}")


class _Program:
    """A worker in a process, which poison ends at any moment of its handler."""

    def __init__(self, waits: Waits, number: int) -> None:
        self._waits = waits
        self._chance = random.Random(f"{waits._world.seed}/program {number}")
        self.at_work: dict[str, bool] = {}
        """Whether it is a suspect, by uid."""
        self.ended = asyncio.Event()
        self.process = Process(waits._world.loop, f"program-{number}")
        self._client = WireClient(waits._door, self._chance)
        self.worker = AsyncWorker(
            self._client,
            NAMESPACE,
            _WORKED,
            self._handle,
            concurrency=self._chance.choice([1, 2, 4]),
            prefetch_count=self._chance.choice([0, 4]),
            lease_ms=_WORKER_LEASE_MS,
            wait_ms=200,
            drain_ms=500,
        )
        waits._world.loop.create_task(self.worker.run(), context=self.process.context)

    def kill(self) -> None:
        """End it as by kill -9."""
        self.process.kill()
        self._client.vanish()

    async def _handle(self, item: AsyncLeasedItem) -> None:
        waits, uid = self._waits, uid_of(item.payload)
        waits._got(item)
        waits._tries[uid] += 1
        if self.at_work and (item.suspect or any(self.at_work.values())):
            waits._world.complain(f"{uid} is handled beside {sorted(self.at_work)}, with a suspect among them")
        self.at_work[uid] = item.suspect
        try:
            if uid in waits._poison:
                await asyncio.sleep(self._chance.choice([0.0, 0.0, 0.02, 0.2]))
                waits.died(self, uid)
                self.kill()
                self.ended.set()
            await asyncio.sleep(self._chance.choice([0.0, 0.01, 0.1]))
        finally:
            self.at_work.pop(uid, None)
        waits._left.discard(uid)
