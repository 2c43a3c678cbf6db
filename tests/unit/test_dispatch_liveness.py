"""No call waits for an item that could be handed out, whatever stands still beside it."""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock

import pytest

from foqs.host.shards import ttl_scan
from foqs.host.shards.ttl_scan import TtlScan
from foqs.model import limits
from foqs.model.item import ShardItem
from tests.support.shards import NAMESPACE, Shards


def sicken(shards: Shards, number: int, *, healthy: bool = False) -> None:
    shards.dispatcher.shard_health(number, shards.states[number].index.topics.values(), healthy=healthy)


def ack(shards: Shards, items: list[ShardItem]) -> None:
    for item in items:
        shard = shards.states[item.topic.shard_id]
        shard.end_leases([item])
        shard.settle([item])


def test_claims_that_a_sick_shard_keeps_do_not_count_for_the_well_ones() -> None:
    shards = Shards(2)
    shards.enqueue(0, "a", 0)
    shards.enqueue(1, "a", 1)
    call = shards.dequeue({"a": 1})
    shards.begin(0)
    sicken(shards, 0)
    shards.run(1)
    assert [item.topic.shard_id for item in call.items or []] == [1]


def test_a_call_does_not_hope_for_what_a_sick_shard_keeps() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    call = shards.dequeue({"a": 1})
    assert call.has_candidates()
    shards.begin(0)
    sicken(shards, 0)
    assert not call.has_candidates()


def test_a_steady_consumer_gets_full_batches() -> None:
    shards, sizes = Shards(1), []
    shards.allow_item_bytes(10_000)
    for _ in range(20):
        shards.enqueue(0, "a", count=1_000)
        shards.run(0)
        call = shards.dequeue({"a": 100})
        shards.run(0)
        shards.clock_ms += 120
        shards.dispatcher.tick()
        shards.run(0)
        assert call.items is not None
        sizes.append(len(call.items))
        ack(shards, call.items)
    assert sizes == [100] * 20


def test_a_consumer_that_has_just_begun_waits_for_its_first_item_alone() -> None:
    shards, waits = Shards(1), []
    shards.enqueue(0, "a", count=100)
    shards.run(0)
    shards.rest()
    for _ in range(20):
        call = shards.dequeue({"a": 1})
        waits.append(not call.items)
        shards.run(0)
        shards.clock_ms += 16
    assert waits == [True] + [False] * 19


