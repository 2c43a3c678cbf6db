"""Clusters in which a topic ages, while hosts come and are killed, items fail after delays, and dead ones are redriven.

A run of its own kind, without the histories of clients. It holds rows and answers against a model that knows of each
item its priority and its own deliver_after: that of its enqueue, or of its last redrive.

A1 A row that can be delivered has the place of its virtual deadline, whatever happened to the item (promise P16).
A2 The items of an answer come in the order of their virtual deadlines, to 0.1 s, with the priorities of their enqueues.
A3 The most urgent priority that the topic shows is one of its items, or near to it if the row ends meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from foqs.client.queue_items import NewItem
from foqs.model import ids
from foqs.model.calls import Delivery
from foqs.shard.port import ItemRow
from tests.histories.history import make_payload, uid_of
from tests.sim.caller import NAMESPACE
from tests.sim.clients import SimNack
from tests.sim.cluster import ClusterWorld
from tests.sim.depth_runs import DepthRun
from tests.sim.run import Outcome, run_seed

_BASE_SEED = 13
"""A run of it has no faults but those of the script, and hosts of one tier."""
_TOPIC = "aging"
_TAU_MS = 150
_PRIORITIES = (0, 0, 0, 1, 3, 9, -4, (1 << 31) - 1)
_FAILURES: tuple[dict[str, Any], ...] = ({}, {"delay_ms": 250}, {"dead_letter": True}, {"release": True})
_DEDUP_SHARE = 0.5
_NEAR_COUNT = 2
"""By as much a priority that is computed from a place is too urgent: a delay after a failure has as many TAU_MS."""
_LOAD_S = 5.0
_LEASE_MS = 700
_PLACE_MS = 100
_I32 = 1 << 31
_YEAR_2026_S = 1_767_225_600


def place_by_hand(due_ms: int, priority: int) -> int:
    """The virtual deadline in tenths of a second since 2026, as far as 32 bits reach."""
    tenths = (due_ms + priority * _TAU_MS) // _PLACE_MS - _YEAR_2026_S * 10
    return sorted((-_I32, tenths, _I32 - 1))[1]


def run_aging(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""

    async def script(world: ClusterWorld) -> None:
        await AgingRun(world, random.Random(f"{seed}/aging")).run()

    outcome = run_seed(_BASE_SEED, is_cluster=True, script=script, verbose=verbose)
    return replace(outcome, seed=seed, kinds=("aging",))


class _Own:
    """An item as the model knows it."""

    def __init__(self, row: ItemRow) -> None:
        self.priority, self.due_ms, self.is_dead = row.priority, row.due_at, False

    @property
    def place(self) -> int:
        return place_by_hand(self.due_ms, self.priority)


class AgingRun:
    """Producers, consumers and kills, and what all-knowing eyes see of the topic."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._near = DepthRun(world, chance)
        """Its ways to reach hosts."""
        self._number = 0
        self._until_s = 0.0
        self._known: dict[tuple[int, int], _Own] = {}
        """By shard and key."""
        self._priorities: dict[str, int] = {}
        """Of enqueues, by uid."""

    async def run(self) -> None:
        world = self._world
        for _ in range(self._chance.choice([1, 2, 3])):
            world.start_host()
        await self._near._until(self._near._is_well, "all shards have owners")
        await self._near._must(
            lambda door: door.admin.set_topic_policy(NAMESPACE, _TOPIC, aging_ms_per_priority=_TAU_MS)
        )
        number = world.meta.tables.namespaces[NAMESPACE].number
        await self._near._until(
            lambda: all(host.host._namespaces.settings.aging_ms(number, _TOPIC) for host in world.ready),
            "all hosts follow the policy",
        )
        self._until_s = world.loop.time() + _LOAD_S
        looking = asyncio.ensure_future(self._look())
        await asyncio.gather(
            *[self._produce() for _ in range(3)], *[self._consume() for _ in range(2)], self._redrive(), self._kill()
        )
        looking.cancel()
        await self._near._until(self._near._is_well, "all shards have owners")
        for host in list(world.ready):
            await world.drain_host(host)

    # ---- what happens ----

    async def _produce(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.1)
            items = []
            for _ in range(self._chance.randint(1, 12)):
                self._number += 1
                uid, priority = f"{NAMESPACE}:{_TOPIC}-{self._number}", self._chance.choice(_PRIORITIES)
                delay_ms = self._chance.choice([None, None, None, 40, 400])
                self._priorities[uid] = priority
                # Drawn apart, so that what is drawn after it stays as it was in the recorded seeds.
                dedup_id = uid if random.Random(f"{self._world.seed}/{uid}").random() < _DEDUP_SHARE else None
                if dedup_id is not None:
                    self._world.dedup_ids[uid] = dedup_id
                items.append(NewItem(_TOPIC, make_payload(uid, 40), priority, delay_ms=delay_ms, dedup_id=dedup_id))
            await self._near._try(partial(_put, items), None)

    async def _consume(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.1)
            items: list[Delivery] = await self._near._try(partial(_take, self._chance.randint(1, 8)), [])
            self._check_answer(items)
            drawn = self._chance.random()
            if drawn < 0.2:
                continue  # The leases are lost.
            if drawn < 0.6:
                how = self._chance.choice(_FAILURES)
                await self._near._try(partial(_nack, [SimNack(item.receipt, **how) for item in items]), None)
                self._world.counts[f"nacks of items that age {sorted(how)}"] += len(items)
            else:
                await self._near._try(partial(_ack, [item.receipt for item in items]), None)

    async def _redrive(self) -> None:
        while self._world.loop.time() < self._until_s:
            await asyncio.sleep(self._chance.random() * 0.8)
            topics = await self._near._try(lambda door: door.queue.get_active_topics(NAMESPACE, _TOPIC, 9, ""), None)
            for topic in [] if topics is None else topics.topics:
                self._world.counts["most urgent priorities"] += 1
                shown = topic.most_urgent_priority
                if not any(priority - _NEAR_COUNT <= shown <= priority for priority in (0, *_PRIORITIES)):
                    self._world.complain(f"A3: the most urgent priority is {topic.most_urgent_priority}")
            page = await self._near._try(lambda door: door.admin.list_dead_letters(NAMESPACE, _TOPIC, 3, ""), None)
            found = [] if page is None else [item.id for item in page.items]
            if found:
                self._world.counts["dead items that age redriven"] += len(found)
                await self._near._try(partial(_redrive, found), None)

    async def _kill(self) -> None:
        for _ in range(self._chance.choice([0, 1, 2])):
            await asyncio.sleep(self._chance.uniform(1, 2.5))
            host = self._near._pick()
            if host is not None:
                self._world.kill_host(host)
                self._world.counts["hosts of topics that age killed"] += 1
                self._world.start_host()

    # ---- what is seen ----

    async def _look(self) -> None:
        while True:
            self._look_once()
            await asyncio.sleep(0.01)

    def _look_once(self) -> None:
        for shard_id, server in self._world.servers.items():
            for key, row in server.tables.items.items():
                if server.tables.topics[row.topic][1].decode() == _TOPIC:
                    self._see(shard_id, key, row)

    def _see(self, shard_id: int, key: int, row: ItemRow) -> None:
        own = self._known.get((shard_id, key))
        if own is None:
            if row.deliveries or row.death_reason is not None:
                return  # It was delivered and failed within one look: its own time is unknown.
            own = self._known[shard_id, key] = _Own(row)
        if row.lane < 0:
            own.is_dead = True
        elif own.is_dead:
            own.is_dead, own.due_ms = False, row.due_at
        if row.lane > 0:
            self._world.counts["rows in their places"] += 1
            if row.urgency != own.place:
                self._world.complain(f"A1: row {key:x} of priority {row.priority} has {row.urgency}, not {own.place}")

    def _check_answer(self, items: list[Delivery]) -> None:
        self._look_once()
        places = []
        for item in items:
            if item.priority != self._priorities[uid_of(item.payload)]:
                self._world.complain(f"A2: {item.id} is shown with priority {item.priority}")
            shard_id, key, _ = ids.parse(item.id)
            own = self._known.get((shard_id, key))
            if own is not None:
                places.append(own.place)
        self._world.counts["answers of items that age"] += len(places) > 1
        for first, second in pairwise(places):
            if first > second:
                self._world.complain(f"A2: an answer has place {first} before {second}")


async def _put(items: list[NewItem], door: Any) -> Any:
    return await door.queue.enqueue(NAMESPACE, items, False)


async def _take(count: int, door: Any) -> Any:
    demand = SimpleNamespace(topic=_TOPIC, count=count, group=None)
    return await door.queue.dequeue(NAMESPACE, [demand], _LEASE_MS, 0)


async def _nack(nacks: list[SimNack], door: Any) -> Any:
    return await door.queue.nack(NAMESPACE, nacks)


async def _ack(receipts: list[str], door: Any) -> Any:
    return await door.queue.ack(NAMESPACE, receipts)


async def _redrive(item_ids: list[str], door: Any) -> Any:
    return await door.admin.redrive_dead_letters(NAMESPACE, _TOPIC, item_ids, len(item_ids))
