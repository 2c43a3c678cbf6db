"""When a lease ends: extensions beside each other, beside acks, and in slow transactions."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.errors import FoqsError, OverloadedError
from foqs.model.item import Phase, ShardItem
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion
from foqs.shard.state.ops import settle
from tests.support.shards import Shards, tick


class Leased:
    """One item under a lease of 5 s, and what callers are told."""

    def __init__(self) -> None:
        self.shards = Shards(1)
        self.shards.enqueue(0, "a")
        call = self.shards.dequeue({"a": 1}, 5_000)
        self.shards.run(0)
        assert call.items is not None
        (self.item,) = call.items
        self.told: list[dict[int, FoqsError]] = []

    @property
    def shard(self) -> ShardState:
        return self.shards.states[0]

    def completion(self) -> Completion:
        return Completion(lambda completion: self.told.append(completion.errors))

    def extend(self, lease_ms: int) -> None:
        self.shard.extend(self.item, lease_ms, self.completion(), 0)

    def ack(self) -> None:
        self.shard.end_leases([self.item])
        self.shard.settle([self.item], None, self.completion(), [0])

    def pass_ms(self, elapsed_ms: int) -> None:
        self.shards.clock_ms += elapsed_ms
        tick(self.shard, self.shards.dispatcher, self.shards.now(0))


def lease_out(shards: Shards, count: int) -> list[ShardItem]:
    """So many thousand items of topic "b", for 5 s."""
    for _ in range(count // 1_000):
        shards.enqueue(0, "b", count=1_000)
        shards.run(0)
    leased: list[ShardItem] = []
    while len(leased) < count:
        call = shards.dequeue({"b": 1_000}, 5_000)
        shards.run(0)
        leased += call.items or []
    return leased


@pytest.fixture
def leased() -> Leased:
    return Leased()


def test_of_two_extensions_in_one_transaction_the_later_one_counts(leased: Leased) -> None:
    leased.extend(1_000)
    leased.extend(60_000)
    leased.shards.run(0)
    assert leased.told == [{}, {}]
    assert leased.item.lease_due_at == leased.shards.clock_ms + 60_000
    leased.pass_ms(59_900)
    assert leased.item.phase is Phase.LEASED
    leased.pass_ms(300)
    assert leased.item.phase is Phase.SETTLING


def test_the_ends_of_two_extensions_in_one_tick_are_one_end(leased: Leased) -> None:
    """As after a turn of the event loop of 100 ms and more."""
    leased.extend(1_000)
    leased.extend(1_100)
    leased.shards.run(0)
    leased.pass_ms(1_300)
    assert leased.item.phase is Phase.SETTLING


def test_an_extension_that_was_answered_holds_though_an_ack_beside_it_failed(leased: Leased) -> None:
    leased.extend(60_000)
    leased.shards.begin(0)
    leased.ack()
    leased.shards.end(0)
    leased.shards.begin(0)
    leased.shards.end(0, well=False)
    assert [bool(errors) for errors in leased.told] == [False, True]
    leased.pass_ms(10_000)
    assert leased.item.phase is Phase.LEASED


def test_an_extension_whose_transaction_took_longer_than_its_lease_is_written_anew(leased: Leased) -> None:
    """As after a lost session, when the transaction is run again though the ends of its claims were fixed before."""
    leased.extend(5_000)
    leased.shards.begin(0)
    leased.shards.clock_ms += 15_000
    leased.shards.end(0)
    assert leased.told == []
    leased.shards.run(0)
    assert leased.told == [{}]
    assert leased.item.lease_due_at == leased.shards.clock_ms + 5_000


def test_leases_that_end_together_are_ended_by_several_transactions() -> None:
    shards = Shards(1)
    leased = lease_out(shards, 10_000)
    shards.clock_ms += 60_000
    transaction = shards.begin(0)
    assert transaction is not None
    assert 0 < len(transaction.rewrites) <= limits.TRANSACTION_LEASE_ENDS_MAX
    shards.end(0)
    shards.run(0)
    assert all(item.phase is not Phase.LEASED for item in leased)


def test_an_ack_does_not_wait_for_leases_that_ended_before_it(leased: Leased) -> None:
    leased.extend(60_000)
    shards = leased.shards
    lease_out(shards, 2 * limits.TRANSACTION_LEASE_ENDS_MAX)
    shards.clock_ms += 10_000
    leased.shard.tick(shards.now(0))
    leased.ack()
    transaction = shards.begin(0)
    assert transaction is not None
    assert transaction.deletes == [leased.item.key]
    assert len(transaction.rewrites) >= limits.TRANSACTION_LEASE_ENDS_MAX, "they are not held up either"


def test_one_tick_ends_no_more_leases_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "TICK_LEASE_ENDS_MAX", 3)
    shards = Shards(1)
    shards.enqueue(0, "a", count=10)
    shards.run(0)
    call = shards.dequeue({"a": 10}, 1_000)
    shards.run(0)
    shards.clock_ms += 2_000
    ended = [shards.states[0].settlements.tick(shards.now(0)) for _ in range(5)]
    assert ended == [3, 3, 3, 1, 0]
    assert all(item.phase is Phase.SETTLING for item in call.items or [])


def test_extensions_that_wait_for_a_server_that_hangs_are_bounded(
    leased: Leased, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXTENSIONS_WAITING_MAX", 3)
    leased.shards.enqueue(0, "a")
    leased.shards.begin(0)
    for _ in range(3):
        leased.extend(60_000)
    for _ in range(2):
        with pytest.raises(OverloadedError):
            leased.extend(60_000)
    leased.shards.end(0)
    leased.shards.run(0)
    assert leased.told == [{}] * 3
