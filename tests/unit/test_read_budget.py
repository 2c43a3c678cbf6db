"""A transaction reads no more rows than it can in the time that others may wait for it."""

from __future__ import annotations

import pytest

from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.shard.port import Refill, Transaction
from foqs.shard.state import index as shard_index
from foqs.shard.state.index import ReadBudget
from foqs.shard.state.ops import refill as refill_module
from foqs.shard.state.ops import wake
from foqs.storage.schema import statements as sql
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.script import read_statements
from tests.contract.owner import new_item
from tests.support.shards import NAMESPACE, Shards

COUNT = 400
COLD_US, WARM_US = 250, 5
"""For a row, on a disk and in a cache."""


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Two topics whose rows nobody has in memory."""
    monkeypatch.setattr(limits, "RESIDENT_BYTES_MAX", 0)
    monkeypatch.setattr(refill_module, "WARM_UPS_PER_TICK", 0)
    shards = Shards(1)
    for topic in ("a", "b"):
        shards.enqueue(0, topic, count=COUNT)
    shards.run(0)
    shards.take_over()
    return shards


def test_reads_from_a_disk_come_down_to_what_fits_the_time_and_no_lower() -> None:
    budget = ReadBudget()
    stalls_us = []
    for _ in range(20):
        stalls_us.append(budget.rows_max * COLD_US)
        budget.read(budget.rows_max, stalls_us[-1])
    assert budget.rows_max == shard_index.READ_US_TARGET // COLD_US > shard_index.READ_ROWS_MIN
    assert stalls_us[5] <= shard_index.READ_US_TARGET
    budget.read(budget.rows_max, 100 * shard_index.READ_US_TARGET)
    assert budget.rows_max == shard_index.READ_ROWS_MIN


def test_refills_and_fetches_together_come_down_to_the_time_as_well() -> None:
    budget = ReadBudget()
    for _ in range(20):
        budget.read(2 * budget.rows_max, 2 * budget.rows_max * COLD_US)
    assert shard_index.READ_ROWS_MIN * 2 * COLD_US <= 2 * budget.rows_max * COLD_US <= 1.6 * shard_index.READ_US_TARGET


def test_few_rows_that_take_long_by_chance_change_nothing() -> None:
    budget = ReadBudget()
    budget.read(shard_index.READ_ROWS_MIN, 1_000_000)
    budget.read(0, 1_000_000)
    assert budget.rows_max == shard_index.READ_ROWS_FIRST


def test_one_read_that_is_slow_by_chance_leaves_it_a_quarter_and_fast_ones_bring_it_back() -> None:
    budget = ReadBudget()
    budget.read(shard_index.READ_ROWS_MIN + 1, 1_000_000)
    assert budget.rows_max == shard_index.READ_ROWS_FIRST // 4
    for _ in range(50):
        budget.read(budget.rows_max, budget.rows_max * WARM_US)
    assert budget.rows_max >= shard_index.READ_ROWS_FIRST


def test_it_grows_only_by_reads_that_made_use_of_it_and_has_a_bound() -> None:
    budget = ReadBudget()
    budget.read(shard_index.READ_ROWS_FIRST // 2 - 1, 1)
    budget.read(0, 0)
    assert budget.rows_max == shard_index.READ_ROWS_FIRST
    for _ in range(200):
        budget.read(budget.rows_max, 1)
    assert budget.rows_max == shard_index.READ_ROWS_MAX


def test_a_fast_read_now_and_then_does_not_make_the_next_slow_one_long() -> None:
    """Seven topics whose rows share the pages of an eighth's."""
    budget = ReadBudget()
    longest_us = 0
    for number in range(400):
        is_cold = number % 8 == 0
        elapsed_us = budget.rows_max * (COLD_US if is_cold else WARM_US)
        budget.read(budget.rows_max, elapsed_us)
        if number >= 80:
            longest_us = max(longest_us, elapsed_us)
    assert longest_us < 1.5 * shard_index.READ_US_TARGET


