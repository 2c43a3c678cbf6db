"""The contract of a store for dedup ids: what the log and the images have, and what a new owner reads of them."""

from __future__ import annotations

import pytest

from foqs.model.seen import BLOCK_IDS
from foqs.model.seen_image import ImageKey
from foqs.shard.port import (
    SeenDigests,
    SeenExtent,
    SeenIds,
    SeenPart,
    SeenRow,
    SessionLostError,
    StoredImage,
    TransactionFailedError,
)
from tests.contract.owner import SHARD_ID, Owner, new_item, new_topic

NAMESPACES = [(1, b"one"), (2, b"two")]


def digest(number: int) -> bytes:
    return bytes([0, 255, number // 256, number % 256]) * 4


def new_ids(namespace: int, first: int, count: int, at_ms: int = 5) -> SeenIds:
    numbers = range(first, first + count)
    return SeenIds(namespace, first, at_ms, [digest(n) for n in numbers], [1_000_000 + n for n in numbers])


def row_of(new: SeenIds) -> SeenRow:
    return SeenRow(new.namespace, new.first, new.at_ms, new.digests, [(SHARD_ID, key) for key in new.keys])


def digests_of(new: SeenIds) -> SeenDigests:
    return SeenDigests(new.first, new.at_ms, b"".join(new.digests))


@pytest.fixture
def owner(shard):
    owner = Owner(shard)
    owner.run(namespaces_new=NAMESPACES, topics_new=[new_topic(n, f"t{n}", n) for n, _ in NAMESPACES])
    return owner


def opened_anew(shard, owner):
    """As a new owner finds it; the old one is closed."""
    owner.store.close()
    return Owner(shard)


# ---- the log ----


def test_ids_are_read_by_blocks_as_they_were_written(owner):
    full, rest, other = new_ids(1, 0, BLOCK_IDS), new_ids(1, BLOCK_IDS, 3, at_ms=-7), new_ids(2, 5, 1)
    later = new_ids(1, BLOCK_IDS + 3, 2, at_ms=9)
    owner.run(seen_new=[full, rest, other])
    owner.run(seen_new=[later])
    found = owner.run(seen_reads=[(1, 0), (1, 1), (1, 7), (2, 0), (3, 0)]).seen
    assert found == {(1, 0): [row_of(full)], (1, 1): [row_of(rest), row_of(later)], (2, 0): [row_of(other)]}
    assert owner.run(seen_reads=[(1, 1)]).seen == {(1, 1): [row_of(rest), row_of(later)]}


def test_a_transaction_does_not_read_the_ids_that_it_writes(owner):
    result = owner.run(seen_reads=[(1, 0)], seen_new=[new_ids(1, 0, 2)])
    assert result.seen == {}
    assert list(owner.run(seen_reads=[(1, 0)]).seen) == [(1, 0)]


def test_ids_are_stored_with_the_copies_behind_their_items(shard, owner):
    plain, copied = new_ids(1, 0, 3), new_ids(1, 3, 2)._replace(copies_counts=[16, 0])
    owner.run(seen_new=[plain, copied])
    (first, second) = owner.run(seen_reads=[(1, 0)]).seen[1, 0]
    assert [first.copies_of(at) for at in range(3)] == [0, 0, 0]
    assert [second.copies_of(at) for at in range(2)] == [16, 0]
    assert opened_anew(shard, owner).image.seen == [SeenExtent(1, 0, 3, 5, 5)]


def test_ids_are_committed_with_their_items_or_not_at_all(shard, owner):
    topic = new_topic(1, "t1")
    owner.run(inserts=[new_item(5, topic=topic)], seen_new=[new_ids(1, 0, 1)])
    with shard.deadlock(5), pytest.raises(TransactionFailedError):
        owner.run(inserts=[new_item(6, topic=topic)], deletes=[5], seen_new=[new_ids(1, 1, 2)])
    assert owner.look_up(5, 6).keys() == {5}
    assert owner.run(seen_reads=[(1, 0)]).seen == {(1, 0): [row_of(new_ids(1, 0, 1))]}
    with shard.losing_answers(owner.store), pytest.raises(SessionLostError):
        owner.run(inserts=[new_item(6, topic=topic)], seen_new=[new_ids(1, 1, 2)])
    assert owner.store.reopen() == owner.number + 1
    owner.number += 1
    assert owner.look_up(5, 6).keys() == {5, 6}
    assert [row.first for row in owner.run(seen_reads=[(1, 0)]).seen[1, 0]] == [0, 1]


def test_rows_that_are_read_may_be_many_and_small(owner):
    owner.run(seen_new=[new_ids(1, number, 1) for number in range(300)])
    found = owner.run(seen_reads=[(1, 0), (1, 2)]).seen
    assert {block: [row.first for row in rows] for block, rows in found.items()} == {
        (1, 0): list(range(128)),
        (1, 2): list(range(256, 300)),
    }


def test_ids_go_by_ranges_and_those_beside_stay(owner):
    rows = [new_ids(1, number * BLOCK_IDS, BLOCK_IDS) for number in range(4)]
    owner.run(seen_new=[*rows, new_ids(2, 0, 4)])
    owner.run(seen_gone=[(1, 0, 2 * BLOCK_IDS)])
    blocks = [(1, number) for number in range(4)]
    assert list(owner.run(seen_reads=[*blocks, (2, 0)]).seen) == [(1, 2), (1, 3), (2, 0)]
    owner.run(seen_gone=[(1, 2 * BLOCK_IDS, 3 * BLOCK_IDS), (2, 0, 4)], seen_new=[new_ids(2, 4, 1)])
    found = owner.run(seen_reads=[*blocks, (2, 0)]).seen
    assert found == {(1, 3): [row_of(rows[3])], (2, 0): [row_of(new_ids(2, 4, 1))]}


# ---- what a new owner reads ----


def test_a_new_owner_finds_both_ends_of_each_log(shard, owner):
    assert (owner.image.seen, owner.image.seen_log) == ([], None)
    owner.run(seen_new=[new_ids(1, 384, 128, at_ms=7), new_ids(1, 512, 5, at_ms=8), new_ids(2, 0, 1, at_ms=9)])
    image = opened_anew(shard, owner).image
    assert sorted(image.seen) == [SeenExtent(1, 384, 512, 517, 8), SeenExtent(2, 0, 0, 1, 9)]


def test_a_new_owner_reads_a_log_row_by_row_from_any_number_on(shard, owner):
    rows = [new_ids(1, number * BLOCK_IDS, BLOCK_IDS, at_ms=number) for number in range(5)]
    owner.run(seen_new=[*rows, new_ids(2, 0, 4)])
    log = opened_anew(shard, owner).image.seen_log
    assert log.read(1, 0, 2) == [digests_of(row) for row in rows[:2]]
    assert log.read(1, 2 * BLOCK_IDS, 100) == [digests_of(row) for row in rows[2:]]
    assert log.read(1, 2 * BLOCK_IDS + 1, 1) == [digests_of(rows[3])]
    assert (log.read(1, 5 * BLOCK_IDS, 100), log.read(3, 0, 100)) == ([], [])
    log.close()
    assert log.read(2, 0, 100) == [digests_of(new_ids(2, 0, 4))]
    log.close()


# ---- images ----


KEY, OTHER = ImageKey(1, 0, 4), ImageKey(1, 0, 3)


def test_parts_of_images_are_read_as_they_were_written_in_their_order(shard, owner):
    parts = [SeenPart(KEY, number, bytes(range(256)) * number) for number in (3, 1, 2)]
    owner.run(seen_new=[new_ids(1, 0, 4)])
    for part in parts:
        owner.run(seen_parts_new=[part])
    owner.run(seen_parts_new=[SeenPart(OTHER, 0, b"other"), SeenPart(KEY, 0, b"head' \\")])
    found = opened_anew(shard, owner).image
    assert sorted(found.seen_images) == [StoredImage(OTHER, 0, 1, True), StoredImage(KEY, 0, 4, True)]
    log = found.seen_log
    assert log.read_parts(KEY, 0, 1) == [SeenPart(KEY, 0, b"head' \\")]
    assert log.read_parts(KEY, 1, 2) == [parts[1], parts[2]]
    assert log.read_parts(KEY, 3, 9) == [parts[0]]
    assert log.read_parts(KEY, 4, 9) == log.read_parts(ImageKey(1, 0, 5), 0, 9) == []
    log.close()


def test_an_image_is_whole_with_its_head_and_every_part(shard, owner):
    owner.run(seen_new=[new_ids(1, 0, 4)])
    owner.run(seen_parts_new=[SeenPart(KEY, number, b"x") for number in (1, 2)])
    owner.run(seen_parts_new=[SeenPart(OTHER, number, b"x") for number in (0, 2)])
    found = opened_anew(shard, owner).image.seen_images
    assert sorted(found) == [StoredImage(OTHER, 0, 3, False), StoredImage(KEY, 1, 3, False)]


def test_parts_of_images_go_by_ranges_and_those_of_others_stay(shard, owner):
    owner.run(seen_new=[new_ids(1, 0, 4)])
    owner.run(seen_parts_new=[SeenPart(key, number, b"x") for key in (KEY, OTHER) for number in range(4)])
    owner.run(seen_parts_gone=[(KEY, 0, 2)])
    owner.run(seen_parts_gone=[(KEY, 2, 3), (OTHER, 3, 4)], seen_parts_new=[SeenPart(ImageKey(2, 0, 1), 0, b"")])
    found = opened_anew(shard, owner).image.seen_images
    assert sorted(found) == [
        StoredImage(OTHER, 0, 3, True),
        StoredImage(KEY, 3, 4, False),
        StoredImage(ImageKey(2, 0, 1), 0, 1, True),
    ]


def test_a_part_of_an_image_is_committed_with_its_transaction_or_not_at_all(shard, owner):
    owner.run(inserts=[new_item(5, topic=new_topic(1, "t1"))], seen_new=[new_ids(1, 0, 4)])
    with shard.deadlock(5), pytest.raises(TransactionFailedError):
        owner.run(deletes=[5], seen_parts_new=[SeenPart(KEY, 1, b"x" * 100_000)])
    owner.run(seen_parts_new=[SeenPart(KEY, 1, b"y" * 100_000)])
    image = opened_anew(shard, owner).image
    assert image.seen_log.read_parts(KEY, 0, 9) == [SeenPart(KEY, 1, b"y" * 100_000)]
    image.seen_log.close()
