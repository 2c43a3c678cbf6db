"""Any host of a cluster does any call, whichever host has the shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from unittest.mock import patch

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.queue_items import Item, NewItem
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, ItemState, StoredItem, StoredItemPage
from foqs.model.errors import (
    FoqsError,
    NotFoundError,
    PermissionDeniedError,
    StaleLeaseError,
    UnavailableError,
)
from foqs.model.peer_proof import NONCE_BYTES, PROOF
from foqs.shard import mysql_server
from foqs.wire.codec import structs
from tests.support.cluster import cluster, shards_of
from tests.support.deep import deep_but
from tests.support.late_pull import LatePull
from tests.support.raw_client import RawClient, codes_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import until

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def fill(hosts: Hosts, count: int, topic: str = "t") -> list[str]:
    """Items on the shards of all hosts."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        return [
            (await host.client.enqueue("jobs", topic, b"%d" % number, priority=number))
            for number in range(count)
            for host in hosts
        ]


async def pages(page: Callable[[str], Awaitable[StoredItemPage]]) -> list[StoredItem]:
    """The items of all pages."""
    found: list[StoredItem] = []
    token = ""
    while True:
        one = await page(token)
        found += one.items
        token = one.next_page_token
        if not token:
            return found


async def test_items_of_all_hosts_are_dequeued_and_acked_by_one(hosts: Hosts) -> None:
    first, second = hosts
    ids = await fill(hosts, 10)
    assert {shard_of(item_id) in shards_of(second) for item_id in ids} == {True, False}
    found: list[str] = []
    while len(found) < len(ids):
        items = await first.client.dequeue("jobs", "t", count=7, wait_ms=20_000)
        assert items
        found += [item.id for item in items]
        await first.client.ack("jobs", [item.receipt for item in items])
    assert sorted(found) == sorted(ids)
    assert await second.client.dequeue("jobs", "t", count=7) == []
    assert first.items_stored() == 0


async def waiting_consumer(hosts: Hosts) -> asyncio.Task[list[Item]]:
    """A dequeue that waits at the first host, once the home of its topic knows of it."""
    waiting = asyncio.create_task(hosts[0].client.dequeue("jobs", "late", count=1, wait_ms=limits.WAIT_MS_MAX))
    await until(lambda: any(len(host.host._routing._topic_homes.directory) for host in hosts))
    return waiting


async def test_a_waiting_consumer_gets_an_item_that_comes_to_another_host(hosts: Hosts) -> None:
    first, second = hosts
    waiting = await waiting_consumer(hosts)
    item_id = await second.client.enqueue("jobs", "late", b"x")
    (item,) = await waiting
    assert item.id == item_id
    assert shard_of(item_id) in shards_of(second)
    await first.client.ack("jobs", item.receipt)


async def test_the_metrics_of_a_host_tell_what_it_asks_of_others(hosts: Hosts) -> None:
    first, second = hosts

    def sample(host: RunningHost, name: str, **labels: str) -> float:
        return host.host.metrics.registry.get_sample_value(name, labels) or 0.0

    waiting = await waiting_consumer(hosts)
    await second.client.enqueue("jobs", "late", b"x")
    (item,) = await waiting
    await first.client.ack("jobs", item.receipt)
    with pytest.raises(StaleLeaseError):
        await first.client.ack("jobs", item.receipt)
    assert sample(first, "foqs_peer_calls_total", verb="dequeue", outcome="ok") >= 1
    assert sample(first, "foqs_peer_calls_total", verb="ack", outcome="ok") == 2
    assert sample(first, "foqs_pulls_total", outcome="items") == 1
    assert sample(first, "foqs_pulled_items_total") == 1
    assert sample(first, "foqs_topic_hints_total", direction="received") >= 1
    assert sample(first, "foqs_peers", state="connected") == 1
    assert sample(first, "foqs_peers", state="failed") == 0
    assert sum(sample(host, "foqs_topics_known") for host in hosts) >= 1
    await until(lambda: sample(second, "foqs_topic_news_age_seconds") < 5)


async def test_leases_are_extended_and_given_back_through_any_host(hosts: Hosts) -> None:
    first, second = hosts
    item_id = await second.client.enqueue("jobs", "t", b"x")
    (item,) = await second.client.dequeue("jobs", "t")
    await first.client.extend("jobs", item.receipt, 60_000)
    await first.client.nack("jobs", item.receipt)
    (again,) = await second.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (again.id, again.attempt) == (item_id, 2)
    with pytest.raises(StaleLeaseError):
        await first.client.ack("jobs", item.receipt)
    await first.client.ack("jobs", again.receipt)


