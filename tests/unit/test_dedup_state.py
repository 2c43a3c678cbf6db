"""Dedup in a shard's state on tables in memory: who is the first, who hangs on whom, and what is forgotten when."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.seen import BLOCK_IDS
from foqs.shard.state.ops import forget
from foqs.shard.state.ops.dedup import OnceCall
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted


@pytest.fixture
def shard() -> OneShard:
    return OneShard()


def test_a_repeat_is_told_with_the_commit_of_the_first_and_fails_with_it(shard):
    first, repeat = shard.call("a", "a"), shard.call("a")
    assert (first.made, first.firsts, repeat.firsts) == ([], {}, {})
    assert shard.state.take(shard.now, {}) is not None
    shard.state.failed("full")
    assert len(first.errors) == 2
    assert len(repeat.errors) == 1
    assert all(error.nothing_done for error in [*first.errors.values(), *repeat.errors.values()])
    assert shard.state.dedup.pending == {}
    second, again = shard.call("a"), shard.call("a")
    shard.commit()
    assert [*again.firsts.values()] == [(0, key) for key in second.made]


def test_a_repeat_of_an_unknown_first_is_unknown(shard):
    first, repeat = shard.call("a"), shard.call("a")
    shard.state.take(shard.now, {})
    shard.state.abandon("gone")
    errors = [*first.errors.values(), *repeat.errors.values()]
    assert [error.nothing_done for error in errors] == [False, False]


def test_what_waits_for_a_look_into_the_log_is_given_back_by_a_sick_shard(shard):
    shard.new_ids(0, 3)
    outcome = shard.call("id-0", "new")
    shard.state.evict("sick")
    assert [error.nothing_done for error in outcome.errors.values()] == [True, True]
    assert (shard.state.dedup.pending, shard.state.buffered_count) == ({}, 0)
    assert shard.knows(0)
    assert not shard.knows(99)


def test_ids_beyond_the_bound_are_forgotten_and_their_rows_deleted(shard):
    for at in range(0, 5_000, 500):
        shard.new_ids(at, 500)
    window = shard.state.dedup.windows[NUMBER]
    assert (window.end, window.edge) == (5_000, 4_000)
    assert window.dropped_to == 4_000 // BLOCK_IDS * BLOCK_IDS
    assert min(first for _, first in shard.stored.tables.seen) >= window.dropped_to
    assert shard.knows(4_100)
    assert not shard.knows(10)


def test_ids_that_are_too_old_are_forgotten_and_the_last_block_stays(shard):
    shard.new_ids(0, 300)
    assert shard.state.dedup_window_ms(NUMBER) is None
    shard.rest(limits.DAY_MS // 2)
    assert shard.knows(5)
    shard.rest(limits.DAY_MS)
    assert not shard.knows(5)
    shard.rest(2 * limits.DAY_MS)
    assert {first // BLOCK_IDS for _, first in shard.stored.tables.seen} == {301 // BLOCK_IDS}
    shard.open()
    assert shard.state.dedup.windows[NUMBER].end == 301


def test_bounds_are_those_of_now(shard):
    shard.new_ids(0, 900)
    shard.set_window(ids=200)
    shard.rest(1_000)
    assert shard.state.dedup.windows[NUMBER].edge == 700
    window_ms = shard.state.dedup_window_ms(NUMBER)
    assert window_ms is not None
    assert window_ms <= 1_000


def test_a_new_owner_knows_what_the_last_one_knew(shard):
    shard.set_window(ids=2_000)
    for at in range(0, 3_000, 100):
        shard.new_ids(at, 100)
    shard.open()
    assert [shard.knows(at) for at in (1_500, 2_999, 3_000)] == [True, True, False]


@pytest.mark.deep
def test_the_namespace_with_most_ids_makes_room_for_the_others(shard, monkeypatch):
    monkeypatch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", 60_000)
    shard.set_window(ids=1_000_000)
    shard.new_ids(0, 40, number=NUMBER + 1)
    for at in range(0, 18_000, 1_000):
        shard.new_ids(at, 1_000)
        assert shard.state.forgetfulness.filters_bytes <= 60_000
    assert shard.state.dedup.windows[NUMBER].edge > 0
    assert all(shard.knows(at, number=NUMBER + 1) for at in range(40))


def test_the_ids_of_a_deleted_namespace_go_after_a_while(shard):
    shard.new_ids(0, 300)
    for key in list(shard.stored.tables.items):
        shard.state.index.namespaces.pop(NUMBER, None)
        assert key
    by_number = dict(shard.settings.by_number)
    del by_number[NUMBER]
    shard.settings.replace(by_number)
    shard.state.forgetfulness.tick(shard.now)
    shard.now_ms += forget.UNKNOWN_NAMESPACE_MS
    for _ in range(3):
        shard.state.forgetfulness.tick(shard.now)
        transaction = shard.state.take(shard.now, {})
        if transaction is not None:
            shard.state.committed(shard.stored.apply(transaction), shard.now)
    assert NUMBER not in shard.state.dedup.windows
    assert not shard.stored.tables.seen


class Unwalked(dict[int, list[OnceCall]]):
    """The logs that are to be read: thousands of them, that a tick must not look at one by one."""

    def items(self):
        raise AssertionError("each of the logs was looked at")


def test_calls_end_that_wait_too_long_for_their_log_and_no_other_log_is_looked_at():
    shard = OneShard()
    shard.new_ids(0, 1)
    shard.new_ids(0, 1, number=NUMBER + 1)
    shard.open_unread()
    dedup = shard.state.dedup
    dedup.loading = Unwalked(dedup.loading)
    first = shard.call("a")
    shard.now_ms += 1
    shard.state.tick(shard.now)
    second = shard.call("b")
    other = shard.call("a", number=NUMBER + 1)
    shard.now_ms += limits.DEDUP_WAIT_MS_MAX - 1
    shard.state.tick(shard.now)
    assert [len(outcome.errors) for outcome in (first, second, other)] == [1, 0, 0]
    shard.now_ms += 1
    shard.state.tick(shard.now)
    assert [len(outcome.errors) for outcome in (first, second, other)] == [1, 1, 1]
    last = shard.call("c")
    shard.now_ms += limits.DEDUP_WAIT_MS_MAX
    shard.state.tick(shard.now)
    assert len(last.errors) == 1
    assert shard.state.buffered_count == 0
