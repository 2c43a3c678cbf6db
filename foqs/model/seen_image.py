"""Images of tables of dedup ids, as bytes in parts. The first part is made last and vouches for the others.

The first byte of each part is the version of the format: the number of the migration of schema/shard that introduced
it, as with the formats of foqs/storage/shard/formats.py. But an image only saves time: the host ignores one that it
cannot read, that is incomplete, or that belongs to another log, and reads the log instead. So a writer writes its
newest version.

An image has the first ids of a table, up to the end of a block of the log, or all ids once the table is full. The table
can take more ids while the image is made.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple
from zlib import crc32

from foqs.model.seen import FINGERPRINT_BYTES, SLOTS, TABLE_IDS_MAX, Hash, SeenTable, buckets_of

IMAGE_VERSIONS: Final = [5]
IMAGE_PART_BUCKETS = 408
"""Buckets of a table in one part: about 100 KiB, if the table is full."""
HEAD_PART: Final = 0

_VERSION: Final = IMAGE_VERSIONS[-1].to_bytes(1, "big")
_HEAD: Final = Struct(">BIQIIBI3sIHH")
_MARK: Final = Struct(">Qq")
_CRC_BYTES: Final = 4

Mark = tuple[int, int]
"""A number in the log, and the time of that id."""


class BadImageError(Exception):
    """An image cannot be used. The message states the fault."""


class ImageKey(NamedTuple):
    """The key of a stored image: the stretch of a namespace's log that it knows."""

    namespace: int
    first: int
    ids_count: int

    @property
    def end(self) -> int:
        """The number in the log of the first id after the image."""
        return self.first + self.ids_count


class ImageHead(NamedTuple):
    """The head of an image, which is its part 0."""

    key: ImageKey
    capacity: int
    is_crowded: bool
    last_hash: Hash
    """The hash of the last id in the image. It ties the image to its log, whose numbers might have begun anew."""
    part_buckets: int
    checksums: list[int]
    """The checksums of the parts from 1 on."""
    marks: list[Mark]


class ImageMaker:
    """Makes an image of the present content of a table, part by part."""

    def __init__(self, namespace: int, table: SeenTable, marks: list[Mark]) -> None:
        """`marks` are those of the window; the image gets the ones in its stretch."""
        self.key = key = ImageKey(namespace, table.first, table.whole_count)
        self.table = table
        self.part_buckets = IMAGE_PART_BUCKETS
        self.parts_count = parts_of(table.capacity, self.part_buckets)
        self._last_hash = table.last_hash
        self._is_crowded = table.is_crowded
        self._marks = [mark for mark in marks if key.first <= mark[0] < key.end]
        self._checksums: list[int] = []
        self._next: bytes | None = None

    @property
    def next_number(self) -> int:
        """The number of the next part to write: the head, once all others are written."""
        written_count = len(self._checksums)
        return written_count + 1 if written_count < self.parts_count else HEAD_PART

    def next_part(self) -> bytes:
        """Return the bytes of the next part, the same ones until it is `written`."""
        if self._next is None:
            number = self.next_number
            self._next = self._head() if number == HEAD_PART else self._part(number)
        return self._next

    def written(self) -> bool:
        """Note that the next part is committed. Returns True if the image is complete."""
        assert self._next is not None
        if self.next_number == HEAD_PART:
            return True
        self._checksums.append(crc32(self._next))
        self._next = None
        return False

    def _part(self, number: int) -> bytes:
        start = (number - 1) * self.part_buckets
        stop = min(start + self.part_buckets, self.table.bucket_count)
        counts, fingerprints, places = self.table.buckets(start, stop, self.key.ids_count)
        return b"".join([_VERSION, counts, fingerprints, _swapped(places).tobytes()])

    def _head(self) -> bytes:
        key, (high, fingerprint) = self.key, self._last_hash
        head = _HEAD.pack(
            IMAGE_VERSIONS[-1], *key, self.table.capacity, self._is_crowded, high, fingerprint, self.part_buckets,
            self.parts_count, len(self._marks),
        )  # fmt: skip
        checksums = b"".join([checksum.to_bytes(_CRC_BYTES, "big") for checksum in self._checksums])
        body = head + checksums + b"".join([_MARK.pack(*mark) for mark in self._marks])
        return body + crc32(body).to_bytes(_CRC_BYTES, "big")


