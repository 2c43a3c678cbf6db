"""What a claim says of who has an item: made ahead of consumers, or for a call; and what a new owner makes of it."""

from __future__ import annotations

import pytest

from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits
from foqs.model.item import Phase, ShardItem
from foqs.shard.state.events import Completion
from tests.support.shards import NAMESPACE, Shards

UNSEEN_MS_MAX = 40_000
LONG_MS = 600_000


def take(shards: Shards, count: int, lease_ms: int | None = None, topics: str = "a") -> list[ShardItem]:
    """What one call gets that waits for nothing."""
    call = shards.dequeue(dict.fromkeys(topics, count), lease_ms)
    shards.run(0)
    shards.dispatcher.end(call)
    return call.items or []


def consume(shards: Shards, lease_ms: int | None = None) -> list[ShardItem]:
    """Everything, by calls that come again and again."""
    taken: list[ShardItem] = []
    while items := take(shards, 10, lease_ms):
        taken += items
    return taken


def stored(shards: Shards) -> list[tuple[int, int]]:
    """(deliveries, failed attempts) of the rows."""
    return [(row.deliveries, row.failed_attempts) for row in shards.tables[0].items.values()]


def prefetched(lease_ms: int | None = None, *, at_most_once: bool = False) -> tuple[Shards, list[ShardItem]]:
    """Some items that are claimed and that no consumer has seen, beside one that a consumer has."""
    shards = Shards(1)
    shards.enqueue(0, "a", count=30)
    shards.run(0)
    seen = take(shards, 10, lease_ms)
    shards.clock_ms += 200
    shards.dispatcher.sweep()
    shards.run(0)
    shards.enqueue(0, "a", -1, count=5, at_most_once=at_most_once)
    shards.run(0)
    shards.dispatcher.sweep()
    shards.run(0)
    assert [item.phase for item in shards.states[0].index.leases.values()].count(Phase.PREFETCHED) > 5
    return shards, seen


def crash(shards: Shards, after_ms: int = 0) -> None:
    shards.take_over()
    shards.run(0)
    shards.clock_ms += after_ms
    shards.run(0)


@pytest.mark.parametrize("lease_ms", [None, LONG_MS])
def test_what_no_consumer_saw_comes_within_40_s_of_a_crash_as_attempt_1(lease_ms: int | None) -> None:
    shards, seen = prefetched(lease_ms)
    crash(shards, UNSEEN_MS_MAX)
    again = consume(shards)
    assert len(again) == 25 + 10 * (lease_ms is None)
    assert {item.failed_attempts for item in again} == {0}
    if lease_ms is None:
        assert {item.key for item in seen}.issubset([item.key for item in again])
        old = {item.receipt for item in seen}
        assert old.isdisjoint([item.receipt for item in again]), "a receipt of before the crash is stale"


def test_what_was_claimed_ahead_is_nobody_elses_until_its_claim_ends() -> None:
    shards, seen = prefetched()
    crash(shards, limits.AHEAD_LEASE_MS - 1_000)
    assert not {item.key for item in consume(shards)} & {item.key for item in seen}


def test_a_long_lease_is_committed_before_it_is_handed_out_and_outlives_the_host() -> None:
    shards, seen = prefetched(LONG_MS)
    claims = {key: claim for claim in shards.tables[0].claims.values() for key, _ in claim.entries}
    assert all(not claims[item.key].is_ahead and claims[item.key].due_at >= item.lease_due_at for item in seen)
    crash(shards, LONG_MS - 1_000)
    assert not {item.key for item in consume(shards)} & {item.key for item in seen}
    shards.clock_ms += 2 * limits.CLAIM_SLACK_MS
    shards.run(0)
    again = [item for item in consume(shards) if item.key in {item.key for item in seen}]
    assert len(again) == len(seen)
    assert {item.failed_attempts for item in again} == {1}, "who had it has failed"


