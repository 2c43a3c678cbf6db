"""While links between hosts are cut: who waits is served with what is ready on a host that its own host reaches.

Links are cut at random, each direction by itself, or calls on them raise whatever it may be, as by an address that
nobody can dial. Only two hosts still reach each other in any case: one gets items, and a consumer waits at the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import permutations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.model.calls import Delivery
from foqs.model.errors import AlreadyExistsError, FoqsError
from foqs.model.namespace import NamespaceSettings
from tests.histories.history import make_payload

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import FakeDoor, SimHost

_SHARE = 0.35
"""Of the clusters."""
_NAMESPACE = "reach"
_HOSTS_MIN = 3
_TOPICS = 4
_CUT_S = 1_000.0
_CUT_SHARE = 0.5
_RAISE_SHARE = 0.2
_FOUND_S_MAX = 4.0
"""An item is found so long after it is ready: a second until others are asked, and some until all have been."""
_FLOW_S_MAX = 2.0
"""The next ones are found so soon: its host is asked for them every second."""
_QUIET_S = 4.0
_WAIT_MS, _POLL_S = 1_500, 0.3
_LEASE_MS = 60_000
_PATIENCE_S = 20.0


class Reach:
    """The trials of one run."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"reach {world.seed}")
        self._count = 0

    async def run(self, is_even: Callable[[], bool]) -> None:
        """`is_even` says whether all hosts have their share of the shards."""
        if self._chance.random() >= _SHARE:
            return
        world = self._world
        world.raising.heal()
        while len(world.ready) < _HOSTS_MIN:
            world.start_host()
            while not is_even():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(_QUIET_S)
        with suppress(AlreadyExistsError):
            await self._call(world.ready[0], lambda door: door.admin.create_namespace(_NAMESPACE, NamespaceSettings()))
        await asyncio.sleep(1.0)  # All know it.
        if not (owners := [host for host in world.ready if self._takes_items(host)]):
            return
        one = self._chance.choice(owners)
        other = self._chance.choice([host for host in world.ready if host is not one])
        self._cut_links(one, other)
        await asyncio.sleep(self._chance.choice([0.0, 1.0, 5.0]))
        try:
            await asyncio.gather(*[self._trial(one, other, f"r{number}") for number in range(_TOPICS)])
        except FoqsError as error:
            world.complain(f"{one.name} and {other.name} reach each other, and a call fails: {error!r}")
        world.links.heal()
        world.raising.heal()
        await asyncio.sleep(_QUIET_S)

    def _takes_items(self, host: SimHost) -> bool:
        """Whether items of the namespace that come to the host stay there."""
        return any(not self._world.tiers.of_shard(shard.shard_id) for _, shard in host.host._shards.owned())

    def _cut_links(self, one: SimHost, other: SimHost) -> None:
        world, chance = self._world, self._chance
        spared = {one.host.id, other.host.id}
        for sender, receiver in permutations([host.host.id for host in world.ready], 2):
            if {sender, receiver} == spared:
                continue
            if chance.random() < _CUT_SHARE:
                world.links.cut(sender, receiver, _CUT_S)
            elif chance.random() < _RAISE_SHARE:
                world.raising.always(sender, receiver, world.raising.some_kind(chance))

    async def _trial(self, one: SimHost, other: SimHost, topic: str) -> None:
        world, chance = self._world, self._chance
        is_poll = chance.random() < 0.25
        await asyncio.sleep(chance.random() * 2)
        await self._put(one, topic)
        await self._expect(other, topic, _FOUND_S_MAX, is_poll=is_poll)
        for _ in range(2):
            # The consumer goes on, and so does the producer.
            waiting = asyncio.ensure_future(self._expect(other, topic, _FLOW_S_MAX + 0.5, is_poll=is_poll))
            await asyncio.sleep(chance.random() * 0.5)
            await self._put(one, topic)
            await waiting
        world.counts["topics whose items were found while links were cut"] += 1

    async def _expect(self, host: SimHost, topic: str, within_s: float, *, is_poll: bool) -> None:
        """An item of the topic comes to who waits there, or asks again and again."""
        loop = self._world.loop
        began_s = loop.time()
        while not (items := await self._take(host, topic, 0 if is_poll else _WAIT_MS)):
            if loop.time() - began_s > within_s:
                self._world.complain(f"links are cut, and who waits at {host.name} for {topic} gets nothing")
                return
            if is_poll:
                await asyncio.sleep(_POLL_S)
        if loop.time() - began_s > within_s:
            self._world.complain(f"links are cut, and {topic} comes to {host.name} in {loop.time() - began_s:.2f} s")
        receipts = [item.receipt for item in items]
        if errors := await self._call(host, lambda door: door.queue.ack(_NAMESPACE, receipts)):
            self._world.complain(f"{host.name} reaches the owner, and an ack fails: {errors}")

    # ---- calls ----

    async def _call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        return await self._world.send(host, work, _PATIENCE_S)

    async def _put(self, host: SimHost, topic: str) -> None:
        self._count += 1
        items = [NewItem(topic, make_payload(f"reach:{self._count}", 40))]
        result = await self._call(host, lambda door: door.queue.enqueue(_NAMESPACE, items, False))
        if result.errors:
            self._world.complain(f"{host.name} has shards, and an enqueue failed: {result.errors}")

    async def _take(self, host: SimHost, topic: str, wait_ms: int) -> Sequence[Delivery]:
        demands = [SimpleNamespace(topic=topic, count=1, group=None)]
        items: list[Delivery] = await self._call(
            host, lambda door: door.queue.dequeue(_NAMESPACE, demands, _LEASE_MS, wait_ms)
        )
        return items
