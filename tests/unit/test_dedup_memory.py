"""Where memory for dedup ids is short, windows become shorter: evenly, from their old end, and never past the last ids.

Windows stand beside an oracle that is a list of digests for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.model import limits, seen
from foqs.model.clock import Now
from foqs.model.seen import BLOCK_IDS, SeenTable, SeenWindow, hashes_of
from foqs.model.seen_shrink import TableShrink, shrink
from foqs.shard.state.ops import forget
from foqs.shard.state.ops.forget import Forgetfulness
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted

IDS_MAX = 1_000_000


def some_digests(first: int, ids_count: int) -> list[bytes]:
    return [blake2b(at.to_bytes(8, "big"), digest_size=16).digest() for at in range(first, first + ids_count)]


class Windows:
    """The windows of a shard, and all digests that each of them ever had."""

    def __init__(self) -> None:
        table: Any = SimpleNamespace(by_number={}, dedup_ids=lambda _: IDS_MAX, dedup_ms=lambda _: limits.DAY_MS)
        index: Any = SimpleNamespace(settings=table, namespaces={})
        images: Any = SimpleNamespace(check=lambda window: None)
        self.windows: dict[int, SeenWindow] = {}
        self.forgetfulness = Forgetfulness(index, self.windows, {}, images)
        self.logs: dict[int, list[bytes]] = {}
        self._numbers = count()

    def add(self, namespace: int, ids_count: int) -> None:
        """The ids of one call, row by row, as a shard's transaction does."""
        window = self.windows.setdefault(namespace, SeenWindow(namespace))
        new = some_digests(next(self._numbers) << 32, ids_count)
        for at in range(0, ids_count, BLOCK_IDS):
            row = new[at : at + BLOCK_IDS]
            window.add(row, 0, self.forgetfulness.table_ids_max(window))
            self.forgetfulness.added(window, 0, len(row))
        self.logs.setdefault(namespace, []).extend(new)

    def rest(self) -> None:
        """Until tables that give up memory a bucket at a time have done so."""
        for _ in range(2_000):
            self.forgetfulness.tick(Now(0, 0))

    def problems(self) -> Iterator[str]:
        for namespace, log in self.logs.items():
            window = self.windows[namespace]
            if window.end != len(log) or window.ids_count < min(len(log), limits.DEDUP_IDS_KEPT):
                yield f"namespace {namespace} knows {window.ids_count} of {len(log)} ids"
            found = window.probe(log)
            lost = [at for at in range(window.edge, window.end) if at // BLOCK_IDS not in found.get(at, ())]
            if lost:
                yield f"namespace {namespace} knows ids from {window.edge} on, and not {lost[:5]}"
        bytes_of = {namespace: window.size_bytes for namespace, window in self.windows.items()}
        if self.forgetfulness.filters_bytes != sum(bytes_of.values()):
            yield f"windows of {sum(bytes_of.values())} bytes count as {self.forgetfulness.filters_bytes}"

    def kept(self) -> list[int]:
        return [self.windows[namespace].ids_count for namespace in self.logs]


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", 200_000)
    monkeypatch.setattr(limits, "DEDUP_IDS_KEPT", 100)


def share_ids(count: int) -> float:
    """The ids that each of so many namespaces can keep."""
    return limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX / count / 6.5


calls = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 100) | st.sampled_from([500, 3_000])), max_size=60)