def parts_of(capacity: int, part_buckets: int) -> int:
    """Return the number of parts of a table's image, without the head."""
    return -(-buckets_of(capacity) // part_buckets)


def read_head(key: ImageKey, body: bytes) -> ImageHead:
    """Read the head. Raises BadImageError if it is not that of the image stored under this key."""
    _check_version(body)
    content = body[:-_CRC_BYTES]
    if crc32(content) != int.from_bytes(body[-_CRC_BYTES:], "big"):
        raise BadImageError("its head has another checksum")
    try:
        _, namespace, first, ids_count, capacity, is_crowded, *others = _HEAD.unpack_from(content)
    except struct_error as error:
        raise BadImageError(f"its head is too short: {error}") from error
    high, fingerprint, part_buckets, parts_count, marks_count = others
    if tuple(key) != (namespace, first, ids_count):
        raise BadImageError(f"its head is that of namespace {namespace}, {ids_count} ids from {first} on")
    if not 0 < ids_count <= capacity <= TABLE_IDS_MAX:
        raise BadImageError(f"it has {ids_count} ids of {capacity}, and a table has {TABLE_IDS_MAX} at most")
    at, marks_at = _HEAD.size, _HEAD.size + _CRC_BYTES * parts_count
    is_of_table = part_buckets > 0 and parts_count == parts_of(capacity, part_buckets)
    if not is_of_table or len(content) != marks_at + _MARK.size * marks_count:
        raise BadImageError(f"its head tells of {parts_count} parts in {len(content)} bytes")
    checksums = list(Struct(f">{parts_count}I").unpack_from(content, at))
    marks = list(_MARK.iter_unpack(content[marks_at:]))
    return ImageHead(key, capacity, bool(is_crowded), (high, fingerprint), part_buckets, checksums, marks)


class ImageReader:
    """Rebuilds a table from the parts of an image, in order from part 1 on."""

    def __init__(self, head: ImageHead) -> None:
        self.head = head
        self._table = SeenTable(head.key.first, head.capacity)
        self._number = 1

    @property
    def next_number(self) -> int:
        """The number of the part that `take` expects next; HEAD_PART once it has all parts."""
        return self._number if self._number <= len(self.head.checksums) else HEAD_PART

    def take(self, number: int, body: bytes) -> None:
        """Take the next part. Raises BadImageError if it is another one, or is invalid."""
        if number != self._number or number > len(self.head.checksums):
            raise BadImageError(f"it has part {number}, and part {self._number} is missing")
        if crc32(body) != self.head.checksums[number - 1]:
            raise BadImageError(f"its part {number} has another checksum")
        _check_version(body)
        buckets = self.head.part_buckets
        start = (number - 1) * buckets
        counts = body[1 : 1 + min(buckets, self._table.bucket_count - start)]
        places_at = 1 + len(counts) + FINGERPRINT_BYTES * sum(counts)
        places = array("H")
        places.frombytes(body[places_at:])
        if max(counts) > SLOTS or len(places) != sum(counts):
            raise BadImageError(f"its part {number} has {len(places)} places for {sum(counts)} ids")
        self._table.put_buckets(start, counts, body[1 + len(counts) : places_at], _swapped(places))
        self._number += 1

    def table(self) -> SeenTable:
        """Return the table. Raises BadImageError if ids are missing."""
        head = self.head
        if self.next_number != HEAD_PART:
            raise BadImageError(f"its part {self._number} is missing")
        if self._table.count != head.key.ids_count:
            raise BadImageError(f"its parts have {self._table.count} ids, and not {head.key.ids_count}")
        self._table.whole_count, self._table.last_hash = head.key.ids_count, head.last_hash
        self._table.is_crowded = head.is_crowded
        return self._table


def _check_version(body: bytes) -> None:
    version = body[0] if body else 0
    if version not in IMAGE_VERSIONS:
        listed = ", ".join(map(str, IMAGE_VERSIONS))
        raise BadImageError(f"it has version {version} of its format, and this host reads {listed}")


def _swapped(places: array[int]) -> array[int]:
    """Convert places between the native byte order and little endian, in which they are stored."""
    if sys.byteorder != "little":
        places.byteswap()
    return places
