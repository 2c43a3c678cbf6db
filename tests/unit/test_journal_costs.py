"""What a transaction does for claims is in proportion to its own claims, whatever else is leased or waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, ValuesView
from typing import Any, NoReturn

import pytest

from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.state import journal
from foqs.shard.state.events import Completion
from tests.support.shards import Shards


class Unwalked(dict[int, ShardItem]):
    """May be looked into, and not looked through."""

    def values(self) -> ValuesView[ShardItem]:
        raise AssertionError("all of it is walked")

    def items(self) -> Any:
        raise AssertionError("all of it is walked")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all of it is walked")


def taken(shards: Shards, count: int) -> list[ShardItem]:
    call = shards.dequeue({"a": count})
    shards.run(0)
    return call.items or []


@pytest.fixture
def shards() -> Shards:
    shards = Shards(1)
    shards.enqueue(0, "a", count=500)
    shards.run(0)
    return shards


def ack(shards: Shards, items: list[ShardItem]) -> None:
    shard = shards.states[0]
    for item in items:
        shard.end_leases([item])
    shard.settle(items, None, Completion(lambda _: None), list(range(len(items))))


@pytest.mark.parametrize("fails", [False, True])
def test_a_claim_is_rewritten_with_what_it_still_leases_and_no_look_at_other_leases(
    shards: Shards, *, fails: bool
) -> None:
    items = taken(shards, 300)
    claim = items[0].claim
    assert claim is not None
    assert len(claim.keys) >= journal.CLAIM_REWRITE_ITEMS_MIN
    kept = [item for item in items if item.claim is claim][-3:]
    ack(shards, [item for item in items if item not in kept])
    shards.begin(0)
    shards.end(0)
    index = shards.states[0].index
    index.leases = Unwalked(index.leases)
    shards.clock_ms += journal.CLAIM_REWRITE_EVERY_MS
    for well in [False, True] if fails else [True]:
        shards.enqueue(0, "b")
        transaction = shards.states[0].take(shards.now(0), {})
        assert transaction is not None
        assert [entries.id for entries in transaction.claims_rewritten] == [claim.id]
        shards.end(0, well=well)
        shards.clock_ms += journal.CLAIM_REWRITE_EVERY_MS
    assert [key for key, _ in shards.tables[0].claims[claim.id].entries] == [item.key for item in kept]
    assert list(claim.keys) == [item.key for item in kept]


class Unasked(ShardTopic):
    """A topic that nobody may tell of claims."""

    @property  # type: ignore[override]
    def claim_head(self) -> NoReturn:
        raise AssertionError("its claims wait on")

    @claim_head.setter
    def claim_head(self, sort_key: int) -> NoReturn:
        raise AssertionError("its claims wait on")


@pytest.mark.interpreted
def test_the_end_of_a_topics_claims_looks_at_no_claims_of_others() -> None:
    shards = Shards(1)
    shards.enqueue(0, "b", count=5)
    shards.run(0)
    shard = shards.states[0]
    other = shard.index.topic(7, "b")
    call = shards.dequeue({"b": 5})
    waiting = list(shard.claims.waiting.values())
    assert len(waiting) == 5
    for item in waiting:
        item.topic = Unasked.__new__(Unasked)
    (item,) = shards.enqueue(0, "a")
    shard.claims.end(item.topic, [item], [])
    for item in waiting:
        item.topic = other
    shards.run(0)
    assert len(call.items or []) == 5


class UnwalkedInOrder(OrderedDict[int, ShardItem]):
    """May be looked into, and not looked through."""

    def values(self) -> NoReturn:
        raise AssertionError("all of it is walked")

    items = keys = __iter__ = values


def test_the_end_of_a_topics_last_call_looks_at_no_claims_for_calls_of_other_topics() -> None:
    shards = Shards(1)
    for name in ("a", "b"):
        shards.enqueue(0, name, count=5)
    shards.run(0)
    calls = {name: shards.dequeue({name: 5}, 600_000) for name in ("a", "b")}
    shards.begin(0)
    shards.end(0)
    claims = shards.states[0].claims
    assert len(claims.waiting_for_calls) == 10
    claims.waiting_for_calls = UnwalkedInOrder(claims.waiting_for_calls)
    shards.dispatcher.end(calls["a"])
    assert len(claims.waiting_for_calls) == 5
    shards.run(0)
    assert (calls["a"].items, len(calls["b"].items or [])) == ([], 5)
