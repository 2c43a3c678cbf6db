"""Enqueue exactly once through a whole host and a real MySQL: a repeat gets the id of the first item."""

from __future__ import annotations

import asyncio

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model.calls import EnqueueResult
from foqs.model.namespace import DedupScope
from foqs.wire.codec import structs
from tests.support.running_host import RunningHost, running_host

pytestmark = pytest.mark.asyncio(loop_scope="module")


def item(dedup_id: str | None, topic: str = "t", payload: bytes = b"x") -> NewItem:
    return NewItem(topic, payload, dedup_id=dedup_id)


async def enqueue(host: RunningHost, *items: NewItem, namespace: str = "jobs") -> EnqueueResult:
    response = (await host.call("enqueue", structs.EnqueueRequest(namespace, list(items)))).response
    assert not response.errors
    return EnqueueResult(response.ids, {}, response.duplicates)


async def test_a_repeat_gets_the_id_of_the_first_in_one_call_and_later(host):
    done = await enqueue(host, item("a"), item("b"), item("a", payload=b"other"), item(None), item("b", topic="u"))
    assert done.duplicates == [2, 4]
    assert done.ids[2] == done.ids[0]
    assert done.ids[4] == done.ids[1]
    assert len(set(done.ids)) == 3
    again = await enqueue(host, item(None), item("b"), item("c"), item("a"))
    assert again.duplicates == [1, 3]
    assert [again.ids[1], again.ids[3]] == [done.ids[1], done.ids[0]]
    taken = await host.client.dequeue("jobs", "t", 10)
    assert sorted(one.payload for one in taken) == [b"x"] * 5


async def test_a_repeat_gets_its_id_whatever_became_of_the_first(host):
    done = await enqueue(host, *[item(str(number)) for number in range(3)])
    acked, deleted, dead = done.ids
    taken = {one.id: one for one in await host.client.dequeue("jobs", "t", 3)}
    assert await host.client.ack("jobs", [taken[acked]]) == {}
    assert await host.admin.delete_items("jobs", [deleted]) == {}
    assert await host.client.nack("jobs", [Nack(taken[dead].receipt, dead_letter=True)]) == {}
    again = await enqueue(host, *[item(str(number)) for number in range(3)])
    assert (again.ids, again.duplicates) == (done.ids, [0, 1, 2])
    assert await host.client.dequeue("jobs", "t", 3) == []


async def test_concurrent_calls_with_one_id_make_one_item(host):
    calls = [host.client.enqueue_many("jobs", [item("same"), item(f"own-{number}")]) for number in range(20)]
    done = await asyncio.gather(*calls)
    assert len({one.ids[0] for one in done}) == 1
    assert len({one.ids[1] for one in done}) == 20
    assert len(await host.client.dequeue("jobs", "t", 100)) == 21


async def test_a_new_owner_knows_the_ids(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        done = await enqueue(host, *[item(f"id-{number}") for number in range(300)])
    async with running_host(meta_url, shard_urls) as host:
        again = await enqueue(host, *[item(f"id-{number}") for number in range(301)])
        assert again.duplicates == list(range(300))
        assert again.ids[:300] == done.ids


async def test_ids_count_by_namespace_or_by_topic(host):
    await host.admin.create_namespace("other")
    first = await enqueue(host, item("a"))
    assert (await enqueue(host, item("a"), namespace="other")).ids != first.ids
    await host.admin.create_namespace("by-topic", dedup_scope=DedupScope.TOPIC)
    done = await enqueue(host, item("b"), item("b", topic="u"), item("b"), namespace="by-topic")
    assert done.duplicates == [2]
    assert done.ids[2] == done.ids[0] != done.ids[1]


async def test_what_is_not_valid_leaves_no_id_and_repeats_cost_no_quota(host):
    await host.admin.update_namespace("jobs", enqueues_per_minute_max=5)
    request = structs.EnqueueRequest("jobs", [NewItem("t", b"x" * 20_000, dedup_id="a"), item("a"), item("a")])
    response = (await host.call("enqueue", request)).response
    assert list(response.errors) == [0]
    assert response.ids[1] == response.ids[2]
    assert response.duplicates == [2]
    for _ in range(3):
        assert (await enqueue(host, item("a"), item("a"))).duplicates == [0, 1]
    assert (await enqueue(host, *[item(str(number)) for number in range(4)])).duplicates == []
