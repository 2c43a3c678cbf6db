"""Leases count on the shard's steady clock, whatever its server's clock does, from one owner to the next."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.item import ShardItem
from foqs.shard.state import engine
from foqs.shard.state.engine import ShardState
from tests.support.shards import Shards

HOUR_MS = 3_600_000
LEASE_MS = 30_000


@pytest.fixture
def shards() -> Shards:
    return Shards(1)


def leased_item(shards: Shards, lease_ms: int = LEASE_MS) -> ShardItem:
    shards.enqueue(0, "t")
    call = shards.dequeue({"t": 1}, lease_ms)
    shards.run(0)
    assert call.items is not None
    (item,) = call.items
    return item


def is_leased(shards: Shards) -> bool:
    shards.run(0)
    return bool(shards.states[0].under_lease)


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_lease_ends_by_its_own_length_whatever_the_servers_clock_does(shards: Shards, step_ms: int) -> None:
    item = leased_item(shards)
    shards.server_ahead_ms += step_ms
    shards.clock_ms += LEASE_MS - 1
    assert is_leased(shards)
    shards.clock_ms += 101
    assert not is_leased(shards)
    assert shards.tables[0].items[item.key].failed_attempts == 1


def take_over(shards: Shards) -> ShardState:
    shards.states[0] = ShardState(0, shards.stored[0].open(), shards.settings)
    shards.clock_ms = shards.tables[0].writer.steady_ms  # Of the new owner's clock.
    return shards.states[0]


def test_over_any_number_of_owners_a_lease_ends_later_and_never_earlier(shards: Shards) -> None:
    leased_item(shards)
    left_ms = LEASE_MS
    for _ in range(5):
        shards.clock_ms += 4_000
        left_ms -= 4_000
        shards.run(0)  # It writes how far it came.
        shards.server_ahead_ms += HOUR_MS
        take_over(shards)
    shards.clock_ms += left_ms - 1
    assert is_leased(shards)
    shards.clock_ms += limits.CLAIM_SLACK_MS + 101
    assert not is_leased(shards)


def test_an_idle_shard_with_open_leases_writes_its_clock(shards: Shards) -> None:
    leased_item(shards, 10 * LEASE_MS)
    shards.clock_ms += engine.STEADY_WRITE_MS - 1
    assert shards.begin(0) is None
    shards.clock_ms += 1
    assert shards.states[0].tick(shards.now(0))
    transaction = shards.begin(0)
    assert transaction is not None
    assert transaction.steady_ms == shards.clock_ms
    shards.end(0)
    assert shards.begin(0) is None


def test_an_idle_shard_without_leases_writes_nothing(shards: Shards) -> None:
    shards.enqueue(0, "t")
    shards.run(0)
    shards.clock_ms += engine.STEADY_WRITE_MS
    assert not shards.states[0].tick(shards.now(0))
    assert shards.begin(0) is None
