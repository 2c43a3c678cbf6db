"""Serial topics and ordering keys under load and faults: one item out at a time, in the order of priority and commit.

Producers, consumers and an operator of a few serial topics, in a namespace of their own, by generators of their own.
Part of the topics have groups, in part a dead letter holds the topic, and one is made serial and not serial by turns.
One has a few ordering keys: the hidden name of each stands for it here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.calls import Delivery
from foqs.model.errors import AlreadyExistsError, FoqsError, InvalidArgumentError
from foqs.model.namespace import NamespaceSettings
from foqs.model.serial import OnDead, serial_slot
from foqs.model.topic_name import base_of, ordered, ordering_key_of
from foqs.testing.fake_server import Script
from tests.histories.history import make_payload, uid_of
from tests.sim.caller import Demand
from tests.sim.clients import SimNack
from tests.sim.serial_history import Put, Taken, order_problems, overlaps

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor
    from tests.sim.world import World

SERIAL_NAMESPACE = "serial"
_PREFIX = "s"
_FLIPPING = "flip"
"""The topic that is serial for some times."""
_KEYED = "many"
"""The topic with ordering keys."""
_KEYS = tuple([ordered(_KEYED, key) for key in ("k0", "k1", "k2")])
_TOPICS = ("s0", "s1", "held", _FLIPPING, *_KEYS)
_GROUPS = (
    ("s0", ""), ("s0", "audit"), ("s1", ""), ("held", ""), (_FLIPPING, ""), (_KEYED, ""), (_KEYED, "audit"),
)  # fmt: skip
"""Topics with the groups whose items are consumed."""
_PAUSE_S_MAX = 0.06
_ITEMS_MAX = 4
_DEDUP_SHARE = 0.2
_TTL_SHARE = 0.1
_FORGOTTEN_SHARE = 0.2
"""The share of runs whose leases all end together."""
_TOLERANCE_MS = 5
"""The time by which a lease can end earlier than its receipt says, in whole milliseconds and by the wheel's slots."""


