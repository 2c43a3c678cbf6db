"""The operator's view of single items over a socket: peekItems, getItem, deleteItems in every state."""

from __future__ import annotations

import pytest

from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, ItemState
from foqs.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    StaleLeaseError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.storage.shard.packs import pack_index
from foqs.wire.codec import structs
from tests.support.running_host import shard_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def kinds(errors) -> dict[int, type]:
    return {position: type(error) for position, error in errors.items()}


async def one_of_each_state(host) -> dict[ItemState, str]:
    """The ids of a ready, a delayed, a leased and a dead item of topic `t`."""
    ids = {}
    for state in (ItemState.DEAD, ItemState.LEASED):
        ids[state] = await host.client.enqueue("jobs", "t", state.name.encode(), priority=-int(state))
        (item,) = await host.client.dequeue("jobs", "t", lease_ms=60_000, wait_ms=20_000)
        assert item.id == ids[state]
        if state is ItemState.DEAD:
            assert await host.client.nack("jobs", [item.receipt], dead_letter=True) == {}
    ids[ItemState.READY] = await host.client.enqueue("jobs", "t", b"READY")
    ids[ItemState.DELAYED] = await host.client.enqueue("jobs", "t", b"DELAYED", delay_ms=60_000)
    return ids


# ---- getItem ----


async def test_an_item_shows_its_state_and_what_belongs_to_it(host):
    ids = await one_of_each_state(host)
    for state, item_id in ids.items():
        stored = await host.admin.get_item("jobs", item_id)
        assert (stored.id, stored.topic, stored.state, stored.payload) == (item_id, "t", state, state.name.encode())
        assert (stored.lease_expires_at_ms is not None) == (state is ItemState.LEASED)
        assert (stored.died_at_ms is not None) == (state is ItemState.DEAD)
        assert (stored.death_reason is not None) == (state is ItemState.DEAD)
        assert stored.delivery is DeliveryPolicy.AT_LEAST_ONCE


async def test_looking_at_an_item_leases_nothing_and_delays_nobody(host):
    item_id = await host.client.enqueue("jobs", "t", b"x")
    for _ in range(3):
        assert (await host.admin.get_item("jobs", item_id)).state is ItemState.READY
        assert [item.id for item in (await host.admin.peek_items("jobs", "t")).items] == [item_id]
    (item,) = await host.client.dequeue("jobs", "t")
    assert (item.id, item.attempt) == (item_id, 1)


async def test_an_item_that_is_not_there_or_not_yours_is_not_found(host):
    await host.admin.create_namespace("other")
    item_id = await host.client.enqueue("jobs", "t", b"x")
    gone = await host.client.enqueue("jobs", "t", b"x")
    await host.client.ack("jobs", [gone])
    for namespace, name in (("jobs", gone), ("other", item_id), ("jobs", "0-ffffffffffffffff")):
        with pytest.raises(NotFoundError):
            await host.admin.get_item(namespace, name)
    with pytest.raises(UnavailableError, match="no shard 9"):
        await host.admin.get_item("jobs", "9-1")
    for name in ("", "x", "0-0", "'; DROP TABLE item"):
        with pytest.raises(InvalidArgumentError):
            await host.admin.get_item("jobs", name)
    with pytest.raises(UnknownNamespaceError):
        await host.admin.get_item("nobody", item_id)


# ---- peekItems ----


async def test_a_peek_shows_ready_and_leased_items_in_the_order_of_delivery_over_all_shards(host):
    batches = [[NewItem("t", b"x", priority=(n * 5 + b) % 7) for n in range(25)] for b in range(8)]
    ids = await host.enqueue_on_all_shards("jobs", batches)
    await host.client.enqueue("jobs", "t", b"x", delay_ms=60_000)
    taken = await host.client.dequeue("jobs", "t", 10, lease_ms=60_000, wait_ms=20_000)
    page = await host.admin.peek_items("jobs", "t", limit=1_000)
    assert page.next_page_token == ""
    assert sorted(item.id for item in page.items) == sorted(ids)
    leased = [item.id for item in page.items if item.state is ItemState.LEASED]
    assert sorted(leased) == sorted(item.id for item in taken)
    places = [(item.priority, item.deliver_after_ms, int(item.id.split("-")[1], 16)) for item in page.items]
    assert places == sorted(places)
    rest = await host.client.dequeue("jobs", "t", 1_000, wait_ms=20_000)
    ready = [item.id for item in page.items if item.state is ItemState.READY]
    assert [item.id for item in rest] == ready[: len(rest)]


async def test_pages_of_a_peek_together_show_each_item_once_in_order(host, monkeypatch):
    for packed in ("none", "half", "all"):
        await host.begin_anew()
        for has_rows in (packed != "all", packed == "none"):
            monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000 if has_rows else 1)
            batches = [[NewItem("t", b"x", priority=n % 3) for n in range(5)] for _ in range(8)]
            await host.enqueue_on_all_shards("jobs", batches)
        assert len(host.rows("SELECT id FROM item")) == {"none": 80, "half": 40, "all": 0}[packed]
        whole = [item.id for item in (await host.admin.peek_items("jobs", "t", limit=1_000)).items]
        assert {shard_of(item_id) for item_id in whole} == set(host.shard_urls)
        for limit in (1, 7, 79, 80, 81):
            seen, token = [], ""
            while True:
                page = await host.admin.peek_items("jobs", "t", limit, token)
                assert len(page.items) <= limit
                seen += [item.id for item in page.items]
                token = page.next_page_token
                if not token:
                    break
            assert seen == whole


