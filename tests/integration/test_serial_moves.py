"""Slots of serial topics move with their items between the shards of real hosts: in order, and one item at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import closing, suppress

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.registry import slot_moves
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.serial import serial_slot
from foqs.model.slot_gates import SlotGate
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from tests.support.cluster import cluster
from tests.support.running_host import RunningHost
from tests.support.waiting import eventually, until

TOPICS = [f"s{at}" for at in range(12)]

pytestmark = [pytest.mark.database, pytest.mark.deep]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(slot_moves, "PROPOSE_MS", 100)


class Load:
    """Producers and consumers of serial topics, and the order of what they see."""

    def __init__(self, hosts: list[RunningHost]) -> None:
        self.hosts = hosts
        self.enqueued: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.out: defaultdict[str, int] = defaultdict(int)
        self.wrong: list[str] = []
        self.is_over = False
        self.consuming = asyncio.Event()
        self.consuming.set()

    async def produce(self, topic: str) -> None:
        while not self.is_over:
            await self.enqueue(topic)
            await asyncio.sleep(0.02)

    async def enqueue(self, topic: str) -> None:
        number = self.enqueued[topic]
        host = self.hosts[number % len(self.hosts)]
        try:
            await host.client.enqueue_many("jobs", [NewItem(topic, b"%d" % number)])
        except UnavailableError as error:
            if not error.nothing_done:
                self.wrong.append(f"an enqueue has an unknown outcome: {error!r}")
            return
        self.enqueued[topic] += 1

    async def consume(self, topic: str, at: int) -> None:
        host = self.hosts[at % len(self.hosts)]
        while not (self.is_over and self.acked[topic] == self.enqueued[topic]):
            await self.consuming.wait()
            with suppress(FoqsError):
                for item in await host.client.dequeue("jobs", topic, count=3, wait_ms=200):
                    self.out[topic] += 1
                    number = int(item.payload)
                    if self.out[topic] != 1 or number != self.acked[topic]:
                        self.wrong.append(f"{topic}: {number} after {self.acked[topic]}, {self.out[topic]} out")
                    await asyncio.sleep(0.005)
                    # Both before the ack, because the next item can come before its answer.
                    self.out[topic] -= 1
                    self.acked[topic] += 1
                    await host.client.ack("jobs", [item.receipt])

    async def run(self, work: asyncio.Future[None] | asyncio.Task[None]) -> None:
        tasks = [asyncio.create_task(self.produce(topic)) for topic in TOPICS]
        tasks += [asyncio.create_task(self.consume(topic, at)) for topic in TOPICS for at in range(2)]
        try:
            await work
        finally:
            self.is_over = True
            self.consuming.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert self.wrong == []
        assert min(self.enqueued.values()) > 0


def gates_of(meta_url: str) -> list[SlotGate]:
    with closing(MetaStore(meta_url)) as meta:
        return list(meta.gates.read())


def owner_of_slot(meta_url: str, slot: int) -> int:
    with closing(MetaStore(meta_url)) as meta:
        return meta.namespaces.read().slots.shards[slot]


def slots_by_shard(meta_url: str) -> Counter[int]:
    with closing(MetaStore(meta_url)) as meta:
        told = meta.namespaces.read()
    return Counter(told.slots.shards) if told.slot_move is None else Counter()


def has_no_slots(meta_url: str, shard_id: int) -> bool:
    counts = slots_by_shard(meta_url)
    return bool(counts) and not counts[shard_id]


async def is_removed(host: RunningHost, shard_id: int) -> bool:
    """Remove a shard if the host knows by now that it is empty."""
    try:
        await host.admin.remove_shard(shard_id)
    except (InvalidArgumentError, UnavailableError):
        return False
    return True


async def make_serial(host: RunningHost) -> None:
    await host.admin.set_topic_policy("jobs", "s", is_prefix=True, serial=True)


@pytest.mark.slow
async def test_shards_are_added_drained_and_removed_under_the_load_of_serial_topics(meta_url, shard_urls):
    first = {n: url for n, url in shard_urls.items() if n < 3}
    async with cluster(meta_url, first, 2) as hosts:
        await make_serial(hosts[0])
        load = Load(hosts)
        seen: set[tuple[int, int]] = set()

        async def change() -> None:
            await until(lambda: min(load.enqueued[topic] for topic in TOPICS) > 3, 20)
            load.consuming.clear()
            await hosts[0].admin.add_shard(3, place_of(shard_urls[3]))
            await until(lambda: slots_by_shard(meta_url)[3] == 256, 60)
            giver = owner_of_slot(meta_url, serial_slot("jobs", TOPICS[0]))
            await hosts[0].admin.update_shard(giver, state=ShardUse.DRAINING)
            await until(lambda: has_no_slots(meta_url, giver), 240)
            found = gates_of(meta_url)
            seen.update([(gate.from_shard, gate.to_shard) for gate in found])
            assert any(gate.from_shard == giver for gate in found)
            with pytest.raises(InvalidArgumentError):
                await hosts[0].admin.remove_shard(giver)
            load.consuming.set()
            await until(lambda: gates_of(meta_url) == [], 60)
            await eventually(lambda: is_removed(hosts[0], giver), bool)
            await until(lambda: all(giver not in host.host._shards.uses for host in hosts), 20)

        await load.run(asyncio.create_task(change()))
        assert seen


async def test_a_dead_letter_on_a_former_shard_comes_before_the_items_of_the_next_one(meta_url, shard_urls):
    topic = TOPICS[0]
    slot = serial_slot("jobs", topic)
    async with cluster(meta_url, shard_urls, 2) as hosts:
        await make_serial(hosts[0])
        client, admin = hosts[0].client, hosts[0].admin
        await client.enqueue_many("jobs", [NewItem(topic, b"old")])
        (item,) = await client.dequeue("jobs", topic, count=1, wait_ms=2_000)
        await client.nack("jobs", item.receipt, dead_letter=True)
        giver = owner_of_slot(meta_url, slot)
        await admin.update_shard(giver, state=ShardUse.DRAINING)
        await until(lambda: has_no_slots(meta_url, giver), 240)
        await until(lambda: gates_of(meta_url) == [], 10)
        for number in range(3):
            await client.enqueue_many("jobs", [NewItem(topic, b"%d" % number)])
        (first,) = await client.dequeue("jobs", topic, count=1, wait_ms=2_000)
        assert first.payload == b"0"
        result = await admin.redrive_dead_letters("jobs", topic, ids=[item.id])
        assert result.count == 1
        assert [(gate.slot, gate.from_shard) for gate in gates_of(meta_url)] == [(slot, giver)]
        assert await client.dequeue("jobs", topic, count=1, wait_ms=500) == [], "one item is out"
        await client.ack("jobs", [first.receipt])
        order = []
        for _ in range(3):
            (next_item,) = await client.dequeue("jobs", topic, count=1, wait_ms=5_000)
            order.append(next_item.payload)
            await client.ack("jobs", [next_item.receipt])
        assert order == [b"old", b"1", b"2"]
        await until(lambda: gates_of(meta_url) == [], 10)


async def test_an_operator_frees_a_slot_whose_former_shard_is_lost(meta_url, shard_urls):
    topic = TOPICS[0]
    slot = serial_slot("jobs", topic)
    async with cluster(meta_url, shard_urls, 2) as hosts:
        await make_serial(hosts[0])
        client, admin = hosts[0].client, hosts[0].admin
        with pytest.raises(NotFoundError, match="has no gate"):
            await admin.ungate_slot(slot)
        await client.enqueue_many("jobs", [NewItem(topic, b"old")])
        (held,) = await client.dequeue("jobs", topic, count=1, lease_ms=600_000, wait_ms=2_000)
        giver = owner_of_slot(meta_url, slot)
        await admin.update_shard(giver, state=ShardUse.DRAINING)
        await until(lambda: has_no_slots(meta_url, giver), 240)
        await until(lambda: any(host.host._slot_moves.gates.ages_s() for host in hosts), 10)
        await client.enqueue_many("jobs", [NewItem(topic, b"new")])
        assert await client.dequeue("jobs", topic, count=1, wait_ms=300) == []
        with pytest.raises(InvalidArgumentError, match=f"waits for shard {giver}"):
            await admin.ungate_slot(slot)
        assert [gate.slot for gate in gates_of(meta_url)] == [slot]
        await client.ack("jobs", [held.receipt])
        await admin.ungate_slot(slot, force=True)
        (freed,) = await client.dequeue("jobs", topic, count=1, wait_ms=5_000)
        assert freed.payload == b"new"
        await client.ack("jobs", [freed.receipt])