@pytest.mark.parametrize("rows_max", [32, 40])
def test_a_transaction_refills_and_fetches_no_more_than_its_budget(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_FETCH_BYTES_MAX", 1 << 40)
    shard = shards.states[0]
    shard.index.read_budget.rows_max = rows_max
    call = shards.dequeue({"a": 100, "b": 100})
    refilled, fetched = [], []
    while not call.items:
        transaction = shards.begin(0)
        assert transaction is not None
        refilled.append(sum(refill.limit for refill in transaction.refills if refill.lane))
        fetched.append(len(transaction.fetches))
        shards.end(0)
        shard.index.read_budget.rows_max = rows_max
    assert max(refilled) == max(fetched) == rows_max


def test_rows_that_came_when_more_was_allowed_are_read_and_handed_out_a_bounded_number_of_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size_bytes, fit_count = 1_000, 5
    monkeypatch.setattr(limits, "RESIDENT_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "TRANSACTION_CONTENTS_BYTES_MAX", fit_count * size_bytes)
    monkeypatch.setattr(limits, "TRANSACTION_FETCH_BYTES_MAX", fit_count * size_bytes)
    shards = Shards(1)
    items = shards.enqueue(0, "a", count=40, payload=b"x" * size_bytes)
    shards.run(0)
    shards.take_over()
    shards.allow_item_bytes(1)
    call, fetched_counts, bytes_read = shards.dequeue({"a": 40}), [], []
    while (transaction := shards.begin(0)) is not None:
        result = shards.stored[0].apply(transaction)
        fetched_counts.append(len(transaction.fetches))
        bytes_read.append(sum(len(row.content.payload) for row in result.fetched.values()))
        shards.dispatcher.on_events(shards.states[0].committed(result, shards.now(0)))
        shards.dispatcher.tick()
    assert max(bytes_read) == fit_count * size_bytes
    assert sum(count > fit_count for count in fetched_counts) == 1, "what was seen is known"
    seen = list(call.items or [])
    while len(seen) < len(items):
        call = shards.dequeue({"a": 40})
        shards.clock_ms += limits.LINGER_MS_MAX + 1
        shards.run(0)
        shards.dispatcher.tick()
        assert call.items
        seen += call.items
    assert [item.content.payload for item in seen] == [b"x" * size_bytes] * len(items)
    assert {item.key for item in seen} == {item.key for item in items}


def test_claims_of_what_is_in_memory_do_not_wait_for_those_that_have_to_be_fetched(shards: Shards) -> None:
    shard = shards.states[0]
    a, b = shard.index.topic(NAMESPACE, "a"), shard.index.topic(NAMESPACE, "b")
    for topic in (a, b):
        shard.want_refill(topic, with_payload=False)
    shards.run(0)
    shard.index.read_budget.rows_max = rows_max = 5
    shard.claim(a, a.window.take(20))
    in_memory = b.window.take(3)
    shard.claim(b, in_memory)
    for sort_key in in_memory:
        shard.index.leases[order.key_of(sort_key)].content = ItemContent(b"p", b"")
    transaction = shards.begin(0)
    assert transaction is not None
    assert len(transaction.fetches) == rows_max
    claimed = {item.sort_key for claim in transaction.claims for item in claim.items}
    assert claimed == {*in_memory, *[item.sort_key for item in transaction.fetches]}
    shards.end(0)
    rest = shards.begin(0)
    assert rest is not None
    assert [item.sort_key for item in rest.fetches] == sorted(item.sort_key for item in rest.fetches)
    assert rest.fetches[0].sort_key > transaction.fetches[-1].sort_key, "they keep their turn"


@pytest.mark.parametrize(
    ("names", "limit"), [(["a"], shard_index.READ_ROWS_FIRST), (["a", "b"], shard_index.READ_ROWS_FIRST // 2)]
)
def test_before_their_rows_are_counted_topics_share_the_budget(shards: Shards, names: list[str], limit: int) -> None:
    shards.states[0].index.counted = False
    shards.dequeue(dict.fromkeys(names, 100))
    transaction = shards.begin(0)
    assert transaction is not None
    assert [refill.limit for refill in transaction.refills if refill.lane] == [limit] * len(names)


def test_the_shard_tells_its_budget_how_long_reads_took(shards: Shards) -> None:
    shard = shards.states[0]
    shards.dequeue({"a": 100})
    transaction = shards.begin(0)
    assert transaction is not None
    result = shards.stored[0].apply(transaction)
    result.read_us = 1_000_000
    shard.committed(result, shards.now(0))
    assert shard.index.read_budget.rows_max == shard_index.READ_ROWS_FIRST // 4


def test_no_fewer_delayed_items_are_read_than_are_swept_at_a_time(shards: Shards) -> None:
    shards.states[0].index.read_budget.rows_max = shard_index.READ_ROWS_MIN
    transaction = shards.begin(0)
    assert transaction is not None
    assert [refill.limit for refill in transaction.refills if not refill.lane] == [wake.SWEEP_CHUNK_ITEMS]


def test_topics_that_have_few_rows_are_refilled_together(shards: Shards) -> None:
    names = [f"small-{number}" for number in range(20)]
    for name in names:
        shards.enqueue(0, name, count=2)
    shards.run(0)
    shards.take_over()
    shards.states[0].index.read_budget.rows_max = 40
    shards.dequeue(dict.fromkeys(names, 1))
    transaction = shards.begin(0)
    assert transaction is not None
    assert len([refill for refill in transaction.refills if refill.lane]) == len(names)


def test_the_time_is_that_of_refills_and_fetches_alone() -> None:
    items = [new_item(1), new_item(2)]
    reads = Transaction(1, refills=[Refill(1, order.FIRST, 10)], fetches=items)
    plan = PackPlan(reads, fetches=[1, 2])
    begin, refill, fetches_begin, fetch, end = read_statements(reads, plan)
    assert begin == sql.READS_BEGIN.format(limits.TRANSACTION_CONTENTS_BYTES_MAX)
    assert refill.startswith(sql.REFILL.partition("%s")[0])
    assert (fetches_begin, end) == (sql.FETCHES_BEGIN, sql.READS_END)
    assert "FROM item" in fetch
    assert read_statements(reads, PackPlan(Transaction(1))) == [begin, refill, end]
    assert read_statements(Transaction(1), PackPlan(Transaction(1))) == []


def test_what_was_in_memory_counts_for_nothing(shards: Shards) -> None:
    shard = shards.states[0]
    shards.dequeue({"a": 100})
    transaction = shards.begin(0)
    assert transaction is not None
    result = shards.stored[0].apply(transaction)
    assert result.read_count > shard_index.READ_ROWS_MIN
    result.read_us, result.read_count = 1_000_000, 0
    shard.committed(result, shards.now(0))
    assert shard.index.read_budget.rows_max == shard_index.READ_ROWS_FIRST
