"""The ends of runs: each item of a run is settled once, in every order of events."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.item import Phase, ShardItem
from foqs.model.topic_name import ordered
from foqs.shard.state.events import Completion
from foqs.shard.state.ops import settle, wake
from tests.support.shards import Shards

LEASE_MS = 5_000


def with_runs(batch: int) -> Shards:
    shards = Shards(1)
    shards.set_policy("t", key_batch=batch)
    shards.dispatcher.tick()
    return shards


def put(shards: Shards, count: int, key: str = "k") -> list[ShardItem]:
    items = shards.enqueue(0, ordered("t", key), count=count)
    shards.run(0)
    return items


def take_run(shards: Shards, count: int, key: str = "k") -> list[ShardItem]:
    call = shards.dequeue({ordered("t", key): count}, LEASE_MS)
    shards.run(0)
    assert call.items is not None
    assert len(call.items) == count
    return call.items


def check_settled_once(shards: Shards, count: int) -> None:
    """All come back by transactions of whole runs, each item by one row."""
    seen: list[int] = []
    while (transaction := shards.begin(0)) is not None:
        seen += [rewrite.key for rewrite in transaction.rewrites]
        shards.end(0)
    assert len(seen) == len(set(seen)) == count
    phases = {item.phase for item in shards.states[0].index.leases.values()}
    assert phases <= {Phase.PREFETCHED}, "all are free for other calls"


@pytest.mark.parametrize("chunk_items", [1, 2, 200])
def test_leases_of_a_run_that_end_together_are_settled_once(monkeypatch: pytest.MonkeyPatch, chunk_items: int) -> None:
    monkeypatch.setattr(wake, "SWEEP_CHUNK_ITEMS", chunk_items)
    shards = with_runs(5)
    put(shards, 5)
    take_run(shards, 5)
    shards.clock_ms += 2 * LEASE_MS
    check_settled_once(shards, 5)
    attempts = [item.failed_attempts for item in take_run(shards, 5)]
    assert attempts == [1] * 5, "each lease has ended for itself"


def test_leases_of_many_runs_that_end_together_are_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "SWEEP_CHUNK_ITEMS", 4)
    shards = with_runs(3)
    shards.enqueue(0, "loose", count=10)
    for key in "abcde":
        put(shards, 3, key)
        take_run(shards, 3, key)
    shards.dequeue({"loose": 10}, LEASE_MS)
    shards.run(0)
    shards.clock_ms += 2 * LEASE_MS
    check_settled_once(shards, 25)


def test_a_run_of_which_one_tick_ends_a_part_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "TICK_LEASE_ENDS_MAX", 2)
    shards = with_runs(5)
    put(shards, 5)
    take_run(shards, 5)
    shards.clock_ms += 2 * LEASE_MS
    check_settled_once(shards, 5)


@pytest.mark.parametrize("chunk_items", [1, 200])
def test_a_new_owner_settles_the_claims_of_a_dead_one_once(monkeypatch: pytest.MonkeyPatch, chunk_items: int) -> None:
    monkeypatch.setattr(wake, "SWEEP_CHUNK_ITEMS", chunk_items)
    shards = with_runs(5)
    for key in "ab":
        put(shards, 5, key)
        take_run(shards, 5, key)
    shards.take_over()
    shards.clock_ms += LEASE_MS + 2 * limits.CLAIM_SLACK_MS + limits.AHEAD_LEASE_MS
    check_settled_once(shards, 10)


def test_an_owner_that_opens_its_shard_anew_settles_unseen_items_of_a_run_once() -> None:
    """Their claim for a call is committed, and neither the owner nor the call got to know it."""
    shards = with_runs(10)
    put(shards, 3)
    shards.dequeue({ordered("t", "k"): 3}, 20 * limits.AHEAD_LEASE_MS)
    while (transaction := shards.begin(0)) is not None and all(claim.is_ahead for claim in transaction.claims):
        shards.end(0)
    assert transaction is not None
    shards.stored[0].apply(transaction)
    unseen = shards.states[0].unseen_keys()
    assert len(unseen) == 3
    shards.take_over(unseen)
    check_settled_once(shards, 3)
    assert [item.failed_attempts for item in take_run(shards, 3)] == [0] * 3


def test_an_item_that_is_being_settled_is_not_settled_again() -> None:
    shards = with_runs(2)
    put(shards, 2)
    first, _ = take_run(shards, 2)
    state = shards.states[0]
    state.end_leases([first])
    state.settle([first])
    with pytest.raises(AssertionError, match="SETTLING cannot become SETTLING"):
        state.settle([first])


def test_an_item_that_was_claimed_for_a_call_comes_back_after_a_deletion_that_failed() -> None:
    """Its row gets the next delivery first, because a new owner would take it for delivered."""
    shards = with_runs(1)
    (item,) = put(shards, 1)
    shards.dequeue({ordered("t", "k"): 1}, 20 * limits.AHEAD_LEASE_MS)
    while (transaction := shards.begin(0)) is not None and all(claim.is_ahead for claim in transaction.claims):
        shards.end(0)
    state = shards.states[0]
    state.delete(shards.tables[0].items[item.key], Completion(lambda _: None), 0)
    shards.dispatcher.on_events(state.take_events())
    shards.end(0)
    deletion = shards.begin(0)
    assert deletion is not None
    assert deletion.deletes == [item.key]
    shards.end(0, well=False)
    shards.run(0)
    assert shards.tables[0].items[item.key].deliveries == 1
    assert item.topic.rows == 1
