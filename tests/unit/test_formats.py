"""What was stored by any version is read as it was meant, and today's version writes these bytes and no others.

tests/golden has a file for each version of a format, named by both. None of them may ever change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from foqs.model import seen_image
from foqs.model.calls import NO_CONTENT, ItemContent
from foqs.model.item import ShardItem
from foqs.model.seen import SeenTable, hashes_of
from foqs.model.seen_image import ImageHead, ImageKey, ImageMaker, ImageReader
from foqs.shard.port import ItemRow
from foqs.storage.shard import formats
from foqs.storage.shard.formats import UnknownFormatError
from tests.contract.owner import new_item, new_topic

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = {
    "pack": formats.PACK_VERSIONS,
    "tombstone": formats.TOMBSTONE_VERSIONS,
    "claim": formats.CLAIM_VERSIONS,
    "seen": formats.SEEN_VERSIONS,
}
IMAGE_NAMES = {"image-head": seen_image.IMAGE_VERSIONS, "image-part": seen_image.IMAGE_VERSIONS}
"""Images of tables of dedup ids: what a host cannot read of them it does without (tests/unit/test_seen_image.py)."""
EACH_VERSION = [(name, version) for name, versions in VERSIONS.items() for version in versions]
EACH_IMAGE = [(name, version) for name, versions in IMAGE_NAMES.items() for version in versions]
UNPACK: dict[str, Callable[[bytes], Any]] = {
    "pack": formats.unpack_items,
    "tombstone": formats.unpack_keys,
    "claim": formats.unpack_entries,
    "seen": formats.unpack_seen,
}
TOP_32, TOP_63, TOP_64 = (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1
KEYS = (1, 0x0000_0300_0000_0007, TOP_64)
DIGESTS = [bytes(range(16)), b"\xff" * 16, bytes(16)]
COPIES_COUNTS = (0, 16, 1)
FIRST_ITEMS = [(0, 1), (3, 0x0000_0300_0000_0007), ((1 << 16) - 1, TOP_64)]
ENTRIES = [(1, 1), (0x0000_0300_0000_0007, 2), (TOP_64, (1 << 32) - 1)]


def _packed() -> list[ShardItem]:
    """Of every column its bounds, and what each version has of them in the order of the versions."""
    plain = new_item(1, due_at=1_700_000_000_000, payload=b"payload", metadata=b"meta", trace_context=b"00-abc-01")
    low = new_item(2, topic=new_topic(1), priority=-TOP_32 - 1, due_at=0, payload=b"", metadata=b"")
    high = new_item(
        TOP_64,
        topic=new_topic(TOP_32),
        priority=TOP_32,
        due_at=TOP_63 - 2_000_000,
        payload=b"\0\xff' \n",
        trace_context=b"t" * 128,
    )
    high.expires_at, high.lease_ms, high.at_most_once = TOP_63, (1 << 32) - 1, True
    return [plain, low, high]


def _row_of(item: ShardItem, version: int) -> ItemRow:
    """What an item is after it was packed by that version: what is younger has its default."""
    assert item.content is not None
    fields = ItemContent._fields[: {1: 2, 2: 3}[version]]
    content = NO_CONTENT._replace(**{name: getattr(item.content, name) for name in fields})
    number, priority = item.topic.number, item.priority
    return ItemRow(
        item.key, number, priority, item.due_at, number, priority, item.enqueued_at, item.expires_at, item.lease_ms,
        int(item.at_most_once), 0, 0, None, None, content,
    )  # fmt: skip


MEANT: dict[str, Callable[[int], Any]] = {
    "pack": lambda version: [_row_of(item, version) for item in _packed()],
    "tombstone": lambda version: KEYS,
    "claim": lambda version: ENTRIES,
    "seen": lambda version: (DIGESTS, FIRST_ITEMS, COPIES_COUNTS if version >= 12 else ()),
}
WRITTEN: dict[str, Callable[[], bytes]] = {
    "pack": lambda: formats.pack_items(_packed()),
    "tombstone": lambda: formats.pack_keys(KEYS),
    "claim": lambda: formats.pack_entries([key for key, _ in ENTRIES], [number for _, number in ENTRIES]),
    "seen": lambda: _packed_ids(COPIES_COUNTS),
}


def _packed_ids(copies_counts: Sequence[int]) -> bytes:
    return formats.pack_seen(
        DIGESTS, [shard for shard, _ in FIRST_ITEMS], [key for _, key in FIRST_ITEMS], copies_counts
    )


def golden(name: str, version: int) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}-{version}.hex").read_text())


@pytest.mark.parametrize(("name", "version"), EACH_VERSION)
def test_the_golden_bytes_of_every_version_are_read_as_they_were_meant(name: str, version: int) -> None:
    assert golden(name, version)[0] == version
    assert UNPACK[name](golden(name, version)) == MEANT[name](version)


@pytest.mark.parametrize("name", VERSIONS)
def test_the_newest_version_is_written_byte_for_byte(name: str) -> None:
    assert WRITTEN[name]() == golden(name, VERSIONS[name][-1])


def test_there_are_golden_bytes_of_every_version_and_of_no_other() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.hex")) == sorted(
        f"{name}-{n}" for name, n in EACH_VERSION + EACH_IMAGE
    )


def test_every_version_came_with_a_migration_of_its_number() -> None:
    migrations = sorted((Path(__file__).parents[2] / "schema/shard").glob("*.sql"))
    assert {version for _, version in EACH_VERSION + EACH_IMAGE} <= {int(path.name[:4]) for path in migrations}


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("version", [0, 255])
def test_an_unknown_version_is_refused_with_what_to_do(name: str, version: int) -> None:
    packed = bytes([version]) + golden(name, VERSIONS[name][-1])[1:]
    with pytest.raises(UnknownFormatError, match=rf"has version {version} .* reads [13].*: upgrade this host"):
        UNPACK[name](packed)
    with pytest.raises(UnknownFormatError, match="has version 0"):
        UNPACK[name](b"")


def test_the_digests_of_a_row_of_dedup_ids_are_read_alone() -> None:
    for version in formats.SEEN_VERSIONS:
        assert formats.seen_digests(golden("seen", version)) == b"".join(DIGESTS)
        assert formats.seen_count(len(golden("seen", version)), version) == len(DIGESTS)
    with pytest.raises(UnknownFormatError, match="has version 255"):
        formats.seen_digests(b"\xff" + golden("seen", formats.SEEN_VERSIONS[-1])[1:])


def test_a_row_of_dedup_ids_without_copies_is_as_small_as_before() -> None:
    assert _packed_ids([]) == _packed_ids([0, 0, 0]) == golden("seen", 6)
    for count in range(1, 129):
        packed = formats.pack_seen([bytes(16)] * count, [0] * count, [1] * count, [16] * count)
        assert formats.seen_count(len(packed), packed[0]) == count


def _image() -> tuple[ImageMaker, SeenTable]:
    """Of a table that has taken more since: the image ends with the last whole block."""
    table = SeenTable(250, 300)
    digests = [bytes([number % 256]) * 5 + number.to_bytes(11, "big") for number in range(150)]
    table.add(hashes_of(digests))
    return ImageMaker(7, table, [(0, 5), (250, -1), (300, TOP_63), (384, 9)]), table


def test_images_of_every_version_are_read_as_they_were_meant() -> None:
    _, table = _image()
    for version in seen_image.IMAGE_VERSIONS:
        head = seen_image.read_head(ImageKey(7, 250, 134), golden("image-head", version))
        assert head == ImageHead(
            ImageKey(7, 250, 134), 300, False, (0x85858585, b"\x85\0\0"), 408, [crc32(golden("image-part", version))],
            [(250, -1), (300, TOP_63)],
        )  # fmt: skip
        reader = ImageReader(head)
        reader.take(1, golden("image-part", version))
        assert reader.table().buckets(0, 6, 134) == table.buckets(0, 6, 134)


def test_images_are_written_byte_for_byte() -> None:
    maker, _ = _image()
    assert maker.next_part() == golden("image-part", seen_image.IMAGE_VERSIONS[-1])
    assert not maker.written()
    assert maker.next_part() == golden("image-head", seen_image.IMAGE_VERSIONS[-1])
    assert maker.written()


def test_single_items_are_read_out_of_a_pack() -> None:
    items = _packed()
    packed, starts = formats.pack_items(items), formats.packed_starts(items)
    for row, start in zip(formats.unpack_items(packed), starts, strict=True):
        assert formats.unpack_item(packed, start, row.key) == row
    assert formats.unpack_items(formats.pack_items([])) == []
