"""Clusters in which keys share the turns of a topic, while hosts come and are killed.

A run of its own kind, without the histories of clients. It holds hosts against:

K1 Each item that was taken is delivered, with its key and its priority, and no item stays behind.
K2 On a host that has all shards, hardly an item is delivered while a more urgent one waits, whatever their keys: only
   in answers that could not wait for claims or reads, which are many here because windows are small.
K3 There, a key with very many items has hardly more deliveries than each other key.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.model.calls import Delivery, ItemState
from foqs.model.errors import FoqsError
from tests.histories.history import make_payload, uid_of
from tests.sim.caller import NAMESPACE
from tests.sim.clients import SimNack
from tests.sim.cluster import ClusterWorld
from tests.sim.host import SimHost
from tests.sim.loop import ProcessState
from tests.sim.run import Outcome, run_seed

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor

_BASE_SEED = 13
"""A run of it has no faults but those of the script, and hosts of one tier."""
_TOPIC = "fair"
_KEYS = (None, "k0", "k1", "k2")
_MANY = "many"
_LOAD_S = 4.0
_LEASE_MS = 1_000
_PATIENCE_S = 3.0
_WELL_S_MAX = 8.0
_URGENT, _USUAL = -1, 0
_EARLY_MAX = 9
_TURNS_MORE_MAX = 5


def run_fair(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""

    async def script(world: ClusterWorld) -> None:
        await FairRun(world, random.Random(f"{seed}/fair")).run()

    outcome = run_seed(_BASE_SEED, is_cluster=True, script=script, verbose=verbose)
    return replace(outcome, seed=seed, kinds=("fair",))


class FairRun:
    """Producers, consumers and kills, and a last host whose turns are counted."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._stored = world.stored
        # The history of clients knows nothing of these items.
        world.stored = list  # type: ignore[method-assign]
        self._number = 0
        self._until_s = 0.0
        self._items: dict[str, NewItem] = {}
        """All items that were sent, by uid."""
        self._taken: set[str] = set()
        """Those that were certainly taken."""
        self._delivered: set[str] = set()

    async def run(self) -> None:
        world = self._world
        for _ in range(self._chance.choice([1, 2, 3])):
            world.start_host()
        await self._until(self._is_well, "all shards have owners")
        self._until_s = world.loop.time() + _LOAD_S
        await asyncio.gather(*[self._produce() for _ in range(3)], *[self._consume() for _ in range(2)], self._kill())
        await self._until(self._is_well, "all shards have owners")
        await self._empty()
        for host in list(world.ready)[1:]:
            await world.drain_host(host)
        await self._until(self._is_well, "the last host has all shards")
        await self._count_turns()
        await self._empty()
        for uid in sorted(self._taken - self._delivered):
            world.complain(f"K1: {uid} of key {self._items[uid].fairness_key} was taken, and never delivered")
        for host in list(world.ready):
            await world.drain_host(host)

    # ---- load ----

    async def _produce(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.15)
            key = self._chance.choice(_KEYS) if self._chance.random() < 0.5 else _MANY
            await self._enqueue([(key, self._chance.choice([_URGENT, _USUAL]))] * self._chance.randint(1, 8))

    async def _enqueue(self, wanted: list[tuple[str | None, int]]) -> None:
        items = []
        for key, priority in wanted:
            self._number += 1
            uid = f"{NAMESPACE}:{_TOPIC}-{self._number}"
            dedup_id = f"{self._number}" if self._chance.random() < 0.3 else None
            if dedup_id is not None:
                self._world.dedup_ids[uid] = dedup_id
            new = NewItem(_TOPIC, make_payload(uid, 40), priority, dedup_id=dedup_id, fairness_key=key)
            self._items[uid] = new
            items.append(new)
        result = await self._try(partial(_put, items), None)
        for position, new in enumerate(items):
            if result is not None and position not in result.errors:
                self._taken.add(uid_of(new.payload))

    async def _consume(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.2)
            items = await self._take(self._chance.randint(1, 6))
            drawn = self._chance.random()
            if drawn < 0.1:
                continue  # The leases are lost.
            if drawn < 0.2:
                await self._nack(items)
            else:
                await self._ack(items)

    async def _take(self, count: int) -> list[Delivery]:
        demand = SimpleNamespace(topic=_TOPIC, count=count, group=None)
        items: list[Delivery] = await self._try(lambda door: door.queue.dequeue(NAMESPACE, [demand], _LEASE_MS, 0), [])
        for item in items:
            uid = uid_of(item.payload)
            self._delivered.add(uid)
            new = self._items[uid]
            if (item.fairness_key, item.priority, item.topic) != (new.fairness_key, new.priority, new.topic):
                self._world.complain(f"K1: {uid} of key {new.fairness_key} was delivered as {item}")
        return items

    async def _ack(self, items: list[Delivery]) -> None:
        await self._try(lambda door: door.queue.ack(NAMESPACE, [item.receipt for item in items]), None)

    async def _nack(self, items: list[Delivery]) -> None:
        nacks = [SimNack(item.receipt) for item in items]
        await self._try(lambda door: door.queue.nack(NAMESPACE, nacks), None)

    async def _kill(self) -> None:
        world = self._world
        for _ in range(self._chance.choice([0, 1, 2])):
            await asyncio.sleep(self._chance.uniform(0.5, 2))
            host = self._pick()
            if host is not None:
                world.kill_host(host)
                world.counts["hosts of keys killed"] += 1
                world.start_host()

    async def _empty(self) -> None:
        """Consume all that is left, dead letters aside."""
        until_s = self._world.loop.time() + 60
        while self._left() and self._world.loop.time() < until_s:
            await self._ack(await self._take(20))
            await asyncio.sleep(0.1)
        if self._left():
            self._world.complain(f"K1: {self._left()} items are left")

    # ---- turns ----

    async def _count_turns(self) -> None:
        """Let a key with very many items stand before the others, and take all items of these."""
        self._until_s = self._world.loop.time() + _PATIENCE_S
        await self._enqueue([(_MANY, _USUAL)] * 150)
        few = [(key, priority) for key in _KEYS for priority in (_URGENT, _USUAL, _USUAL) for _ in range(4)]
        self._chance.shuffle(few)
        await self._enqueue([(_MANY, _URGENT)] * 3 + few)
        await asyncio.sleep(1.0)  # All of them are known.
        waiting: Counter[tuple[int, str | None]] = Counter()
        for row in self._stored():
            new = self._items[row.uid]
            if row.state is not ItemState.DEAD:
                waiting[new.priority, new.fairness_key] += 1
        got: Counter[str | None] = Counter()
        early_count = 0
        while any(waiting[_USUAL, key] for key in _KEYS):
            items = await self._take(self._chance.choice([1, 3, 10]))
            if not items:
                self._world.complain(f"K1: nothing comes, and there is {waiting}")
                return
            for item in items:
                waiting[item.priority, item.fairness_key] -= 1
                got[item.fairness_key] += item.priority == _USUAL
            urgent_count = sum([count for (priority, _), count in waiting.items() if priority == _URGENT])
            early_count += sum([item.priority == _USUAL for item in items]) if urgent_count else 0
            await self._ack(items)
            self._world.counts["turns of keys"] += len(items)
        most = max([got[key] for key in _KEYS])
        if early_count > _EARLY_MAX:
            self._world.complain(f"K2: {early_count} items were delivered while urgent ones waited")
        if got[_MANY] > most + _TURNS_MORE_MAX:
            self._world.complain(f"K3: the key with many items had {got[_MANY]} turns, and no other more than {most}")

    def _left(self) -> int:
        return sum(row.state is not ItemState.DEAD for row in self._stored())

    def _is_well(self) -> bool:
        owners = self._world.owners()
        return bool(self._world.ready) and all(len(names) == 1 for names in owners.values())

    def _pick(self) -> SimHost | None:
        ready = [host for host in self._world.ready if host.process.state is ProcessState.RUNNING]
        return self._chance.choice(ready) if ready else None

    async def _try(self, work: Callable[[FakeDoor], Awaitable[Any]], failed: Any) -> Any:
        host = self._pick()
        if host is None:
            return failed
        try:
            return await self._world.send(host, work, _PATIENCE_S)
        except FoqsError:
            return failed

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = self._world.loop.time() + _WELL_S_MAX
        while not condition():
            if self._world.loop.time() > until_s:
                self._world.complain(f"not within {_WELL_S_MAX} s: {what}; {self._world.owners()}")
                return
            await asyncio.sleep(0.05)


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(NAMESPACE, items, False)
