"""A shard that goes from one running host to another while producers and consumers work: nothing of it is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from structlog.testing import capture_logs

from foqs.client.aio import AsyncClient
from foqs.client.queue_items import Item, NewItem
from foqs.cluster.members import membership
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.shard_place import FoundShard
from foqs.shard import mysql_server
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import PATIENCE_MS, eventually, until

pytestmark = pytest.mark.deep


class Traffic:
    """Enqueues on one host, and consumes on all; what was acknowledged is noted by id."""

    def __init__(self) -> None:
        self.enqueued: set[str] = set()
        self.consumed: Counter[str] = Counter()
        self.unknown_count = 0
        """Items of enqueues whose outcome nobody was told."""
        self.ends = False

    async def produce(self, client: AsyncClient) -> None:
        while not self.ends:
            news = [NewItem("t", b"x", priority=number % 3) for number in range(10)]
            try:
                self.enqueued.update((await client.enqueue_many("jobs", news)).ids)
            except FoqsError as error:
                self.unknown_count += 0 if error.nothing_done else len(news)
            await asyncio.sleep(0)

    async def consume(self, client: AsyncClient) -> None:
        while not self.ends:
            try:
                items = await client.dequeue("jobs", "t", count=10, wait_ms=50)
                errors = await client.ack("jobs", [item.receipt for item in items], return_errors=True) if items else {}
            except UnavailableError:
                continue  # It has no shard now.
            self.consumed.update(item.id for position, item in enumerate(items) if position not in errors)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts notice in no time what an operator wants, and hold calls for it as long as a test waits."""
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(limits, "ROUTE_WAIT_MS_MAX", PATIENCE_MS)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    monkeypatch.setattr(mysql_server, "PLACEMENT_RUN_ITEMS", 10)


@pytest.fixture
def meta(meta_url: str, shard_urls: dict[int, str]) -> Iterator[MetaStore]:
    """Shards 0 and 1 are for the host `first`, 2 for `second`, and 3 for nobody."""
    with closing(MetaStore(meta_url)) as meta:
        for shard_id in range(3):
            meta.shards.add(shard_id, place_of(shard_urls[shard_id]), "")
            meta.shards.update(shard_id, None, "second" if shard_id == 2 else "first", None)
        yield meta


def move(meta: MetaStore, shard_id: int, host_name: str) -> None:
    meta.shards.update(shard_id, None, host_name, None)


def owns(host: RunningHost, shard_id: int) -> bool:
    return any(writer.shard_id == shard_id for writer, _ in host.host._shards.owned())


async def test_a_shard_goes_to_another_host_under_load_and_no_item_is_lost_or_consumed_twice(
    meta: MetaStore, meta_url: str
) -> None:
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1) and owns(second, 2))
        traffic = Traffic()
        works = [
            asyncio.create_task(work)
            for host in (first, second)
            for work in (traffic.produce(host.client), traffic.consume(host.client), traffic.consume(host.client))
        ]
        await until(lambda: {shard_of(item_id) for item_id in traffic.consumed} == {0, 1, 2})
        move(meta, 1, "second")
        await until(lambda: owns(second, 1))
        assert not owns(first, 1)
        before = sum(shard_of(item_id) == 1 for item_id in traffic.consumed)
        await until(lambda: sum(shard_of(item_id) == 1 for item_id in traffic.consumed) > before + 100)
        traffic.ends = True
        await asyncio.gather(*works)

        async def consumed() -> set[str]:
            for host in (first, second):
                while items := await host.client.dequeue("jobs", "t", count=100, wait_ms=200):
                    assert not await host.client.ack("jobs", [item.receipt for item in items], return_errors=True)
                    traffic.consumed.update(item.id for item in items)
            return set(traffic.consumed)

        await eventually(consumed, lambda ids: traffic.enqueued <= ids)
        assert set(traffic.consumed.values()) == {1}
        assert len(set(traffic.consumed) - traffic.enqueued) <= traffic.unknown_count