class SerialLoad:
    """Producers, consumers and an operator of serial topics."""

    def __init__(self, world: World, *, is_there: bool) -> None:
        self._world = world
        self._chance = random.Random(f"serial {world.seed}")
        self.is_there = is_there
        self._batch_max = random.Random(f"batches {world.seed}").choice([1, 1, 3])
        """The items of a topic or key that one dequeue gets together."""
        self._forgetful = random.Random(f"forgotten runs {world.seed}")
        self._calls_count = 0
        self._slowness = random.Random(f"slow serial {world.seed}").choice([1, 1, 6])
        """Slow consumers and operators leave items, and dead letters, for slots to move with."""
        self._void = ""
        """The reason for which nothing is promised any more: the meta database has lost the policies."""
        self._ready = False
        self._puts: dict[tuple[str, str], Put] = {}
        """By group and uid."""
        self._taken: dict[tuple[str, str], list[Taken]] = {}
        """By topic and group."""
        self._number = 0
        self._times: list[list[float]] = []
        """The times for which the flipping topic is certainly serial: from the answer to the call that ends it."""

        self.slots = [serial_slot(SERIAL_NAMESPACE, topic) for topic in _TOPICS]

    # ---- life ----

    async def run(self, until_s: float) -> None:
        if not self.is_there:
            return
        while self._now_s() < until_s and not self._ready:
            self._ready = await self._begin()
            await asyncio.sleep(0.02)
        if not self._ready:
            return
        consumers = [self._consume(until_s, *one) for one in _GROUPS for _ in range(2)]
        await asyncio.gather(
            *consumers, self._operate(until_s), self._flip(until_s), *[self._produce(until_s) for _ in range(2)]
        )

    async def _begin(self) -> bool:
        """Make the namespace, a group, and the topics serial. Each step can be repeated."""
        made = NamespaceSettings(attempts_max=limits.ATTEMPTS_MAX)
        batch = self._batch_max if self._batch_max > 1 else None
        prefix = SimpleNamespace(serial=True, key_batch=batch)
        held = SimpleNamespace(serial=True, on_dead=int(OnDead.HOLD), key_batch=batch)
        steps: list[Callable[[FakeDoor], Awaitable[Any]]] = [
            lambda door: door.admin.create_namespace(SERIAL_NAMESPACE, made),
            partial(_create_group, "s0"),
            partial(_create_group, _KEYED),
            lambda door: door.admin.set_topic_policy(SERIAL_NAMESPACE, _PREFIX, is_prefix=True, **vars(prefix)),
            lambda door: door.admin.set_topic_policy(SERIAL_NAMESPACE, "held", **vars(held)),
        ]
        if batch:
            steps.append(lambda door: door.admin.set_topic_policy(SERIAL_NAMESPACE, _KEYED, key_batch=batch))
        for step in steps:
            try:
                await self._call(step)
            except AlreadyExistsError:
                continue
            except FoqsError as error:
                self._world.trace("serial", f"not begun: {error!r}")
                return False
        return True

    async def work_off(self) -> None:
        """Consume what is left, and free what dead letters hold."""
        if not self.is_there:
            return
        for topic in ("s0", _KEYED) if self._void else ():  # The group is lost as well, and its items are there.
            with suppress(FoqsError):
                await self._call(partial(_create_group, topic))
        await asyncio.gather(*[self._take(*one) for one in _GROUPS])
        await self._redrive("held", "")

    def look(self) -> None:
        """Note if the meta database has lost the policies, and where the items are."""
        if not self.is_there or not self._ready or self._void:
            return
        tables = self._world.meta.tables
        namespace = tables.namespaces.get(SERIAL_NAMESPACE)
        number = 0 if namespace is None else namespace.number
        is_prefix_there = _PREFIX in tables.prefix_policies.get(number, {})
        if not is_prefix_there or "held" not in tables.policies.get(number, {}):
            self._void = "the meta database has lost the policies"
            self._world.counts["serial topics that the meta database has lost"] += 1

    def lose(self, why: str) -> None:
        """Nothing is promised any more."""
        self._void = self._void or why

    def committed(self, shard_id: int, script: Script) -> None:
        """All items of a serial topic are written to the shard of its slot."""
        self.look()
        if not self.is_there or not self._ready or self._void:
            return
        for row in script.rows_new:
            uid = uid_of(row.content.payload)
            put = self._puts.get(("", uid))
            if put is None or not self._is_serial(put.topic, self._now_ms()):
                continue
            slot = serial_slot(SERIAL_NAMESPACE, put.topic)
            if not self._world.slots.has(shard_id, slot):
                self._world.complain(
                    f"O1: {uid} of {put.topic} came to shard {shard_id}, and slot {slot} leads elsewhere"
                )

    # ---- calls ----

    def _now_s(self) -> float:
        return self._world.loop.time()

    def _now_ms(self) -> float:
        return self._world.exact_now_ms()

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        self.look()
        host = self._world.pick_host(self._chance)
        if host is None:
            await asyncio.sleep(0.05)
            raise NotSentError("no host listens")
        try:
            return await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)
        except InvalidArgumentError as error:
            if not self._void and not self._world.restored:
                self._world.complain(f"a valid call of serial topics was refused: {error!r}")
            raise

    async def _produce(self, until_s: float) -> None:
        while self._now_s() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            await self._enqueue()

    async def _enqueue(self) -> None:
        chance, items, puts = self._chance, [], []
        for position in range(chance.randint(1, _ITEMS_MAX)):
            self._number += 1
            uid, topic = f"{SERIAL_NAMESPACE}:{self._number}", chance.choice(_TOPICS)
            dedup_id = f"{self._number}" if chance.random() < _DEDUP_SHARE else None
            priority = chance.choice([0, 0, 0, 1, -1])
            ttl_ms = chance.choice([50, 400]) if chance.random() < _TTL_SHARE else None
            base, key = base_of(topic), ordering_key_of(topic)
            new = NewItem(base, make_payload(uid, 40), priority, ttl_ms=ttl_ms, dedup_id=dedup_id, ordering_key=key)
            items.append(new)
            if dedup_id is not None:
                self._world.dedup_ids[uid] = dedup_id
            for group in [group for name, group in _GROUPS if name == base]:
                put = Put(uid, topic, priority, position, self._now_ms())
                put.has_ttl, put.has_id = ttl_ms is not None, dedup_id is not None
                self._puts[group, uid] = put
                puts.append((position, put))
        for _, put in puts:
            put.invoked_ms = self._now_ms()
        try:
            result = await self._call(partial(_put, items))
        except FoqsError as error:
            self._world.trace("serial", f"enqueue failed: {error!r}")
            return
        for position, put in puts:
            if position not in result.errors:
                put.returned_ms = self._now_ms()

    async def _consume(self, until_s: float, topic: str, group: str) -> None:
        while self._now_s() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX * self._slowness)
            await self._take(topic, group)

    async def _take(self, topic: str, group: str) -> None:
        chance, invoked_ms = self._chance, self._now_ms()
        demand = Demand(topic, chance.randint(1, 4), group or None)
        wait_ms, lease_ms = chance.choice([0, 50, 300]), chance.choice([None, 150, 2_000])
        try:
            items: list[Delivery] = await self._call(
                lambda door: door.queue.dequeue(SERIAL_NAMESPACE, [demand], lease_ms, wait_ms)
            )
        except FoqsError:
            return
        is_serial = self._is_serial(topic, invoked_ms) and self._is_serial(topic, self._now_ms())
        most = max(Counter([item.ordering_key for item in items]).values(), default=0)
        together_max = 1 if topic == _FLIPPING else self._batch_max
        if most > together_max and is_serial and not self._void:
            self._world.complain(f"O1: {most} items of serial topic {topic} in one answer")
        self._calls_count += 1
        call, came_back, answered_ms = self._calls_count, set[str](), self._now_ms()
        back_ms: dict[str, float] = {}  # The time from which an item of the run can have come back, and all behind it.
        is_forgotten = most > 1 and not self._world.delays.calm and self._forgetful.random() < _FORGOTTEN_SHARE
        self._world.counts["runs whose leases end together"] += is_forgotten
        for item in items:
            name = topic if item.ordering_key is None else ordered(topic, item.ordering_key)
            uid = uid_of(item.payload)
            if self._puts[group, uid].acked and not self._world.restored:
                self._world.complain(f"P5: {uid} was delivered in group {group!r} after its ack there")
            ends_ms = self._world.clocks.lease_end_ms(item.receipt)
            taken = Taken(uid, invoked_ms, answered_ms, ends_ms - _TOLERANCE_MS, call)
            self._taken.setdefault((name, group), []).append(taken)
            if not is_forgotten:
                await self._settle(group, item, taken)
            taken.ended_ms = min(taken.ended_ms, back_ms.get(name, float("inf")))
            if not taken.acked:
                back_ms[name] = min(taken.ended_ms, taken.lease_ends_ms)
            if taken.acked and name in came_back and not self._world.restored and not self._void:
                self._world.complain(f"O4: {uid} was acked, and one that came together before it had come back")
            if taken.came_back and topic != _FLIPPING:
                came_back.add(name)
                self._world.counts["items of runs that came back"] += len(items) > 1

    async def _settle(self, group: str, item: Delivery, taken: Taken) -> None:
        chance, put = self._chance, self._puts[group, taken.uid]
        if not self._world.delays.calm:
            await asyncio.sleep(chance.choice([0.0, 0.02, 0.1]))
        kinds = ["ack"] * 6 + ["nack", "delay", "dead", "release", "forget", "forget"]
        kind = "ack" if self._world.delays.calm else chance.choice(kinds)
        if kind == "forget":
            return
        taken.ended_ms = self._now_ms()
        if kind == "ack":
            put.ends_ms.append(taken.ended_ms)
            taken.acked = await self._ack(put, item)
            return
        if kind == "dead":
            put.ends_ms.append(taken.ended_ms)
        delay_ms = chance.choice([20, 250]) if kind == "delay" else 0
        nack = SimNack(item.receipt, delay_ms=delay_ms, release=kind == "release", dead_letter=kind == "dead")
        try:
            errors = await self._call(lambda door: door.queue.nack(SERIAL_NAMESPACE, [nack]))
        except FoqsError:
            return
        if not errors:
            self._world.counts[f"{kind} of an item of a serial topic"] += 1
        taken.came_back = not errors and kind != "dead" and not put.has_ttl  # With a TTL it can be a dead letter.
        if kind == "dead" and not errors:
            put.holds_ms.append(self._now_ms())

    async def _ack(self, put: Put, item: Delivery) -> bool:
        """Return True if it was acked for certain."""
        try:
            errors = await self._call(lambda door: door.queue.ack(SERIAL_NAMESPACE, [item.receipt]))
        except FoqsError:
            return False
        put.acked = put.acked or not errors
        self._world.counts["items of serial topics acked"] += not errors
        return not errors

    async def _operate(self, until_s: float) -> None:
        while self._now_s() < until_s:
            await asyncio.sleep(self._chance.random() * 3 * _PAUSE_S_MAX * self._slowness)
            topic, group = self._chance.choice(_GROUPS)
            await self._redrive(topic, group)

    async def _redrive(self, topic: str, group: str) -> None:
        """Redrive the dead letters of a topic, each alone, or purge them."""
        key = self._chance.choice([None, "k1"]) if topic == _KEYED else None
        try:
            page = await self._call(
                lambda door: door.admin.list_dead_letters(
                    SERIAL_NAMESPACE, topic, 5, "", group=group or None, ordering_key=key
                )
            )
        except FoqsError:
            return
        for item in page.items:
            await self._free(topic, group, key, item.id, uid_of(item.payload))

    async def _free(self, topic: str, group: str, key: str | None, item_id: str, uid: str) -> None:
        put, is_purge = self._puts[group, uid], self._chance.random() < 0.3
        began_ms = self._now_ms()
        put.frees_ms.append(began_ms)
        name = "purge_dead_letters" if is_purge else "redrive_dead_letters"
        try:
            result = await self._call(
                lambda door: getattr(door.admin, name)(
                    SERIAL_NAMESPACE, topic, [item_id], 1, group=group or None, ordering_key=key
                )
            )
        except FoqsError:
            return
        if not is_purge and not result.errors:
            self._world.counts["dead letters of serial topics redriven"] += 1
            if topic != _KEYED or key is not None:  # Else it waits for no gate.
                put.redrives_ms.append((began_ms, self._now_ms()))

    async def _flip(self, until_s: float) -> None:
        """Try to make a topic serial, which needs a moment without items of it, and end that soon."""
        while self._now_s() < until_s:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            host = self._world.pick_host(self._chance)
            if host is None:
                continue
            with suppress(FoqsError):
                await self._world.call(host, partial(_set_serial, True), limits.CALL_MS_MAX / 1000 + 2)
                times = [self._now_ms(), float("inf")]
                self._times.append(times)
                self._world.counts["topics made serial"] += 1
                await asyncio.sleep(self._chance.choice([0.1, 0.5]))
                times[1] = self._now_ms()
                await self._call(partial(_set_serial, False))

    def _is_serial(self, topic: str, at_ms: float) -> bool:
        """Return True if the topic is certainly serial at that time."""
        if topic != _FLIPPING:
            return True
        return not self._world.restored and any(since_ms < at_ms < until_ms for since_ms, until_ms in self._times)

    # ---- checks ----

    def check(self) -> None:
        """Hold what was seen against the promises."""
        self.look()
        if not self.is_there or self._void:
            return
        for (topic, group), taken in self._taken_while_serial():
            puts = [put for (of, _), put in self._puts.items() if of == group and put.topic == topic]
            self._world.counts["deliveries of serial topics"] += len(taken)
            for problem in (*overlaps(taken), *order_problems(puts, taken), *self._held_problems(puts, taken)):
                self._world.complain(f"{problem} (topic {topic}, group {group!r})")
            delivered = {one.uid for one in taken}
            for put in puts:
                if topic == _FLIPPING:
                    continue
                is_there = put.returned_ms < float("inf") and not put.has_ttl and not put.frees_ms
                if is_there and put.uid not in delivered and not self._world.restored:
                    self._world.complain(f"P2: {put.uid} was never delivered (topic {topic}, group {group!r})")

    def _taken_while_serial(self) -> Iterator[tuple[tuple[str, str], list[Taken]]]:
        """Yield the deliveries of each topic and group, of those times alone in which the topic is certainly serial."""
        for (topic, group), taken in self._taken.items():
            if topic != _FLIPPING:
                yield (topic, group), taken
                continue
            for since_ms, until_ms in [] if self._world.restored else self._times:
                yield (topic, group), [one for one in taken if since_ms < one.invoked_ms and one.returned_ms < until_ms]

    def _held_problems(self, puts: list[Put], taken: list[Taken]) -> Iterator[str]:
        """Nothing of a topic that a dead letter holds is delivered before a call that can have freed it."""
        for put in puts if puts and puts[0].topic == "held" else ():
            for held_ms in put.holds_ms:
                freed_ms = min([at for at in put.frees_ms if at >= held_ms], default=float("inf"))
                if any(at < held_ms for at in put.frees_ms[-1:]) and freed_ms == float("inf"):
                    continue
                for one in taken:
                    if held_ms < one.invoked_ms and one.returned_ms < freed_ms and not put.has_ttl:
                        yield f"O3: {one.uid} was delivered at {one.returned_ms}, and {put.uid} is dead since {held_ms}"


async def _set_serial(serial: bool, door: FakeDoor) -> Any:
    return await door.admin.set_topic_policy(SERIAL_NAMESPACE, _FLIPPING, serial=serial)


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(SERIAL_NAMESPACE, items)


async def _create_group(topic: str, door: FakeDoor) -> Any:
    return await door.admin.create_group(SERIAL_NAMESPACE, topic, "audit", 0, 0)
