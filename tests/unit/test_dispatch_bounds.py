"""The dispatcher when a shard is lost, when claims are too short, and what it may hold."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest

from foqs import bootstrap
from foqs.contract.requests import DeleteItemsRequest, DequeueRequest, TopicDemand
from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.host.shards.waiting import Waiting
from foqs.host.verbs.dequeues import Dequeues
from foqs.host.verbs.inspection import Inspection
from foqs.model import ids, limits
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError, OverloadedError, PausedError, UnavailableError
from foqs.model.item import ShardItem
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.principal import EVERYBODY
from foqs.model.topic_name import ordered
from foqs.shard.port import ItemRow, ShardImage
from foqs.shard.state.events import Completion, Events, LookUp
from foqs.shard.state.index import ShardIndex
from tests.support.shards import ITEM_BYTES_MAX, NAMESPACE, NamespacesOf, Shards

JOBS = Namespace(NAMESPACE, "jobs", NamespaceSettings(), 0)
CALL = CallContext("test", principal=EVERYBODY)
SOON_S = limits.WAIT_MS_MAX / 2_000
"""Less than the calls would wait by themselves."""


def dequeues_of(shards: Shards) -> Dequeues:
    namespaces, clock = cast(Any, NamespacesOf(JOBS)), lambda: shards.clock_ms / 1000
    return Dequeues(namespaces, cast(Any, shards), shards.dispatcher, clock, lambda *_: None, Consumers(clock))


def test_a_call_of_two_topics_gets_nothing_of_a_shard_that_is_being_lost() -> None:
    shards = Shards(3)
    shards.states[0].index.topic(NAMESPACE, "a")  # known before b
    shards.enqueue(0, "b", 0)
    shards.enqueue(2, "b", 1)
    shards.enqueue(1, "a", 1)
    for number in shards.tables:
        shards.run(number)
    call = shards.dequeue({"a": 2, "b": 2})
    shards.run(0)  # Its item of b is held; the call waits for that of shard 2.
    shards.enqueue(0, "a", 0)
    shards.begin(0)
    shards.begin(2)
    shards.run(1)  # Its item of a is held; the call waits for the more urgent one.
    assert call.items is None
    lost = shards.states.pop(0)
    shards.dispatcher.shard_lost(0, lost.index.topics.values())
    assert call.items is not None
    assert [item.topic.shard_id for item in call.items] == [1]


def test_items_whose_claims_are_too_short_for_their_lease_are_claimed_anew_all_at_once() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", lease_ms=600_000, count=100)
    shards.run(0)
    shards.take_over()  # Windows are read without contents: the items' own leases are not known.
    shards.run(0)
    taken = calls_count = 0
    while taken < 100:
        calls_count += 1
        assert calls_count <= 3
        call = shards.dequeue({"a": 100})
        shards.run(0)
        shards.dispatcher.tick()
        taken += len(call.items or [])
        shards.dispatcher.end(call)


def test_of_calls_with_long_and_short_leases_each_gets_its_own() -> None:
    shards = Shards(1)
    long, short = shards.dequeue({"a": 1}, 60_000), shards.dequeue({"a": 1}, 1_000)
    shards.enqueue(0, "a", count=2)
    for _ in range(10):
        if shards.begin(0) is not None:
            shards.end(0)
    assert long.items
    assert short.items
    assert [item.lease_due_at - shards.clock_ms for item in [*long.items, *short.items]] == [60_000, 1_000]


def test_calls_do_not_wait_on_for_a_host_that_has_lost_its_last_shard() -> None:
    async def scenario() -> None:
        shards = Shards(1)
        dequeues = dequeues_of(shards)
        demand = SimpleNamespace(topic="a", count=1, group=None)
        waiting = [
            asyncio.ensure_future(dequeues.dequeue(CALL, DequeueRequest(JOBS.name, [demand], None, 30_000)))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        dequeues.tick()
        assert shards.dispatcher.queues.waiting_count == 3
        lost = shards.states.pop(0)
        shards.dispatcher.shard_lost(0, lost.index.topics.values())
        with patch.object(limits, "DEQUEUES_ENDED_PER_TICK", 2):
            dequeues.tick()
            assert shards.dispatcher.queues.waiting_count == 1
            await asyncio.sleep(0)
            dequeues.tick()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, UnavailableError)
            assert error.nothing_done
        with pytest.raises(UnavailableError):
            await dequeues.dequeue(CALL, DequeueRequest(JOBS.name, [demand], None, 0))

    asyncio.run(scenario())


def test_what_a_caller_who_is_gone_has_not_seen_is_handed_to_the_next_one_at_once() -> None:
    async def scenario() -> None:
        shards = Shards(1)
        dequeues = dequeues_of(shards)
        request = DequeueRequest(JOBS.name, [TopicDemand("a", 1)], None, 30_000)
        first, second = (asyncio.create_task(dequeues.dequeue(CALL, request)) for _ in range(2))
        await asyncio.sleep(0)
        shards.enqueue(0, "a")
        shards.run(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        shards.run(0)
        assert [delivery.topic for delivery in await asyncio.wait_for(second, SOON_S)] == ["a"]

    asyncio.run(scenario())


def test_of_a_paused_namespace_no_call_waits_and_nothing_is_held_or_claimed() -> None:
    async def scenario() -> None:
        shards = Shards(1)
        dequeues = dequeues_of(shards)
        demands = [SimpleNamespace(topic=topic, count=1, group=None) for topic in "ab"]
        waits = asyncio.create_task(dequeues.dequeue(CALL, DequeueRequest(JOBS.name, demands, None, 30_000)))
        await asyncio.sleep(0)
        shards.enqueue(0, "a", 0, delay_ms=50)
        shards.run(0)
        shards.change_settings(dequeue_paused=True)
        shards.dispatcher.sweep()
        with pytest.raises(PausedError):
            await asyncio.wait_for(waits, SOON_S)
        with pytest.raises(PausedError):
            await dequeues.dequeue(CALL, DequeueRequest(JOBS.name, demands, None, 30_000))
        shards.clock_ms += 1_000
        shards.run(0)
        assert not shards.states[0].index.leases
        shards.change_settings(dequeue_paused=False)
        call = shards.dequeue({"a": 1})
        shards.run(0)
        assert call.items

    asyncio.run(scenario())


def test_calls_that_wait_for_a_paused_topic_alone_end_behind_any_number_of_others() -> None:
    shards = Shards(1)
    others = [shards.dequeue({"a": 1, "b": 1}) for _ in range(limits.DEQUEUES_ENDED_PER_TICK + 1)]
    calls = [shards.dequeue({"a": 1}) for _ in range(2)]
    shards.set_policy("a", dequeue_paused=True)
    shards.pass_ms(100)
    assert all(call.is_paused for call in calls)
    assert not any(call.done for call in others)
    assert not shards.dispatcher.deliveries._lingering, "each is looked at once"
    shards.set_policy("b", dequeue_paused=True)
    shards.pass_ms(100)
    assert all(call.is_paused for call in others)
    shards.set_policy("a", dequeue_paused=False)
    call = shards.dequeue({"a": 1, "b": 1})
    shards.pass_ms(100)
    shards.set_policy("a", dequeue_paused=True)
    shards.pass_ms(100)
    assert call.is_paused


def test_what_was_prefetched_for_a_namespace_goes_back_when_it_is_paused() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=100)
    shards.run(0)
    shards.dequeue({"a": 10})
    shards.run(0)
    shards.clock_ms += 200
    shards.dispatcher.sweep()
    shards.run(0)
    assert shards.dispatcher.queues.prefetched(NAMESPACE, "a")
    shards.change_settings(dequeue_paused=True)
    shards.dispatcher.sweep()
    assert not shards.dispatcher.queues.prefetched(NAMESPACE, "a")


def test_calls_that_are_over_leave_nothing_of_topics_that_do_not_exist() -> None:
    shards = Shards(1)
    for number in range(3):
        names = [f"{number}-{name}" for name in range(limits.DEQUEUE_TOPICS_MAX)]
        shards.dispatcher.end(shards.dequeue(dict.fromkeys(names, 1)))
    assert len(shards.dispatcher.queues.by_topic) == 0


@pytest.mark.parametrize("way", ["its shard is lost", "it ends while its shard is sick"])
def test_a_topic_that_is_gone_leaves_nothing(way: str) -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    call = shards.dequeue({"a": 1})
    shards.run(0)
    (item,) = call.items or ()
    for _ in range(10):
        shards.rest()
    (topic,) = shards.states[0].index.topics.values()
    if way == "its shard is lost":
        shards.dispatcher.shard_lost(0, [topic])
    else:
        shards.dispatcher.shard_health(0, [topic], healthy=False)
        shards.dispatcher.end(shards.dequeue({"a": 1}))
        assert len(shards.dispatcher.queues.by_topic) == 1, "it comes back with its shard"
        gone = Events()
        gone.topics_gone.append(item.topic)
        shards.dispatcher.on_events(gone)
    assert not shards.dispatcher.queues.by_topic


def test_nothing_is_claimed_for_consumers_that_left_long_ago() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=40)
    shards.run(0)
    assert shards.dequeue({"a": 40}).items is None
    shards.run(0)
    for _ in range(10):
        shards.clock_ms += bootstrap.PREFETCH_SWEEP_MS
        shards.dispatcher.sweep()
    shards.enqueue(0, "a", count=40)
    shards.run(0)
    assert not shards.dispatcher.queues.prefetched(NAMESPACE, "a").items


def test_claims_on_the_way_count_for_the_bound_of_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREFETCH_BYTES_MAX", 10 * ITEM_BYTES_MAX)
    monkeypatch.setattr(limits, "DEQUEUE_ANSWER_BYTES_MAX", 2 * ITEM_BYTES_MAX)
    shards = Shards(2)
    for number in shards.tables:
        shards.enqueue(number, "a", count=30, payload=b"x" * ITEM_BYTES_MAX)
        shards.run(number)
    shards.take_over()
    for number in shards.tables:
        shards.run(number)
    taken = 0
    for _ in range(60):
        call = shards.dequeue({"a": 60})
        for number in shards.tables:
            while shards.begin(number) is not None:
                shards.end(number)
                assert shards.dispatcher.prefetch.prefetched_bytes <= limits.PREFETCH_BYTES_MAX
        shards.clock_ms += 20
        shards.dispatcher.tick()
        taken += len(call.items or [])
        shards.dispatcher.end(call)
    assert taken == 60


def test_whole_rows_are_looked_up_few_at_a_time_and_heads_many() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=100)
    shards.run(0)
    found: list[ItemRow] = []
    keys = sorted(shards.tables[0].items)

    def fail(error: FoqsError) -> None:
        raise error

    for key in keys:
        shards.states[0].look_up(LookUp([key], lambda rows: found.extend(rows.values()), fail, with_payload=True))
    shards.states[0].look_up(LookUp(keys, lambda rows: found.extend(rows.values()), fail))
    counts = []
    while (transaction := shards.begin(0)) is not None:
        counts.append((transaction.look_ups_with_payload, len(transaction.look_ups)))
        shards.end(0)
    whole_max = limits.TRANSACTION_PAYLOAD_LOOK_UPS_MAX
    assert counts == [(True, whole_max)] * 6 + [(True, 100 - 6 * whole_max), (False, 100)]
    assert [row.content.payload for row in found] == [b"p"] * 100 + [b""] * 100


def test_look_ups_that_wait_for_a_server_that_hangs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_UPS_WAITING_MAX", 3)
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.begin(0)
    look_ups = shards.states[0].look_ups
    for _ in range(3):
        look_ups.look_up(LookUp([1], pytest.fail, pytest.fail))
    for _ in range(2):
        with pytest.raises(OverloadedError):
            look_ups.look_up(LookUp([1], pytest.fail, pytest.fail))


def test_a_call_for_which_too_many_look_ups_wait_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        shards = Shards(1)
        (item,) = shards.enqueue(0, "a")
        shards.run(0)
        waiting, on_events = Waiting(asyncio.get_running_loop()), shards.dispatcher.on_events
        namespace = Namespace(NAMESPACE, "n", NamespaceSettings(), 0)
        inspection = Inspection(
            cast(Any, NamespacesOf(namespace)), cast(Any, shards), waiting, on_events, cast(Any, None), cast(Any, None),
            cast(Any, None),
        )  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(limits, "LOOK_UPS_WAITING_MAX", 0)
            errors = await asyncio.wait_for(
                inspection.delete_items(CALL, DeleteItemsRequest("n", [ids.item_id(0, item.key)])), SOON_S
            )
        assert [type(error) for error in errors.values()] == [OverloadedError]
        deleted = asyncio.create_task(
            inspection.delete_items(CALL, DeleteItemsRequest("n", [ids.item_id(0, item.key)]))
        )
        await asyncio.sleep(0)
        shards.run(0)
        assert await asyncio.wait_for(deleted, SOON_S) == {}
        assert not shards.tables[0].items

    asyncio.run(scenario())


def test_an_item_that_is_deleted_while_it_is_prefetched_is_handed_to_nobody() -> None:
    shards = Shards(1)
    first, _ = shards.enqueue(0, "a", count=2)
    shards.run(0)
    call = shards.dequeue({"a": 1})
    shards.run(0)
    assert [item.key for item in call.items or []] == [first.key]
    shards.enqueue(0, "a", -1)
    shards.dispatcher.sweep()
    shards.run(0)
    (held, *_) = shards.dispatcher.queues.prefetched(NAMESPACE, "a").most_urgent(1)
    shard, row = shards.states[0], shards.tables[0].items[held.key]
    shard.delete(row, Completion(lambda _: None), 0)
    shards.dispatcher.on_events(shard.take_events())
    assert held.key not in [item.key for item in shards.dispatcher.queues.prefetched(NAMESPACE, "a").items]
    later = shards.dequeue({"a": 1})
    shards.run(0)
    assert held.key not in [item.key for item in later.items or []]


def test_the_number_after_the_last_one_of_topics_is_refused() -> None:
    """The columns hold no more: each transaction of the shard would fail."""
    index = Shards(1).states[0].index
    index.topic_number_last = limits.TOPIC_NUMBER_MAX - 1
    index.topic(NAMESPACE, "the last one")
    with pytest.raises(OverloadedError, match="2147483647 topics"):
        index.topic(NAMESPACE, "one more")
    assert index.topic(NAMESPACE, "the last one").number == limits.TOPIC_NUMBER_MAX


@pytest.mark.parametrize(("left_count", "is_refused"), [(0, True), (1, True), (2, False)])
def test_a_key_needs_a_number_of_its_base_as_well_or_changes_nothing(left_count: int, is_refused: bool) -> None:
    index = Shards(1).states[0].index
    last = index.topic_number_last = limits.TOPIC_NUMBER_MAX - left_count
    for _ in range(2):
        if not is_refused:
            key = index.topic(NAMESPACE, ordered("a", "key"))
            assert (key.number, key.base and key.base.number) == (last + 2, last + 1)
            continue
        with pytest.raises(OverloadedError, match="2147483647 topics"):
            index.topic(NAMESPACE, ordered("a", "key"))
        assert not index.topics
        assert index.topic_number_last == last


@pytest.mark.parametrize("left_count", [0, 1])
def test_a_base_that_a_new_owner_lacks_has_a_free_number_within_the_limit(left_count: int) -> None:
    last = limits.TOPIC_NUMBER_MAX - left_count
    names = {last: ordered("a", "key"), last - 1: ordered("b", "key"), last - 3: "c"}
    stored = [(number, NAMESPACE, name.encode()) for number, name in names.items()]
    image = ShardImage(1, 0, 0, 0, last, 0, 0, stored, [(NAMESPACE, b"jobs")], Mock(), [], {})
    index = ShardIndex(0, image, SettingsTable())
    numbers = [topic.number for topic in index.topics.values()]
    assert len(set(numbers)) == len(numbers) == 5
    assert max(numbers) <= limits.TOPIC_NUMBER_MAX
    assert index.topic_number_last == max(numbers)


def test_what_is_held_of_a_lost_shard_goes_at_once_and_its_topics_in_slices() -> None:
    shards = Shards(2)
    names = [f"t{number}" for number in range(6)]
    for number in shards.tables:
        for name in names:
            shards.enqueue(number, name, number)
        shards.run(number)
    calls = {name: shards.dequeue({name: 2}) for name in names}
    shards.run(0)  # Held, and each call waits for the less urgent one as well.
    shards.begin(1)
    lost = shards.states.pop(0)
    topics = list(lost.index.topics.values())
    shards.dispatcher.shard_lost(0, topics[:2])
    assert shards.dispatcher.prefetch.prefetched_bytes == 0
    shards.end(1)
    for topic in topics[2:]:
        shards.dispatcher.disown([topic])
    shards.run(1)
    assert all([item.topic.shard_id for item in call.items or []] == [1] for call in calls.values())
    for queue in shards.dispatcher.queues.by_topic.values():
        assert list(queue.parts) == [1]
        assert not queue.claims_count


def test_of_a_shard_that_is_handed_on_nothing_is_held_or_claimed_and_others_are_served_past_it() -> None:
    shards = Shards(2)
    shards.enqueue(0, "a", -1, count=30)
    shards.enqueue(1, "a", 1, count=30)
    shards.run(0)
    shards.run(1)
    call = shards.dequeue({"a": 5})
    for _ in range(2):
        shards.run(0)
        shards.run(1)
        shards.dispatcher.tick()
    assert {item.topic.shard_id for item in call.items or ()} == {0}
    buffer = shards.dispatcher.queues.prefetched(NAMESPACE, "a")
    assert 0 in {item.topic.shard_id for item in buffer.items}
    shards.dispatcher.shard_leaves(0, shards.states[0].index.topics.values())
    assert 0 not in {item.topic.shard_id for item in buffer.items}
    waiting = shards.dequeue({"a": 40})
    shards.dispatcher.shard_health(0, shards.states[0].index.topics.values(), healthy=True)
    shards.enqueue(0, "a", -1)
    for _ in range(3):
        shards.run(0)
        shards.run(1)
        shards.dispatcher.tick()
    assert len(waiting.items or ()) == 30
    assert {item.topic.shard_id for item in waiting.items or ()} == {1}
    leased = {item.key for item in call.items or ()}
    assert set(shards.states[0].index.leases) == leased, "nothing else is claimed there"


@pytest.mark.interpreted
def test_a_shard_that_leaves_costs_nothing_for_topics_of_which_nothing_is_prefetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be 100,000 that calls wait for, and all of it is one turn of the event loop."""
    shards = Shards(1)
    shards.enqueue(0, "a", count=30)
    shards.run(0)
    shards.dequeue({"a": 5, **{f"t{number}": 1 for number in range(500)}})
    shards.run(0)
    buffer = shards.dispatcher.queues.prefetched(NAMESPACE, "a")
    assert buffer
    looked_at: list[int] = []
    items = type(buffer).items

    def note_items(buffer: PrefetchBuffer) -> list[ShardItem]:
        looked_at.append(len(buffer))
        return items.fget(buffer)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(PrefetchBuffer, "items", property(note_items))
    shards.dispatcher.shard_leaves(0, [])
    assert len(looked_at) < 5
    assert not buffer


def test_what_is_being_claimed_of_a_shard_goes_back_when_the_shard_is_handed_on_meanwhile() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=30)
    shards.run(0)
    shards.dequeue({"a": 5})
    shards.begin(0)
    shards.dispatcher.shard_leaves(0, shards.states[0].index.topics.values())
    shards.end(0)
    shards.run(0)
    assert not shards.states[0].index.leases
    assert not shards.dispatcher.prefetch.prefetched_bytes
    shards.dispatcher.queues.shard_left(0)
    assert not shards.dispatcher.queues.sick
