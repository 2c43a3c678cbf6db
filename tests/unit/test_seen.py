"""The located filter never denies an id that was added, whatever is added, dropped and sought."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model import limits, seen
from foqs.model.seen import BLOCK_IDS, SeenTable, SeenWindow, digest_of, digests_of, hashes_of, known_by, slot_of_digest

DAY_MS = 86_400_000


def some_digests(first: int, count: int) -> list[bytes]:
    return [blake2b(number.to_bytes(8, "big"), digest_size=16).digest() for number in range(first, first + count)]


def crafted(high: int, fingerprint: bytes, rest: int = 0) -> bytes:
    """A digest that leads to a bucket and has a fingerprint of one's choice."""
    return high.to_bytes(4, "big") + fingerprint + rest.to_bytes(9, "big")


# ---- digests ----


def test_an_id_is_known_by_the_digest_that_it_had_before_slots_moved() -> None:
    before = blake2b(b"\0\0\0\7" + b"\0" + b"id", digest_size=16).digest()
    now = digest_of(7, b"", 513, "id")
    assert known_by(now) == known_by(before)
    assert hashes_of([now]) == hashes_of([before])


def test_a_digest_is_blake2b_of_namespace_scope_and_id_and_has_the_slot() -> None:
    expected = blake2b(b"\0\0\0\7" + b"\5topic" + "é".encode(), digest_size=16).digest()[:14] + b"\2\1"
    assert digest_of(7, b"topic", 513, "é") == expected
    assert digests_of(7, [b"topic"], [513], ["é", "f"]) == [expected, digest_of(7, b"topic", 513, "f")]
    assert digests_of(7, [b"topic", b""], [513], ["é", "f"]) == [expected, digest_of(7, b"", 513, "f")]
    assert digests_of(7, [b"topic"], [513, 9], ["é", "f"]) == [expected, digest_of(7, b"topic", 9, "f")]


@pytest.mark.parametrize("slot", [0, 255, 256, 1023])
def test_a_digest_tells_the_slot_of_its_id(slot: int) -> None:
    assert slot_of_digest(digest_of(7, b"", slot, "id")) == slot


def test_namespace_scope_and_id_never_run_into_each_other() -> None:
    same_text = [(1, b"", "ab"), (1, b"a", "b"), (1, b"ab", ""), (2, b"", "ab"), (1 << 24, b"", "ab")]
    assert len({digest_of(number, scope, 1, text) for number, scope, text in same_text}) == len(same_text)


# ---- one table ----


digests = st.builds(
    crafted,
    st.sampled_from([0, 1, 1 << 31, (1 << 32) - 1]) | st.integers(0, (1 << 32) - 1),
    st.sampled_from([b"\0\0\0", b"\0\0\1", b"\1\0\0", b"\xff\xff\xff"]) | st.binary(min_size=3, max_size=3),
    st.integers(0, 9),
)


@given(st.lists(digests, max_size=400), st.integers(0, 10 * BLOCK_IDS), st.lists(digests, max_size=20))
def test_a_table_finds_every_id_that_was_added_in_its_block(
    added: list[bytes], first: int, others: list[bytes]
) -> None:
    table = SeenTable(first, 400)
    table.add(hashes_of(added))
    hashes = hashes_of(added)
    assert table.may_have(hashes) == list(range(len(added)))
    for at, sought in enumerate(hashes):
        assert (first + at) // BLOCK_IDS in table.blocks_of(sought)
    known = set(hashes)
    for sought in hashes_of(others):
        if sought not in known and table.blocks_of(sought):
            # Another bucket's overflow may have the same fingerprint: never one that was not added.
            assert sought[1] in {fingerprint for _, fingerprint in known}


