"""Consumer groups under load and faults: each item that is enqueued once a group exists is delivered in the group.

Groups of one topic are created and deleted meanwhile, in a namespace of their own, by generators of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.calls import Delivery
from foqs.model.errors import AlreadyExistsError, FoqsError, InvalidArgumentError
from foqs.model.groups import TopicGroup
from foqs.model.namespace import NamespaceSettings
from tests.histories.history import make_payload, uid_of
from tests.sim.group_copies import CopyLoad

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor
    from tests.sim.world import World

GROUPS_NAMESPACE, _TOPIC = "groups", "t"
_NAMES = ("a", "b")
_SHARE = 0.25
"""Of the runs."""
_PAUSE_S_MAX = 0.3
_ITEMS_MAX = 4
_DEDUP_SHARE = 0.3
_ANY_SHARE = 0.3
"""Of the dequeues."""


@dataclass
class _Copies:
    """An item that was enqueued, and the groups that have to have a copy."""

    needed: set[str]
    delivered: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)


class GroupLoad:
    """Producers, consumers and an operator of one topic with groups."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"groups {world.seed}")
        self._any = random.Random(f"groups of any topic {world.seed}")
        self.is_there = self._chance.random() < _SHARE
        self._exists: set[str] = set()
        """The groups that exist for certain: created, and not being deleted."""
        self._possible: set[str] = set()
        """The groups that may exist, or hold items."""
        self._items: dict[str, _Copies] = {}
        self._number = 0
        self._backlog = CopyLoad(world, GROUPS_NAMESPACE, self._call)

    async def run(self, until_s: float) -> None:
        if not self.is_there:
            return
        while self._world.loop.time() < until_s and not await self._create_namespace():  # noqa: ASYNC110 - a retry
            await asyncio.sleep(_PAUSE_S_MAX)
        consumers = [self._consume(until_s, name) for name in ("", *_NAMES)]
        backlog = self._backlog.run(until_s)
        await asyncio.gather(self._operate(until_s), self._produce(until_s), backlog, *consumers)

    async def work_off(self) -> None:
        """Consume what is left of all groups that can have something."""
        if self.is_there:
            for name in sorted(self._possible - self._known()):
                await self._create(name)  # A restore of the meta database has lost it, and its items wait.
            await asyncio.gather(*[self._take(name) for name in ("", *sorted(self._possible))])
            await self._backlog.work_off()

    def check(self) -> None:
        """Every item was delivered in every group that existed from before its enqueue to after it."""
        for uid, copies in self._items.items():
            # Those of a group that was deleted meanwhile are gone.
            missing = (copies.needed & {"", *self._stored()}) - copies.delivered
            if missing:
                self._world.complain(f"G1: {uid} was never delivered in the groups {sorted(missing)}")
        if self.is_there:
            self._backlog.check()
            made_count = sum(bool(copies.needed) for copies in self._items.values())
            self._world.counts["items of topics with groups"] += made_count
            needed_count = sum(len(copies.needed) for copies in self._items.values())
            self._world.counts["copies that had to be delivered"] += needed_count

    def _stored(self) -> set[str]:
        """Return the groups that exist for certain, and that no restore of the meta database has lost."""
        self._exists &= {row.group for row in self._rows() if not row.is_deleted}
        return set(self._exists)

    def _known(self) -> set[str]:
        """Return the groups with a row in the meta database, deleted ones included."""
        return {row.group for row in self._rows()}

    def _rows(self) -> list[TopicGroup]:
        tables = self._world.meta.tables
        namespace = tables.namespaces.get(GROUPS_NAMESPACE)
        rows = {} if namespace is None else tables.groups.get(namespace.number, {})
        return [row for row in rows.values() if row.topic == _TOPIC]

    # ---- the operator ----

    async def _create_namespace(self) -> bool:
        made = NamespaceSettings()
        try:
            await self._call(lambda door: door.admin.create_namespace(GROUPS_NAMESPACE, made))
        except AlreadyExistsError:
            return True
        except FoqsError:
            return False
        return True

    async def _operate(self, until_s: float) -> None:
        await asyncio.gather(*map(self._create, _NAMES))
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._chance.random() * 10 * _PAUSE_S_MAX)
            name = self._chance.choice(_NAMES)
            if name in self._exists and self._chance.random() < 0.4:
                await self._delete(name)
            else:
                await self._create(name)

    async def _create(self, name: str) -> None:
        self._possible.add(name)
        try:
            await self._call(lambda door: door.admin.create_group(GROUPS_NAMESPACE, _TOPIC, name, 0, 0))
        except FoqsError as error:
            self._world.trace("groups", f"creation of {name} failed: {error!r}")
            return
        self._world.counts["groups created"] += name not in self._exists
        self._exists.add(name)
        self._world.trace("groups", f"{name} exists")

    async def _delete(self, name: str) -> None:
        self._exists.discard(name)
        for copies in self._items.values():
            copies.needed.discard(name)
        try:
            await self._call(lambda door: door.admin.delete_group(GROUPS_NAMESPACE, _TOPIC, name))
        except FoqsError as error:
            self._world.trace("groups", f"deletion of {name} failed: {error!r}")
            return
        self._world.counts["groups deleted"] += 1
        self._world.trace("groups", f"{name} is deleted")

    # ---- items ----

    async def _produce(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            await self._enqueue()

    async def _enqueue(self) -> None:
        items = []
        for _ in range(self._chance.randint(1, _ITEMS_MAX)):
            self._number += 1
            dedup_id = f"{self._number}" if self._chance.random() < _DEDUP_SHARE else None
            uid = f"{GROUPS_NAMESPACE}:{self._number}"
            items.append(NewItem(_TOPIC, make_payload(uid, 40), dedup_id=dedup_id))
            self._items[uid] = _Copies(set())  # It can be delivered before its enqueue is answered.
            if dedup_id is not None:
                self._world.dedup_ids[uid] = dedup_id
        before = self._stored()
        try:
            result = await self._call(partial(_put, items))
        except FoqsError as error:
            self._world.trace("groups", f"enqueue failed: {error!r}")
            return
        for position, item in enumerate(items):
            if position not in result.errors:
                # A group that was deleted meanwhile, and created again, can lack the copy.
                self._items[uid_of(item.payload)].needed = {"", *(before & self._stored())}

    async def _consume(self, until_s: float, name: str) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            await self._take(name)

    async def _take(self, name: str) -> None:
        count = self._chance.randint(1, 8)
        fields: dict[str, Any] = {"topics": [SimpleNamespace(topic=_TOPIC, count=count, group=name or None)]}
        if self._any.random() < _ANY_SHARE:
            fields = {
                "topics": [],
                "topic_prefix": self._any.choice(["", _TOPIC]) if not self._backlog.is_there else _TOPIC,
                "count": count,
                "group": name,
            }
        try:
            items: list[Delivery] = await self._call(
                lambda door: door.queue.dequeue(GROUPS_NAMESPACE, wait_ms=self._chance.choice([0, 50]), **fields)
            )
        except FoqsError:
            return
        for item in items:
            self._note(name, item)
        kept = [item for item in items if self._world.delays.calm or self._chance.random() < 0.8]
        if kept:
            await self._ack(name, kept)

    def _note(self, name: str, item: Delivery) -> None:
        uid = uid_of(item.payload)
        if (item.topic, item.group or "") != (_TOPIC, name):
            self._world.complain(f"G1: {uid} of topic {item.topic!r}, group {item.group!r} came for group {name!r}")
        copies = self._items[uid]
        copies.delivered.add(name)
        if name in copies.acked:
            self._world.complain(f"P5: {uid} was delivered in group {name!r} after its ack there")

    async def _ack(self, name: str, items: list[Delivery]) -> None:
        receipts = [item.receipt for item in items]
        try:
            errors = await self._call(lambda door: door.queue.ack(GROUPS_NAMESPACE, receipts))
        except FoqsError:
            return
        for position, item in enumerate(items):
            if position not in errors:
                self._items[uid_of(item.payload)].acked.add(name)

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        host = self._world.pick_host(self._chance)
        if host is None:
            await asyncio.sleep(0.05)
            raise NotSentError("no host listens")
        try:
            return await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)
        except InvalidArgumentError as error:
            self._world.complain(f"a valid call of groups was refused: {error!r}")
            raise


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(GROUPS_NAMESPACE, items)