def test_a_lease_that_ends_while_its_owner_lives_is_a_failed_attempt_though_it_was_claimed_ahead() -> None:
    shards, seen = prefetched()
    shards.clock_ms += limits.AHEAD_LEASE_MS + 1_000
    shards.run(0)
    again = {item.key: item.failed_attempts for item in consume(shards)}
    assert {again[item.key] for item in seen} == {1}


def test_an_item_that_is_delivered_at_most_once_is_ready_at_once_when_only_prefetched() -> None:
    shards, _ = prefetched(at_most_once=True)
    crash(shards)
    once = [item for item in consume(shards) if item.at_most_once]
    assert len(once) == 5
    crash(shards, 2 * UNSEEN_MS_MAX)
    assert not [item for item in consume(shards) if item.at_most_once], "delivered, so it never comes again"


def test_an_item_that_is_delivered_at_most_once_is_handed_out_under_a_claim_of_its_call() -> None:
    shards, _ = prefetched(at_most_once=True)
    once = [item for item in consume(shards) if item.at_most_once]
    claims = {key: claim for claim in shards.tables[0].claims.values() for key, _ in claim.entries}
    assert len(once) == 5
    assert not any(claims[item.key].is_ahead for item in once)


def claimed_for_a_call_that_ended(lease_ms: int, *, at_most_once: bool) -> tuple[Shards, DequeueCall]:
    shards = Shards(1)
    shards.enqueue(0, "a", count=3, at_most_once=at_most_once)
    shards.run(0)
    call = shards.dequeue({"a": 3}, lease_ms)
    shards.begin(0)
    shards.end(0)
    assert call.items is None
    shards.begin(0)
    shards.dispatcher.end(call)
    shards.end(0)
    return shards, call


@pytest.mark.parametrize(("lease_ms", "at_most_once"), [(LONG_MS, False), (1_000, True)])
def test_what_was_claimed_for_a_call_that_has_ended_goes_back_at_once(lease_ms: int, *, at_most_once: bool) -> None:
    shards, call = claimed_for_a_call_that_ended(lease_ms, at_most_once=at_most_once)
    assert call.items == []
    shards.run(0)
    assert stored(shards) == [(1, 0)] * 3, "a new owner takes none of them for delivered"
    crash(shards)
    assert [item.failed_attempts for item in consume(shards, lease_ms)] == [0] * 3


@pytest.mark.parametrize(("lease_ms", "at_most_once"), [(LONG_MS, False), (1_000, True)])
def test_a_claim_that_waits_when_its_call_ends_is_not_made_for_that_call(lease_ms: int, *, at_most_once: bool) -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=3, at_most_once=at_most_once)
    shards.run(0)
    call = shards.dequeue({"a": 3}, lease_ms)
    shards.begin(0)
    shards.end(0)
    shards.dispatcher.end(call)
    shards.run(0)
    assert call.items == []
    assert all(claim.is_ahead for claim in shards.tables[0].claims.values())
    assert stored(shards) == [(0, 0)] * 3, "there is nothing to undo"
    assert len(take(shards, 3, lease_ms)) == 3


def test_a_claim_that_waits_for_a_call_is_made_for_it_whichever_other_call_ends() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", at_most_once=True)
    shards.enqueue(0, "b", at_most_once=True)
    shards.run(0)
    first, second, other = shards.dequeue({"a": 1}), shards.dequeue({"a": 1}), shards.dequeue({"b": 1})
    shards.begin(0)
    shards.end(0)
    for call in (second, other):
        shards.dispatcher.end(call)
    shards.run(0)
    assert len(first.items or []) == 1
    claims = {key: claim for claim in shards.tables[0].claims.values() for key, _ in claim.entries}
    assert sorted(claim.is_ahead for claim in claims.values()) == [False, True]