def test_a_claim_is_made_though_others_are_made_with_all_that_is_enqueued() -> None:
    shards, batch = Shards(1), 250
    hot = [shards.dequeue({"hot": batch}) for _ in range(limits.TRANSACTION_CLAIMS_MAX // batch)]
    shards.enqueue(0, "modest")
    shards.run(0)
    shards.rest()
    modest = shards.dequeue({"modest": 1})
    for _ in range(3):
        for _ in range(2 * limits.TRANSACTION_INSERTS_MAX // batch):
            shards.enqueue(0, "hot", count=batch)
        shards.begin(0)
        shards.end(0)
        done = [call for call in hot if call.items]
        hot = [call for call in hot if not call.items] + [shards.dequeue({"hot": batch}) for _ in done]
        for call in done:
            ack(shards, call.items or [])
    assert modest.items


def test_who_waits_behind_a_call_that_ends_is_served_at_once() -> None:
    shards = Shards(2)
    for number, priority in ((0, -1), (1, 0)):
        shards.enqueue(number, "a", priority, count=3)
        shards.run(number)
    greedy = shards.dequeue({"a": 6})
    for number in (0, 1):
        shards.begin(number)
    shards.end(0)
    modest = shards.dequeue({"a": 1})
    assert (greedy.items, modest.items) == (None, None), "the first one waits for the other shard's"
    shards.dispatcher.end(greedy)
    assert [item.priority for item in modest.items or []] == [-1]


def test_a_topic_that_is_named_behind_one_with_enough_is_claimed_too() -> None:
    shards, taken = Shards(1), Counter[str]()
    shards.enqueue(0, "a", count=2_000)
    shards.run(0)
    for number in range(1_500):
        call = shards.dequeue({"a": 1, "b": 1})
        shards.run(0)
        if number == 1_000:
            shards.enqueue(0, "b", -1, count=10)
            shards.run(0)
        assert call.items
        taken.update(item.topic.name for item in call.items)
        ack(shards, call.items)
        shards.clock_ms += 5
        shards.dispatcher.tick()
        shards.run(0)
    assert taken["b"] == 10


def test_who_waits_for_more_topics_does_not_pass_who_has_waited_for_longer() -> None:
    shards = Shards(1)
    shards.states[0].index.topic(NAMESPACE, "a")  # known before b
    old = shards.dequeue({"b": 1})
    new = shards.dequeue({"a": 1, "b": 1})
    shards.enqueue(0, "a")
    shards.enqueue(0, "b")
    shards.run(0)
    assert [item.topic.name for item in old.items or []] == ["b"]
    assert [item.topic.name for item in new.items or []] == ["a"]


def test_claims_on_the_way_take_the_room_of_their_own_namespace_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    shards, large = Shards(1), NAMESPACE + 1
    shards.allow_item_bytes(10_000)
    shards.allow_item_bytes(1_100_000, large)
    shards.enqueue(0, "small", count=100)
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.shards.NAMESPACE", large)
        shards.enqueue(0, "large", count=20)
    shards.run(0)
    shards.dequeue({"small": 100})
    monkeypatch.setattr("tests.support.shards.NAMESPACE", large)
    call = shards.dequeue({"large": 20})
    transaction = shards.begin(0)
    assert transaction is not None
    shards.end(0)
    assert len(call.items or []) == 20


def test_what_has_expired_before_a_live_item_costs_few_transactions() -> None:
    shards = Shards(1)
    for item in shards.enqueue(0, "a", count=2_000):
        item.expires_at = shards.clock_ms + 1_000
    shards.enqueue(0, "a", 1)
    shards.run(0)
    shards.clock_ms += 2_000
    call = shards.dequeue({"a": 1})
    transactions_count = 0
    while call.items is None:
        assert shards.begin(0) is not None
        shards.end(0)
        transactions_count += 1
    assert transactions_count < 50


def test_a_failed_refill_is_tried_again_at_once() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    shards.take_over()
    call = shards.dequeue({"a": 1})
    shards.begin(0)
    shards.end(0, well=False)
    shards.run(0)
    assert call.items


def test_an_ack_on_a_shard_with_as_many_leases_as_it_may_have_makes_room_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 1)
    shards = Shards(1)
    shards.enqueue(0, "a", count=2)
    first, second = shards.dequeue({"a": 1}), shards.dequeue({"a": 1})
    shards.run(0)
    assert first.items
    assert second.items is None
    ack(shards, first.items)
    shards.run(0)
    assert second.items


def test_a_shard_without_room_for_claims_holds_up_nothing_of_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 1)
    shards = Shards(2)
    shards.enqueue(0, "hog", count=2)
    hog = shards.dequeue({"hog": 1})
    shards.run(0)
    assert hog.items
    shards.rest()
    shards.enqueue(0, "a", -5)
    shards.enqueue(1, "a", count=3)
    for number in (0, 1):
        shards.run(number)
    for _ in range(3):
        call = shards.dequeue({"a": 1})
        shards.run(1)
        assert [item.topic.shard_id for item in call.items or []] == [1]
        ack(shards, call.items or [])
        shards.run(1)
    call = shards.dequeue({"a": 1})
    assert not call.has_candidates()
    ack(shards, hog.items)
    shards.run(0)
    shards.dispatcher.sweep()
    shards.run(0)
    assert [item.priority for item in call.items or []] == [-5]


def test_a_topic_that_never_settles_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 100)
    shards = Shards(1)
    taken = {}
    for topic, count in (("hog", 200), ("greedy", 200), ("modest", 2)):
        shards.enqueue(0, topic, count=count)
        shards.run(0)
        calls = [shards.dequeue({topic: 1}) for _ in range(count)]
        shards.run(0)
        taken[topic] = sum(bool(call.items) for call in calls)
        for call in calls:
            shards.dispatcher.end(call)
    assert taken == {"hog": 80, "greedy": 16, "modest": 2}


def test_a_topic_without_room_goes_on_as_its_own_leases_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 10)
    shards = Shards(1)
    shards.enqueue(0, "a", count=40)
    shards.run(0)
    calls = [shards.dequeue({"a": 1}) for _ in range(40)]
    shards.run(0)
    for _ in range(40):
        settled = next((call for call in calls if call.items), None)
        assert settled is not None
        calls.remove(settled)
        ack(shards, settled.items or [])
        shards.run(0)


@pytest.mark.parametrize("is_leased", [True, False])
def test_the_ttl_scan_comes_back_for_what_it_could_not_delete(*, is_leased: bool) -> None:
    shards = Shards(1)
    (item,) = shards.enqueue(0, "a")
    item.expires_at = shards.clock_ms + 1_000
    shards.run(0)
    if is_leased:
        assert shards.dequeue({"a": 1}, 5_000).items is None
        shards.run(0)
    shards.clock_ms += 2_000
    shard = shards.states[0]
    shard.index.expires_first_ms = shards.clock_ms + ttl_scan.EXPIRY_LAP_MS_MAX
    writer = Mock(shard_id=0, shard=shard, now=lambda: shards.now(0), now_ms=lambda: shards.clock_ms)
    TtlScan(writer, Mock(), Mock(), Mock())._expire(shard, [item.key])
    shards.begin(0)
    shards.end(0, well=is_leased)
    assert shard.index.expires_first_ms <= shards.clock_ms + 5_000