@pytest.mark.parametrize(
    "has_moved", deep_but([False], [False, True]), ids=["of the same host", "of another host by then"]
)
async def test_an_at_most_once_item_whose_pull_came_too_late_is_delivered_to_whoever_asks_next(
    hosts: Hosts, has_moved: bool
) -> None:
    first, second = hosts
    pull = LatePull()
    item_id = await pull.begin(
        lambda: first.client.dequeue("jobs", "t", wait_ms=200),
        lambda: second.client.enqueue("jobs", "t", b"x", delivery=DeliveryPolicy.AT_MOST_ONCE),
    )
    if has_moved:
        shard_id = shard_of(item_id)
        await first.admin.update_shard(shard_id, pinned_to="host-0")
        await until(lambda: shard_id in shards_of(first))
    pull.arrive()
    (item,) = await second.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (item.id, item.attempt) == (item_id, 1)
    await second.client.release("jobs", item.receipt)
    assert first.items_stored() == second.items_stored() == 0, "this delivery was seen"


async def test_a_client_gives_an_at_most_once_item_back_that_nobody_has_seen(hosts: Hosts) -> None:
    first, second = hosts
    await first.client.enqueue("jobs", "t", b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)
    (item,) = await second.client.dequeue("jobs", "t", wait_ms=20_000)
    nack = structs.Nack(item.receipt, release=True, unseen=True)
    reply = await second.raw.call("nack", structs.NackRequest("jobs", [nack]))
    assert reply.response.errors == {}
    (again,) = await first.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (again.id, again.attempt) == (item.id, 1)
    await first.client.ack("jobs", again)


async def test_each_position_of_a_batch_has_the_outcome_of_its_own_host(hosts: Hosts) -> None:
    first, _ = hosts
    await fill(hosts, 2)
    items = []
    while len(items) < 4:
        items += await first.client.dequeue("jobs", "t", count=4, wait_ms=20_000)
    receipts = [items[0].receipt, "no receipt", items[1].receipt, items[2].receipt + "0", items[3].receipt]
    errors = await first.client.ack("jobs", receipts, return_errors=True)
    assert {position: error.code.name for position, error in errors.items()} == {
        1: "INVALID_ARGUMENT", 3: "STALE_LEASE",
    }  # fmt: skip


async def test_operators_see_the_items_of_all_hosts(hosts: Hosts) -> None:
    ids = await fill(hosts, 10)
    for host in hosts:
        assert (await host.stats("jobs"))["t"].ready == 20
        peeked = await pages(lambda token, host=host: host.admin.peek_items("jobs", "t", 3, token))
        assert [item.priority for item in peeked] == sorted(item.priority for item in peeked)
        assert sorted(item.id for item in peeked) == sorted(ids)
        assert {(await host.admin.get_item("jobs", item_id)).state for item_id in ids} == {ItemState.READY}
        exported = [item.id async for item in host.admin.iterate_items("jobs")]
        assert sorted(exported) == sorted(ids)
    await hosts[0].admin.delete_items("jobs", ids)
    for host in hosts:
        with pytest.raises(NotFoundError):
            await host.admin.get_item("jobs", ids[0])


async def test_dead_letters_of_all_hosts_are_redriven_and_purged_by_one(hosts: Hosts) -> None:
    first, second = hosts
    ids = await fill(hosts, 3)
    dead = 0
    while dead < len(ids):
        items = await first.client.dequeue("jobs", "t", count=10, wait_ms=20_000)
        for item in items:
            await second.client.nack("jobs", item.receipt, dead_letter=True)
        dead += len(items)
    listed = [item.id for item in await pages(lambda token: second.admin.list_dead_letters("jobs", "t", 2, token))]
    assert sorted(listed) == sorted(ids)
    assert (await first.admin.redrive_dead_letters("jobs", "t", listed[:3])).count == 3
    result = await first.admin.purge_dead_letters("jobs", "t", limit=1)
    assert (result.count, result.ids) == (1, listed[3:4])
    result = await first.admin.purge_dead_letters("jobs", "t", page_token=result.next_page_token)
    assert (result.count, result.ids, result.next_page_token) == (2, listed[4:], "")


async def test_items_with_dedup_ids_go_to_the_host_of_their_slot(hosts: Hosts) -> None:
    first, second = hosts
    await first.admin.create_namespace("spread", key_spread=4)
    news = [NewItem("t", b"x", dedup_id=str(number)) for number in range(40)]
    made = await first.client.enqueue_many("spread", news)
    assert not made.errors
    assert {shard_of(item_id) in shards_of(second) for item_id in made.ids} == {True, False}
    again = await second.client.enqueue_many("spread", news)
    assert (again.ids, len(again.duplicates)) == (made.ids, 40)
    shard_map = await second.client.shard_map("spread")
    assert {at.shard_id: at.address for at in shard_map.addresses} == {
        shard_id: host.address for host in hosts for shard_id in shards_of(host)
    }


async def test_a_host_without_shards_takes_every_call(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, {0: shard_urls[0]}, 2) as hosts:
        (gateway,) = [host for host in hosts if not shards_of(host)]
        item_id = await gateway.client.enqueue("jobs", "t", b"x")
        (item,) = await gateway.client.dequeue("jobs", "t", wait_ms=20_000)
        assert item.id == item_id
        await gateway.client.ack("jobs", item.receipt)
        assert await gateway.client.dequeue("jobs", "t") == []


