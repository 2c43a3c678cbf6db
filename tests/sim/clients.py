"""Simulated clients: what they ask is chance, what they are answered is written into the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from foqs.client import slot_groups
from foqs.client.queue_items import Nack, NewItem
from foqs.model.calls import Delivery, DeliveryPolicy, PositionErrors
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.failures import FAILURES_SHOWN_MAX
from tests.histories.history import Call, Outcome, Put, Settled, Taken, Verb, make_payload, uid_of
from tests.histories.recorder import name_of, outcome_of
from tests.sim.caller import NAMESPACE, Demand, Held, SimCaller, Work
from tests.sim.exports import export
from tests.sim.loads import JOB
from tests.sim.pages import items_in_topic, page_problems

if TYPE_CHECKING:
    from tests.sim.world import World

OTHERS = ("n0", "n1")
"""Namespaces that come and go."""
TOPICS = ("a", "b", "c", "d")
_LEASES_KEPT_MAX = 200
_LOADS_AT_A_TIME = 8
_ALIKE = "-alike"
"""The end of the uids of items that differ by their payloads alone, without a trace context of their own."""
_METADATA = ("", "6d", "6d6e")


class SimNack(Nack):
    """As it comes over the wire: with the field that clients leave out."""

    unseen = None


class SimClient(SimCaller):
    """A client whose next verb is chance."""

    def __init__(self, world: World, name: str, chance: random.Random) -> None:
        super().__init__(world, name, chance)
        # Of its own, so that the calls of a seed stay what they were with one namespace.
        self._apart = random.Random(f"{world.seed} {name}")
        self._loads = random.Random(f"{world.seed} {name} loads")
        self._any = random.Random(f"{world.seed} {name} any")
        self._reasons = random.Random(f"{world.seed} {name} reasons")
        self._grouping = random.Random(f"{world.seed} {name} groups")
        self._groups: dict[str, slot_groups.SlotGroups] = {}
        self._count = 0
        self._unanswered: list[Put] = []
        """Enqueues with dedup ids of which it is not known, or known to be wrong, that they were done."""
        self._verbs: list[tuple[Callable[[], Awaitable[object]], int]] = [
            (self.enqueue, 30), (self.dequeue, 30), (self.ack, 25), (self.nack, 10), (self.extend, 5),
            (self.delete, 2), (self.ack_bare, 2), (self.redrive, 2), (self.look, 3), (self.purge, 1),
        ]  # fmt: skip

    async def run(self, until_s: float) -> None:
        """A call after the other, thinking in between."""
        verbs, weights = [verb for verb, _ in self._verbs], [weight for _, weight in self._verbs]
        while self._world.loop.time() < until_s:
            self.namespace = NAMESPACE if self._apart.random() < 0.7 else self._apart.choice(OTHERS)
            if self._apart.random() < 0.05:
                await self.trespass()
            if self.namespace == NAMESPACE and self._apart.random() < 0.02:
                label = self._world.label_of(self.namespace)
                await export(self._world, self.namespace, label, self._apart, self._quietly)
            if self.namespace == NAMESPACE and self._loads.random() < 0.02:
                # More at a time than the bulk lane lets in.
                await asyncio.gather(*[self.enqueue(loads=True) for _ in range(_LOADS_AT_A_TIME)])
            await self._chance.choices(verbs, weights)[0]()
            await asyncio.sleep(self._chance.choice([0.0, 0.002, 0.02, 0.1]))

    async def work_off(self, topics: Sequence[str], namespace: str = NAMESPACE) -> bool:
        """Take and ack what there is; False when nothing came."""
        self.namespace = namespace
        call = await self.dequeue(topics, wait_ms=50, lease_ms=None, count=20)
        if self._held:
            await self.ack(everything=True)
        return bool(call.taken)

    # ---- verbs ----

    async def enqueue(self, *, loads: bool = False) -> None:
        """In one call, or in one for each shard as the client libraries do."""
        chance = self._chance
        puts = [self._put() for _ in range(chance.choice([1, 1, 2, 5, 12]))]
        puts = self._with_repeats(puts) if not self._world.loads.has_bundles else self._alike(puts)
        for part in await self._by_shard(puts):
            await self._enqueue(part, loads=loads)

    async def _by_shard(self, puts: list[Put]) -> list[list[Put]]:
        """By the first map of the namespace that this client was told, however old it is."""
        if len(puts) == 1 or self._grouping.random() < 0.5:
            return [puts]
        name = self.namespace
        if name not in self._groups:
            told = await self._quietly(lambda door, namespace: door.queue.get_shard_map(namespace))
            shards = None if told is None else slot_groups.shards_of(told, name)
            if shards is None:
                return [puts]
            self._groups[name] = slot_groups.SlotGroups(shards, 0, 0)
        parts: dict[int, list[Put]] = {}
        for put, group in zip(puts, self._groups[name].of([_new_item(put) for put in puts]), strict=True):
            parts.setdefault(group, []).append(put)
        self._world.counts["enqueues grouped by shard"] += 1
        return list(parts.values())

    async def _enqueue(self, puts: list[Put], *, loads: bool) -> None:
        news = [_new_item(put) for put in puts]
        loads = loads or (self._loads.random() < 0.3 and self.namespace == NAMESPACE)
        bulk, job_id = (True, JOB.id) if loads else (False, None)
        if bulk:
            self._world.sliced.update([put.uid for put in puts])
        call = self._begin(Verb.ENQUEUE, puts)
        try:
            result = await self._call(lambda door, namespace: door.queue.enqueue(namespace, news, bulk, job_id))
        except FoqsError as error:
            if loads:
                self._world.loads.failed(error, len(news))
            self._unanswered += [put for put in puts if put.dedup_id]
            self._end(call, outcome_of(error), repr(error))
            return
        if loads:
            self._world.loads.answered(result)
        call.ids, call.duplicates = result.ids, result.duplicates
        self._unanswered += [put for at, put in enumerate(puts) if put.dedup_id and at in result.errors]
        self._world.ids_known.setdefault(self.namespace, []).extend([item_id for item_id in result.ids if item_id])
        self._end(call, Outcome.OK, errors=result.errors)

    async def dequeue(
        self, topics: Sequence[str] = (), *, wait_ms: int = -1, lease_ms: int | None = -1, count: int = 0
    ) -> Call:
        chance = self._chance
        topics = topics or chance.sample(TOPICS, chance.choice([1, 1, 2, 4]))
        wait_ms = wait_ms if wait_ms >= 0 else chance.choice([0, 0, 30, 300])
        lease_ms = lease_ms if lease_ms != -1 else chance.choice([None, 150, 500, 2_000])
        demands = [Demand(topic, count or chance.choice([1, 2, 5, 15])) for topic in topics]
        prefix = self._any.choice(["", "", *TOPICS]) if self._any.random() < 0.3 else None
        any_count = None if prefix is None else sum(demand.count for demand in demands)
        if prefix is not None:
            topics, demands = [topic for topic in TOPICS if topic.startswith(prefix)], []
            self._world.counts["dequeues from any topic"] += 1
        label = self._world.label_of(self.namespace)
        call = self._begin(Verb.DEQUEUE, [f"{label}/{topic}" for topic in topics])
        try:
            items = await self._call(
                lambda door, namespace: door.queue.dequeue(namespace, demands, lease_ms, wait_ms, prefix, any_count)
            )
        except FoqsError as error:
            call.error = name_of(error)
            self._end(call, outcome_of(error), repr(error))
            return call
        call.taken = [_taken(item, label, self._world.clocks.lease_end_ms(item.receipt)) for item in items]
        self._end(call, Outcome.OK)
        for item in items:
            self._world.delivered(self, item)
            self._world.reasons.delivered(item)
            uid = uid_of(item.payload)
            if item.trace_context != _trace_context(uid):
                self._world.complain(f"P1: {uid} has the trace context {item.trace_context!r}")
            once = uid.endswith("once")
            until_ms = self._world.clocks.lease_end_ms(item.receipt)
            self._held.append(Held(item.receipt, uid, self.namespace, item.topic, until_ms, once))
        del self._held[:-_LEASES_KEPT_MAX]
        return call

    async def ack(self, *, everything: bool = False) -> None:
        held = self._take_held(len(self._held) if everything else self._chance.choice([1, 3, 10]))
        if not held or (not everything and self._chance.random() < 0.1):
            return  # Forgotten: their leases end by themselves.
        receipts = [one.receipt for one in held]
        call = await self._settle(Verb.ACK, held, [Settled(receipt) for receipt in receipts],
                                  lambda door, namespace: door.queue.ack(namespace, receipts))  # fmt: skip
        if call.outcome is Outcome.INFO and self._chance.random() < 0.8:
            await self._ack_again(held)

    async def _ack_again(self, held: Sequence[Held]) -> None:
        """After a lost answer. In the history it is an ack of the bare ids: what is gone is done, whoever did it."""
        receipts = [one.receipt for one in held]
        gone = [not self._world.has_row(receipt) for receipt in receipts]
        call = self._begin(Verb.ACK, [Settled(receipt.split(":")[0]) for receipt in receipts])
        try:
            errors: PositionErrors = await self._call(lambda door, namespace: door.queue.ack(namespace, receipts, True))
        except FoqsError as error:
            self._end(call, outcome_of(error), repr(error))
            return
        for position, refusal in errors.items():
            if isinstance(refusal, StaleLeaseError):
                self._world.refused_again(receipts[position], was_gone=gone[position])
        self._end(call, Outcome.OK, errors=errors)

    async def nack(self) -> None:
        chance = self._chance
        held = self._take_held(chance.choice([1, 3, 10]))
        receipts = [one.receipt for one in held]
        reasons = self._world.reasons.drawn(self._reasons, receipts)
        nacks = []
        for one, reason in zip(held, reasons, strict=True):
            kind = chance.choice(["plain", "delay", "release", "metadata", "dead"])
            nacks.append(
                SimNack(
                    one.receipt,
                    delay_ms=chance.choice([20, 400]) if kind == "delay" else 0,
                    metadata=b"n%d" % chance.randrange(100) if kind == "metadata" else None,
                    release=kind == "release",
                    dead_letter=kind == "dead" and not one.at_most_once,
                    reason=reason,
                )
            )
        if nacks:
            settled = [
                Settled(n.receipt, n.delay_ms, None if n.metadata is None else n.metadata.hex(), n.release,
                        n.dead_letter) for n in nacks
            ]  # fmt: skip
            call = await self._settle(
                Verb.NACK, held, settled, lambda door, namespace: door.queue.nack(namespace, nacks)
            )
            self._world.reasons.settled(call, receipts, reasons)

    async def extend(self) -> None:
        held = self._take_held(self._chance.choice([1, 3]))
        if not held:
            return
        lease_ms = self._chance.choice([150, 900])
        receipts = [one.receipt for one in held]
        invoked_at_ms = self._world.now_ms()
        settled = [Settled(receipt, lease_ms=lease_ms) for receipt in receipts]
        call = await self._settle(
            Verb.EXTEND, held, settled, lambda door, namespace: door.queue.extend_lease(namespace, receipts, lease_ms)
        )
        for position, one in enumerate(held):
            outcome = call.outcome_at(position)
            if outcome is Outcome.OK:
                one.until_ms = invoked_at_ms + lease_ms
            one.doubtful = one.doubtful or outcome is Outcome.INFO
            if outcome is not Outcome.FAIL:
                self._held.append(one)

    async def trespass(self) -> None:
        """Ask in one namespace for what belongs to another: nobody may see or change it."""
        others = [held for held in self._held if self._world.label_of(held.namespace) != self.namespace]
        if not others:
            return
        receipts = [held.receipt for held in self._apart.sample(others, min(len(others), 3))]
        ids = [receipt.split(":")[0] for receipt in receipts]
        work: Work = self._apart.choice([
            lambda door, namespace: door.queue.ack(namespace, receipts),
            lambda door, namespace: door.queue.ack(namespace, ids),
            lambda door, namespace: door.queue.nack(namespace, [SimNack(receipt) for receipt in receipts]),
            lambda door, namespace: door.queue.extend_lease(namespace, receipts, 500),
            lambda door, namespace: door.admin.delete_items(namespace, ids),
            lambda door, namespace: door.admin.get_item(namespace, ids[0]),
        ])  # fmt: skip
        result = await self._quietly(work)
        if result is not None and not (isinstance(result, dict) and len(result) == len(receipts)):
            self._world.complain(f"P10: {self.name} reached {receipts} from namespace {self.namespace}: {result}")

    async def delete(self) -> None:
        """Cancel some item, perhaps one that another client holds. In the history it is an ack of the bare id."""
        await self._end_by_id(lambda door, namespace, ids: door.admin.delete_items(namespace, ids))

    async def ack_bare(self) -> None:
        await self._end_by_id(lambda door, namespace, ids: door.queue.ack(namespace, ids))

    async def redrive(self) -> None:
        """Dead letters by id, so that it is known whose deliver_after changes."""
        topic, count = self._chance.choice(TOPICS), self._chance.choice([1, 5])
        since = self._world.reasons.now()
        page = await self._quietly(lambda door, namespace: door.admin.list_dead_letters(namespace, topic, count, ""))
        self._check_own(page)
        ids = [item.id for item in page.items] if page is not None else []
        self._world.reasons.shown(page.items if page is not None else [], since)
        self._world.uids_redriven.update([uid_of(item.payload) for item in page.items] if page is not None else [])
        if ids:
            since_ms = self._world.now_ms()
            result = await self._quietly(
                lambda door, namespace: door.admin.redrive_dead_letters(namespace, topic, ids, len(ids))
            )
            for position, item_id in enumerate(ids):
                if result is not None and position not in result.errors:
                    self._world.redriven(item_id, since_ms)

    async def purge(self) -> None:
        """Dead letters go; in the history each is an ack of its bare id."""
        topic = self._chance.choice(TOPICS)
        page = await self._quietly(lambda door, namespace: door.admin.list_dead_letters(namespace, topic, 3, ""))
        ids = [item.id for item in page.items] if page is not None else []
        if ids:
            await self._end_by_id(
                lambda door, namespace, ids: _errors_of(door.admin.purge_dead_letters(namespace, topic, ids, len(ids))),
                ids,
            )

    async def look(self) -> None:
        """Calls that change nothing."""
        chance = self._chance
        kind, topic, limit = chance.randrange(3), chance.choice(TOPICS), chance.choice([1, 3, 100])
        if kind == 0:
            await self._quietly(lambda door, namespace: door.queue.get_active_topics(namespace, "", limit, ""))
        elif kind == 1:
            await self._peek(topic, limit)
        else:
            item_id = self._world.some_id(chance, self.namespace)
            if item_id is not None:
                since = self._world.reasons.now()
                with suppress(FoqsError):
                    found = await self._watch_row(
                        [item_id], lambda door, namespace: door.admin.get_item(namespace, item_id)
                    )
                    self._world.reasons.shown([found], since, FAILURES_SHOWN_MAX)

    # ---- how ----

    def _alike(self, puts: list[Put]) -> list[Put]:
        """Most calls have items of one or two kinds, which the host makes and keeps in bundles."""
        chance = self._grouping
        if chance.random() < 0.2:
            return self._with_repeats(puts)
        firsts, count = puts[:2], chance.choice([2, 3, 8, 8, 20])
        kinds = [chance.choice([0, 0, 0, 1]) for _ in range(count)]
        puts = []
        for number in kinds:
            self._count += 1
            first = firsts[min(number, len(firsts) - 1)]
            uid = f"{first.uid.partition(':')[0]}:{self.name}-{self._count}{_ALIKE}"
            puts.append(first._replace(uid=uid, delay_ms=None, deliver_after_ms=None, at_most_once=False))
        return puts

    def _with_repeats(self, puts: list[Put]) -> list[Put]:
        """Some get dedup ids: new ones, known ones, and those of earlier calls that brought no clear answer."""
        chance, label = self._apart, self._world.label_of(self.namespace)
        recent = self._world.dedup_recent.setdefault(label, [])
        for at, put in enumerate(puts):
            if chance.random() < 0.4:
                dedup_id = (
                    chance.choice(recent) if recent and chance.random() < 0.4 else f"{self.name}-{self._count}-{at}"
                )
                if chance.random() < 0.1:
                    dedup_id = f"hot-{chance.randrange(4)}"
                puts[at] = put._replace(dedup_id=dedup_id)
                recent.append(dedup_id)
        del recent[:-20]
        again = [put for put in self._unanswered if put.topic.startswith(f"{label}/")]
        if again and chance.random() < 0.7:
            self._unanswered = [put for put in self._unanswered if put not in again]
            for put in again[:20]:
                self._count += 1
                puts.append(put._replace(uid=f"{label}:{self.name}-{self._count}{'-once' if put.at_most_once else ''}"))
        for put in puts:
            if put.dedup_id:
                self._world.dedup_ids[put.uid] = put.dedup_id
        return puts

    async def _peek(self, topic: str, limit: int) -> None:
        before = items_in_topic(self._world, self.namespace, topic)
        since = self._world.reasons.now()
        page = await self._quietly(lambda door, namespace: door.admin.peek_items(namespace, topic, limit, ""))
        self._check_own(page)
        self._world.reasons.shown(page.items if page is not None else [], since)
        if page is not None and not self._world.restored:
            for problem in page_problems(page, before, items_in_topic(self._world, self.namespace, topic)):
                self._world.complain(problem)

    def _put(self) -> Put:
        chance = self._chance
        self._count += 1
        once = chance.random() < 0.15
        when = chance.random()
        label = self._world.label_of(self.namespace)
        return Put(
            uid=f"{label}:{self.name}-{self._count}{'-once' if once else ''}",
            topic=f"{label}/{chance.choice(TOPICS)}",
            priority=chance.choice([0, 0, 1, -1, 5, -(1 << 31), (1 << 31) - 1]),
            delay_ms=chance.choice([1, 50, 300, 1_200]) if when < 0.2 else None,
            deliver_after_ms=self._world.now_ms() + chance.choice([-1_000, 0, 40, 700]) if when > 0.9 else None,
            ttl_ms=chance.choice([1, 200, 1_000]) if chance.random() < 0.1 else None,
            metadata=chance.choice(_METADATA),
            at_most_once=once,
        )


async def _errors_of(result: Awaitable[Any]) -> PositionErrors:
    errors: PositionErrors = (await result).errors
    return errors


def _trace_context(uid: str) -> str | None:
    return None if uid.endswith(_ALIKE) else uid


def _new_item(put: Put) -> NewItem:
    return NewItem(
        put.topic.partition("/")[2],
        make_payload(put.uid, 40),
        put.priority,
        put.deliver_after_ms,
        put.delay_ms,
        put.ttl_ms,
        metadata=bytes.fromhex(put.metadata),
        dedup_id=put.dedup_id or None,
        trace_context=_trace_context(put.uid),
        delivery=DeliveryPolicy.AT_MOST_ONCE if put.at_most_once else None,
    )


def _taken(item: Delivery, label: str, lease_end_ms: int) -> Taken:
    """Its lease ends by the history's clock, whatever its server's clock does."""
    return Taken(
        item.receipt, uid_of(item.payload), f"{label}/{item.topic}", item.priority, item.deliver_after_ms, lease_end_ms,
        item.attempt, item.metadata.hex(),
    )  # fmt: skip
