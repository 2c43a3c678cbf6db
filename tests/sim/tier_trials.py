"""When all is well, what tiers promise is tried out: one trial in each cluster whose tiers change.

New items follow a change of a tier within two seconds of its answer, also where a shard drains. What was queued is
delivered, whoever has its shard. Without a host of its tier a shard is served by nobody, and no call hangs for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.model import ids, limits
from foqs.model.calls import Delivery, EnqueueResult
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, NoShardError, OverloadedError, UnavailableError
from tests.histories.history import make_payload, uid_of
from tests.sim.tier_changes import settle
from tests.sim.tiers import TIERS
from tests.sim.tuned import tuned

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import FakeDoor, SimHost

HOLDS_S_MAX = 2.0
_HEARTBEAT_MS = 500
"""As in production."""
_OWNED_S_MAX = 6.0
"""A shard has moved to a host of its tier, or a new host of the tier has it."""
_REFUSED_S_MAX = 1.0
_PATIENCE_S = 20.0
_PAUSE_S = 0.05
_QUIET_S = 1.0
"""Hosts that did not reach the meta database ask it again by then."""
_LEASE_MS = 60_000
_TOPIC = "t"


class TierTrials:
    """The trial of one run."""

    def __init__(self, world: ClusterWorld, is_even: Callable[[], bool]) -> None:
        """`is_even` says whether all shards are where they belong."""
        self._world = world
        self._is_even = is_even
        self._chance = world.tiers.changes_chance
        self._count = 0
        self._queued: dict[str, set[str]] = {}
        """The uids that are in each namespace."""

    async def run(self) -> None:
        if not self._world.tiers.has_changes:
            return
        settle(self._world)
        with tuned({"HEARTBEAT_MS": _HEARTBEAT_MS}):
            await self._until_even("before the trial")
            await asyncio.sleep(_QUIET_S)
            trial = self._chance.choice([self._namespace_moves, self._shard_moves, self._shards_drain, self._tier_dies])
            self._world.trace("tiers", f"trial: {trial.__name__}")
            try:
                await trial()
            except FoqsError as error:
                self._world.complain(f"all is well, and a call fails: {error!r}")
            self._world.counts[f"tiers, tried: {trial.__name__.strip('_')}"] += 1

    # ---- trials ----

    async def _namespace_moves(self) -> None:
        before, after = self._chance.sample(TIERS, 2)
        name = await self._create(before)
        first_ids = [await self._put(host, name, before, with_id=f"id-{host.name}") for host in self._world.ready]
        await self._put_everywhere(name, before)
        changes = SimpleNamespace(tier=after)
        await self._call(self._some_host(), lambda door: door.admin.update_namespace(name, changes))
        await asyncio.sleep(HOLDS_S_MAX)
        await self._put_everywhere(name, after)
        again = [await self._put(host, name, after, with_id=f"id-{host.name}") for host in self._world.ready]
        if first_ids != again:
            self._world.complain(f"the tier of a namespace has changed, and ids of {first_ids} are taken for {again}")
        await self._take_all(name)

    async def _shard_moves(self) -> None:
        """To the other tier, from one that has another shard left, if there is such a one."""
        before = self._chance.choice([tier for tier in TIERS if len(self._shards_of(tier)) > 1] or TIERS)
        after = next(tier for tier in TIERS if tier != before)
        shard_id, others = self._chance.choice(self._shards_of(before)), self._shards_of(before)[1:]
        old, new = await self._create(before), await self._create(after)
        for _ in range(2):
            await self._put_everywhere(old, before)
        # It may be pinned to a host of its old tier, which is let go as well.
        await self._call(self._some_host(), lambda door: door.admin.update_shard(shard_id, None, "", after))
        await asyncio.sleep(HOLDS_S_MAX)
        if others:
            await self._put_everywhere(old, before)
        else:
            await self._refused_everywhere(old)
        await self._until_even(f"shard {shard_id} is of tier {after!r} now")
        await self._put_everywhere(new, after)
        await self._take_all(old)
        await self._take_all(new)
        settle(self._world)
        await self._until_even("after the trial")

    async def _shards_drain(self) -> None:
        """One shard of a tier, or all: then its namespaces take no items, and what they have is delivered."""
        tier = self._chance.choice(TIERS)
        shards = self._shards_of(tier)
        name = await self._create(tier)
        await self._put_everywhere(name, tier)
        drained = shards if self._chance.random() < 0.5 else [self._chance.choice(shards)]
        for shard_id in drained:
            await self._use(shard_id, ShardUse.DRAINING)
        await asyncio.sleep(HOLDS_S_MAX)
        if len(drained) < len(shards):
            await self._put_everywhere(name, tier, drained)
        else:
            await self._refused_everywhere(name)
        await self._take_all(name)
        for shard_id in drained:
            await self._use(shard_id, ShardUse.SERVING)
        await asyncio.sleep(HOLDS_S_MAX)
        await self._put_everywhere(name, tier)
        await self._take_all(name)

    async def _tier_dies(self) -> None:
        """All hosts of a tier: others do not serve its shards, and serve their own as before."""
        world = self._world
        dead, living = self._chance.sample(TIERS, 2)
        lost, kept = await self._create(dead), await self._create(living)
        await self._put_everywhere(lost, dead)
        for host in [host for host in world.ready if world.tiers.of_host(host.name) == dead]:
            world.kill_host(host)
        await asyncio.sleep(HOLDS_S_MAX)
        for shard_id in self._shards_of(dead):
            if owners := world.owners()[shard_id]:
                world.complain(f"tier {dead!r} has no host, and {owners} serve its shard {shard_id}")
        await asyncio.gather(*[self._offer_with_id(host, kept) for host in world.ready])
        await self._refused_everywhere(lost)
        await self._put_everywhere(kept, living)
        await asyncio.gather(*[self._take(host, lost) for host in world.ready])
        await self._take_all(kept)
        world.complete()
        await self._until_even(f"tier {dead!r} has a host again")
        await asyncio.sleep(HOLDS_S_MAX)  # Until all know it.
        await self._put_everywhere(lost, dead)
        await self._take_all(lost)
        await self._take_all(kept)

    # ---- items ----

    async def _put_everywhere(self, name: str, tier: str, drained: list[int] | None = None) -> None:
        for host in self._world.ready:
            item_id = await self._put(host, name, tier)
            if drained and ids.parse(item_id)[0] in drained:
                self._world.complain(f"{host.name} has put {item_id} on a shard that drains")

    async def _put(self, host: SimHost, name: str, tier: str, with_id: str | None = None) -> str:
        """Enqueue an item, which any host takes. Returns its id, or that of the first one with this dedup id."""
        item = self._new_item(name, with_id)
        while True:
            try:
                result = await self._enqueue(host, name, item)
                break
            except NoShardError:
                raise
            except OverloadedError:  # Some runs have room for few items.
                await asyncio.sleep(_PAUSE_S)
        item_id, shard_id = result.ids[0], ids.parse(result.ids[0])[0]
        if not result.duplicates:
            self._queued[name].add(uid_of(item.payload))
        if with_id is None and self._world.tiers.of_shard(shard_id) != tier:
            self._world.complain(f"{item_id} is of tier {tier!r}, and {host.name} has it put on shard {shard_id}")
        return item_id

    async def _refused_everywhere(self, name: str) -> None:
        """No host takes an item, and each says so at once."""
        for host in self._world.ready:
            item, began_s = self._new_item(name), self._world.loop.time()
            try:
                result = await self._enqueue(host, name, item)
            except FoqsError as error:
                took_s = self._world.loop.time() - began_s
                if not error.nothing_done or took_s > _REFUSED_S_MAX:
                    self._world.complain(f"no shard takes it, and {host.name} says after {took_s:.1f} s: {error!r}")
            else:
                self._world.complain(f"no shard is to take {uid_of(item.payload)}, and it is {result.ids} now")

    async def _offer_with_id(self, host: SimHost, name: str) -> None:
        """Its slot may lead to a shard that nobody has. Then the caller is told, once the shard was waited for."""
        item, began_s = self._new_item(name, with_id=f"offered-{host.name}"), self._world.loop.time()
        try:
            result = await self._enqueue(host, name, item)
        except UnavailableError as error:
            took_s = self._world.loop.time() - began_s
            if not error.nothing_done or took_s > limits.ROUTE_WAIT_MS_MAX / 1000 + _REFUSED_S_MAX:
                self._world.complain(f"the shard of an id has no host, and {host.name} says: {took_s:.1f} s, {error!r}")
            self._world.counts["tiers: ids whose shard had no host"] += 1
        else:
            assert not result.duplicates, "it is a new one"
            self._queued[name].add(uid_of(item.payload))

    async def _take_all(self, name: str) -> None:
        """From whatever host."""
        until_s = self._world.loop.time() + _PATIENCE_S
        while self._queued[name] and self._world.loop.time() < until_s:
            await self._take(self._some_host(), name)
        if left := self._queued[name]:
            self._world.complain(f"{left} were queued in {name} when a tier changed, and nobody gets them")

    async def _take(self, host: SimHost, name: str) -> None:
        demand: Any = SimpleNamespace(topic=_TOPIC, count=20, group=None)
        items: list[Delivery] = await self._call(host, lambda door: door.queue.dequeue(name, [demand], _LEASE_MS, 300))
        if items:
            receipts = [item.receipt for item in items]
            errors = await self._call(host, lambda door: door.queue.ack(name, receipts))
            if errors:
                self._world.complain(f"all is well, and an ack at {host.name} failed: {errors}")
        self._queued[name] -= {uid_of(item.payload) for item in items}

    def _new_item(self, name: str, with_id: str | None = None) -> NewItem:
        self._count += 1
        uid = f"{name}:{self._count}"
        if with_id is not None:
            self._world.dedup_ids[uid] = with_id
        return NewItem(_TOPIC, make_payload(uid, 40), dedup_id=with_id)

    # ---- calls ----

    async def _until_even(self, what: str) -> None:
        until_s = self._world.loop.time() + _OWNED_S_MAX
        while not self._is_even():
            if self._world.loop.time() > until_s:
                self._world.complain(f"{what}, and after {_OWNED_S_MAX} s shards are had by {self._world.owners()}")
                return
            await asyncio.sleep(_PAUSE_S)

    def _shards_of(self, tier: str) -> list[int]:
        return [shard_id for shard_id in self._world.servers if self._world.tiers.of_shard(shard_id) == tier]

    def _some_host(self) -> SimHost:
        return self._chance.choice(self._world.ready)

    async def _create(self, tier: str) -> str:
        self._count += 1
        name = f"tiers-{self._count}"
        settings = replace(self._world.slots.some_settings(), tier=tier)
        await self._call(self._some_host(), lambda door: door.admin.create_namespace(name, settings))
        self._queued[name] = set()
        return name

    async def _use(self, shard_id: int, use: ShardUse) -> None:
        await self._call(self._some_host(), lambda door: door.admin.update_shard(shard_id, int(use), None, None, True))

    async def _enqueue(self, host: SimHost, name: str, item: NewItem) -> EnqueueResult:
        result: EnqueueResult = await self._call(host, partial(_put_one, name, item))
        for error in result.errors.values():
            raise error
        return result

    async def _call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        return await self._world.send(host, work, _PATIENCE_S)


async def _put_one(name: str, item: NewItem, door: FakeDoor) -> EnqueueResult:
    result: EnqueueResult = await door.queue.enqueue(name, [item], False)
    return result
