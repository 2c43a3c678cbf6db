"""What enqueues leave behind on a shard: nothing when they are refused, and no more bytes than it writes soon."""

from __future__ import annotations

import asyncio

import pytest

from foqs import NewItem
from foqs.model import ids, limits
from foqs.model.clock import Now
from foqs.model.errors import NoShardError, OverloadedError, RateLimitedError, TooLargeError, UnavailableError
from foqs.model.namespace import DedupScope, Namespace, NamespaceSettings
from foqs.shard import mysql_server
from tests.support.enqueuer import Enqueuer, enqueue_at_once, with_ids
from tests.support.shards import NAMESPACE, Shards


async def test_a_call_over_its_quota_leaves_no_topics_behind() -> None:
    shards = Shards(1)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(enqueues_per_minute_max=1), 0)
    with pytest.raises(TooLargeError):
        await Enqueuer(shards, namespace).enqueue(namespace, [NewItem(f"t{number}", b"") for number in range(1_000)])
    index = shards.states[0].index
    assert (len(index.topics), index.topic_number_last) == (0, 0)


async def test_a_call_over_its_quota_takes_no_part_of_another_namespaces_run_to_a_shard() -> None:
    shards = Shards(2)
    greedy = Namespace(NAMESPACE + 10, "greedy", NamespaceSettings(enqueues_per_minute_max=1), 0)
    plain = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    enqueues = Enqueuer(shards, greedy, plain)
    writes = []
    for _ in range(3):
        calm = enqueues.enqueue(plain, [NewItem("t", b"")])
        writes.append(asyncio.create_task(calm))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(TooLargeError):
                await enqueues.enqueue(greedy, [NewItem("t", b"")] * (mysql_server.PLACEMENT_RUN_ITEMS // 2))
    assert sorted(state.buffered_count for state in shards.states.values()) == [0, 3]
    for number in shards.states:
        shards.run(number)
    await asyncio.gather(*writes)


async def test_items_that_are_not_valid_leave_no_topics_behind() -> None:
    shards = Shards(1)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    too_large = b"x" * (namespace.settings.payload_bytes_max + 1)
    result = await Enqueuer(shards, namespace).enqueue(
        namespace, [NewItem(f"t{number}", too_large) for number in range(10)]
    )
    assert len(result.errors) == 10
    assert len(shards.states[0].index.topics) == 0


async def test_repeats_leave_no_topics_behind() -> None:
    shards = Shards(1)
    namespace, index = Namespace(NAMESPACE, "n", NamespaceSettings(), 0), shards.states[0].index
    first = await enqueue_at_once(shards, namespace, with_ids("abc", "1", "2", "1"))
    assert (first.duplicates, first.ids[2]) == ([2], first.ids[0])
    again = await enqueue_at_once(shards, namespace, with_ids("xyz", "2", "1", "3"))
    assert (again.duplicates, again.ids[:2]) == ([0, 1], [first.ids[1], first.ids[0]])
    numbers = {name: topic.number for (_, name), topic in index.topics.items()}
    assert numbers == {"a": 1, "b": 2, "z": 3}
    assert sorted(row.topic for row in shards.tables[0].items.values()) == [1, 2, 3]


async def test_a_repeat_is_told_by_a_shard_that_has_no_room_for_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(1)
    namespace, index = Namespace(NAMESPACE, "n", NamespaceSettings(), 0), shards.states[0].index
    first = await enqueue_at_once(shards, namespace, with_ids("a", "1"))
    monkeypatch.setattr(limits, "TOPICS_PER_SHARD_MAX", 1)
    told = await enqueue_at_once(shards, namespace, with_ids("bcadb", "1", "2", "3", "4", "2"))
    assert (told.duplicates, told.ids[0]) == ([0], first.ids[0])
    assert [*told.errors] == [1, 3, 4]
    assert {type(error) for error in told.errors.values()} == {OverloadedError}
    assert told.ids[2]
    assert [name for _, name in index.topics] == ["a"]
    assert (shards.states[0].dedup.pending, shards.states[0].buffered_count) == ({}, 0)
    with pytest.raises(OverloadedError, match="use fewer topics"):
        await enqueue_at_once(shards, namespace, with_ids("bb", "2", "4"))
    monkeypatch.undo()
    # Nothing of them is known: they were not made.
    assert (await enqueue_at_once(shards, namespace, with_ids("bd", "2", "4"))).duplicates == []


async def test_calls_with_ids_that_come_together_share_a_new_topic() -> None:
    shards = Shards(1)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(dedup_scope=DedupScope.TOPIC), 0)
    enqueues = Enqueuer(shards, namespace)
    calls = [
        asyncio.create_task(enqueues.enqueue(namespace, with_ids(topics, "1", "2"))) for topics in ("ab", "ba", "aa")
    ]
    await asyncio.sleep(0)
    shards.run(0)
    results = await asyncio.gather(*calls)
    assert [result.duplicates for result in results] == [[], [], [0, 1]]
    assert {name: topic.number for (_, name), topic in shards.states[0].index.topics.items()} == {"a": 1, "b": 2}


async def test_new_topics_of_one_call_get_numbers_one_after_the_other() -> None:
    shards = Shards(1)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    news = [NewItem(topic, b"") for topic in ("a", "b", "a", "c", "bad\x01", "b")]
    call = asyncio.create_task(Enqueuer(shards, namespace).enqueue(namespace, news))
    await asyncio.sleep(0)
    shards.run(0)
    result = await call
    assert list(result.errors) == [4]
    topics = shards.states[0].index.topics
    assert {name: topic.number for (_, name), topic in topics.items()} == {"a": 1, "b": 2, "c": 3}
    assert sorted(row.topic for row in shards.tables[0].items.values()) == [1, 1, 2, 2, 3]


class OfDifferentClocks(Shards):
    """The second shard's server is an hour behind the first one's."""

    def now(self, number: int) -> Now:
        return Now(self.clock_ms - number * limits.HOUR_MS, self.clock_ms)


async def test_an_item_that_moves_to_another_shard_goes_by_the_clock_of_that_one() -> None:
    shards = OfDifferentClocks(2)
    shards.clock_ms += 10 * limits.HOUR_MS
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    absolute_ms = shards.clock_ms - limits.HOUR_MS // 2  # Past for the first, to come for the second.
    news = [
        NewItem("now", b""),
        NewItem("later", b"", delay_ms=5_000, ttl_ms=7_000),
        NewItem("at", b"", deliver_after_ms=absolute_ms, ttl_ms=7_000),
    ]
    call = asyncio.create_task(Enqueuer(shards, namespace).enqueue(namespace, news))
    await asyncio.sleep(0)
    assert shards.states[0].inserts.buffered_count == 3
    shards.dispatcher.on_events(shards.states[0].evict("its server is away"))
    for _ in range(3):
        await asyncio.sleep(0)
    shards.run(1)
    result = await call
    now_ms = shards.now(1).server_ms
    rows = {row.key: row for row in shards.tables[1].items.values()}
    now, later, at = [rows[ids.parse(item_id)[1]] for item_id in result.ids]
    assert {row.enqueued_at for row in (now, later, at)} == {now_ms}
    assert (now.due_at, now.expires_at) == (now_ms, now_ms + limits.TTL_MS_DEFAULT)
    assert (later.due_at, later.expires_at) == (now_ms + 5_000, now_ms + 12_000)
    assert (at.due_at, at.expires_at) == (absolute_ms, absolute_ms + 7_000)
    assert not shards.tables[0].items


async def test_a_call_that_can_never_fit_the_quota_is_too_large_and_told_the_limit() -> None:
    shards = Shards(1)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(enqueues_per_minute_max=60), 0)
    enqueues = Enqueuer(shards, namespace)
    with pytest.raises(TooLargeError, match=r"61 items .* 60 enqueues per minute .* calls of 60 items at most"):
        await enqueues.enqueue(namespace, [NewItem("t", b"")] * 61)
    call = asyncio.create_task(enqueues.enqueue(namespace, [NewItem("t", b"")] * 60))
    await asyncio.sleep(0)
    shards.run(0)
    assert (await call).errors == {}
    with pytest.raises(RateLimitedError):
        await enqueues.enqueue(namespace, [NewItem("t", b"")])


