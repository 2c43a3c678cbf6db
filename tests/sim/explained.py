"""Explanations at any moment: an item that has been ready for 2 s is never unexplained.

The watch judges the facts of all hosts, as the verb explain does, at many moments and without any call. A run of its
own kind has consumers that wait for long, and topics with everything that can hold an item back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from foqs.client.queue_items import NewItem
from foqs.cluster.routing.explaining import _Answer
from foqs.host.verbs.known_facts import KnownFacts, _stage_of
from foqs.model import ids, order
from foqs.model.errors import FoqsError
from foqs.model.facts import DELIVERABLE, Facts, HostFacts, ItemFacts, ItemStage
from foqs.model.judging import judge
from foqs.model.reasons import ReasonCode, Verdict
from foqs.shard.port import ItemRow
from tests.histories.history import make_payload
from tests.sim.caller import NAMESPACE
from tests.sim.cluster import ClusterNemesis, ClusterWorld
from tests.sim.loop import ProcessState
from tests.sim.nemesis import Nemesis
from tests.sim.run import Outcome, run_seed
from tests.sim.uniques import UNIQUE_NAMESPACE
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor, SimHost

READY_S_MAX = 2.0
"""An item that has been ready for so long has an explanation."""
_LOOK_S = 0.4
_LOOKS_MAX = 3
"""An item is judged so often before it counts as unexplained: the verb explain judges twice, 0.6 s apart."""
_JUDGED_MAX = 12
"""Items of one look."""
_RESUMED_S = 1.5
"""A process that was stopped does its work in this time."""

_UNEXPLAINED = "and nobody knows why it stays"
_LOAD_S = 14.0
_PATIENCE_S = 30.0
_TOPICS = ("plain", "capped", "serial", "few", "keyed", "held", "shared.a", "shared.b")


class ExplainWatch:
    """Judges the ready items of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ready_since_s: dict[tuple[int, int], float] = {}
        self._unexplained: dict[tuple[int, int], int] = {}
        """How often in a row an item was unexplained."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Judge items that have been ready for READY_S_MAX."""
        world, now_s = self._world, self._world.loop.time()
        hosts = [host for host in world.hosts if host.ready and not host.ended]
        running = [host for host in hosts if host.process.state is ProcessState.RUNNING]
        if not running or any(now_s - host.process.resumed_s < _RESUMED_S for host in running):
            self._unexplained.clear()
            return
        ready = dict(self._ready())
        self._ready_since_s = {place: self._ready_since_s.get(place, now_s) for place in ready}
        waited = [place for place, since_s in self._ready_since_s.items() if now_s - since_s >= READY_S_MAX]
        seen: dict[tuple[int, int], int] = {}
        for place in waited[:_JUDGED_MAX]:
            facts = self._facts(running, place[0], ready[place])
            found = judge(facts)
            world.counts[f"items explained by {ReasonCode(found.reasons[0].code).name}"] += 1
            if found.verdict != Verdict.UNEXPLAINED:
                continue
            seen[place] = self._unexplained.get(place, 0) + 1
            if seen[place] >= _LOOKS_MAX:
                topics = [one for topic in facts.topics for one in topic.by_host]
                world.complain(f"{facts.item_id} is ready for long, {_UNEXPLAINED}: {found.reasons[0].text} {topics}")
        self._unexplained = seen

    def _ready(self) -> Iterator[tuple[tuple[int, int], ItemRow]]:
        """The items that are ready by their rows, and with no consumer by the owner of their shard."""
        held: set[tuple[int, int]] = set()
        for host in self._world.hosts:
            for shard in host.held:
                leased = [key for key, item in shard.index.leases.items() if item.lease_due_at]
                held.update([(shard.shard_id, key) for key in leased])
        now_ms, names = self._world.now_ms(), self._names()
        for shard_id, tables in self._world.tables.items():
            for row in tables.items.values():
                number = tables.topics[row.topic][0] if row.topic in tables.topics else 0
                is_known = number in names
                if row.lane > 0 and row.expires_at > now_ms and is_known and (shard_id, row.key) not in held:
                    yield (shard_id, row.key), row

    def _names(self) -> dict[int, str]:
        return {one.number: one.name for one in self._world.meta.tables.namespaces.values()}

    def _facts(self, hosts: list[SimHost], shard_id: int, row: ItemRow) -> Facts:
        """The facts that explain would gather by a call of the first host."""
        number, name = self._world.tables[shard_id].topics[row.topic]
        namespace = self._names()[number]
        asked = hosts[0]
        explaining, known = asked.host._routing._explaining, _known(asked)
        facts = known.facts(namespace) if known._namespaces.number_of(namespace) == number else Facts(namespace)
        place = order.sort_key(row.urgency, row.due_at, row.key, shard_id)
        facts.item_id, facts.item_shard_id = ids.item_id(shard_id, row.key), shard_id
        answers = []
        for host_id, living in sorted(asked.host.owners.living.items()):
            found = next((one for one in hosts if one.host.id == host_id), None)
            if found is None or self._is_cut(asked.host.id, host_id):
                answers.append(_Answer(living, None, "it does not answer"))
                continue
            reads = _known(found)
            topic = reads._topics.topic(number, name.decode(), place)
            answers.append(_Answer(living, HostFacts(reads._wall_ms(), reads._shard_facts(), [topic])))
            stage = self._stage(found, shard_id, row.key)
            if stage is not None:
                facts.item = ItemFacts(facts.item_id, name.decode(), stage, shard_id=shard_id)
        if facts.item is not None and known._namespaces.number_of(namespace) == number:
            facts.topics = explaining._topics(namespace, answers, [name.decode()])
        explaining._note_hosts(facts, answers)
        if facts.item is None:
            facts.item_problem = "its shard is on no host that answers"
        return facts

    def _is_cut(self, one: str, other: str) -> bool:
        links = self._world.links
        return one != other and (links.is_cut(one, other) or links.is_cut(other, one))

    @staticmethod
    def _stage(host: SimHost, shard_id: int, key: int) -> ItemStage | None:
        """How the owner has the item; None if the host does not own the shard."""
        for shard in host.held:
            if shard.shard_id == shard_id:
                item = shard.index.leases.get(key)
                # A claimed item is judged as a ready one, so that a claim which nobody makes shows.
                stage = ItemStage.READY if item is None else _stage_of(item)
                return ItemStage.READY if stage in DELIVERABLE else stage
        return None


