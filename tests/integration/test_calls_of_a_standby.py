"""A second host on the same shards: what it answers while it owns none, and that a client does not mind."""

from __future__ import annotations

import asyncio

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.client_errors import OutcomeUnknownError
from foqs.client.queue_items import Nack, NewItem
from foqs.model.errors import ErrorCode, StaleLeaseError, UnavailableError
from foqs.model.peer_proof import NONCE_BYTES, PROOF, Greeting
from foqs.wire.codec import structs
from tests.support.raw_client import RawClient, codes_of
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def owner(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls, name="owner") as running:
        yield running


@pytest.fixture
async def standby(owner, meta_url, shard_urls):
    async with running_host(meta_url, shard_urls, name="standby") as running:
        yield running


async def leased(host, count: int = 1):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * count)
    return await host.client.dequeue("jobs", "t", count, lease_ms=60_000, wait_ms=20_000)


async def test_a_standby_does_not_say_that_a_namespace_is_unknown(owner, standby):
    """It may be new: only who serves it has to know."""
    error = (await standby.call("dequeue", structs.DequeueRequest("new", [structs.TopicDemand("t", 1)]))).error
    assert error.code is ErrorCode.UNAVAILABLE
    assert (await owner.call("dequeue", structs.DequeueRequest("new", [structs.TopicDemand("t", 1)]))).error.code is (
        ErrorCode.UNKNOWN_NAMESPACE
    )


async def test_a_shard_that_a_host_was_never_given_is_not_an_item_that_is_gone(owner):
    for call in (owner.client.ack, owner.admin.delete_items):
        errors = await call("jobs", ["7b-10000000001"], return_errors=True)
        assert isinstance(errors[0], UnavailableError)
        assert not isinstance(errors[0], OutcomeUnknownError)


async def test_a_standby_that_a_host_asks_for_shards_names_those_that_it_does_not_serve(standby, owner, shard_urls):
    """So the host that asks it for its part of a list can say what is missing."""
    shards = sorted(shard_urls)[:2]
    nonce = b"0" * NONCE_BYTES
    greet = structs.GreetRequest(PROOF, owner.host.id, standby.host.id, nonce)
    await until(lambda: owner.host.id in standby.host.owners.living)
    async with RawClient.connect("127.0.0.1", standby.host.port) as peer:
        given = (await peer.call("greet", greet)).response.nonce
        said = Greeting("foqs", owner.host.id, standby.host.id, nonce, given)
        secret = standby.host._secrets.current
        assert secret is not None
        assert (await peer.call("join", structs.JoinRequest(said.caller_proof(secret)))).response.proof
        await names_shards(peer, shards)


async def names_shards(standby, shards):
    for method, request in (
        ("getActiveTopics", structs.ActiveTopicsRequest("jobs", shard_ids=shards)),
        ("peekItems", structs.PeekItemsRequest("jobs", "t", shard_ids=shards)),
        ("planExport", structs.PlanExportRequest("jobs", shard_ids=shards)),
        ("getRates", structs.GetRatesRequest("jobs", shard_ids=shards)),
    ):
        error = (await standby.call(method, request)).error
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message.startswith(
            f"shards {shards[0]}, {shards[1]} are not served by this host now; of the first: "
        )
    page = await standby.call("getActiveTopics", structs.ActiveTopicsRequest("jobs", partial=True, shard_ids=shards))
    assert [f"shard {shard}" in missing for shard, missing in zip(shards, page.response.missing, strict=True)] == [
        True,
        True,
    ]


async def test_a_client_that_is_given_the_standby_first_does_not_fail_or_wait(owner, standby):
    addresses = [standby.address, owner.address]
    async with AsyncClient(addresses, random=lambda: 0.0) as client, asyncio.timeout(PATIENCE_S):
        for _ in range(20):
            await client.enqueue("jobs", "t", b"x")
        items = await client.dequeue("jobs", "t", 20, wait_ms=20_000)
        assert len(items) == 20
        assert await client.extend("jobs", items, 60_000) == {}
        assert await client.nack("jobs", [Nack(items[0].receipt)]) == {}
        assert await client.ack("jobs", items[1:]) == {}
        assert [stats.topic async for stats in client.topics("jobs")] == ["t"]
        assert await client.ack("jobs", [items[1]], return_errors=True) != {}


async def test_an_ack_is_repeated_by_the_truth_of_the_items(owner):
    done, again, waiting, held = await leased(owner, 4)
    assert await owner.client.ack("jobs", [done]) == {}
    assert await owner.client.nack("jobs", [again, waiting]) == {}
    (once_more,) = await owner.client.dequeue("jobs", "t", 1, lease_ms=60_000, wait_ms=20_000)
    receipts = [done.receipt, again.receipt, waiting.receipt, held.receipt, done.receipt]
    request = structs.AckRequest("jobs", receipts, True)
    assert codes_of(await owner.call("ack", request)) == {
        1: ErrorCode.STALE_LEASE,
        2: ErrorCode.STALE_LEASE,
    }
    assert isinstance((await owner.client.ack("jobs", [done], return_errors=True))[0], StaleLeaseError)
    assert await owner.client.ack("jobs", [once_more]) == {}
    assert owner.items_stored() == 1