async def test_calls_for_a_shard_that_moves_are_held_and_no_client_has_to_repeat_one(
    meta: MetaStore, meta_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of these hosts repeat nothing. A host takes its time to close the sessions of a shard."""
    close = ShardReader.close

    def close_slowly(reader: ShardReader) -> None:
        threading.Event().wait(0.1)
        close(reader)

    monkeypatch.setattr(ShardReader, "close", close_slowly)
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        hosts = {"first": first, "second": second}
        await until(lambda: owns(first, 0) and owns(first, 1) and owns(second, 2))
        dedup_ids = map(str, count())

        async def enqueue_ids(host: RunningHost) -> list[str]:
            return (await host.client.enqueue_many("jobs", [NewItem("t", b"x", dedup_id=next(dedup_ids))] * 1)).ids

        shard_id = shard_of((await enqueue_ids(first))[0])
        for _ in range(10):
            await first.client.enqueue_many("jobs", [NewItem("t", b"x", dedup_id=next(dedup_ids)) for _ in range(100)])
        left, ends, done_count = deque[str](), False, Counter[str]()

        async def leased(host: RunningHost) -> str:
            while not left:
                items = await host.client.dequeue("jobs", "t", count=1000, lease_ms=600_000, wait_ms=500)
                left.extend(item.receipt for item in items)
            return left.popleft()

        async def work(host: RunningHost) -> None:
            while not ends:
                await enqueue_ids(host)
                receipt = await leased(host)
                assert not await host.client.extend("jobs", [receipt], 60_000, return_errors=True)
                assert not await host.client.ack("jobs", [receipt], return_errors=True)
                done_count[host.address] += 1

        async def extend(host: RunningHost) -> None:
            receipt = await leased(host)
            while not ends:
                assert not await host.client.extend("jobs", [receipt], 60_000, return_errors=True)

        addresses = [host.address for host in hosts.values()]
        works = [asyncio.create_task(verb(host)) for host in hosts.values() for verb in (work, work, extend)]

        def has_failed() -> bool:
            return any(task.done() for task in works)

        at_first = owns(first, shard_id)
        for name in ("second", "first") * 2 if at_first else ("first", "second") * 2:
            before = done_count.copy()
            await until(lambda seen=before: all(done_count[at] > seen[at] + 2 for at in addresses) or has_failed())
            move(meta, shard_id, name)
            await until(lambda host=hosts[name]: owns(host, shard_id) or has_failed())
        ends = True
        await asyncio.gather(*works)


async def test_leases_of_a_shard_go_on_at_its_next_host_and_what_was_prefetched_is_ready_there_at_once(
    meta: MetaStore, meta_url: str
) -> None:
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1))
        for _ in range(4):
            await first.client.enqueue_many("jobs", [NewItem("t", b"x")] * 50)
        leased = await first.leased(100)
        of_moved = [item for item in leased if shard_of(item.id) == 1]
        assert of_moved
        await until(lambda: first.host._dispatcher.prefetch.prefetched_bytes > 0)
        move(meta, 1, "second")
        await until(lambda: owns(second, 1))
        assert not [queue for queue in first.host._dispatcher.queues.by_topic.values() if 1 in {*queue.parts}]
        half = len(of_moved) // 2
        for host, some in ((first, of_moved[:half]), (second, of_moved[half:])):
            assert not await host.client.ack("jobs", [item.receipt for item in some], return_errors=True)
        rest: list[Item] = []

        async def count_of_rest() -> int:
            for host in (first, second):
                while items := await host.client.dequeue("jobs", "t", count=100, lease_ms=600_000, wait_ms=200):
                    rest.extend(items)
            return len(rest)

        assert await eventually(count_of_rest, lambda count: count >= 100) == 100
        assert {item.attempt for item in rest} == {1}


async def test_a_host_learns_of_a_shards_new_owner_although_it_cannot_read_the_meta_database(
    meta: MetaStore, meta_url: str
) -> None:
    """The new owner itself says so, and the calls that are held meanwhile go there."""
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
        running_host(meta_url, {}, name="third") as third,
    ):
        await until(lambda: owns(first, 1) and owns(second, 2))
        await until(lambda: not third.host.owners.is_alone)
        for _ in range(4):
            await first.client.enqueue_many("jobs", [NewItem("t", b"x")] * 50)
        leased = await first.leased(200)
        left = deque(item.receipt for item in leased if shard_of(item.id) == 1)
        third.host.owners.refresh = lambda view: None  # type: ignore[method-assign]
        move(meta, 1, "second")
        await until(lambda: owns(second, 1))
        for host in (third, second):
            assert not await host.client.ack("jobs", [left.popleft()], return_errors=True)
        owner = third.host.owners.get(1)
        assert owner is not None
        assert owner.host_id == second.host.id


async def test_an_epoch_that_was_given_to_a_host_which_never_had_the_shard_leads_no_call_astray(
    meta: MetaStore, meta_url: str
) -> None:
    """That host was lost while it took the shard over, or lost it again, and the owner never noticed."""
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1) and owns(second, 2))
        for _ in range(4):
            await first.client.enqueue_many("jobs", [NewItem("t", b"x")] * 50)
        leased = await first.leased(200)
        of_shard = [item.receipt for item in leased if shard_of(item.id) == 1]
        assert of_shard
        found = FoundShard(first.host._shards.writers[1].served_on, 0, "", 0)
        epoch = meta.shards.take_epoch(1, second.host.id, 0, 0, found).epoch
        await until(lambda: meta.shards.owner(1) == first.host.id)
        await until(lambda: (owner := second.host.owners.get(1)) is not None and owner.epoch > epoch)
        assert not await second.client.ack("jobs", of_shard, return_errors=True)
        await second.admin.create_namespace("n")  # All shards have to be asked for it.
        assert owns(first, 1)


async def test_a_shard_can_come_back_to_the_host_that_has_handed_it_on(meta: MetaStore, meta_url: str) -> None:
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        await until(lambda: owns(first, 1))
        for host, other in ((second, first), (first, second), (second, first)):
            move(meta, 1, "second" if host is second else "first")
            await until(lambda host=host: owns(host, 1))
            assert not owns(other, 1)


async def test_a_shard_that_its_next_host_cannot_reach_stays_where_it_is_and_keeps_no_other_one_from_moving(
    meta: MetaStore, meta_url: str
) -> None:
    """Else its owner would let go of it and take it again, over and over."""
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {0: "mysql+pymysql://nobody@127.0.0.1:1/nothing"}, name="second") as second,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1) and owns(second, 2))
        before = first.host.owners.get(0)
        move(meta, 0, "second")
        move(meta, 1, "second")
        await until(lambda: 0 in second.host.shards_run and owns(second, 1))
        beat_number = second.host._membership.me.beat_number
        await until(lambda: second.host._membership.me.beat_number > beat_number + 10 or not owns(first, 0))
        assert owns(first, 0)
        assert first.host.owners.get(0) == before


@pytest.mark.interpreted
@pytest.mark.parametrize("step", ["shard_leaves", "shard_lost", "drop_parts"])
async def test_a_defect_while_a_shard_is_handed_on_keeps_nobody_from_having_it_now_or_later(
    meta: MetaStore, meta_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with (
        running_host(meta_url, {}, name="first") as first,
        running_host(meta_url, {}, name="second") as second,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1) and owns(second, 2))
        await first.client.enqueue_many("jobs", [NewItem("t", b"x")] * 50)
        failed: list[int] = []
        do_step = getattr(first.host._dispatcher, step)

        def fail_once(shard_id: int, *arguments: object) -> None:
            if failed:
                do_step(shard_id, *arguments)
            else:
                failed.append(shard_id)
                raise RuntimeError("a defect")

        monkeypatch.setattr(first.host._dispatcher, step, fail_once)
        move(meta, 1, "second")
        await until(lambda: owns(second, 1))
        assert failed == [1]
        move(meta, 1, "first")
        await until(lambda: owns(first, 1))
        assert 1 not in first.host._dispatcher.queues.sick


async def test_a_host_that_ends_hands_all_its_shards_on_before_it_lets_go_of_its_clients(
    meta: MetaStore, meta_url: str
) -> None:
    async with (
        running_host(meta_url, {}, name="second") as second,
        running_host(meta_url, {}, name="first") as first,
    ):
        await until(lambda: owns(first, 0) and owns(first, 1))
        # Both are homes of topics that the other one asks for and tells of.
        topics = [f"t{number}" for number in range(20)]
        for host in (first, second):
            await host.client.enqueue_many("jobs", [NewItem(topic, b"x") for topic in topics])
        draining = asyncio.create_task(_drained_logs(first))
        await until(lambda: first.host.owned_count == 0)
        # It still answers, and asks the one that has them, or says that another one may serve the call.
        (found,) = await asyncio.gather(first.client.dequeue("jobs", "t"), return_exceptions=True)
        assert found == [] or (isinstance(found, FoqsError) and found.nothing_done)
        assert "connections_left_behind" not in await draining, "peers keep no connection to a host that leaves"
        await until(lambda: second.host.owned_count == 3)


async def _drained_logs(host: RunningHost) -> list[str]:
    """The events that were logged while the host drained."""
    with capture_logs() as logs:
        await host.host.drain()
    return [log["event"] for log in logs]


async def test_a_shard_that_was_removed_is_served_by_nobody_and_kept_from_no_census(
    meta: MetaStore, meta_url: str
) -> None:
    async with running_host(meta_url, {}, name="first") as first:
        await until(lambda: first.host.owned_count == 3)
        meta.shards.update(1, ShardUse.DRAINING, None, None)
        epoch = next(row.epoch for row in meta.shards.read_all() if row.shard_id == 1)
        meta.shards.remove(1, epoch)
        await until(lambda: not owns(first, 1))
        await first.admin.create_namespace("n")
        assert first.host.shards_run == {0, 2}