def test_what_was_claimed_for_a_call_that_has_ended_goes_back_as_each_of_its_shards_brings_it() -> None:
    shards = Shards(2)
    for number in (0, 1):
        shards.enqueue(number, "a", at_most_once=True)
        shards.run(number)
    call = shards.dequeue({"a": 2})
    for number in (0, 1):
        shards.begin(number)
        shards.end(number)
    for number in (0, 1):
        assert [claim.is_ahead for claim in shards.begin(number).claims] == [False]
    shards.dispatcher.end(call)
    for number in (0, 1):
        shards.end(number)
        shards.run(number)
        assert not shards.dispatcher.queues.prefetched(NAMESPACE, "a")
        assert [row.deliveries for row in shards.tables[number].items.values()] == [1], "nobody takes it for delivered"


def test_what_was_claimed_for_a_call_that_has_ended_is_for_the_next_one() -> None:
    shards, _ = claimed_for_a_call_that_ended(1_000, at_most_once=True)
    shards.run(0)
    assert len(take(shards, 3, 1_000)) == 3


def test_who_always_gets_something_of_one_topic_gets_what_is_delivered_at_most_once_of_another() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=1_000)
    shards.enqueue(0, "b", count=20, at_most_once=True)
    shards.run(0)
    once: list[ShardItem] = []
    for _ in range(10):
        once += [item for item in take(shards, 10, topics="ab") if item.at_most_once]
    assert len(once) == 20


def test_a_call_waits_no_longer_than_its_bound_for_claims_of_its_own() -> None:
    shards = Shards(2)
    shards.enqueue(0, "a")
    shards.enqueue(1, "b", at_most_once=True)
    for number in (0, 1):
        shards.run(number)
    call = shards.dequeue({"a": 1, "b": 1})
    shards.begin(1)
    shards.end(1)
    shards.run(0)  # The claim for the call is on the way to the other shard, and stays there.
    assert call.items is None
    shards.clock_ms += limits.LINGER_MS_MAX + 1
    shards.dispatcher.tick()
    assert [item.topic.name for item in call.items or []] == ["a"]
    shards.run(1)
    assert [item.topic.name for item in take_of(shards, 1, "b")] == ["b"]


def take_of(shards: Shards, number: int, topic: str) -> list[ShardItem]:
    call = shards.dequeue({topic: 1})
    shards.run(number)
    return call.items or []


def test_nothing_is_handed_out_past_an_item_that_is_being_claimed_for_a_call() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", -1, at_most_once=True)
    shards.enqueue(0, "a", count=5)
    shards.run(0)
    first, second = shards.dequeue({"a": 1}), shards.dequeue({"a": 1})
    shards.begin(0)
    shards.end(0)
    assert (first.items, second.items) == (None, None)
    shards.run(0)
    assert [item.priority for item in [*(first.items or []), *(second.items or [])]] == [-1, 0]


def test_an_extension_says_that_somebody_holds_the_item() -> None:
    shards, seen = prefetched()
    for item in seen:
        shards.states[0].extend(item, 10_000, Completion(lambda _: None), 0)
    shards.run(0)
    crash(shards, UNSEEN_MS_MAX)
    again = {item.key: item.failed_attempts for item in consume(shards)}
    assert {again[item.key] for item in seen} == {1}


def test_a_claim_stays_what_it_was_when_it_is_rewritten_and_when_it_changes_hands_twice() -> None:
    shards, seen = prefetched()
    for item in seen[1:]:
        shards.states[0].end_leases([item])
    shards.states[0].settle(seen[1:], None, Completion(lambda _: None), [0])
    shards.states[0].make_exact()
    shards.run(0)
    crash(shards)
    crash(shards, UNSEEN_MS_MAX)
    again = consume(shards)
    assert seen[0].key in [item.key for item in again]
    assert {item.failed_attempts for item in again} == {0}


def claimed_for_one_call_while_another_waits() -> tuple[Shards, DequeueCall]:
    """An item that was claimed for a call that is gone, and is held for one that wants a longer lease."""
    shards = Shards(1)
    shards.enqueue(0, "a", at_most_once=True)
    shards.run(0)
    first, second = shards.dequeue({"a": 1}, 1_000), shards.dequeue({"a": 1}, LONG_MS)
    shards.begin(0)
    shards.end(0)
    shards.begin(0)
    shards.dispatcher.end(first)
    shards.end(0)
    assert second.items is None
    return shards, second