def _known(host: SimHost) -> KnownFacts:
    known = host.host._routing._explaining._local
    assert isinstance(known, KnownFacts)
    return known


def run_explained(seed: int) -> Outcome:
    """One run of a seed, on one host or two, calm or with the faults of the seed."""
    return run_seed(seed, script=lambda world: _Life(world).run(), is_cluster=seed % 4 == 3)


def run_watched(seed: int) -> Outcome:
    """The same with the watch alone: of other checks, which find many defects as well, it takes no notice."""
    complain = World.complain

    def unexplained_alone(world: World, what: str) -> None:
        if _UNEXPLAINED in what:
            complain(world, what)

    with patch.object(World, "complain", unexplained_alone):
        outcome = run_explained(seed)
    return replace(outcome, complaints=[one for one in outcome.complaints if _UNEXPLAINED in one])


class _Life:
    """Producers, consumers that wait, and operators, of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"explained {world.seed}")
        self._count = 0

    async def run(self) -> None:
        world, chance = self._world, self._chance
        is_calm = chance.random() < 0.5
        world.delays.calm = is_calm
        for _ in range(2 if world.seed % 4 == 3 else 1):
            world.start_host()
        if isinstance(world, ClusterWorld):
            world.complete()
        while not all(host.ready for host in world.hosts):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._set_up()
        until_s = world.loop.time() + _LOAD_S
        work = [self._produce(until_s), self._operate(until_s)]
        work += [self._consume(until_s, topic) for topic in [*_TOPICS, *_TOPICS[:4]]]
        work += [self._consume(until_s, "", prefix="shared")]
        if not is_calm:
            chance = random.Random(f"explained nemesis {world.seed}")
            kind = ClusterNemesis(world, chance) if isinstance(world, ClusterWorld) else Nemesis(world, chance)
            work.append(kind.run(until_s))
        watch = asyncio.create_task(ExplainWatch(world).run())
        try:
            await asyncio.gather(*work)
        finally:
            watch.cancel()
            (ended,) = await asyncio.gather(watch, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            raise ended if isinstance(ended, Exception) else AssertionError("the watch has ended")
        world.delays.calm = True

    async def _set_up(self) -> None:
        policies: dict[str, dict[str, Any]] = {
            "capped": {"deliveries_per_second_max": self._chance.choice([0.5, 4.0])},
            "serial": {"serial": True},
            "few": {"in_flight_max": 2},
        }
        for topic, policy in policies.items():
            for _ in range(20):
                if await self._call(partial(_set_policy, topic, policy)):
                    break
        await asyncio.sleep(1.5)  # All hosts follow them.

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        """The result, or None after an error."""
        host = self._world.pick_host(self._chance)
        if host is None:
            await asyncio.sleep(0.1)
            return None
        try:
            return await self._world.send(host, work, _PATIENCE_S)
        except FoqsError as error:
            self._world.trace("explained", repr(error))
            await asyncio.sleep(0.05)
            return None

    async def _produce(self, until_s: float) -> None:
        world, chance = self._world, self._chance
        while world.loop.time() < until_s:
            topic = chance.choice(_TOPICS)
            key = chance.choice(["a", "b"]) if topic == "keyed" else None
            delay_ms = chance.choice([None, None, 500])
            items = []
            for _ in range(chance.choice([1, 1, 3, 12])):
                self._count += 1
                payload = make_payload(f"{UNIQUE_NAMESPACE}:explained{self._count}", 40)  # No history has these.
                items.append(NewItem(topic, payload, delay_ms=delay_ms, ordering_key=key))
            await self._call(partial(_put, items))
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.5]))

    async def _consume(self, until_s: float, topic: str, prefix: str | None = None) -> None:
        world, chance = self._world, self._chance
        while world.loop.time() < until_s:
            demands = [SimpleNamespace(topic=topic, count=chance.choice([1, 5]), group=None)] if topic else []
            wait_ms, count = chance.choice([3_000, 10_000]), None if topic else 3
            lease_ms = chance.choice([1_000, 5_000])
            taken = await self._call(partial(_take, (demands, lease_ms, wait_ms, prefix, count)))
            if not taken:
                continue
            await asyncio.sleep(chance.choice([0.0, 0.1, 2.0]))
            receipts = [item.receipt for item in taken]
            if chance.random() < 0.15:
                nacks = [
                    SimpleNamespace(
                        receipt=receipt, delay_ms=chance.choice([0, 700]), metadata=None, release=False,
                        dead_letter=False, unseen=False, reason=None,
                    )
                    for receipt in receipts
                ]  # fmt: skip
                await self._call(partial(_nack, nacks))
            elif chance.random() < 0.95:  # The others let their leases end.
                await self._call(partial(_ack, receipts))

    async def _operate(self, until_s: float) -> None:
        """Pause topics and the namespace now and then, for a while."""
        world, chance = self._world, self._chance
        while world.loop.time() < until_s:
            await asyncio.sleep(chance.random() * 3)
            topic = chance.choice(_TOPICS)
            for is_paused in (True, False):
                await self._call(partial(_set_policy, topic, {"dequeue_paused": is_paused}))
                await asyncio.sleep(chance.random() * 3)


async def _set_policy(topic: str, policy: Mapping[str, Any], door: FakeDoor) -> Any:
    return await door.admin.set_topic_policy(NAMESPACE, topic, **policy)


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(NAMESPACE, items, False)


async def _take(wanted: tuple[Any, ...], door: FakeDoor) -> Any:
    return await door.queue.dequeue(NAMESPACE, *wanted)


async def _nack(nacks: list[Any], door: FakeDoor) -> Any:
    return await door.queue.nack(NAMESPACE, nacks)


async def _ack(receipts: list[str], door: FakeDoor) -> Any:
    return await door.queue.ack(NAMESPACE, receipts)
