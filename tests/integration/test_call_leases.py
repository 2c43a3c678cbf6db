"""ack, nack, release and extendLease over a socket: what each does, by which names, and what it refuses."""

from __future__ import annotations

import time

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model import limits
from foqs.model.calls import ItemState
from foqs.model.errors import (
    ErrorCode,
    InvalidArgumentError,
    NotFoundError,
    StaleLeaseError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.wire.codec import structs
from tests.support.raw_client import codes_of
from tests.support.running_host import running_host, shard_of
from tests.support.waiting import eventually, longer, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCK_SLACK_MS = 1_000
"""Between this machine's clock and the shard's, as the host measured it."""
EARLY_MS_MAX = 100
"""The same, in the direction in which an item comes early: a slow answer makes the host take it to be earlier."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def kinds(errors) -> dict[int, type]:
    return {position: type(error) for position, error in errors.items()}


async def leased(host, count: int = 1, *, lease_ms: int = 600_000, topic: str = "t"):
    """So many new items under lease."""
    await host.client.enqueue_many("jobs", [NewItem(topic, b"%d" % n) for n in range(count)])
    return await host.leased(count, topic, lease_ms)


# ---- ack ----


async def test_an_acked_row_is_gone_and_the_item_never_comes_back(host):
    items = await leased(host, 10)
    assert await host.client.ack("jobs", items[:6]) == {}
    assert host.items_stored() == 4
    assert await host.client.extend("jobs", items[6:], 1_000) == {}
    again = await host.leased(4)
    again += await host.client.dequeue("jobs", "t", 10, wait_ms=500)
    assert sorted(item.id for item in again) == sorted(item.id for item in items[6:])


async def test_a_bad_receipt_fails_alone_at_its_position(host):
    first, second = await leased(host, 2)
    receipts = [first.receipt, "garbage", second.receipt, first.receipt, "0-1", f"{second.id}:7f"]
    errors = await host.client.ack("jobs", receipts, return_errors=True)
    assert kinds(errors) == {
        1: InvalidArgumentError,
        3: StaleLeaseError,
        4: NotFoundError,
        5: StaleLeaseError,
    }
    assert host.items_stored() == 0


async def test_a_bare_id_acks_an_item_under_lease_ready_delayed_or_dead(host):
    (held,) = await leased(host)
    ready = await host.client.enqueue("jobs", "t", b"x")
    delayed = await host.client.enqueue("jobs", "t", b"x", delay_ms=60_000)
    (dying,) = await leased(host, topic="d")
    assert await host.client.nack("jobs", [dying.receipt], dead_letter=True) == {}
    assert await host.client.ack("jobs", [held.id, ready, delayed, dying.id]) == {}
    assert host.items_stored() == 0
    assert kinds(await host.client.ack("jobs", [held.id, ready], return_errors=True)) == {
        0: NotFoundError,
        1: NotFoundError,
    }
    assert isinstance((await host.client.ack("jobs", [held.receipt], return_errors=True))[0], StaleLeaseError)
    assert await host.client.dequeue("jobs", "t", wait_ms=200) == []


async def test_a_bare_id_named_twice_is_acked_once(host):
    item_id = await host.client.enqueue("jobs", "t", b"x")
    assert kinds(await host.client.ack("jobs", [item_id, item_id], return_errors=True)) == {1: NotFoundError}
    assert host.items_stored() == 0


async def test_a_batch_of_a_thousand_receipts_over_all_shards_is_acked_and_one_more_refused(host):
    await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 125 for _ in range(8)])
    receipts = [item.receipt for item in await host.leased(1_000)]
    too_many = structs.AckRequest("jobs", [*receipts, receipts[0]])
    assert isinstance((await host.call("ack", too_many)).error, TooLargeError)
    assert host.items_stored() == 1_000
    assert await host.client.ack("jobs", receipts) == {}
    assert host.items_stored() == 0


async def test_empty_batches_do_nothing(host):
    for method, request in (
        ("ack", structs.AckRequest("jobs", [])),
        ("nack", structs.NackRequest("jobs", [])),
        ("extendLease", structs.ExtendRequest("jobs", [], 5_000)),
    ):
        reply = await host.call(method, request)
        assert (reply.error, reply.response.errors) == (None, {})


# ---- stale and foreign receipts ----


async def test_after_its_lease_a_receipt_changes_nothing(host):
    for end in ("nack", "release", "lease end", "dead letter", "ack"):
        (item,) = await leased(host, topic=end)
        if end == "nack":
            await host.client.nack("jobs", [item.receipt])
        elif end == "release":
            await host.client.release("jobs", [item.receipt])
        elif end == "dead letter":
            await host.client.nack("jobs", [item.receipt], dead_letter=True)
        elif end == "ack":
            await host.client.ack("jobs", [item.receipt])
        elif end == "lease end":
            await host.client.extend("jobs", [item.receipt], 1_000)
            await eventually(lambda: host.stats("jobs"), lambda stats, topic=end: not stats[topic].leased)
        before = host.rows("SELECT * FROM item")
        assert kinds(await host.client.ack("jobs", [item.receipt], return_errors=True)) == {0: StaleLeaseError}
        assert kinds(await host.client.nack("jobs", [item.receipt], metadata=b"stale", return_errors=True)) == {
            0: StaleLeaseError
        }
        assert kinds(await host.client.nack("jobs", [item.receipt], dead_letter=True, return_errors=True)) == {
            0: StaleLeaseError
        }
        assert kinds(await host.client.release("jobs", [item.receipt], return_errors=True)) == {0: StaleLeaseError}
        assert kinds(await host.client.extend("jobs", [item.receipt], 60_000, return_errors=True)) == {
            0: StaleLeaseError
        }
        assert host.rows("SELECT * FROM item") == before


async def test_the_receipt_of_an_earlier_delivery_does_not_touch_the_present_one(host):
    (first,) = await leased(host)
    await host.client.nack("jobs", [first.receipt])
    (second,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert second.receipt != first.receipt
    for errors in (
        await host.client.ack("jobs", [first.receipt], return_errors=True),
        await host.client.nack("jobs", [first.receipt], return_errors=True),
        await host.client.extend("jobs", [first.receipt], 60_000, return_errors=True),
    ):
        assert kinds(errors) == {0: StaleLeaseError}
    assert await host.client.dequeue("jobs", "t", wait_ms=200) == []
    assert await host.client.ack("jobs", [second.receipt]) == {}


async def test_a_name_of_another_namespace_answers_like_one_that_never_was(host):
    await host.admin.create_namespace("other")
    (item,) = await leased(host)
    ready = await host.client.enqueue("jobs", "ready", b"x")
    before = host.rows("SELECT * FROM item")
    never = f"{shard_of(item.id):x}-{int(item.id.split('-')[1], 16) + 1_000:x}"
    foreign_names = [item.receipt, item.id, ready]
    never_names = [f"{never}:{item.receipt.split(':')[1]}", never, never]
    for names in (foreign_names, never_names):
        acked = await host.client.ack("other", names, return_errors=True)
        assert kinds(acked) == {0: StaleLeaseError, 1: NotFoundError, 2: NotFoundError}
        nacked = await host.client.nack("other", names, return_errors=True)
        extended = await host.client.extend("other", names, 60_000, return_errors=True)
        assert kinds(nacked) == kinds(extended) == dict.fromkeys(range(3), StaleLeaseError)
    assert host.rows("SELECT * FROM item") == before
    assert await host.client.ack("jobs", [item.receipt]) == {}


async def test_garbage_instead_of_a_receipt_is_refused_at_its_position(host):
    garbage = ["", "x", "0", "-", "0-", "-1", "0-0", "0-1:", ":", "0-1:0", "00-1", "0-01", "0x0-1", "0-1:-1", "+0-1"]
    garbage += [" 0-1", "0-1\n", "0-" + "f" * 17, "10000-1", "0-1:" + "1" * 40, "٣-1", "'; DROP TABLE item; --", "\x00"]
    (item,) = await leased(host)
    for errors in (
        await host.client.ack("jobs", garbage, return_errors=True),
        await host.client.nack("jobs", garbage, return_errors=True),
        await host.client.extend("jobs", garbage, 5_000, return_errors=True),
    ):
        assert kinds(errors) == dict.fromkeys(range(len(garbage)), InvalidArgumentError)
    assert await host.client.ack("jobs", [item]) == {}


async def test_of_a_shard_that_is_not_here_nothing_is_done_and_nothing_is_said(host):
    for errors in (
        await host.client.ack("jobs", ["9-1", "9-1:1"], return_errors=True),
        await host.client.nack("jobs", ["9-1", "9-1:1"], return_errors=True),
        await host.client.extend("jobs", ["9-1", "9-1:1"], 5_000, return_errors=True),
    ):
        assert kinds(errors) == {0: UnavailableError, 1: UnavailableError}
        assert all(error.nothing_done for error in errors.values())


async def test_an_unknown_namespace_is_refused_whole(host):
    (item,) = await leased(host)
    for method, request in (
        ("ack", structs.AckRequest("nobody", [item.receipt])),
        ("nack", structs.NackRequest("nobody", [structs.Nack(item.receipt)])),
        ("extendLease", structs.ExtendRequest("nobody", [item.receipt], 5_000)),
    ):
        assert isinstance((await host.call(method, request)).error, UnknownNamespaceError)
    assert await host.client.ack("jobs", [item.receipt]) == {}


# ---- nack and release ----


async def test_a_nack_counts_an_attempt_and_gives_the_item_back_at_once(host):
    (item,) = await leased(host)
    assert await host.client.nack("jobs", [item.receipt]) == {}
    (again,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (again.id, again.attempt, again.payload) == (item.id, 2, item.payload)
    assert again.deliver_after_ms == item.deliver_after_ms
    assert (await host.admin.get_item("jobs", item.id)).failed_attempts == 1


async def test_a_delayed_nack_comes_back_when_its_delay_is_over(host):
    item, late = await leased(host, 2)
    before = now_ms()
    nacks = [Nack(item.receipt, delay_ms=1_000), Nack(late.receipt, delay_ms=60_000)]
    assert await host.client.nack("jobs", nacks) == {}
    stored = {one.id: await host.admin.get_item("jobs", one.id) for one in (item, late)}
    assert stored[late.id].state is ItemState.DELAYED
    assert before - CLOCK_SLACK_MS <= stored[late.id].deliver_after_ms - 60_000 <= now_ms() + CLOCK_SLACK_MS
    (again,) = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
    assert now_ms() >= before + 1_000 - EARLY_MS_MAX
    assert (again.id, again.attempt, again.deliver_after_ms) == (item.id, 2, stored[item.id].deliver_after_ms)
    assert await host.client.dequeue("jobs", "t") == []


async def test_a_nack_may_rewrite_the_metadata_up_to_its_limit(host):
    (item,) = await leased(host)
    for attempt, metadata in enumerate([b"\x00'\xff%s\\", b"", b"m" * 512], start=2):
        assert await host.client.nack("jobs", [Nack(item.receipt, metadata=metadata)]) == {}
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        assert (item.metadata, item.attempt) == (metadata, attempt)
    assert await host.client.nack("jobs", [Nack(item.receipt)]) == {}
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert item.metadata == b"m" * 512


async def test_a_release_counts_no_attempt_and_invalidates_the_receipt(host):
    (item,) = await leased(host)
    for _ in range(limits.ATTEMPTS_DEFAULT + 2):
        assert await host.client.nack("jobs", [Nack(item.receipt, metadata=b"kept", release=True)]) == {}
        (again,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        assert (again.id, again.attempt, again.metadata) == (item.id, 1, b"kept")
        assert again.receipt != item.receipt
        item = again


async def test_a_delayed_release_waits_and_counts_no_attempt(host):
    item, late = await leased(host, 2)
    assert await host.client.release("jobs", [late.receipt], delay_ms=60_000) == {}
    assert await host.client.dequeue("jobs", "t") == []
    assert await host.client.release("jobs", [item.receipt], delay_ms=300) == {}
    (again,) = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
    assert (again.id, again.attempt) == (item.id, 1)


async def test_in_one_batch_every_nack_has_its_own_way_and_its_own_error(host):
    items = await leased(host, 8)
    nacks = [
        structs.Nack(items[0].receipt),
        structs.Nack(items[1].receipt, 60_000),
        structs.Nack(items[2].receipt, -1),
        structs.Nack(items[3].receipt, limits.DELAY_MS_MAX + 1),
        structs.Nack(items[4].receipt, metadata=b"m" * 513),
        structs.Nack(items[5].receipt, release=True, dead_letter=True),
        structs.Nack(items[6].receipt, dead_letter=True),
        structs.Nack(items[0].receipt),
        structs.Nack("garbage"),
        structs.Nack(items[7].receipt, limits.DELAY_MS_MAX),
    ]
    reply = await host.call("nack", structs.NackRequest("jobs", nacks))
    assert codes_of(reply) == {
        2: ErrorCode.INVALID_ARGUMENT,
        3: ErrorCode.INVALID_ARGUMENT,
        4: ErrorCode.TOO_LARGE,
        5: ErrorCode.INVALID_ARGUMENT,
        7: ErrorCode.STALE_LEASE,
        8: ErrorCode.INVALID_ARGUMENT,
    }
    stats = (await host.stats("jobs"))["t"]
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (1, 1, 4, 2), "it would be due after its TTL"
    assert await host.client.ack("jobs", [items[n] for n in (2, 3, 4, 5)]) == {}


async def test_a_bare_id_nacks_an_item_under_lease_and_no_other(host):
    (item,) = await leased(host)
    ready = await host.client.enqueue("jobs", "ready", b"x")
    assert kinds(await host.client.nack("jobs", [item.id, ready], return_errors=True)) == {1: StaleLeaseError}
    (again,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (again.id, again.attempt) == (item.id, 2)


async def test_nacks_over_all_shards_all_come_back(host):
    ids = await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 50 for _ in range(8)])
    items = await host.leased(len(ids))
    assert {shard_of(item.id) for item in items} == set(host.shard_urls)
    assert await host.client.nack("jobs", [item.receipt for item in items]) == {}
    again = await host.leased(len(ids))
    assert sorted(item.id for item in again) == sorted(ids)
    assert {item.attempt for item in again} == {2}


async def test_a_batch_over_the_limit_is_refused_whole(host):
    (item,) = await leased(host)
    too_many = [item.receipt] * (limits.BATCH_ITEMS_MAX + 1)
    nacks = [structs.Nack(receipt) for receipt in too_many]
    for method, request in (
        ("nack", structs.NackRequest("jobs", nacks)),
        ("extendLease", structs.ExtendRequest("jobs", too_many, 5_000)),
    ):
        assert isinstance((await host.call(method, request)).error, TooLargeError)
    assert await host.client.ack("jobs", [item.receipt]) == {}


# ---- the attempts limit ----


async def test_the_last_attempt_makes_a_dead_letter_with_reason_and_time(host):
    await host.admin.update_namespace("jobs", attempts_max=3)
    item_id = await host.client.enqueue("jobs", "t", b"x", metadata=b"m")
    for attempt in (1, 2, 3):
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        assert item.attempt == attempt
        before = now_ms()
        assert await host.client.nack("jobs", [Nack(item.receipt, metadata=b"try %d" % attempt)]) == {}
    assert await host.client.dequeue("jobs", "t", wait_ms=200) == []
    dead = await host.admin.get_item("jobs", item_id)
    assert (dead.state, dead.failed_attempts, dead.death_reason) == (ItemState.DEAD, 3, "nacked")
    assert (dead.payload, dead.metadata) == (b"x", b"try 3")
    assert before - CLOCK_SLACK_MS <= dead.died_at_ms <= now_ms() + CLOCK_SLACK_MS


async def test_an_ended_lease_is_an_attempt_too(host):
    await host.admin.update_namespace("jobs", attempts_max=1)
    (item,) = await leased(host, lease_ms=1_000)
    await eventually(lambda: host.stats("jobs"), lambda stats: not stats["t"].leased)
    dead = await host.admin.get_item("jobs", item.id)
    assert (dead.state, dead.failed_attempts, dead.death_reason) == (ItemState.DEAD, 1, "lease ended")
    # How soon it dies is held in tests/unit/test_lease_ends.py, on a clock that the test moves.
    assert item.lease_expires_at_ms <= dead.died_at_ms <= now_ms() + CLOCK_SLACK_MS


async def test_a_consumer_may_dead_letter_at_once(host):
    (item,) = await leased(host)
    assert await host.client.nack("jobs", [item.receipt], dead_letter=True, metadata=b"why") == {}
    dead = await host.admin.get_item("jobs", item.id)
    assert (dead.state, dead.death_reason, dead.metadata) == (ItemState.DEAD, "dead-lettered by its consumer", b"why")
    assert await host.client.dequeue("jobs", "t", wait_ms=200) == []


# ---- extendLease ----


async def test_an_extension_counts_from_now_and_may_shorten(host):
    (item,) = await leased(host, lease_ms=600_000)
    for lease_ms in (limits.LEASE_MS_MAX, 300_000):
        before = now_ms()
        assert await host.client.extend("jobs", [item.receipt], lease_ms) == {}
        stored = await host.admin.get_item("jobs", item.id)
        assert before - CLOCK_SLACK_MS <= stored.lease_expires_at_ms - lease_ms <= now_ms() + CLOCK_SLACK_MS
    assert await host.client.extend("jobs", [item.receipt], 1_000) == {}
    (again,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (again.id, again.attempt) == (item.id, 2)


async def test_extensions_of_a_batch_hold_by_receipt_and_by_bare_id(host):
    items = await extended_in_time(host, 50)
    assert await host.client.dequeue("jobs", "t", wait_ms=500) == []
    assert await host.client.ack("jobs", items) == {}


async def test_a_restarted_host_honours_leases_and_serves_the_rest(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        for n in range(20):
            await client.enqueue("jobs", "t", b"%d" % n)
        leased = await host.leased(5)
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        rest = await host.leased(15)
        rest += await client.dequeue("jobs", "t", 100)
        assert {item.id for item in rest}.isdisjoint({item.id for item in leased})
        assert len(rest) == 15
        assert await client.ack("jobs", [item.receipt for item in leased]) == {}
        (stats,) = [topic async for topic in client.topics("jobs")]
        assert (stats.topic, stats.ready, stats.leased) == ("t", 0, 15)


async def test_an_extension_survives_a_restart(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        (item,) = await extended_in_time(host, 1)
    async with running_host(meta_url, shard_urls) as host:
        assert await host.client.dequeue("jobs", "t", wait_ms=500) == []
        assert await host.client.ack("jobs", [item.receipt]) == {}


async def extended_in_time(host, count: int):
    """New items whose lease was extended by receipts and bare ids, once the time is over that it had at first."""
    for lease_ms in longer(2_000):
        items = await leased(host, count, lease_ms=lease_ms)
        names = [item.receipt if n % 2 else item.id for n, item in enumerate(items)]
        errors = kinds(await host.client.extend("jobs", [*names, "garbage"], 600_000, return_errors=True))
        if errors == {count: InvalidArgumentError}:
            await until(lambda found=items: now_ms() > max(one.lease_expires_at_ms for one in found))
            return items
        await host.admin.delete_items("jobs", [item.id for item in items])
    pytest.fail("no lease was extended before its end")