async def test_only_hosts_of_the_cluster_may_call_as_hosts(hosts: Hosts) -> None:
    first, second = hosts
    raw = first.raw
    for method, request in [
        ("report", structs.ReportRequest([])), ("seek", structs.SeekRequest([])), ("hint", structs.HintRequest([])),
        ("getFacts", structs.GetFactsRequest("jobs", ["t"])),
    ]:  # fmt: skip
        reply = await raw.call(method, request)
        assert isinstance(reply.error, PermissionDeniedError), method
    async with RawClient.connect("127.0.0.1", first.host.port) as stranger:
        # As the host that there is, which its row says to know the newest proof.
        greet = structs.GreetRequest(PROOF, second.host.id, first.host.id, b"0" * NONCE_BYTES)
        assert (await stranger.call("greet", greet)).response.nonce
        forged = await stranger.call("join", structs.JoinRequest(b"0" * 32))
        assert isinstance(forged.error, PermissionDeniedError)
        assert await stranger.is_closed()
    async with RawClient.connect("127.0.0.1", first.host.port) as stranger:
        hello = await stranger.call("hello", structs.HelloRequest(second.host.id, b"0" * 16))
        assert isinstance(hello.error, PermissionDeniedError)


async def test_clients_of_both_hosts_see_one_queue(hosts: Hosts) -> None:
    first, second = hosts
    async with AsyncClient([first.address, second.address]) as client:
        made = await client.enqueue_many("jobs", [NewItem("t", b"%d" % number) for number in range(100)])
        found: set[str] = set()
        while len(found) < 100:
            items = await client.dequeue("jobs", "t", count=10, wait_ms=20_000)
            found.update(item.id for item in items)
            await client.ack("jobs", [item.receipt for item in items])
        assert found == set(made.ids)


async def test_what_needs_a_host_that_cannot_be_reached_was_certainly_not_done(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with cluster(meta_url, {0: shard_urls[0]}, 2) as hosts:
        (gateway,), (owner,) = [[host for host in hosts if bool(shards_of(host)) is owns] for owns in (False, True)]
        await owner.client.enqueue("jobs", "t", b"x")
        (item,) = await owner.client.dequeue("jobs", "t")
        peers = gateway.host._routing._peers
        reach = peers.get
        with (
            patch.object(peers, "get", lambda host_id, address: reach(f"{host_id}?", "127.0.0.1:1")),
            patch.object(limits, "ROUTE_WAIT_MS_MAX", 50),
        ):
            calls = {
                "enqueue": structs.EnqueueRequest("jobs", [structs.NewItem("t", b"x")]),
                "getActiveTopics": structs.ActiveTopicsRequest("jobs"),
                "peekItems": structs.PeekItemsRequest("jobs", "t"),
                "getItem": structs.GetItemRequest("jobs", item.id),
                "planExport": structs.PlanExportRequest("jobs"),
                "exportItems": structs.ExportItemsRequest("jobs", structs.ExportSplit(0, 0, 1)),
            }
            for method, request in calls.items():
                error = (await gateway.call(method, request)).error
                assert isinstance(error, FoqsError), method
                assert error.nothing_done, (method, error)
                assert error.retry_after_ms, (method, error)
            reply = await gateway.call("ack", structs.AckRequest("jobs", [item.receipt, item.id, "garbage"]))
            assert [codes_of(reply)[at].name for at in range(3)] == ["UNAVAILABLE", "UNAVAILABLE", "INVALID_ARGUMENT"]
            assert all(error.nothing_done for at, error in reply.response.errors.items() if at < 2)
            request = structs.DequeueRequest("jobs", [structs.TopicDemand("t", 1)])
            assert (await gateway.call("dequeue", request)).error is None
        await gateway.client.ack("jobs", item.receipt)


async def test_topics_are_complete_or_name_what_is_missing(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        first, second = hosts
        await fill(hosts, 3)
        peers = first.host._routing._peers
        reach = peers.get
        with patch.object(peers, "get", lambda host_id, address: reach(f"{host_id}?", "127.0.0.1:1")):
            with pytest.raises(UnavailableError, match="host-1"):
                await first.stats("jobs")
            missing: list[str] = []
            (stats,) = [stats async for stats in first.client.topics("jobs", on_missing=missing.extend)]
            assert stats.ready == 3
            (what,) = missing
            assert second.host.id in what
        missing.clear()
        (stats,) = [stats async for stats in first.client.topics("jobs", on_missing=missing.extend)]
        assert (stats.ready, missing) == (6, [])


async def test_a_host_without_shards_hands_all_enqueues_on_also_those_of_bulk_loads(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with cluster(meta_url, {0: shard_urls[0]}, 2) as hosts:
        (without,) = [host for host in hosts if not shards_of(host)]
        for bulk in (False, True):
            result = await without.client.enqueue_many("jobs", [NewItem("t", b"x")] * 10, bulk=bulk)
            assert {shard_of(item_id) for item_id in result.ids} == {0}
