"""Clusters in which a topic has a limit on its depth and a backoff, while hosts come and are killed.

A run of its own kind, without the histories of clients. It reads the tables of all shards, and holds hosts against:

D1 The depth is over the limit by no more than was taken lately, and a host takes nothing of what has long been full.
D2 An enqueue is refused only if the topic has been full lately, with the items of calls under way.
D3 Once all is consumed, each host takes as many items as the limit says: it keeps no room for what has ended.
B1 An item that was nacked, or whose lease was lost, is not delivered again before its backoff is over.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.model.calls import Delivery, ItemState
from foqs.model.errors import FoqsError, PausedError
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
_TOPIC = "depths"
_LIMIT = 12
_BACKOFF_MS = 300
_LOAD_S = 5.0
_LATELY_S = 2.5
"""Counts are a second old at most while all hosts answer; a killed host, and a shard that moves, take longer."""
_LEASE_MS = 1_000
_PATIENCE_S = 3.0
_WELL_S_MAX = 8.0


def run_depths(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""

    async def script(world: ClusterWorld) -> None:
        await DepthRun(world, random.Random(f"{seed}/depths")).run()

    outcome = run_seed(_BASE_SEED, is_cluster=True, script=script, verbose=verbose)
    return replace(outcome, seed=seed, kinds=("depths",))


class DepthRun:
    """Producers, consumers and kills, and what all-knowing eyes see of the topic."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._stored = world.stored
        # The history of clients knows nothing of these items.
        world.stored = list  # type: ignore[method-assign]
        self._number = 0
        self._until_s = 0.0
        self._enqueued: deque[tuple[float, int]] = deque()
        """The items that were taken, or possibly were, with the time of the answer."""
        self._depths: deque[tuple[float, int]] = deque()
        self._under_way = 0
        """Items of enqueues that are not answered."""
        self._not_before_s: dict[str, float] = {}
        """By uid: the end of the backoff."""

    async def run(self) -> None:
        world = self._world
        for _ in range(self._chance.choice([2, 3])):
            world.start_host()
        await self._until(self._is_well, "all shards have owners")
        await self._set(depth_max=_LIMIT, backoff_ms=_BACKOFF_MS)
        self._until_s = world.loop.time() + _LOAD_S
        looking = asyncio.ensure_future(self._look())
        await asyncio.gather(*[self._produce() for _ in range(3)], *[self._consume() for _ in range(2)], self._kill())
        looking.cancel()
        await self._until(self._is_well, "all shards have owners")
        await self._empty()
        await self._fill_each()
        for host in list(world.ready):
            await world.drain_host(host)

    # ---- what happens ----

    async def _set(self, **policy: int) -> None:
        await self._must(lambda door: door.admin.set_topic_policy(NAMESPACE, _TOPIC, **policy))
        settings = [host.host._namespaces.settings for host in self._world.ready]
        number = self._world.meta.tables.namespaces[NAMESPACE].number
        await self._until(
            lambda: all(one.policy(number, _TOPIC).backoff_ms == policy["backoff_ms"] for one in settings),
            "all hosts follow the policy",
        )

    async def _produce(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.15)
            host = self._pick()
            if host is not None:
                await self._enqueue(host, self._chance.randint(1, 6))

    async def _enqueue(self, host: SimHost, count: int, ids_share: float = 0.3) -> int:
        """Returns how many were taken."""
        items = []
        for _ in range(count):
            self._number += 1
            uid = f"{NAMESPACE}:{_TOPIC}-{self._number}"
            dedup_id = f"{self._number}" if self._chance.random() < ids_share else None
            if dedup_id is not None:
                self._world.dedup_ids[uid] = dedup_id
            delay_ms = 100 if self._chance.random() < 0.2 else None
            items.append(NewItem(_TOPIC, make_payload(uid, 40), dedup_id=dedup_id, delay_ms=delay_ms))
        began_s, taken = self._world.loop.time(), count
        self._under_way += count
        try:
            result = await self._world.send(host, partial(_put, items), _PATIENCE_S)
            taken = count - len(result.errors)
        except FoqsError:  # Whether they were taken is not always known.
            return 0
        finally:
            self._under_way -= count
            self._enqueued.append((self._world.loop.time(), taken))
        refused = [error for error in result.errors.values() if isinstance(error, PausedError)]
        if refused:
            self._world.counts["items refused for the depth"] += len(refused)
            self._check_refusal(began_s, count)
        return taken

    async def _consume(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.2)
            items = await self._take()
            drawn = self._chance.random()
            if drawn < 0.2:
                continue  # The leases are lost.
            if drawn < 0.5:
                await self._nack(items)
            else:
                await self._ack(items)

    async def _take(self) -> list[Delivery]:
        demand = SimpleNamespace(topic=_TOPIC, count=self._chance.randint(1, 6), group=None)
        items: list[Delivery] = await self._try(lambda door: door.queue.dequeue(NAMESPACE, [demand], _LEASE_MS, 0), [])
        now_s = self._world.loop.time()
        for item in items:
            uid = uid_of(item.payload)
            if now_s < self._not_before_s.pop(uid, 0.0):
                self._world.complain(f"B1: {uid} was delivered at {now_s:.3f} s, before its backoff was over")
        return items

    async def _nack(self, items: list[Delivery]) -> None:
        began_s = self._world.loop.time()
        nacks = [SimNack(item.receipt) for item in items]
        errors = await self._try(lambda door: door.queue.nack(NAMESPACE, nacks), None)
        for position, item in enumerate(items):
            if errors is not None and position not in errors:
                # Each failed attempt before it doubles the backoff, but they are not all known.
                self._not_before_s[uid_of(item.payload)] = began_s + _BACKOFF_MS / 1000
                self._world.counts["nacks with a backoff"] += 1

    async def _ack(self, items: list[Delivery]) -> None:
        await self._try(lambda door: door.queue.ack(NAMESPACE, [item.receipt for item in items]), None)

    async def _kill(self) -> None:
        world = self._world
        for _ in range(self._chance.choice([0, 1, 2])):
            await asyncio.sleep(self._chance.uniform(1, 3))
            host = self._pick()
            if host is not None:
                world.kill_host(host)
                world.counts["hosts of depths killed"] += 1
                world.start_host()

    async def _empty(self) -> None:
        """Consume all that is left, dead letters aside."""
        self._not_before_s.clear()
        until_s = self._world.loop.time() + 60
        while self._depth() and self._world.loop.time() < until_s:
            await self._ack(await self._take())
            await asyncio.sleep(0.1)
        if self._depth():
            self._world.complain(f"{self._depth()} items are left")

    async def _fill_each(self) -> None:
        for host in list(self._world.ready):
            await asyncio.sleep(_LATELY_S)
            taken = 0
            for _ in range(20):
                taken += await self._enqueue(host, 1, ids_share=0.0)
            # Without a shard it hands items on to any host, and these know of each other a moment later.
            if taken < _LIMIT or (taken > _LIMIT and host.host._shards.owned()):
                self._world.complain(f"D3: {host.name} took {taken} of 20 items, and the limit is {_LIMIT}")
            await asyncio.sleep(_LATELY_S)
            for other in list(self._world.ready):
                if await self._enqueue(other, 2):
                    self._world.complain(f"D1: {other.name} took items of a topic that has been full for {_LATELY_S} s")
            await self._empty()
            arriving = dict(host.host._depths.arriving)
            if arriving:
                self._world.complain(f"D3: {host.name} keeps room for what has ended: {arriving}")

    # ---- what is seen ----

    def _depth(self) -> int:
        """The true depth."""
        return sum(row.state is not ItemState.DEAD for row in self._stored())

    async def _look(self) -> None:
        while True:
            now_s, depth = self._world.loop.time(), self._depth()
            self._depths.append((now_s, depth))
            for some in (self._depths, self._enqueued):
                while some and some[0][0] < now_s - _LATELY_S:
                    some.popleft()
            lately = self._under_way + sum(count for _, count in self._enqueued)
            if depth > _LIMIT + lately:
                self._world.complain(f"D1: the topic has {depth} items, {lately} of them of late: limit {_LIMIT}")
            await asyncio.sleep(0.02)

    def _check_refusal(self, began_s: float, count: int) -> None:
        now_s = self._world.loop.time()
        most = max([depth for at_s, depth in self._depths if at_s > began_s - _LATELY_S], default=_LIMIT)
        lately = self._under_way + sum(some for at_s, some in self._enqueued if at_s > now_s - _LATELY_S)
        if self._depths and most + lately < _LIMIT:
            self._world.complain(f"D2: refused {count} items, and there were {most} and {lately} of late")

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

    async def _must(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> None:
        for _ in range(50):
            if await self._try(work, None) is not None:
                return
            await asyncio.sleep(0.1)
        self._world.complain("a call of an operator failed fifty times")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = self._world.loop.time() + _WELL_S_MAX
        while not condition():
            if self._world.loop.time() > until_s:
                self._world.complain(f"not within {_WELL_S_MAX} s: {what}; {self._world.owners()}")
                return
            await asyncio.sleep(0.05)


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(NAMESPACE, items, False)
