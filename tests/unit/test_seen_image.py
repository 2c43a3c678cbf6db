"""An image of a table is that table again, whatever came meanwhile; what is torn, old or of another log is none."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model import seen_image
from foqs.model.seen import BLOCK_IDS, Hash, SeenTable, SeenWindow, hashes_of
from foqs.model.seen_image import HEAD_PART, BadImageError, ImageHead, ImageKey, ImageMaker, ImageReader, read_head

NAMESPACE = 7


def some_hashes(first: int, count: int) -> list[Hash]:
    digests = [blake2b(number.to_bytes(8, "big"), digest_size=16).digest() for number in range(first, first + count)]
    return hashes_of(digests)


def parts_of(maker: ImageMaker) -> dict[int, bytes]:
    parts: dict[int, bytes] = {}
    while HEAD_PART not in parts:
        parts[maker.next_number] = maker.next_part()
        maker.written()
    return parts


def read(key: ImageKey, parts: dict[int, bytes]) -> tuple[ImageHead, SeenTable]:
    head = read_head(key, parts[HEAD_PART])
    reader = ImageReader(head)
    while (number := reader.next_number) != HEAD_PART and number in parts:
        reader.take(number, parts[number])
    return head, reader.table()


def is_same(table: SeenTable, other: SeenTable, count: int) -> bool:
    stop = table.bucket_count
    return (table.first, table.capacity, stop, table.buckets(0, stop, count)) == (
        other.first, other.capacity, other.bucket_count, other.buckets(0, stop, count)
    )  # fmt: skip


crowding = st.builds(
    lambda high, fingerprint: (high, fingerprint),
    st.sampled_from([0, 1, (1 << 32) - 1]) | st.integers(0, (1 << 32) - 1),
    st.binary(min_size=3, max_size=3),
)


@given(
    st.lists(crowding, min_size=1, max_size=400),
    st.integers(0, 10 * BLOCK_IDS),
    st.lists(st.integers(1, 100), max_size=8),
    st.integers(1, 9),
)
def test_an_image_is_the_table_as_it_was_when_it_was_begun(
    hashes: list[Hash], first: int, steps: list[int], part_buckets: int
) -> None:
    """Between its parts the table takes more. Each part is the same whenever it is made again."""
    table = SeenTable(first, 400)
    at = len(hashes) // 2
    table.add(hashes[:at])
    if not table.whole_count:
        return
    before = SeenTable(first, 400)
    before.add(hashes[: table.whole_count])
    maker = ImageMaker(NAMESPACE, table, [])
    maker.part_buckets, maker.parts_count = part_buckets, seen_image.parts_of(400, part_buckets)
    parts: dict[int, bytes] = {}
    while HEAD_PART not in parts:
        parts[maker.next_number] = maker.next_part()
        step = steps.pop() if steps else 0
        if table.room:
            table.add(hashes[at : at + step])
        at += step
        assert maker.next_part() == parts[maker.next_number]
        maker.written()
    head, found = read(maker.key, parts)
    assert maker.key == (NAMESPACE, first, before.count)
    assert head.last_hash == hashes[before.count - 1]
    assert is_same(found, before, before.count)
    assert found.room == (0 if found.is_crowded else 400 - before.count)
    found.add(hashes[before.count :])
    assert found.may_have(hashes) == list(range(len(hashes)))
    assert all((first + n) // BLOCK_IDS in found.blocks_of(sought) for n, sought in enumerate(hashes))


def test_an_image_ends_with_a_block_or_with_its_table() -> None:
    table = SeenTable(100, 300)
    counts = []
    for number in range(300):
        table.add(some_hashes(number, 1))
        counts.append(table.whole_count)
    assert sorted(set(counts)) == [0, 28, 156, 284, 300]
    assert [counts.index(count) + 1 for count in (28, 156, 284, 300)] == [28, 156, 284, 300]


def test_a_small_table_of_an_image_grows_on_with_all_its_ids() -> None:
    table = SeenTable(0, 200)
    table.add(some_hashes(0, 128))
    maker = ImageMaker(1, table, [])
    again = SeenWindow(1)
    again.attach(read(maker.key, parts_of(maker))[1], [])
    again.add_hashes(some_hashes(128, 500), 0, 10_000)
    assert all(at // BLOCK_IDS in again.tables[0].blocks_of(sought) for at, sought in enumerate(some_hashes(0, 200)))


def test_an_image_has_the_times_of_its_ids() -> None:
    window = SeenWindow(NAMESPACE)
    for minute in range(40):
        window.add([bytes([minute]) + bytes([n]) * 15 for n in range(100)], minute * 60_000, 2_000)
    table = window.tables[2]
    head, found = read((maker := ImageMaker(NAMESPACE, table, window.marks)).key, parts_of(maker))
    assert head.marks == [mark for mark in window.marks if table.first <= mark[0] < table.end]
    again = SeenWindow(NAMESPACE, table.first)
    again.attach(found, head.marks)
    assert (again.end, again.edge, again.ids_count) == (table.end, table.first, table.count)
    again.age(60 * 60_000, 4_000, 30 * 60_000)
    window.age(60 * 60_000, 4_000, 30 * 60_000)
    assert again.edge == min(window.edge, table.end)


@pytest.fixture
def image(monkeypatch) -> tuple[ImageKey, dict[int, bytes]]:
    monkeypatch.setattr(seen_image, "IMAGE_PART_BUCKETS", 4)
    table = SeenTable(0, 1_000)
    table.add(some_hashes(0, 1_000))
    maker = ImageMaker(NAMESPACE, table, [(0, 1), (500, 2)])
    parts = parts_of(maker)
    assert list(parts) == [1, 2, 3, 4, 5, 0]
    read(maker.key, parts)
    return maker.key, parts


def test_an_image_without_one_of_its_parts_is_none(image) -> None:
    key, parts = image
    for number in (1, 3, 5):
        with pytest.raises(BadImageError, match=f"part {number} is missing"):
            read(key, {at: body for at, body in parts.items() if at != number})
    reader = ImageReader(read_head(key, parts[HEAD_PART]))
    with pytest.raises(BadImageError, match="it has part 2, and part 1 is missing"):
        reader.take(2, parts[2])


def test_an_image_with_any_other_byte_is_none(image) -> None:
    key, parts = image
    for number, body in parts.items():
        for at in {0, 1, 2, 9, 30, 45, len(body) // 2, len(body) - 1}:
            torn = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            with pytest.raises(BadImageError):
                read(key, {**parts, number: torn})
        for short in (b"", body[:1], body[:20], body[:-1]):
            with pytest.raises(BadImageError):
                read(key, {**parts, number: short})


def test_the_parts_of_two_images_make_none(image) -> None:
    key, parts = image
    table = SeenTable(0, 1_000)
    table.add(some_hashes(5_000, 1_000))
    other = parts_of(ImageMaker(NAMESPACE, table, []))
    with pytest.raises(BadImageError, match="part 3 has another checksum"):
        read(key, {**parts, 3: other[3]})
    with pytest.raises(BadImageError, match="part 1 has another checksum"):
        read(key, {**parts, HEAD_PART: other[HEAD_PART]})


@pytest.mark.parametrize("key", [(NAMESPACE + 1, 0, 1_000), (NAMESPACE, 128, 1_000), (NAMESPACE, 0, 896)])
def test_an_image_that_is_stored_under_another_key_is_none(image, key) -> None:
    with pytest.raises(BadImageError, match="its head is that of namespace 7, 1000 ids from 0 on"):
        read_head(ImageKey(*key), image[1][HEAD_PART])


@pytest.mark.parametrize("number", [HEAD_PART, 2])
@pytest.mark.parametrize("version", [0, seen_image.IMAGE_VERSIONS[-1] + 1])
def test_an_image_of_an_unknown_version_is_none(image, number, version, monkeypatch) -> None:
    key, parts = image
    torn = bytes([version]) + parts[number][1:]
    # As if the checksum were that of what is there.
    monkeypatch.setattr(seen_image, "crc32", lambda body: 0)
    checked = {at: body for at, body in parts.items() if at != number}
    with pytest.raises(BadImageError, match=rf"version {version} of its format, and this host reads 5|checksum"):
        read(key, {**checked, number: torn})
