"""Groups that begin with the items that wait: each of these is copied once, through crashes and moves of shards.

Nobody reads the topic's own group, so all of its items wait when the group is created.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.calls import Delivery
from foqs.model.errors import FoqsError
from foqs.model.groups import TopicGroup
from tests.histories.history import make_payload, uid_of

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor
    from tests.sim.world import World

Caller = Callable[[Callable[["FakeDoor"], Awaitable[Any]]], Awaitable[Any]]
_TOPIC, _GROUP = "backlog", "copies"
_SHARE = 0.4
"""Of the runs with groups."""
_PAUSE_S_MAX = 0.3
_ITEMS_MAX = 5
_META_FAULTS = ("meta databases lost", "meta databases promoted", "meta databases restored")
"""A meta database that has lost the group leaves its copies, and another creation makes more."""


class CopyLoad:
    """A producer of one topic, an operator who creates a group in the middle, and the consumer of the group."""

    def __init__(self, world: World, namespace: str, call: Caller) -> None:
        self._world = world
        self._namespace = namespace
        self._call = call
        self._chance = random.Random(f"copies {world.seed}")
        self.is_there = self._chance.random() < _SHARE
        self._stored: set[str] = set()
        """The items that were enqueued for certain."""
        self._delivered: set[str] = set()
        self._acked: set[str] = set()
        self._is_created = False
        self._is_complete = True
        """False once the items were consumed for want of room for their copies."""
        self._number = 0

    async def run(self, until_s: float) -> None:
        if not self.is_there:
            return
        now_s = self._world.loop.time()
        at_s = now_s + (until_s - now_s) * self._chance.uniform(0.1, 0.8)
        await asyncio.gather(self._produce(until_s), self._create(at_s, until_s))

    async def work_off(self) -> None:
        """Consume all of the group, and of the topic itself once the job has ended. It is called again and again."""
        if not self.is_there:
            return
        if self._is_created and self._group() is None:
            self._is_created = False  # A restore of the meta database has lost it.
            await self._create(0.0, self._world.loop.time() + _PAUSE_S_MAX)
        await self._take()
        if not self._is_copying() or self._lacks_room():
            self._is_complete = self._is_complete and not self._is_copying()
            await self._take()
            await self._take(None)

    def check(self) -> None:
        if not self._is_created or not self._is_complete or any(self._world.counts[name] for name in _META_FAULTS):
            return
        self._world.counts["items that waited for a new group, or came later"] += len(self._stored)
        if missing := sorted(self._stored - self._delivered):
            self._world.complain(f"G6: {missing[:5]} never came in the group, {len(missing)} of {len(self._stored)}")

    def _is_copying(self) -> bool:
        group = self._group()
        return group is not None and group.is_copying

    def _group(self) -> TopicGroup | None:
        tables = self._world.meta.tables
        namespace = tables.namespaces.get(self._namespace)
        groups = {} if namespace is None else tables.groups.get(namespace.number, {})
        return next((one for one in groups.values() if one.topic == _TOPIC), None)

    def _lacks_room(self) -> bool:
        """Whether a shard has as many topics as it can have, so that the copies wait."""
        topics_max = limits.TOPICS_PER_SHARD_MAX
        return any(len(server.tables.topics) >= topics_max for server in self._world.servers.values())

    async def _produce(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            items = []
            for _ in range(self._chance.randint(1, _ITEMS_MAX)):
                self._number += 1
                uid, delay_ms = f"{self._namespace}:b{self._number}", self._chance.choice([None, None, 300])
                items.append(NewItem(_TOPIC, make_payload(uid, 40), delay_ms=delay_ms))
            try:
                result = await self._call(partial(self._put, items))
            except FoqsError:
                pass
            else:
                self._stored |= {uid_of(item.payload) for at, item in enumerate(items) if at not in result.errors}
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)

    async def _put(self, items: list[NewItem], door: FakeDoor) -> Any:
        return await door.queue.enqueue(self._namespace, items)

    async def _create(self, at_s: float, until_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._world.loop.time()))
        while self._world.loop.time() < until_s and not self._is_created:
            try:
                await self._call(
                    lambda door: door.admin.create_group(self._namespace, _TOPIC, _GROUP, 0, 0, from_queued=True)
                )
            except FoqsError as error:
                self._world.trace("copies", f"creation failed: {error!r}")
                await asyncio.sleep(_PAUSE_S_MAX)
            else:
                self._is_created = True
                self._world.counts["groups created with items that wait"] += 1
                self._world.trace("copies", "the group exists")

    async def _take(self, group: str | None = _GROUP) -> None:
        demand = SimpleNamespace(topic=_TOPIC, count=1_000, group=group)
        while True:
            try:
                items: list[Delivery] = await self._call(
                    lambda door: door.queue.dequeue(self._namespace, [demand], None, 30)
                )
            except FoqsError:
                return
            if not items:
                return
            uids = [uid_of(item.payload) for item in items]
            if group is not None:
                self._delivered |= set(uids)
            if group is not None and not any(self._world.counts[name] for name in _META_FAULTS):
                for uid in self._acked & set(uids):
                    self._world.complain(f"G6: {uid} came in the group again after its ack: it was copied twice")
            try:
                errors = await self._call(partial(self._ack, [item.receipt for item in items]))
            except FoqsError:
                continue
            if group is not None:
                self._acked |= {uid for at, uid in enumerate(uids) if at not in errors}

    async def _ack(self, receipts: list[str], door: FakeDoor) -> Any:
        return await door.queue.ack(self._namespace, receipts)