@settings(max_examples=60)
@given(calls, st.sampled_from([20_000, 60_000, 200_000]), st.sampled_from([1, 16, 512]))
@pytest.mark.deep
def test_the_ids_that_are_known_are_the_last_ones_of_each_window_whatever_comes(
    some: list[tuple[int, int]], bytes_max: int, buckets_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", bytes_max)
        patch.setattr(limits, "DEDUP_IDS_KEPT", 100)
        patch.setattr(forget, "SHRINK_BUCKETS_MAX", buckets_max)
        windows = Windows()
        for namespace, ids_count in some:
            windows.add(namespace, ids_count)
            assert list(windows.problems()) == []
        windows.rest()
        assert list(windows.problems()) == []
        # What each keeps in any case has room beside the bound: a table of 100 to 750 ids, and the window itself.
        assert windows.forgetfulness.filters_bytes <= bytes_max + len(windows.logs) * 8_000


def test_namespaces_of_equal_load_keep_about_as_many_ids(
    short_of_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", 1_000_000)
    windows = Windows()
    for _ in range(60):
        for namespace in range(10):
            windows.add(namespace, 500)
    assert list(windows.problems()) == []
    assert min(windows.kept()) >= share_ids(10) / 2.5
    assert sum(windows.kept()) >= share_ids(1) / 2


@pytest.mark.deep
def test_sixty_namespaces_with_fourteen_thousand_ids_each_keep_all_of_them() -> None:
    windows = Windows()
    for _ in range(14):
        for namespace in range(60):
            windows.add(namespace, 1_000)
    assert min(windows.kept()) == 14_000
    assert windows.forgetfulness.filters_bytes < limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX / 4


def test_a_busy_namespace_takes_no_ids_from_those_that_have_fewer(short_of_memory: None) -> None:
    windows = Windows()
    for namespace in range(1, 6):
        windows.add(namespace, 1_000)
    for _ in range(60):
        windows.add(0, 1_000)
    assert [windows.windows[namespace].ids_count for namespace in range(1, 6)] == [1_000] * 5
    assert windows.windows[0].ids_count >= 8_000
    assert list(windows.problems()) == []


def test_windows_with_one_table_each_give_up_the_older_half_of_the_largest(short_of_memory: None) -> None:
    windows = Windows()
    for namespace in range(3):
        windows.windows[namespace] = SeenWindow(namespace)
        # As a new owner makes it that reads a log.
        windows.windows[namespace].fill_end = 12_800
        windows.add(namespace, 12_700)
    assert list(windows.problems()) == []
    windows.rest()
    assert list(windows.problems()) == []
    assert windows.forgetfulness.filters_bytes <= limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX
    assert min(windows.kept()) >= 12_700 // 4


def test_room_that_is_not_used_goes_before_ids(short_of_memory: None) -> None:
    windows = Windows()
    windows.add(0, 3_100)
    windows.windows[0].add(some_digests(10**9, 200), 0, 25_600)
    windows.logs[0] += some_digests(10**9, 200)
    assert windows.windows[0].tables[-1].capacity == 12_800
    for namespace in range(1, 8):
        windows.add(namespace, 2_500)
    windows.rest()
    assert windows.windows[0].tables[-1].capacity < 1_000
    assert windows.kept() == [3_300, *[2_500] * 7]
    assert list(windows.problems()) == []


def test_the_largest_one_is_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, looks = Windows(), list[int]()
    for namespace in range(2_000):
        windows.add(namespace, 5)
    monkeypatch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", 10_000)
    size_bytes = SeenWindow.size_bytes

    def counted(window: SeenWindow) -> int:
        looks.append(window.namespace)
        return size_bytes.__get__(window)

    monkeypatch.setattr(SeenWindow, "size_bytes", property(counted))
    for _ in range(100):
        windows.add(0, 1)
    # None of them has anything to give. Each has said so once, and is not asked again.
    assert len(looks) <= 2 * 2_000 + 100 * 4


# ---- a table that is made smaller ----


def crafted(high: int, fingerprint: int) -> bytes:
    return high.to_bytes(4, "big") + fingerprint.to_bytes(3, "big") + bytes(9)


def whole(window: SeenWindow, table: SeenTable, first: int) -> TableShrink:
    smaller = shrink(window, table, first)
    assert smaller is not None
    while not smaller.is_over:
        smaller.go_on(1)
    smaller.end()
    return smaller


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, (1 << 32) - 1), max_size=300),
    st.lists(st.tuples(st.integers(0, 63), st.integers(1, 70)), max_size=8),
    st.integers(0, 40),
    st.integers(0, 3 * BLOCK_IDS),
)
def test_a_smaller_table_finds_every_id_of_the_larger_one(
    highs: list[int], heaps: list[tuple[int, int]], blocks_gone: int, first: int
) -> None:
    """Some buckets are full, next to each other too, so that ids stand behind their buckets."""
    window = SeenWindow(1, first)
    crowd = [(bucket << 26) + at for bucket, ids_count in heaps for at in range(ids_count)]
    digests = [crafted(high, at) for at, high in enumerate([*crowd, *highs])]
    table = SeenTable(first, 64 * seen.BUCKET_IDS)
    table.add(hashes_of(digests))
    window.tables.append(table)
    window.end = table.end
    cut = max(first, min(table.end, first // BLOCK_IDS * BLOCK_IDS + blocks_gone * BLOCK_IDS) // BLOCK_IDS * BLOCK_IDS)
    smaller = whole(window, table, cut)
    assert smaller.has_failed == (window.tables == [table])
    for at, sought in enumerate(hashes_of(digests), first):
        if at >= window.edge:
            assert at // BLOCK_IDS in window.tables[0].blocks_of(sought)
            assert window.tables[0].may_have([sought]) == [0]


def test_ids_that_are_made_to_stand_in_many_buckets_do_not_fill_a_smaller_table() -> None:
    window = SeenWindow(1)
    digests = [crafted(0, at) for at in range(1_900)]
    table = SeenTable(0, 64 * seen.BUCKET_IDS)
    table.add(hashes_of(digests))
    window.tables.append(table)
    window.end = table.end
    smaller = shrink(window, table, 1_024)
    assert smaller is not None
    while not smaller.is_over:
        smaller.go_on(4)
    smaller.end()
    assert smaller.has_failed
    assert (window.tables, window.edge) == ([table], 0)
    found = window.probe(digests)
    assert all(at // BLOCK_IDS in found[at] for at in range(window.edge, window.end))


def test_a_table_takes_ids_again_when_it_has_become_smaller() -> None:
    window = SeenWindow(1)
    window.fill_end = 12_800
    window.add(some_digests(0, 500), 0, 12_800)
    assert window.tables[0].capacity == 12_800
    whole(window, window.tables[0], 0)
    assert window.tables[0].capacity < 1_000
    window.add(some_digests(500, 300), 0, 12_800)
    found = window.probe(some_digests(0, 800))
    assert all(at // BLOCK_IDS in found[at] for at in range(800))


def test_ids_come_while_a_table_becomes_smaller() -> None:
    window = SeenWindow(1)
    window.fill_end = 12_800
    window.add(some_digests(0, 12_000), 0, 12_800)
    smaller = shrink(window, window.tables[0], 6_400)
    assert smaller is not None
    smaller.go_on(16)
    window.add(some_digests(12_000, 500), 0, 1_600)
    while not smaller.is_over:
        smaller.go_on(16)
    smaller.end()
    assert [table.first for table in window.tables] == [6_400, 12_000]
    found = window.probe(some_digests(0, 12_500))
    assert all(at // BLOCK_IDS in found[at] for at in range(6_400, 12_500))


@pytest.mark.deep
def test_a_shard_knows_the_last_call_again_however_short_its_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEDUP_FILTERS_OF_SHARD_BYTES_MAX", 20_000)
    monkeypatch.setattr(limits, "DEDUP_IDS_KEPT", 300)
    shard = OneShard()
    shard.set_window(ids=100_000)
    for at in range(0, 3_600, 300):
        for number in (NUMBER, NUMBER + 1):
            shard.new_ids(at, 300, number=number)
            outcome = shard.call(*[f"id-{one}" for one in range(at, at + 300)], number=number)
            shard.rest()
            assert (len(outcome.firsts), outcome.made) == (300, [])
    assert shard.state.dedup.windows[NUMBER].edge > 0