def test_a_claim_for_a_call_that_could_not_be_made_anew_takes_nothing_for_delivered() -> None:
    shards, second = claimed_for_one_call_while_another_waits()
    assert shards.begin(0) is not None
    shards.dispatcher.end(second)
    shards.end(0, well=False)
    shards.run(0)
    crash(shards)
    assert len(consume(shards)) == 1


def test_what_was_claimed_for_a_call_and_could_not_be_deleted_is_not_taken_for_delivered() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", at_most_once=True)
    shards.run(0)
    first, second = shards.dequeue({"a": 1}, 1_000), shards.dequeue({"a": 1, "b": 1}, 1_000)
    shards.begin(0)
    shards.end(0)
    shards.begin(0)
    shard, tables = shards.states[0], shards.tables[0]
    (row,) = tables.items.values()
    shard.delete(row, Completion(lambda _: None), 0)
    shards.dispatcher.on_events(shard.take_events())
    shards.end(0)
    shards.begin(0)
    for call in (first, second):
        shards.dispatcher.end(call)
    shards.end(0, well=False)
    shards.run(0)
    crash(shards)
    assert len(consume(shards)) == 1


@pytest.mark.parametrize(("lease_ms", "at_most_once"), [(LONG_MS, False), (1_000, True)])
def test_calls_that_wait_behind_one_another_get_their_claims_with_one_commit(
    lease_ms: int, *, at_most_once: bool
) -> None:
    shards = Shards(2)
    for number in (0, 1):
        shards.enqueue(number, "a", count=40, at_most_once=at_most_once)
        shards.run(number)
    calls = [shards.dequeue({"a": 1 + at % 2}, lease_ms) for at in range(32)]
    for _ in range(3):
        for number in (0, 1):
            if shards.begin(number) is not None:
                shards.end(number)
    assert [len(call.items or []) for call in calls] == [1 + at % 2 for at in range(32)]
    sort_keys = [item.sort_key for call in calls for item in call.items or []]
    assert sort_keys == sorted(sort_keys)
    claims = {key: claim for claim in shards.tables[0].claims.values() for key, _ in claim.entries}
    for item in [item for call in calls for item in call.items or [] if item.topic.shard_id == 0]:
        assert not claims[item.key].is_ahead
        assert claims[item.key].due_at >= item.lease_due_at


@pytest.mark.parametrize("at_most_once", [False, True])
def test_who_opens_its_own_shard_again_knows_what_was_claimed_for_a_call_that_got_nothing(at_most_once: bool) -> None:
    shards = Shards(1)
    (item,) = shards.enqueue(0, "a", at_most_once=at_most_once)
    shards.run(0)
    call = shards.dequeue({"a": 1}, LONG_MS)
    while (transaction := shards.begin(0)) is not None and not any(not claim.is_ahead for claim in transaction.claims):
        shards.end(0)
    assert transaction is not None
    shards.stored[0].apply(transaction)  # The answer is lost, and with it the session.
    shards.dispatcher.end(call)
    unseen = shards.states[0].unseen_keys()
    assert unseen == {item.key}
    shards.take_over(unseen)
    shards.run(0)
    (again,) = consume(shards)
    assert (again.key, again.failed_attempts) == (item.key, 0)


def test_what_a_consumer_has_stays_under_its_lease_when_the_shard_is_opened_again() -> None:
    shards, seen = prefetched(LONG_MS)
    unseen = shards.states[0].unseen_keys()
    assert unseen.isdisjoint({item.key for item in seen})
    shards.take_over(unseen)
    shards.run(0)
    assert {item.key for item in consume(shards)}.isdisjoint({item.key for item in seen})
    assert {item.key for item in seen} <= shards.states[0].index.leases.keys()