async def test_a_shard_with_two_transactions_of_bytes_waiting_is_passed_over() -> None:
    shards = Shards(2)
    namespace = Namespace(NAMESPACE, "n", NamespaceSettings(payload_bytes_max=limits.PAYLOAD_BYTES_MAX), 0)
    enqueues = Enqueuer(shards, namespace)
    large = NewItem("t", bytes(limits.PAYLOAD_BYTES_MAX))
    calls = []
    for _ in range(4 * limits.TRANSACTION_INSERT_BYTES_MAX // limits.PAYLOAD_BYTES_MAX):
        calls.append(asyncio.create_task(enqueues.enqueue(namespace, [large])))
        await asyncio.sleep(0)
    waiting = [state.buffered_bytes for state in shards.states.values()]
    assert waiting == [2 * limits.TRANSACTION_INSERT_BYTES_MAX] * 2
    for number in shards.states:
        while shards.states[number].inserts.buffered_count:
            shards.run(number)
    await asyncio.gather(*calls)


async def test_each_tier_has_its_own_turns_of_shards() -> None:
    shards = Shards(4)
    shards.tiers = {2: "gold", 3: "gold"}
    plain = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    gold = Namespace(NAMESPACE + 10, "gold", NamespaceSettings(tier="gold"), 0)
    enqueues = Enqueuer(shards, plain, gold)
    writes = []
    for _ in range(2):
        for namespace in (plain, gold):
            half = [NewItem("t", b"")] * (mysql_server.PLACEMENT_RUN_ITEMS // 2)
            writes += [asyncio.create_task(enqueues.enqueue(namespace, half)) for _ in range(2)]
            await asyncio.sleep(0)
    names = {number: {name for name, _ in state.index.topics} for number, state in shards.states.items()}
    assert names == {0: {NAMESPACE}, 1: {NAMESPACE}, 2: {NAMESPACE + 10}, 3: {NAMESPACE + 10}}
    for number in shards.states:
        shards.run(number)
    await asyncio.gather(*writes)


async def test_a_shard_that_goes_to_another_tier_takes_no_more_items_of_its_old_one() -> None:
    shards = Shards(2)
    plain = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
    enqueues = Enqueuer(shards, plain)
    first = asyncio.create_task(enqueues.enqueue(plain, [NewItem("t", b"")]))
    await asyncio.sleep(0)
    (current,) = [number for number, state in shards.states.items() if state.buffered_count]
    shards.tiers = {current: "gold"}
    second = asyncio.create_task(enqueues.enqueue(plain, [NewItem("t", b"")]))
    await asyncio.sleep(0)
    assert {state.buffered_count for state in shards.states.values()} == {1}
    for number in shards.states:
        shards.run(number)
    await asyncio.gather(first, second)
    shards.tiers = {0: "gold", 1: "gold"}
    with pytest.raises(UnavailableError, match="no shard of tier ''") as refused:
        await enqueues.enqueue(plain, [NewItem("t", b"")])
    assert refused.value.nothing_done


async def test_a_host_without_shards_of_a_tier_takes_no_part_of_its_quota() -> None:
    """The hosts that can write its items need the whole of it."""
    shards = Shards(1)
    shards.tiers = {0: "gold"}
    plain = Namespace(NAMESPACE, "n", NamespaceSettings(enqueues_per_minute_max=1), 0)
    with pytest.raises(UnavailableError, match="no shard of tier ''"):
        await Enqueuer(shards, plain).enqueue(plain, [NewItem("t", b"")] * 2)


@pytest.mark.parametrize("drains", [False, True])
async def test_a_host_without_shards_that_take_items_takes_no_part_of_a_quota(*, drains: bool) -> None:
    shards = Shards(1)
    plain = Namespace(NAMESPACE, "n", NamespaceSettings(enqueues_per_minute_max=1), 0)
    enqueues = Enqueuer(shards, plain)
    if drains:
        shards.draining = frozenset([0])
    else:
        shards.states.clear()
    with pytest.raises(NoShardError):
        await enqueues.enqueue(plain, [NewItem("t", b"")] * 2)
