"""Items with dedup ids that are taken as long as they live, under load and faults.

In runs of their own there are producers, consumers and an operator of one topic, with few ids. All-knowing eyes look at
each commit: no two living items have one id, and what is held is held by an item that lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.client.queue_items import NewItem
from foqs.model import ids, limits
from foqs.model.calls import DedupUntil, Delivery
from foqs.model.errors import AlreadyExistsError, FoqsError, InvalidArgumentError, NotFoundError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.slots import slot_of
from foqs.testing.fake_server import FakeServer, Script
from tests.histories.history import make_payload, uid_of
from tests.sim.clients import SimNack

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor
    from tests.sim.world import World

UNIQUE_NAMESPACE, _TOPIC = "unique", "u"
_IDS = [f"id-{number}" for number in range(6)]
_PAUSE_S_MAX = 0.15
_ITEMS_MAX = 4
_TRIES_MAX = 300

Place = tuple[int, int]
"""Shard and key of an item."""


class UniqueLoad:
    """Producers, consumers and an operator, and what must hold of the ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"unique {world.seed}")
        self._ids: dict[str, str] = {}
        """The dedup id of each enqueued item, by uid."""
        self._holding: dict[Place, str] = {}
        """The living items that hold their ids, by place; their uids."""
        self._digests: dict[Place, bytes] = {}
        self._ended_s: dict[Place, float] = {}
        """When items ended, or lost their id by order of the operator."""
        self._ordered: set[str] = set()
        """Ids that the operator has ordered to make free, whatever became of that."""
        self._number = 0

    # ---- what is seen ----

    def committed(self, server: FakeServer, script: Script) -> None:
        """Look at a commit of a shard: at what it inserts, ends and makes free."""
        shard_id, tables = server.shard_id, server.tables
        freed = {one.digest for one in script.held.freed} if script.held is not None else set()
        for (at, key), uid in list(self._holding.items()):
            if self._digests.get((at, key)) in freed:
                if self._ids[uid] not in self._ordered:
                    self._world.complain(f"U1: the id of {uid} was made free, and nobody has ordered it")
                self._end((at, key))
            elif at == shard_id:
                row = tables.items.get(key)
                if row is None or row.lane < 0:
                    self._end((at, key))
                elif (key, at) not in tables.held:
                    self._world.complain(f"U1: {uid} lives and does not hold its id {self._ids[uid]} any more")
        for row in script.rows_new:
            uid = uid_of(row.content.payload)
            if uid.startswith(f"{UNIQUE_NAMESPACE}:"):
                self._made((shard_id, row.key), uid)
                held = tables.held.get((row.key, shard_id))
                if held is not None:
                    self._digests[shard_id, row.key] = held.digest
                else:
                    self._world.complain(f"U1: {uid} is made and does not hold its id")
        for key, at in tables.held:
            row = tables.items.get(key)
            if at == shard_id and (row is None or row.lane < 0):
                self._world.complain(f"U2: item {key:x} of shard {shard_id} has ended and still holds its id")

    def _made(self, place: Place, uid: str) -> None:
        others = [other for other in self._holding.values() if self._ids[other] == self._ids[uid]]
        if others:
            self._world.complain(f"U1: {uid} is made with the id {self._ids[uid]} of {others}, which live")
        self._holding[place] = uid
        slots = self._world.slots
        number = next((one.number for one in self._namespaces() if one.name == UNIQUE_NAMESPACE), 0)
        if number:
            key_spread = next(one.settings.key_spread for one in self._namespaces() if one.number == number)
            if not slots.has(place[0], slot_of(UNIQUE_NAMESPACE, self._ids[uid], key_spread)):
                self._world.complain(f"U1: {uid} is made on shard {place[0]}, to which its id does not lead")
        self._world.counts["items that hold their ids"] += 1

    def _namespaces(self) -> list[Namespace]:
        return list(self._world.meta.tables.namespaces.values())

    def _end(self, place: Place) -> None:
        self._ended_s[place] = self._world.loop.time()
        del self._holding[place]

    # ---- the load ----

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s and not await self._create_namespace():  # noqa: ASYNC110 - a retry
            await asyncio.sleep(_PAUSE_S_MAX)
        await asyncio.gather(
            self._repeat(until_s, self._enqueue),
            self._repeat(until_s, self._enqueue),
            self._repeat(until_s, self._take),
            self._repeat(until_s, self._take),
            self._repeat(until_s, self._operate),
        )

    async def _repeat(self, until_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            await work()

    async def work_off(self) -> None:
        """Consume what is left."""
        await self._take(everything=True)

    async def check(self) -> None:
        """All ids are free once all items have ended: an enqueue makes an item of each."""
        if not await self._create_namespace():
            return
        for dedup_id in _IDS:
            for _ in range(_TRIES_MAX):
                result = await self._enqueue([dedup_id])
                if result is not None and not result.errors:
                    break
                await asyncio.sleep(_PAUSE_S_MAX)
            else:
                self._world.complain(f"U2: no enqueue with id {dedup_id} is answered after all is well again")
        await self._take(everything=True)

    async def _create_namespace(self) -> bool:
        made = NamespaceSettings(key_spread=self._chance.choice([1, 4]), attempts_max=3)
        try:
            await self._call(lambda door: door.admin.create_namespace(UNIQUE_NAMESPACE, made))
        except AlreadyExistsError:
            return True
        except FoqsError:
            return False
        return True

    async def _enqueue(self, dedup_ids: list[str] | None = None) -> Any:
        chosen = dedup_ids or [self._chance.choice(_IDS) for _ in range(self._chance.randint(1, _ITEMS_MAX))]
        items = [self._new(dedup_id, is_short=dedup_ids is None) for dedup_id in chosen]
        began_s = self._world.loop.time()
        try:
            result = await self._call(lambda door: door.queue.enqueue(UNIQUE_NAMESPACE, items))
        except FoqsError as error:
            self._world.trace("unique", f"enqueue failed: {error!r}")
            return None
        for position in result.duplicates:
            shard_id, key, _ = ids.parse(result.ids[position])
            ended_s = self._ended_s.get((shard_id, key))
            self._world.counts["repeats of items that hold their ids"] += 1
            if ended_s is not None and ended_s < began_s:
                self._world.complain(
                    f"U2: an enqueue with id {chosen[position]} is told {result.ids[position]}, which ended "
                    f"{began_s - ended_s:.3f} s before"
                )
        return result

    def _new(self, dedup_id: str, *, is_short: bool) -> NewItem:
        self._number += 1
        uid = f"{UNIQUE_NAMESPACE}:{self._number}"
        self._ids[uid] = dedup_id
        ttl_ms = self._chance.choice([None, None, 300, 2_000]) if is_short else None
        delay_ms = self._chance.choice([None, None, 100]) if is_short else None
        return NewItem(
            _TOPIC, make_payload(uid, 40), delay_ms=delay_ms, ttl_ms=ttl_ms, dedup_id=dedup_id,
            dedup_until=DedupUntil.ACKED,
        )  # fmt: skip

    async def _take(self, *, everything: bool = False) -> None:
        demand = SimpleNamespace(topic=_TOPIC, count=20 if everything else self._chance.randint(1, 3), group=None)
        try:
            items: list[Delivery] = await self._call(
                lambda door: door.queue.dequeue(UNIQUE_NAMESPACE, [demand], None, 50 if everything else 0)
            )
        except FoqsError:
            return
        for item in items:
            drawn = 0.0 if everything else self._chance.random()
            if drawn < 0.6:
                await self._quietly(partial(_ack, item.receipt, 1 if drawn < 0.5 else 2))
            elif drawn < 0.85:
                await self._quietly(partial(_nack, SimNack(item.receipt, dead_letter=drawn > 0.75)))

    async def _operate(self) -> None:
        drawn = self._chance.random()
        if drawn < 0.3:
            chosen = self._chance.sample(_IDS, self._chance.choice([1, 3]))
            self._ordered.update(chosen)
            before = {place: uid for place, uid in self._holding.items() if self._ids[uid] in chosen}
            errors = await self._quietly(lambda door: door.admin.forget_dedup_ids(UNIQUE_NAMESPACE, chosen))
            for place, uid in before.items():
                if errors is not None and chosen.index(self._ids[uid]) not in errors and place in self._holding:
                    self._world.complain(f"U3: the id of {uid} was made free, and {uid} holds it still")
            self._world.counts["orders to make ids free"] += errors is not None
        elif drawn < 0.6:
            places = list(self._holding)
            if places:
                item_id = ids.item_id(*self._chance.choice(places))
                await self._quietly(lambda door: door.admin.delete_items(UNIQUE_NAMESPACE, [item_id]))
        elif drawn < 0.8:
            await self._quietly(lambda door: door.admin.redrive_dead_letters(UNIQUE_NAMESPACE, _TOPIC, None, 3))
        else:
            await self._quietly(lambda door: door.admin.purge_dead_letters(UNIQUE_NAMESPACE, _TOPIC, None, 2))

    async def _quietly(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        try:
            return await self._call(work)
        except FoqsError as error:
            self._world.trace("unique", f"a call failed: {error!r}")
            return None

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        host = self._world.pick_host(self._chance)
        if host is None:
            await asyncio.sleep(0.05)
            raise NotSentError("no host listens")
        try:
            return await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)
        except NotFoundError:
            raise
        except InvalidArgumentError as error:
            self._world.complain(f"a valid call of unique items was refused: {error!r}")
            raise


async def _ack(receipt: str, count: int, door: FakeDoor) -> Any:
    result = None
    for _ in range(count):
        result = await door.queue.ack(UNIQUE_NAMESPACE, [receipt])
    return result


async def _nack(nack: SimNack, door: FakeDoor) -> Any:
    return await door.queue.nack(UNIQUE_NAMESPACE, [nack])
