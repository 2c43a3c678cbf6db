"""A shard that goes from one running host to another while producers and consumers work: nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.items import NewItem
from foqs.model.errors import FoqsError, OverloadedError, UnavailableError
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import until


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


def owns(host: RunningHost, shard_id: int) -> bool:
    return any(writer.shard_id == shard_id for writer, _ in host.host._shards.owned())


async def test_a_shard_goes_to_another_host_under_load_and_no_item_is_lost_or_consumed_twice(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    moved_url = shard_urls[1]
    async with (
        running_host(meta_url, {0: shard_urls[0], 1: moved_url}, name="first") as first,
        running_host(meta_url, {2: shard_urls[2]}, name="second") as second,
    ):
        traffic = Traffic()
        works = [
            asyncio.create_task(work)
            for host in (first, second)
            for work in (traffic.produce(host.client), traffic.consume(host.client), traffic.consume(host.client))
        ]
        await until(lambda: {shard_of(item_id) for item_id in traffic.consumed} == {0, 1, 2})
        await first.host.lose_shard(1)
        assert not owns(first, 1)
        assert not [key for key in first.host._dispatcher._queues.values() if 1 in {*key.parts, *key.sick_parts}]
        await second.host.gain_shard(1, moved_url)
        await until(lambda: owns(second, 1))
        before = sum(shard_of(item_id) == 1 for item_id in traffic.consumed)
        await until(lambda: sum(shard_of(item_id) == 1 for item_id in traffic.consumed) > before + 100)
        traffic.ends = True
        await asyncio.gather(*works)
        for host in (first, second):
            while items := await host.client.dequeue("jobs", "t", count=100, wait_ms=200):
                assert not await host.client.ack("jobs", [item.receipt for item in items], return_errors=True)
                traffic.consumed.update(item.id for item in items)
        assert traffic.enqueued <= set(traffic.consumed)
        assert set(traffic.consumed.values()) == {1}
        assert len(set(traffic.consumed) - traffic.enqueued) <= traffic.unknown_count


async def test_leases_of_a_shard_go_on_at_its_next_host_and_what_was_prefetched_is_ready_there_at_once(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with (
        running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="first") as first,
        running_host(meta_url, {2: shard_urls[2]}, name="second") as second,
    ):
        await first.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 50] * 4)
        leased = await first.client.dequeue("jobs", "t", count=100, wait_ms=5_000)
        of_moved = [item for item in leased if shard_of(item.id) == 1]
        assert of_moved
        await until(lambda: first.host._dispatcher.prefetched_bytes > 0)
        await first.host.lose_shard(1)
        await second.host.gain_shard(1, shard_urls[1])
        await until(lambda: owns(second, 1))
        at_first = await first.client.ack("jobs", [item.receipt for item in of_moved], return_errors=True)
        assert all("no shard 1" in str(error) for error in at_first.values())
        assert len(at_first) == len(of_moved)
        assert not await second.client.ack("jobs", [item.receipt for item in of_moved], return_errors=True)
        rest = []
        while items := await second.client.dequeue("jobs", "t", count=100, wait_ms=200):
            rest += items
        assert {item.attempt for item in rest} == {1}
        assert len(rest) + len(of_moved) == 100


async def test_a_shard_can_come_back_to_the_host_that_has_lost_it(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        item_id = await host.client.enqueue("jobs", "t", b"x")
        waiting = asyncio.create_task(host.client.dequeue("jobs", "u", wait_ms=20_000))
        await until(lambda: bool(host.host._dispatcher.waiting_count))
        await host.host.lose_shard(0)
        with pytest.raises(OverloadedError):
            await host.client.enqueue("jobs", "t", b"x")
        with pytest.raises(UnavailableError) as raised:
            await waiting
        assert raised.value.nothing_done
        await host.host.gain_shard(0, shard_urls[0])
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=5_000)
        assert item.id == item_id
        assert host.host.owned_count == 1
