"""What a shard says of its inserts, and which of its settlements go after a transaction that failed."""

from __future__ import annotations

import pytest

from foqs.model import order
from foqs.model.item import Phase, ShardItem
from foqs.shard.state.events import Completion
from tests.support.shards import NAMESPACE, Shards


@pytest.fixture
def one() -> Shards:
    """A shard whose topic "t" is there, and whose window is complete."""
    shards = Shards(1)
    shards.enqueue(0, "t")
    shards.run(0)
    shards.states[0].index.topic(NAMESPACE, "t").window.edge = order.LAST
    return shards


def leased(shards: Shards, count: int) -> list[ShardItem]:
    """Out of topic "t"."""
    call = shards.dequeue({"t": count})
    shards.run(0)
    items, state = list(call.items), shards.states[0]
    for item in items:
        if item.phase is Phase.PREFETCHED:
            state.deliver([item], shards.clock_ms + 30_000)
    return items


def settle(shards: Shards, item: ShardItem, *, delay_ms: int | None = None) -> None:
    shard = shards.states[0]
    shard.end_leases([item])
    rewrites = None
    if delay_ms is not None:
        rewrites = [shard.failed_attempt(item, shards.clock_ms, delay_ms=delay_ms)]
    shard.settle([item], rewrites, Completion(lambda _: None), [0])


def keys(items: list[ShardItem]) -> set[int]:
    return {item.key for item in items}


def test_what_has_its_turn_soon_is_said_to_be_short_lived(one: Shards) -> None:
    one.enqueue(0, "other")
    one.run(0)
    one.states[0].index.topic(NAMESPACE, "other").window.edge = order.FIRST
    soon = one.enqueue(0, "t", count=3)
    behind, delayed = one.enqueue(0, "other", count=3), one.enqueue(0, "t", delay_ms=1, count=3)
    transaction = one.begin(0)
    assert transaction is not None
    assert keys(transaction.inserts_short_lived) == keys(soon)
    assert keys(transaction.inserts) == keys([*behind, *delayed])


@pytest.mark.parametrize("why", ["nacked", "its lease has ended"])
def test_acks_go_without_what_may_need_room_after_a_transaction_that_failed(one: Shards, why: str) -> None:
    one.enqueue(0, "t", count=9)
    one.run(0)
    other, *acked = leased(one, 7)
    state = one.states[0]
    if why == "nacked":
        settle(one, other, delay_ms=1_000)
    else:
        state.leases.resume(other, one.clock_ms)
        one.clock_ms += 200
    outcomes = []
    for item in acked:
        settle(one, item)
        transaction = one.begin(0)
        assert transaction is not None
        assert item.key in transaction.deletes
        outcomes.append(not transaction.rewrites)
        one.end(0, well=outcomes[-1])
        if why == "nacked" and not outcomes[-1]:
            settle(one, other, delay_ms=1_000)  # Its caller tries again.
    assert outcomes == [False, True] * 3


def test_without_acks_the_others_go_after_a_failure_too(one: Shards) -> None:
    one.enqueue(0, "t", count=2)
    one.run(0)
    item = leased(one, 1)[0]
    one.states[0].leases.resume(item, one.clock_ms)
    one.clock_ms += 200
    for well in (False, True):
        transaction = one.begin(0)
        assert transaction is not None
        assert [rewrite.key for rewrite in transaction.rewrites] == [item.key]
        one.end(0, well=well)


def test_an_ack_goes_with_the_nacks_that_came_before_it(one: Shards) -> None:
    one.enqueue(0, "t", count=30)
    one.run(0)
    acked, *nacked = leased(one, 21)
    for item in nacked:
        settle(one, item, delay_ms=1_000)
    settle(one, acked)
    transaction = one.begin(0)
    assert transaction is not None
    assert transaction.deletes == [acked.key]
    assert len(transaction.rewrites) == 20
