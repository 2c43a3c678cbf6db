"""Dead letters over a socket: list, redrive and purge, by ids and by count."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.host.shards import ttl_scan
from foqs.host.verbs import chosen_dead
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, ItemState
from foqs.model.errors import InvalidArgumentError, NotFoundError, StaleLeaseError, TooLargeError
from foqs.storage.sessions.session import connect
from foqs.wire.codec import structs
from tests.support.running_host import running_host, shard_of
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCK_SLACK_MS = 1_000
"""Between this machine's clock and the shard's, as the host measured it."""


def kinds(errors) -> dict[int, type]:
    return {position: type(error) for position, error in errors.items()}


async def dead_letters(host, count: int, *, topic: str = "t", priority: int = 0) -> list[str]:
    """So many new dead letters, in the order of their deaths."""
    news = [NewItem(topic, b"%d" % n, priority=priority, metadata=b"m") for n in range(count)]
    await host.client.enqueue_many("jobs", news)
    items = []
    while len(items) < count:
        items += await host.client.dequeue("jobs", topic, count - len(items), wait_ms=20_000)
    for item in items:
        assert await host.client.nack("jobs", [item.receipt], dead_letter=True) == {}
    return [item.id for item in items]


async def dead_on_all_shards(host, count_per_batch: int) -> list[str]:
    ids = await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * count_per_batch for _ in range(8)])
    items = []
    while len(items) < len(ids):
        items += await host.client.dequeue("jobs", "t", 100, wait_ms=20_000)
    for start in range(0, len(items), 10):
        nacks = [Nack(item.receipt, dead_letter=True) for item in items[start : start + 10]]
        assert await host.client.nack("jobs", nacks) == {}
    return ids


async def test_dead_letters_are_listed_in_the_order_of_their_deaths_in_pages_over_all_shards(host):
    ids = await dead_on_all_shards(host, 10)
    page = await host.admin.list_dead_letters("jobs", "t", 1_000)
    assert page.next_page_token == ""
    whole = [item.id for item in page.items]
    assert sorted(whole) == sorted(ids)
    assert {shard_of(item_id) for item_id in whole} == set(host.shard_urls)
    deaths = [item.died_at_ms for item in page.items]
    assert deaths == sorted(deaths)
    assert {item.state for item in page.items} == {ItemState.DEAD}
    for limit in (1, 7, 80):
        seen, token = [], ""
        while True:
            page = await host.admin.list_dead_letters("jobs", "t", limit, token)
            seen += [item.id for item in page.items]
            token = page.next_page_token
            if not token:
                break
        assert seen == whole


async def test_live_items_and_other_topics_are_no_dead_letters(host):
    (dead,) = await dead_letters(host, 1)
    await dead_letters(host, 2, topic="other")
    await host.client.enqueue_many("jobs", [NewItem("t", b"x"), NewItem("t", b"x", delay_ms=60_000)])
    assert [item.id for item in (await host.admin.list_dead_letters("jobs", "t")).items] == [dead]
    assert [item.id for item in (await host.admin.peek_items("jobs", "t")).items] != [dead]


async def test_a_redriven_item_is_ready_again_with_no_failed_attempts(host):
    (item_id,) = await dead_letters(host, 1, priority=-4)
    assert (await host.admin.get_item("jobs", item_id)).failed_attempts == 1
    result = await host.admin.redrive_dead_letters("jobs", "t", [item_id])
    assert (result.count, result.errors) == (1, {})
    stored = await host.admin.get_item("jobs", item_id)
    assert (stored.state, stored.failed_attempts, stored.died_at_ms) == (ItemState.READY, 0, None)
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (item.id, item.attempt, item.priority, item.payload) == (item_id, 1, -4, b"0")
    assert item.metadata == b"m"
    assert await host.client.ack("jobs", [item]) == {}
    assert host.items_stored() == 0


async def test_the_ttl_of_a_redriven_item_starts_anew_though_it_had_long_ended(host):
    settings = {"ttl_ms_max": 40 * limits.MINUTE_MS, "ttl_ms_default": limits.MINUTE_MS}
    await host.admin.update_namespace("jobs", **settings)
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", ttl_ms=ms * limits.MINUTE_MS) for ms in (1, 30)])
    items = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
    await host.client.nack("jobs", items, dead_letter=True)
    for url in host.shard_urls.values():  # As if that had been two hours ago.
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute("UPDATE item SET enqueued_at = enqueued_at - 7200000, expires_at = expires_at - 7200000")
            session.commit()
    ids = [item.id for item in items]
    before_ms = time.time_ns() // 1_000_000
    assert (await host.admin.redrive_dead_letters("jobs", "t", ids)).count == 2
    redriven_ms = time.time_ns() // 1_000_000
    again = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
    assert [item.id for item in again] == ids
    for item_id, minutes in zip(ids, (1, 30), strict=True):
        begins_ms = (await host.admin.get_item("jobs", item_id)).expires_at_ms - minutes * limits.MINUTE_MS
        assert before_ms - CLOCK_SLACK_MS <= begins_ms <= redriven_ms + CLOCK_SLACK_MS

    # Since its enqueue its second TTL would be longer than any may be.
    await host.client.nack("jobs", [again[1]], dead_letter=True)
    before_ms = time.time_ns() // 1_000_000
    assert (await host.admin.redrive_dead_letters("jobs", "t", [ids[1]])).count == 1
    redriven_ms = time.time_ns() // 1_000_000
    begins_ms = (await host.admin.get_item("jobs", ids[1])).expires_at_ms - 40 * limits.MINUTE_MS
    assert before_ms - CLOCK_SLACK_MS <= begins_ms <= redriven_ms + CLOCK_SLACK_MS


async def test_an_item_that_a_server_with_a_slow_clock_redrove_gets_the_longest_ttl_at_its_next_redrive(host):
    await host.admin.update_namespace("jobs", ttl_ms_max=40 * limits.MINUTE_MS, ttl_ms_default=limits.MINUTE_MS)
    await host.client.enqueue("jobs", "t", b"x")
    items = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    await host.client.nack("jobs", items, dead_letter=True)
    for url in host.shard_urls.values():  # As if it had been redriven ten minutes before its enqueue.
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute("UPDATE item SET expires_at = enqueued_at - 600000")
            session.commit()
    before_ms = time.time_ns() // 1_000_000
    assert (await host.admin.redrive_dead_letters("jobs", "t", [items[0].id])).count == 1
    redriven_ms = time.time_ns() // 1_000_000
    begins_ms = (await host.admin.get_item("jobs", items[0].id)).expires_at_ms - 40 * limits.MINUTE_MS
    assert before_ms - CLOCK_SLACK_MS <= begins_ms <= redriven_ms + CLOCK_SLACK_MS


async def test_the_receipt_of_before_the_death_does_not_settle_the_redriven_item(host):
    await host.client.enqueue("jobs", "t", b"x")
    (first,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    await host.client.nack("jobs", [first.receipt], dead_letter=True)
    await host.admin.redrive_dead_letters("jobs", "t", [first.id])
    (second,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert kinds(await host.client.ack("jobs", [first.receipt], return_errors=True)) == {0: StaleLeaseError}
    assert await host.client.ack("jobs", [second.receipt]) == {}


async def test_a_redrive_without_ids_takes_the_oldest_up_to_its_limit(host):
    ids = await dead_letters(host, 10)
    result = await host.admin.redrive_dead_letters("jobs", "t", limit=4)
    assert (result.count, result.errors) == (4, {})
    assert [item.id for item in (await host.admin.list_dead_letters("jobs", "t")).items] == ids[4:]
    got = await host.leased(4)
    assert {item.id for item in got} == set(ids[:4])
    assert (await host.admin.redrive_dead_letters("jobs", "t")).count == 6
    assert (await host.admin.redrive_dead_letters("jobs", "t")).count == 0


async def test_items_that_cannot_be_redriven_hide_none_behind_them(host, monkeypatch):
    monkeypatch.setattr(chosen_dead, "PAGES_MAX", 2)
    once = [NewItem("t", b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)] * 8
    await host.client.enqueue_many("jobs", once)
    items = await host.client.dequeue("jobs", "t", 8, wait_ms=20_000)
    await host.client.nack("jobs", items, dead_letter=True)
    ids = await dead_letters(host, 3)
    at_once = await host.admin.redrive_dead_letters("jobs", "t", limit=2)
    assert (at_once.count, at_once.errors, at_once.ids) == (0, {}, []), "it looked at four of eight"
    found, token = [], at_once.next_page_token
    while token:
        result = await host.admin.redrive_dead_letters("jobs", "t", limit=2, page_token=token)
        assert result.errors == {}
        found += result.ids
        token = result.next_page_token
    assert found == ids
    assert {item.id for item in (await host.admin.list_dead_letters("jobs", "t")).items} == {one.id for one in items}
    assert (await host.admin.purge_dead_letters("jobs", "t")).ids == [one.id for one in items]


async def test_a_purge_without_ids_takes_the_oldest_up_to_its_limit(host):
    ids = await dead_letters(host, 10)
    result = await host.admin.purge_dead_letters("jobs", "t", limit=7)
    assert (result.count, result.errors) == (7, {})
    assert [item.id for item in (await host.admin.list_dead_letters("jobs", "t")).items] == ids[7:]
    assert host.items_stored() == 3
    assert (await host.admin.purge_dead_letters("jobs", "t")).count == 3
    assert (await host.admin.purge_dead_letters("jobs", "t")).count == 0
    assert await host.stats("jobs") == {}


async def test_redrive_and_purge_reach_all_shards(host):
    ids = await dead_on_all_shards(host, 5)
    assert (await host.admin.redrive_dead_letters("jobs", "t", ids[::2])).count == 20
    assert (await host.admin.purge_dead_letters("jobs", "t")).count == 20
    got = await host.leased(20)
    assert sorted(item.id for item in got) == sorted(ids[::2])
    assert await host.client.dequeue("jobs", "t", 100) == []
    assert host.items_stored() == 20


@pytest.mark.parametrize("verb", ["redriveDeadLetters", "purgeDeadLetters"])
async def test_what_is_not_a_dead_letter_of_the_topic_has_its_own_error_and_stays(host, verb):
    await host.admin.create_namespace("other")
    (dead,) = await dead_letters(host, 1)
    (of_other_topic,) = await dead_letters(host, 1, topic="o")
    ready = await host.client.enqueue("jobs", "t", b"x")
    delayed = await host.client.enqueue("jobs", "t", b"x", delay_ms=60_000)
    of_other_namespace = await host.client.enqueue("other", "t", b"x")
    ids = ["garbage", ready, dead, delayed, of_other_topic, of_other_namespace, dead, "0-1", "9-1"]
    request = structs.RedriveDeadLettersRequest("jobs", "t", ids)
    if verb == "purgeDeadLetters":
        request = structs.PurgeDeadLettersRequest("jobs", "t", ids)
    reply = await host.call(verb, request)
    assert reply.error is None
    assert reply.response.count == 1
    codes = {position: error.code for position, error in reply.response.errors.items()}
    not_found = int(NotFoundError.code)
    assert codes == {0: int(InvalidArgumentError.code), **dict.fromkeys([1, 3, 4, 5, 6, 7], not_found), 8: 6}
    states = {item_id: (await host.admin.get_item("jobs", item_id)).state for item_id in (ready, delayed)}
    assert states == {ready: ItemState.READY, delayed: ItemState.DELAYED}
    assert (await host.admin.get_item("jobs", of_other_topic)).state is ItemState.DEAD
    assert (await host.admin.get_item("other", of_other_namespace)).state is ItemState.READY


async def test_arguments_out_of_range_are_refused_and_an_empty_list_does_nothing(host):
    (dead,) = await dead_letters(host, 1)
    for verb in ("redriveDeadLetters", "purgeDeadLetters"):
        kind = structs.RedriveDeadLettersRequest if verb == "redriveDeadLetters" else structs.PurgeDeadLettersRequest
        for request in (
            kind("jobs", "t", limit=0),
            kind("jobs", "t", limit=1_001),
            kind("jobs", "\x00"),
            kind("jobs", ""),
        ):
            assert isinstance((await host.call(verb, request)).error, InvalidArgumentError)
        assert isinstance((await host.call(verb, kind("jobs", "t", [dead] * 1_001))).error, TooLargeError)
        reply = await host.call(verb, kind("jobs", "t", []))
        assert (reply.error, reply.response.count, reply.response.errors) == (None, 0, {})
        assert (await host.admin.get_item("jobs", dead)).state is ItemState.DEAD


async def test_dead_letters_outlive_their_ttl_and_a_restart(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        (item,) = await host.short_lived(1)
        await host.client.nack("jobs", [item.receipt], dead_letter=True)
        await host.until_expired(item.id)
        assert await host.client.dequeue("jobs", "t", wait_ms=1_000) == []
    async with running_host(meta_url, shard_urls) as host:
        (dead,) = (await host.admin.list_dead_letters("jobs", "t")).items
        assert (dead.id, dead.state) == (item.id, ItemState.DEAD)
        assert (await host.stats("jobs"))["t"].dead == 1


async def test_a_dead_letter_that_is_redriven_and_expires_again_is_a_dead_letter_again(host, monkeypatch):
    monkeypatch.setattr(ttl_scan, "EXPIRY_LAP_PAUSE_MS", 50)
    await until(lambda: all(writer.shard.index.expires_first_ms for writer in host.host._shards.writers.values()))
    (item,) = await host.short_lived(1)
    await host.client.nack("jobs", [item.receipt], dead_letter=True)
    await host.until_expired(item.id)
    assert await host.client.dequeue("jobs", "other", wait_ms=500) == [], "a walk goes past it"
    assert (await host.admin.redrive_dead_letters("jobs", "t", [item.id])).count == 1
    dead = await eventually(lambda: host.admin.get_item("jobs", item.id), lambda found: found.state is ItemState.DEAD)
    assert "TTL" in dead.death_reason


async def test_an_at_most_once_item_may_become_a_dead_letter_but_is_never_redriven(host):
    await host.client.enqueue("jobs", "t", b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert await host.client.nack("jobs", [item.receipt], dead_letter=True) == {}
    stored = await host.admin.get_item("jobs", item.id)
    assert (stored.state, stored.delivery) == (ItemState.DEAD, DeliveryPolicy.AT_MOST_ONCE)
    result = await host.admin.redrive_dead_letters("jobs", "t", [item.id], return_errors=True)
    assert (result.count, kinds(result.errors)) == (0, {0: InvalidArgumentError})
    assert await host.client.dequeue("jobs", "t", wait_ms=300) == []
    assert (await host.admin.purge_dead_letters("jobs", "t")).count == 1
