"""Explanations over several hosts: items here and consumers there, hosts that are silent or old, and take-overs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from foqs import Explanation, ReasonCode, Verdict
from foqs.client.queue_items import NewItem
from foqs.cluster.routing import explaining
from foqs.host.verbs.known_facts import KnownFacts
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.database]


def codes(found: Explanation) -> list[ReasonCode]:
    return [ReasonCode(reason.code) for reason in found.reasons]


async def put(host: RunningHost, count: int, topic: str = "t") -> list[str]:
    return list((await host.client.enqueue_many("jobs", [NewItem(topic, b"x")] * count)).ids)


async def test_a_single_host_explains_what_it_has(host: RunningHost) -> None:
    item_id = (await put(host, 1))[0]
    found = await host.admin.explain("jobs", "t")
    assert (found.verdict, codes(found)) == (Verdict.STOPPED, [ReasonCode.NO_CONSUMERS])
    waiting = asyncio.create_task(host.client.dequeue("jobs", "other", wait_ms=20_000))
    assert (await host.admin.explain("jobs", item_id=item_id)).reasons[0].code == ReasonCode.NO_CONSUMERS
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


CAPPED = ReasonCode.TOPIC_CAPPED


async def take_on(host: RunningHost) -> None:
    """Wait for items again and again, and have them."""
    while True:
        await host.client.dequeue("jobs", "t", wait_ms=20_000, lease_ms=600_000)


async def waiting_calls(host: RunningHost, *names: str) -> dict[str, int]:
    """The calls that wait for these topics on this host, as it would say to others."""
    request = explaining.GetFactsRequest("jobs", list(names))
    facts = await host.host._routing._explaining._local.host_facts(request)
    return {topic.name: topic.waiting_calls for topic in facts.topics}


async def test_calls_for_any_topic_and_for_topics_with_keys_count(host: RunningHost) -> None:
    await host.client.enqueue_many("jobs", [NewItem("keyed", b"x", ordering_key="k")])
    await host.client.dequeue("jobs", "keyed", 1, lease_ms=600_000, wait_ms=5_000)
    wanted: list[dict[str, Any]] = [{"topics": "keyed"}, {"topic_prefix": "em"}, {"topics": "emails"}]
    calls = [asyncio.create_task(host.client.dequeue("jobs", wait_ms=30_000, **some)) for some in wanted]
    expected = {"keyed": 1, "emails": 2, "embers": 1, "other": 0}
    await eventually(lambda: waiting_calls(host, *expected), lambda found: found == expected)
    for call in calls:
        call.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*calls)


@pytest.mark.deep
async def test_the_items_and_consumers_of_all_hosts_count(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        one, other = hosts
        ids = [*await put(one, 20), *await put(other, 20)]
        for host in hosts:
            found = await host.admin.explain("jobs", "t")
            assert (found.verdict, found.reasons[0].count) == (Verdict.STOPPED, 40)
            assert "40 ready" in found.summary
            assert (await host.admin.explain("jobs")).reasons[0].count == 40
            for item_id in (ids[0], ids[-1]):  # At least one of both hosts asks the other for the row.
                found = await host.admin.explain("jobs", item_id=item_id)
                assert (found.verdict, codes(found)[0]) == (Verdict.STOPPED, ReasonCode.NO_CONSUMERS), found
        places = [(await one.admin.explain("jobs", item_id=item_id)).ahead_count for item_id in ids]
        assert sorted(places) == list(range(40))
        taken = await one.client.dequeue("jobs", "t", 5, consumer="worker", lease_ms=600_000, wait_ms=5_000)
        for host in hosts:
            assert (await host.admin.explain("jobs", "t")).reasons[0].code == ReasonCode.CONSUMERS_SLOW
            found = await host.admin.explain("jobs", item_id=taken[0].id)
            assert found.reasons[0].text.startswith("it has been under a lease of worker for ")


@pytest.mark.deep
async def test_a_consumer_on_a_standby_is_a_consumer(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, {0: shard_urls[0]}, 2) as hosts:
        (standby,) = [host for host in hosts if not shards_of(host)]
        (owner,) = [host for host in hosts if host is not standby]
        await owner.admin.set_topic_policy("jobs", "t", deliveries_per_second_max=0.001)
        await put(owner, 30)
        waiting = [asyncio.create_task(take_on(host)) for host in hosts]
        call = asyncio.create_task(standby.client.dequeue("jobs", "u", wait_ms=30_000))
        for host in hosts:
            await eventually(partial(host.admin.explain, "jobs", "t"), lambda found: codes(found)[0] == CAPPED)
        await eventually(lambda: waiting_calls(standby, "u", "t"), lambda found: found == {"u": 1, "t": 1})
        for one in (*waiting, call):
            one.cancel()
        await asyncio.gather(*waiting, call, return_exceptions=True)


@pytest.mark.deep
async def test_a_host_that_does_not_answer_is_a_reason(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as (one, other):
        await put(other, 20)
        host_facts = KnownFacts.host_facts

        async def silent_there(self: KnownFacts, request: Any) -> Any:
            if self is other.host._routing._explaining._local:
                await asyncio.Event().wait()
            return await host_facts(self, request)

        with patch.object(KnownFacts, "host_facts", silent_there), patch.object(explaining, "ANSWER_MS_MAX", 100):
            found = await one.admin.explain("jobs", "t")
            (silent,) = [reason for reason in found.reasons if reason.code == ReasonCode.HOST_SILENT]
            assert silent.host == "host-1"
            assert "has not answered within 100 ms" in silent.text
            assert found.missing == [silent.text]
            for host, code in ((other, ReasonCode.HOST_SILENT), (one, ReasonCode.GONE)):
                item_id = f"{min(shards_of(host)):x}-10000000fff"
                assert codes(await one.admin.explain("jobs", item_id=item_id)) == [code]
        assert (await one.admin.explain("jobs", "t")).missing == []


@pytest.mark.deep
async def test_a_shard_without_a_host_is_a_reason_of_its_items(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        ids = await put(host, 50)
        shard_id = int(ids[0].split("-")[0], 16)
        await host.host.lose_shard(shard_id)
        found = await host.admin.explain("jobs", item_id=ids[0])
        assert (found.verdict, codes(found)) == (Verdict.STOPPED, [ReasonCode.UNSERVED])
        assert found.reasons[0].shard_id == shard_id
        assert found.missing


@pytest.mark.deep
async def test_after_a_take_over_items_are_explained_by_the_next_owner(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, shard_urls) as host:
        ids = await put(host, 2)
        await host.admin.set_topic_policy("jobs", "t", dequeue_paused=True, reason="night")
        (leased,) = await put(host, 1, "u")
        await host.client.dequeue("jobs", "u", 1, lease_ms=600_000, consumer="worker")
    async with running_host(meta_url, shard_urls, name="other") as other:
        found = await other.admin.explain("jobs", item_id=ids[0])
        assert (found.verdict, codes(found)[0]) == (Verdict.STOPPED, ReasonCode.TOPIC_PAUSED)
        found = await other.admin.explain("jobs", item_id=leased)
        assert codes(found)[0] in (ReasonCode.LEASED, ReasonCode.INHERITED)
        assert found.reasons[0].until_ms > found.as_of_ms
