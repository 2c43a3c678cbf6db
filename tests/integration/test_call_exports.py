"""Exports over a socket: planExport and exportItems, and what the clients make of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.verbs import exports as host_exports
from foqs.model import limits
from foqs.model.calls import ExportSplit, ItemState
from foqs.model.errors import (
    ErrorCode,
    InvalidArgumentError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.storage.shard import export_pages as stored_exports
from foqs.storage.shard.packs import pack_index
from foqs.wire.codec import structs
from tests.integration.test_call_items import one_of_each_state
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.deep]


async def exported(host, namespace: str = "jobs", **options):
    return [item async for item in host.admin.iterate_items(namespace, **options)]


async def everywhere(host, count: int = 10, topics: tuple[str, ...] = ("t", "u"), namespace: str = "jobs") -> list[str]:
    """Items of these topics by turns on all shards, half of them packed; their ids."""
    ids = []
    with pytest.MonkeyPatch.context() as patch:
        for has_rows in (True, False):
            patch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000 if has_rows else 1)
            batches = [[NewItem(topics[n % len(topics)], b"%d" % n) for n in range(count)] for _ in range(8)]
            ids += await host.enqueue_on_all_shards(namespace, batches)
    return ids


# ---- what comes ----


async def test_all_that_a_namespace_has_comes_once_and_is_as_it_was(host, monkeypatch):
    monkeypatch.setattr(pack_index, "PACK_MS_MAX", limits.HOUR_MS)  # No item is old enough to get a row of its own.
    ids = await everywhere(host)
    for page_size in (1, 7, 1_000):
        before = (
            host.rows("SELECT * FROM pack"),
            host.rows("SELECT * FROM item"),
            host.rows("SELECT * FROM tombstone"),
        )
        found = await exported(host, page_size=page_size)
        assert sorted(item.id for item in found) == sorted(ids)
        assert before == (
            host.rows("SELECT * FROM pack"),
            host.rows("SELECT * FROM item"),
            host.rows("SELECT * FROM tombstone"),
        )
        assert before[0], "some are packed"
        for item in found[:20]:
            assert await host.admin.get_item("jobs", item.id) == item


async def test_items_of_every_state_come_with_it_and_can_be_asked_for(host):
    ids = await one_of_each_state(host)
    found = {item.id: item for item in await exported(host)}
    assert {item.state: item.id for item in found.values()} == ids
    for state, item_id in ids.items():
        assert [item.id for item in await exported(host, states=[state])] == [item_id]
        shown, one = await host.admin.get_item("jobs", item_id), found[item_id]
        # Two clocks tell the end of a lease, which may differ by a millisecond from one moment to the next.
        assert (shown.lease_expires_at_ms or 0) == pytest.approx(one.lease_expires_at_ms or 0, abs=5)
        assert replace(one, lease_expires_at_ms=None) == replace(shown, lease_expires_at_ms=None)
        assert found[item_id].payload == state.name.encode()
    some = await exported(host, states=[ItemState.DEAD, ItemState.DELAYED], topics=["t", "not there"])
    assert {item.state for item in some} == {ItemState.DEAD, ItemState.DELAYED}


async def test_topics_can_be_named_or_how_they_begin(host):
    await everywhere(host, topics=("mail", "map", "news"))
    for options, wanted in (
        ({"topics": "mail"}, {"mail"}),
        ({"topics": ["mail", "news", "mail"]}, {"mail", "news"}),
        ({"topic_prefix": "ma"}, {"mail", "map"}),
        ({"topic_prefix": "mail"}, {"mail"}),
        ({"topics": "ma"}, set()),
        ({"topic_prefix": "x"}, set()),
    ):
        found = await exported(host, **options)
        assert {item.topic for item in found} == wanted, options
        counted = await host.stats("jobs")
        assert len(found) == sum(counted[topic].ready for topic in wanted)


async def test_contents_are_left_out_where_nobody_wants_them(host):
    await host.client.enqueue("jobs", "t", b"payload", metadata=b"metadata", trace_context="trace")
    for payload in (False, True):
        for metadata in (False, True):
            (item,) = await exported(host, with_payload=payload, with_metadata=metadata)
            assert (item.payload, item.metadata) == (payload * b"payload", metadata * b"metadata")
            assert item.trace_context == "trace"


async def test_other_namespaces_are_neither_shown_nor_looked_at_for_a_small_one(host, monkeypatch):
    await host.admin.create_namespace("small")
    await everywhere(host, 40)
    ids = await everywhere(host, 2, namespace="small")
    walks = []
    by_walk = stored_exports._keys_by_walk
    monkeypatch.setattr(stored_exports, "_keys_by_walk", lambda *args: walks.append(args) or by_walk(*args))
    assert sorted(item.id for item in await exported(host, "small")) == sorted(ids)
    assert not walks, "the lanes of its topics were read"
    assert len(await exported(host)) == 640
    assert walks


async def test_leased_items_are_found_by_their_leases_alone(host, monkeypatch):
    await host.admin.create_namespace("other")
    await everywhere(host, 30)
    await everywhere(host, 5, namespace="other")
    leased = [await host.client.dequeue(name, "t", 25, wait_ms=20_000) for name in ("jobs", "other")]
    held = {item.id for item in [*leased[0], *await host.client.dequeue("jobs", "u", 25, wait_ms=20_000)]}
    for walk in ("_keys_by_walk", "_keys_by_lane"):
        monkeypatch.setattr(stored_exports, walk, lambda *_: pytest.fail("rows are looked for"))
    for topics, wanted in (((), held), (("t",), {item.id for item in leased[0]})):
        for page_size in (1, 7, 1_000):
            found = await exported(host, states=[ItemState.LEASED], topics=topics, page_size=page_size)
            assert sorted(item.id for item in found) == sorted(wanted), (topics, page_size)
            assert all(item.state is ItemState.LEASED and item.payload for item in found)


async def test_a_shard_with_more_leases_than_a_walk_pays_for_is_walked(host, monkeypatch):
    ids = await everywhere(host, 30)
    held: list[str] = []
    while len(held) < len(ids) // 2:  # All of one topic, so that each shard has leases, however a dequeue shares.
        held += [item.id for item in await host.client.dequeue("jobs", "t", 100, wait_ms=20_000)]
    by_lease = []
    leased_keys = host_exports.Exports._leased_keys
    monkeypatch.setattr(host_exports, "LEASE_COST_RATIO", limits.KEY_MAX)
    monkeypatch.setattr(host_exports.Exports, "_leased_keys", lambda *args: by_lease.append(args) or leased_keys(*args))
    found = await exported(host, states=[ItemState.LEASED])
    assert sorted(item.id for item in found) == sorted(held)
    assert not by_lease, "all leases are looked at"


async def test_more_topics_than_a_statement_names_are_found(host, monkeypatch):
    monkeypatch.setattr(limits, "EXPORT_TOPICS_MAX", 2)
    await host.admin.create_namespace("other")
    ids = await everywhere(host, topics=("a", "b", "c", "d"))
    await everywhere(host, topics=("a", "b", "c", "d"), namespace="other")
    assert sorted(item.id for item in await exported(host)) == sorted(ids)


async def test_what_is_enqueued_after_the_plan_does_not_come(host):
    ids = await everywhere(host)
    plan = await host.admin.plan_export("jobs")
    await everywhere(host)
    found = []
    for split in plan.splits:
        page = await host.admin.export_items("jobs", split)
        assert page.next_after_key == 0
        found += [item.id for item in page.items]
    assert sorted(found) == sorted(ids)


# ---- plans ----


async def test_a_plan_has_the_shards_with_items_and_says_how_many(host):
    assert (await host.admin.plan_export("jobs")).splits == []
    item_id = await host.client.enqueue("jobs", "t", b"x")
    (split,) = (await host.admin.plan_export("jobs", 8)).splits
    assert (split.shard_id, split.from_key, split.items_estimate) == (int(item_id.split("-")[0], 16), 0, 1)
    await host.admin.create_namespace("other")
    assert (await host.admin.plan_export("other")).splits == []


async def test_the_splits_of_a_plan_are_all_items_and_no_item_is_in_two(host):
    ids = await everywhere(host, 30)
    for splits_per_shard in (1, 3, 64):
        plan = await host.admin.plan_export("jobs", splits_per_shard)
        assert sum(split.items_estimate for split in plan.splits) == pytest.approx(len(ids), abs=len(plan.splits))
        found = []
        for split in plan.splits:
            found += [item.id for item in (await host.admin.export_items("jobs", split)).items]
        assert sorted(found) == sorted(ids)
        assert len(plan.splits) > 8 or splits_per_shard == 1


async def test_a_plan_and_its_pages_outlive_the_host(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        ids = await everywhere(host)
        plan = await host.admin.plan_export("jobs")
        first = [await host.admin.export_items("jobs", split, limit=5) for split in plan.splits]
    async with running_host(meta_url, shard_urls, name="another") as host:
        found = [item.id for page in first for item in page.items]
        for split, begun in zip(plan.splits, first, strict=True):
            after_key = begun.next_after_key
            while after_key:
                page = await host.admin.export_items("jobs", split, after_key, 5)
                found += [item.id for item in page.items]
                after_key = page.next_after_key
    assert sorted(found) == sorted(ids)


# ---- errors ----


async def test_arguments_are_checked(host):
    await host.client.enqueue("jobs", "t", b"x")
    (good,) = (await host.admin.plan_export("jobs")).splits
    query = structs.ExportItemsRequest
    wire = structs.ExportSplit
    cases = [
        (query("jobs", wire(good.shard_id, 5, 4)), "split.from_key 5 is beyond split.to_key 4"),
        (query("jobs", wire(good.shard_id, -1, 4)), "split.from_key -1"),
        (query("jobs", wire(good.shard_id, 0, -4)), "split.to_key -4"),
        (query("jobs", wire(good.shard_id, None, 4)), "split.from_key None"),
        (query("jobs", wire(None, 1, 4)), "split.shard_id None"),
        (query("jobs", wire(-1, 1, 4)), "split.shard_id -1"),
        (query("jobs", wire(70_000, 1, 4)), "split.shard_id 70000"),
        (query("jobs", wire()), "split.from_key"),
        (query("jobs"), "split is required"),
        (query("jobs", wire(good.shard_id, 1, 4), 5), "after_key 5 is not within its split"),
        (query("jobs", wire(good.shard_id, 2, 4), 1), "after_key 1 is not within its split"),
        (query("jobs", wire(good.shard_id, 0, 4), -1), "after_key -1"),
        (query("jobs", wire(good.shard_id, 0, 4), limit=0), "limit 0"),
        (query("jobs", wire(good.shard_id, 0, 4), limit=-1), "limit -1"),
        (query("jobs", wire(good.shard_id, 0, 4), limit=1_001), "limit 1001"),
        (query("jobs", wire(good.shard_id, 0, 4), topics=[""]), "topic"),
        (query("jobs", wire(good.shard_id, 0, 4), topics=["x" * 256]), "topic of 256 bytes"),
        (query("jobs", wire(good.shard_id, 0, 4), states=[4]), "state 4 is none of"),
        (query("jobs", wire(good.shard_id, 0, 4), states=[0, -1]), "state -1 is none of"),
        (query("jobs", wire(good.shard_id, 0, 4), topics=["t"], topic_prefix="t"), "exclude each other"),
        (query("jobs", wire(good.shard_id, 0, 4), topic_prefix="\x00"), "topic"),
    ]
    for request, told in cases:
        error = (await host.call("exportItems", request)).error
        assert isinstance(error, InvalidArgumentError), request
        assert told in error.message
    too_many = query("jobs", wire(good.shard_id, 0, 4), topics=["t"] * (limits.EXPORT_TOPICS_MAX + 1))
    assert isinstance((await host.call("exportItems", too_many)).error, TooLargeError)
    for count in (0, -1, 65, 1 << 30):
        with pytest.raises(InvalidArgumentError, match="splits_per_shard"):
            await host.admin.plan_export("jobs", count)
    for call in (host.admin.plan_export("nobody"), host.admin.export_items("nobody", good)):
        with pytest.raises(UnknownNamespaceError):
            await call


async def test_a_shard_that_is_not_here_is_named(host):
    for shard_id in (9, 65_535):
        with pytest.raises(UnavailableError, match=f"no shard {shard_id}") as caught:
            await host.admin.export_items("jobs", ExportSplit(shard_id, 0, 1 << 50))
        assert caught.value.nothing_done


async def test_too_many_that_wait_for_one_shard_are_told_to_come_back(host, monkeypatch):
    await host.client.enqueue("jobs", "t", b"x")
    (split,) = (await host.admin.plan_export("jobs")).splits
    go_on = asyncio.Event()
    owned = host.host._shards.by_id[split.shard_id]
    export = type(owned).export

    async def slow(self, work):
        await go_on.wait()
        return await export(self, work)

    monkeypatch.setattr(type(owned), "export", slow)
    async with AsyncExitStack() as stack:
        stack.callback(go_on.set)
        calls = [
            asyncio.create_task(host.admin.export_items("jobs", split))
            for _ in range(limits.EXPORT_PAGES_WAITING_MAX + 1)
        ]
        turns = host.host._exports._turns
        await until(lambda: split.shard_id in turns and turns[split.shard_id].waiting_count == len(calls))
        with pytest.raises(OverloadedError, match="which is the limit") as caught:
            await host.admin.export_items("jobs", split)
        assert caught.value.retry_after_ms == host_exports.PAGE_RETRY_MS
        go_on.set()
        pages = await asyncio.gather(*calls)
        assert {len(page.items) for page in pages} == {1}


async def test_shards_of_one_server_are_read_one_after_the_other(host, monkeypatch):
    """However many splits are read at once, most of the server's time is for what is more urgent."""
    ids = await everywhere(host)
    splits = (await host.admin.plan_export("jobs")).splits
    assert len(splits) > 1
    export = host_exports.OwnedShard.export
    reading: list[int] = []
    most = [0]

    async def watched(self, work):
        reading.append(self.shard_id)
        most.append(len(reading))
        try:
            return await export(self, work)
        finally:
            reading.remove(self.shard_id)

    monkeypatch.setattr(host_exports.OwnedShard, "export", watched)
    pages = await asyncio.gather(*[host.admin.export_items("jobs", split) for split in splits])
    assert sorted(item.id for page in pages for item in page.items) == sorted(ids)
    assert max(most) == 1


async def test_an_export_goes_on_after_its_session_was_lost(host):
    ids = await everywhere(host)
    assert len(await exported(host)) == len(ids)
    for owned in host.host._shards.by_id.values():
        owned.exporter._session._sock.close()
    assert sorted(item.id for item in await exported(host)) == sorted(ids)


async def test_a_shard_that_is_lost_while_a_page_is_read_gives_no_page(host, monkeypatch):
    await host.client.enqueue("jobs", "t", b"x")
    (split,) = (await host.admin.plan_export("jobs")).splits
    owned = host.host._shards.by_id[split.shard_id]
    read = type(owned).export

    async def lost(self, work):
        found = await read(self, work)
        monkeypatch.setattr(self.writer, "shard", None)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(type(owned), "export", lost)
        with pytest.raises(UnavailableError, match="was lost") as caught:
            await host.admin.export_items("jobs", split)
    assert caught.value.code is ErrorCode.UNAVAILABLE