def test_a_table_is_crowded_when_ids_are_made_for_one_bucket() -> None:
    table = SeenTable(0, 2_000)
    added = [crafted(0, number.to_bytes(3, "big")) for number in range(700)]
    table.add(hashes_of(added))
    assert table.is_crowded
    assert table.room == 0
    assert table.may_have(hashes_of(added)) == list(range(700))
    assert all(at // BLOCK_IDS in table.blocks_of(sought) for at, sought in enumerate(hashes_of(added)))


def test_of_a_full_table_one_in_a_hundred_thousand_unknown_ids_may_be_known() -> None:
    table = SeenTable(0, 50_000)
    table.add(hashes_of(some_digests(0, 50_000)))
    sought = hashes_of(some_digests(1_000_000, 100_000))
    found = [at for at in table.may_have(sought) if table.blocks_of(sought[at])]
    assert len(found) <= 5
    assert table.size_bytes / 50_000 < 6.5


def test_ten_million_ids_have_room_in_the_memory_of_a_shard() -> None:
    window, capacities = SeenWindow(1), [seen.SMALL_TABLE_IDS_MAX]
    while sum(capacities) < 10_000_000:
        wanted = capacities[-1] * seen.TABLE_IDS_RATIO
        capacities.append(seen.rounded_up(min(wanted, limits.DEDUP_IDS_MAX // 2, seen.TABLE_IDS_MAX)))
    sizes_bytes = [seen.size_of(capacity) for capacity in capacities]
    assert len(capacities) <= 8 < seen.TABLES_MAX
    assert window.size_bytes + sum(sizes_bytes) <= limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX


# ---- a window ----


@given(
    st.lists(st.tuples(st.integers(1, 700), st.integers(0, DAY_MS)), max_size=12),
    st.integers(1, 2_000),
    st.integers(1, 3 * DAY_MS),
)
def test_a_window_knows_all_ids_from_its_edge_on_and_its_edge_only_grows(
    batches: list[tuple[int, int]], ids_max: int, ms_max: int
) -> None:
    window, now_ms, log = SeenWindow(1), 0, list[tuple[bytes, int]]()
    for count, pause_ms in batches:
        now_ms += pause_ms
        new = some_digests(len(log), count)
        assert not window.probe(new) or all(blocks for blocks in window.probe(new).values())
        window.add(new, now_ms, max(1, ids_max // 2))
        log += [(digest, now_ms) for digest in new]
        edge = window.edge
        window.age(now_ms, ids_max, ms_max)
        assert edge <= window.edge <= window.end == len(log)
        found = window.probe([digest for digest, _ in log])
        for at, (_, at_ms) in enumerate(log):
            if at >= window.edge:
                assert at // BLOCK_IDS in found[at]
            else:
                assert at < len(log) - ids_max or at_ms <= now_ms - ms_max
        # What is promised: the last ids, as long as they are young.
        promised = [at for at, (_, at_ms) in enumerate(log) if at >= len(log) - ids_max and at_ms > now_ms - ms_max]
        assert not promised or window.edge <= promised[0]


def test_ids_that_are_too_old_or_too_many_leave_memory() -> None:
    window = SeenWindow(1)
    for number in range(100):
        window.add(some_digests(1_000 * number, 1_000), number * 60_000, 5_000)
        window.age(number * 60_000, 10_000, DAY_MS)
    assert window.ids_count == 10_000
    assert window.size_bytes < 30_000 * 6.5 + 5_000
    assert len(window.marks) < 100
    window.age(100 * 60_000 + DAY_MS, 10_000, DAY_MS)
    assert (window.ids_count, window.tables) == (0, [])


def test_of_rows_before_the_edge_the_last_one_stays() -> None:
    window = SeenWindow(1)
    window.add(some_digests(0, 1_000), 0, 5_000)
    window.last_first = 896
    window.age(2 * DAY_MS, 10_000, DAY_MS)
    assert (window.edge, window.droppable_to) == (1_000, 896)


def test_tables_grow_with_a_window_and_end_at_half_of_it() -> None:
    window = SeenWindow(1)
    capacities = []
    for at in range(0, 5_000, 50):
        window.add(some_digests(at, 50), 0, 1_000)
        capacities.append([table.capacity for table in window.tables])
    assert capacities[:20] == [[50], *[[200]] * 3, *[[800]] * 12, *[[1_000]] * 4]
    assert capacities[-1] == [1_000] * 5
    found = window.probe(some_digests(0, 5_000))
    assert all(at // BLOCK_IDS in found[at] for at in range(5_000))


def test_a_window_has_one_table_until_it_is_no_longer_small() -> None:
    window = SeenWindow(1)
    for at in range(0, 70_000, 100):
        window.add(some_digests(at, 100), 0, 500_000)
    assert [table.capacity for table in window.tables] == [3_200, 12_800, 51_200, 204_800]


@pytest.mark.parametrize("capacity", [1, 50, 749, 750, 751, 12_345, 500_000, seen.TABLE_IDS_MAX])
def test_a_capacity_is_rounded_so_that_its_table_can_be_halved_until_it_is_small(capacity: int) -> None:
    rounded = seen.rounded_up(capacity)
    assert capacity <= rounded <= capacity * 1.13 + 50
    assert rounded <= seen.TABLE_IDS_MAX
    bucket_count = seen.buckets_of(rounded)
    while bucket_count % 2 == 0:
        bucket_count //= 2
    assert bucket_count <= 15


def test_a_window_has_a_bounded_number_of_tables_whoever_makes_its_ids() -> None:
    window = SeenWindow(1)
    for number in range(100):
        made = [crafted(0, at.to_bytes(3, "big"), number) for at in range(600)]
        window.add(made, 0, 10_000)
    assert len(window.tables) <= seen.TABLES_MAX
    assert window.edge > 0


@pytest.mark.parametrize("count", [1, BLOCK_IDS - 1, BLOCK_IDS, BLOCK_IDS + 1])
def test_blocks_count_from_the_first_id_of_the_log_wherever_a_window_begins(count: int) -> None:
    window = SeenWindow(1, first=1_000)
    window.add(some_digests(0, count), 0, 500)
    found = window.probe(some_digests(0, count))
    assert [found[at][0] for at in range(count)] == [(1_000 + at) // BLOCK_IDS for at in range(count)]