async def test_a_peek_and_a_look_at_an_item_leave_packed_items_as_they_are(host):
    ids = await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"%d" % n) for n in range(10)] for _ in range(8)])
    packs = host.rows("SELECT id FROM pack")
    page = await host.admin.peek_items("jobs", "t", 1_000)
    assert sorted(item.id for item in page.items) == sorted(ids)
    for item in page.items[:3]:
        assert await host.admin.get_item("jobs", item.id) == item
    assert (host.rows("SELECT id FROM pack"), host.rows("SELECT id FROM item")) == (packs, [])


async def test_a_peek_of_nothing_is_empty_and_its_arguments_are_checked(host):
    page = await host.admin.peek_items("jobs", "never seen")
    assert (page.items, page.next_page_token) == ([], "")
    for topic, limit, token in (("", 1, ""), ("t", 0, ""), ("t", -1, ""), ("t", 1_001, ""), ("t", 1, "not a token")):
        with pytest.raises(InvalidArgumentError):
            await host.admin.peek_items("jobs", topic, limit, token)
        with pytest.raises(InvalidArgumentError):
            await host.admin.list_dead_letters("jobs", topic, limit, token)
    with pytest.raises(UnknownNamespaceError):
        await host.admin.peek_items("nobody", "t")


async def test_a_forged_page_token_is_refused_or_starts_elsewhere_and_breaks_nothing(host):
    item_id = await host.client.enqueue("jobs", "t", b"x")
    for token in ("f" * 60, "-1", "-" + "f" * 60, "f" * 400, "0", "0x10", " 1"):
        reply = await host.call("peekItems", structs.PeekItemsRequest("jobs", "t", 10, token))
        if reply.error is not None:
            assert isinstance(reply.error, InvalidArgumentError)
        else:
            assert [item.id for item in reply.response.items] in ([], [item_id])
        assert [item.id for item in (await host.admin.peek_items("jobs", "t")).items] == [item_id]


# ---- deleteItems ----


async def test_an_item_is_cancelled_in_every_state(host):
    for state in ItemState:
        await host.begin_anew()
        ids = await one_of_each_state(host)
        assert await host.admin.delete_items("jobs", [ids[state]]) == {}
        assert host.items_stored() == 3
        with pytest.raises(NotFoundError):
            await host.admin.get_item("jobs", ids[state])
        assert kinds(await host.admin.delete_items("jobs", [ids[state]], return_errors=True)) == {0: NotFoundError}
        stats = (await host.stats("jobs"))["t"]
        by_state = {
            ItemState.READY: stats.ready,
            ItemState.DELAYED: stats.delayed,
            ItemState.LEASED: stats.leased,
            ItemState.DEAD: stats.dead,
        }
        assert by_state == {other: int(other is not state) for other in ItemState}
        for other in ItemState:
            if other is not state:
                assert (await host.admin.get_item("jobs", ids[other])).state is other


async def test_a_cancelled_item_is_not_delivered_though_it_was_prefetched(host):
    ids = (await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 500)).ids
    got = []
    for _ in range(10):  # So much that the host prefetches.
        got += await host.client.dequeue("jobs", "t", 10, wait_ms=20_000)
    cancelled = [item_id for item_id in ids if item_id not in {item.id for item in got}][::2]
    assert await host.admin.delete_items("jobs", cancelled) == {}
    got += await host.leased(len(ids) - len(cancelled) - len(got))
    assert sorted([item.id for item in got] + cancelled) == sorted(ids)
    assert await host.client.dequeue("jobs", "t", 100, wait_ms=500) == []
    assert (await host.stats("jobs"))["t"].ready == 0


async def test_the_holder_of_a_cancelled_item_cannot_settle_it_any_more(host):
    await host.client.enqueue("jobs", "t", b"x")
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert await host.admin.delete_items("jobs", [item.id]) == {}
    for errors in (
        await host.client.ack("jobs", [item.receipt], return_errors=True),
        await host.client.nack("jobs", [item.receipt], return_errors=True),
        await host.client.extend("jobs", [item.receipt], 5_000, return_errors=True),
    ):
        assert kinds(errors) == {0: StaleLeaseError}
    assert kinds(await host.client.ack("jobs", [item.id], return_errors=True)) == {0: NotFoundError}
    assert host.items_stored() == 0


async def test_each_position_of_a_cancel_has_its_own_error(host):
    await host.admin.create_namespace("other")
    mine = await host.client.enqueue("jobs", "t", b"x")
    theirs = await host.client.enqueue("other", "t", b"x")
    errors = await host.admin.delete_items("jobs", ["garbage", mine, theirs, mine, "9-1", "0-1"], return_errors=True)
    assert kinds(errors) == {
        0: InvalidArgumentError,
        2: NotFoundError,
        3: NotFoundError,
        4: UnavailableError,
        5: NotFoundError,
    }
    assert (await host.admin.get_item("other", theirs)).payload == b"x"
    assert host.items_stored() == 1


async def test_a_cancel_takes_up_to_a_thousand_ids_over_all_shards(host):
    ids = await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 125 for _ in range(8)])
    too_many = structs.DeleteItemsRequest("jobs", [*ids, ids[0]])
    assert isinstance((await host.call("deleteItems", too_many)).error, TooLargeError)
    assert host.items_stored() == limits.BATCH_ITEMS_MAX
    assert await host.admin.delete_items("jobs", ids) == {}
    assert host.items_stored() == 0
    assert await host.stats("jobs") == {}
