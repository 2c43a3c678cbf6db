"""Reads that wait for a server's disk are made before the transaction that needs them, which waits for nothing."""

from __future__ import annotations

import pytest

from foqs.core import limits
from foqs.shard.prereads import Prereads, Reads
from foqs.storage.transaction import Preread, Refill, Transaction
from tests.support.shards import NAMESPACE, Shards

SLOW_US = 1_000_000
COUNT = 40


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Two topics of COUNT items whose rows nobody has in memory, and reads of them that were slow."""
    monkeypatch.setattr(limits, "PREREAD_ITEMS_MAX", 10)
    monkeypatch.setattr(limits, "RESIDENT_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "WARM_UPS_PER_TICK", 0)
    shards = Shards(1)
    for topic in ("a", "b"):
        shards.enqueue(0, topic, count=COUNT)
    shards.run(0)
    shards.take_over()
    shards.states[0].book.prereads.read(1, SLOW_US, shards.clock_ms)
    return shards


def preread(shards: Shards, *, elapsed_us: int = SLOW_US) -> Reads:
    """The next one, done."""
    shard = shards.states[0]
    reads = shard.next_preread()
    assert reads is not None
    shard.book.prereads.ended(reads, Preread(1, elapsed_us), shards.clock_ms)
    return reads


def step(shards: Shards) -> Transaction | None:
    """The next transaction, and its end."""
    transaction = shards.begin(0)
    if transaction is not None:
        shards.end(0)
    return transaction


def lanes(refills: list[Refill]) -> list[int]:
    return [refill.lane for refill in refills]


@pytest.mark.parametrize(
    ("row_count", "elapsed_us", "is_slow"),
    [
        (1, limits.COLD_READ_US_MIN, True),
        (1, limits.COLD_READ_US_MIN - 1, False),
        (1_000, 1_000 * limits.COLD_READ_ROW_US_MIN, True),
        (1_000, 1_000 * limits.COLD_READ_ROW_US_MIN - 1, False),
        (0, limits.COLD_READ_US_MIN, True),
    ],
)
def test_reads_are_slow_when_all_of_them_and_each_row_took_long(row_count: int, elapsed_us: int, is_slow: bool) -> None:
    prereads = Prereads()
    prereads.read(row_count, elapsed_us, 0)
    assert prereads.is_due == is_slow
    assert (prereads.may_refill(1), prereads.may_fetch(1)) == (not is_slow, not is_slow)


def test_what_was_not_read_ahead_is_not_read_and_holds_nothing_else_up(shards: Shards) -> None:
    call = shards.dequeue({"a": 5})
    shards.enqueue(0, "b", count=3)
    transaction = step(shards)
    assert transaction is not None
    assert (len(transaction.inserts), transaction.refills, transaction.fetches) == (3, [], [])
    assert step(shards) is None, "what waits for a preread is no reason for a transaction"
    assert not call.items


def test_what_was_read_ahead_is_in_the_next_transaction_and_no_more(shards: Shards) -> None:
    call = shards.dequeue({"a": 5})
    assert step(shards) is None
    read_lanes, fetched_keys = set(), set()
    while not call.items:
        reads = preread(shards)
        assert all(refill.limit == limits.PREREAD_ITEMS_MAX for refill in reads.refills)
        assert len(reads.keys) <= limits.PREREAD_ITEMS_MAX
        transaction = step(shards)
        assert transaction is not None
        assert sorted(lanes(transaction.refills)) == sorted(lanes(reads.refills))
        assert [item.key for item in transaction.fetches] == reads.keys
        read_lanes.update(lanes(reads.refills))
        fetched_keys.update(reads.keys)
    assert read_lanes >= {shards.states[0].book.topic(NAMESPACE, "a").number}
    assert fetched_keys >= {item.key for item in call.items}


def test_one_preread_at_a_time_and_none_before_its_transaction(shards: Shards) -> None:
    shards.dequeue({"a": 5})
    assert step(shards) is None
    shard = shards.states[0]
    preread(shards)
    assert shard.next_preread() is None
    step(shards)
    assert shard.next_preread() is not None


def test_a_transaction_that_could_not_take_what_was_read_leaves_it_to_another_preread(shards: Shards) -> None:
    shards.dequeue({"a": 5})
    assert step(shards) is None
    shard = shards.states[0]
    reads = preread(shards)
    assert shards.begin(0) is not None
    shards.end(0, well=False)
    shards.dispatcher.touched(shard.book.topic(NAMESPACE, "a"))
    assert shard.next_preread() == reads


@pytest.mark.parametrize(("fast_ms", "is_cold"), [(limits.COLD_MS - 1, True), (limits.COLD_MS, False)])
def test_reads_that_have_been_fast_for_a_while_go_with_their_transactions(
    shards: Shards, fast_ms: int, is_cold: bool
) -> None:
    shards.dequeue({"a": 5, "b": 5})
    assert step(shards) is None
    shards.clock_ms += fast_ms
    preread(shards, elapsed_us=1)
    transaction = step(shards)
    assert transaction is not None
    topics = [shards.states[0].book.topic(NAMESPACE, name).number for name in ("a", "b")]
    assert [lane for lane in topics if lane in lanes(transaction.refills)] == topics[: 1 if is_cold else 2]
    assert (shards.states[0].next_preread() is not None) == is_cold


def test_a_preread_that_fails_lets_transactions_read_for_themselves_for_a_while(shards: Shards) -> None:
    call = shards.dequeue({"a": COUNT})
    assert step(shards) is None
    prereads = shards.states[0].book.prereads
    prereads.failed(shards.clock_ms)
    shards.run(0)
    assert len(call.items) == COUNT
    prereads.read(1, SLOW_US, shards.clock_ms + limits.PREREAD_PAUSE_MS - 1)
    assert not prereads.is_due
    prereads.read(1, SLOW_US, shards.clock_ms + limits.PREREAD_PAUSE_MS)
    assert prereads.is_due


def test_a_shard_that_drains_waits_for_no_preread(shards: Shards) -> None:
    call = shards.dequeue({"a": COUNT})
    assert step(shards) is None
    reads = shards.states[0].next_preread()
    assert reads is not None
    shards.states[0].book.prereads.give_up()
    shards.states[0].book.prereads.ended(reads, Preread(1, SLOW_US), shards.clock_ms)
    shards.run(0)
    assert len(call.items) == COUNT
    shards.states[0].book.prereads.read(1, SLOW_US, shards.clock_ms)
    assert shards.states[0].next_preread() is None


def test_delayed_items_are_read_ahead_too(shards: Shards) -> None:
    shard = shards.states[0]
    assert shard.timers.first() is not None
    assert 0 in lanes(preread(shards).refills)
    transaction = step(shards)
    assert transaction is not None
    assert 0 in lanes(transaction.refills)
