"""The dedup ids that a shard has seen lately. Memory holds only where each id stands in the log of ids.

An id is known by its digest of 128 bits. The log, which the database keeps, has the digests in their order of arrival,
in blocks of BLOCK_IDS. Memory has a *located filter*: a hash table of fingerprints that gives the possible block of a
digest that was seen, and no block for nearly all others. So a new id costs no read, a repeat costs one read of its
block, and an id costs about 6.4 bytes of memory (docs/decisions/0025-dedup.md).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

BLOCK_IDS: Final = 128
"""Ids of one block. A row of the log is part of one block, so that a block is one range of the log's key."""
DIGEST_BYTES: Final = 16
_SLOT_BYTES: Final = 2
"""Bytes at the end of a digest with the slot of its id. A move of a slot finds its ids by them."""
_KNOWN_BYTES: Final = DIGEST_BYTES - _SLOT_BYTES
SLOTS: Final = 64
"""Slots of one bucket of a table."""
BUCKET_IDS: Final = 50
"""Average ids per bucket of a full table. At this load 3 in 100 buckets have no slot left."""
FINGERPRINT_BYTES: Final = 3
BUCKET_BYTES: Final = SLOTS * (FINGERPRINT_BYTES + 2) + 1
"""Memory for a bucket: its fingerprints, the places of their ids, and their count."""
TABLE_BYTES: Final = 600
"""Memory for a table beside its buckets."""
KEPT_HASH_BYTES: Final = 8
"""Memory for the hash of an id of a small table."""
TABLE_IDS_FIRST: Final = BUCKET_IDS
"""The capacity of the first table of a window. Most namespaces have few ids."""
TABLE_IDS_RATIO: Final = 4
"""Growth of the capacity from one table to the next, up to half a window."""
SMALL_TABLE_IDS_MAX: Final = 3_200
"""A window has one table up to this many ids; a small table is rebuilt larger, so that few tables are searched."""
TABLE_IDS_MAX: Final = 3_072_000
"""The most ids of one table. The places of more than 8 million would not fit into 16 bits."""
_COUNT_BITS: Final = 4
"""Significant binary digits of the number of buckets, which is rounded up so that tables can be halved."""
TABLES_MAX: Final = 24
"""The most tables of a window. Only ids made for that purpose crowd tables enough to need more."""
CROWDED_BUCKETS: Final = 8
"""A table takes no more ids once an id has met this many full buckets in a row."""
WINDOW_BYTES: Final = 1_000
"""Memory for a window beside its tables."""
_MARK_MS_MIN: Final = 1_000
_MARKS_SHIFT: Final = 6
"""Marks are at least a second and a sixty-fourth of the window's age apart, so a window has some hundreds at most."""

_FINGERPRINTS_BYTES: Final = SLOTS * FINGERPRINT_BYTES
_KEPT_HASH: Final = Struct(">I3s")
_hashes: Final = Struct(">I3s9x").iter_unpack

Hash = tuple[int, bytes]
"""The part of a digest that a table uses: 32 bits that lead to its bucket, and its fingerprint."""


def digest_of(namespace_number: int, scope: bytes, slot: int, dedup_id: str) -> bytes:
    """Return the digest by which an id is known on its shard: the first 112 bits of blake2b, and the slot of the id.

    `scope` is empty, or the name of the topic if ids count by topic. The digest is cryptographic: otherwise a tenant
    could make an id that counts as a repeat of another tenant's.
    """
    return digests_of(namespace_number, [scope], [slot], [dedup_id])[0]


def digests_of(
    namespace_number: int, scopes: Sequence[bytes], slots: Sequence[int], dedup_ids: Sequence[str]
) -> list[bytes]:
    """Return the digests of many ids in their order; `scopes` and `slots` have one entry for each, or one for all."""
    number = namespace_number.to_bytes(4, "big")
    if len(scopes) == len(slots) == 1:
        head, tail = number + bytes([len(scopes[0])]) + scopes[0], slots[0].to_bytes(_SLOT_BYTES, "big")
        return [known_by(blake2b(head + text.encode(), digest_size=DIGEST_BYTES).digest()) + tail for text in dedup_ids]
    count = len(dedup_ids)
    scopes = scopes if len(scopes) == count else [scopes[0]] * count
    slots = slots if len(slots) == count else [slots[0]] * count
    return [
        known_by(blake2b(number + bytes([len(scope)]) + scope + text.encode(), digest_size=DIGEST_BYTES).digest())
        + slot.to_bytes(_SLOT_BYTES, "big")
        for scope, slot, text in zip(scopes, slots, dedup_ids, strict=True)
    ]


def known_by(digest: bytes) -> bytes:
    """Return the part of a digest by which an id is known. The slot adds no information.

    Digests from before the sixth migration of shards have 16 more bits of the hash in the place of the slot.
    """
    return digest[:_KNOWN_BYTES]


def slot_of_digest(digest: bytes) -> int:
    """Return the slot of the id with this digest."""
    return int.from_bytes(digest[-_SLOT_BYTES:], "big")


def hashes_of(digests: Sequence[bytes]) -> list[Hash]:
    return hashes_in(b"".join(digests))


def hashes_in(digests: bytes) -> list[Hash]:
    """Return the hashes of digests that stand side by side."""
    return list(_hashes(digests))


class SeenTable:
    """A located filter of a stretch of the log: it gives the possible blocks of a digest, and never denies one.

    A digest leads to a bucket, or to the next one that is not full. Its fingerprint is searched among those of the
    bucket, which stand side by side so that one search of bytes finds it.
    """

    __slots__ = ("_block", "_bucket_count", "_counts", "_fingerprints", "_kept", "_places", "capacity", "count",
                 "first", "is_crowded", "is_made_smaller", "last_hash", "whole_count")  # fmt: skip

    def __init__(self, first: int, capacity: int) -> None:
        """Start an empty table. `first` is the number in the log of the first id to be added; `capacity` is in ids."""
        assert 0 < capacity <= TABLE_IDS_MAX
        self.first = first
        self.capacity = capacity
        self.count = 0
        self.is_crowded = False
        """True if it takes no more ids, regardless of its capacity."""
        self.is_made_smaller = False
        """True if it was made from a larger one (foqs/model/seen_shrink.py). Ids can then stand in two buckets, in any
        order.
        """
        self.whole_count = 0
        """The number of its ids up to the end of a block, or of all its ids once it takes no more. An image can hold
        these.
        """
        self.last_hash: Hash = (0, bytes(FINGERPRINT_BYTES))
        """The hash of the last of these ids."""
        self._block = first // BLOCK_IDS
        self._bucket_count = bucket_count = buckets_of(capacity)
        self._fingerprints = bytearray(bucket_count * _FINGERPRINTS_BYTES)
        self._places = array("H", [0]) * (SLOTS * bucket_count)
        self._counts = bytearray(bucket_count)
        self._kept = bytearray() if capacity * TABLE_IDS_RATIO <= SMALL_TABLE_IDS_MAX else None
        """The hashes of a small table's ids, because a larger table needs them and buckets have only a part."""

    def enlarged(self, capacity: int) -> SeenTable | None:
        """Return a table of the same ids with more room, or None if this table does not know their hashes."""
        if self._kept is None or len(self._kept) < self.count * _KEPT_HASH.size or self.is_crowded:
            return None
        larger = SeenTable(self.first, capacity)
        larger.add(list(_KEPT_HASH.iter_unpack(self._kept)))
        return larger

    def stays_small(self) -> None:
        """Drop the hashes, because no larger table of these ids will be made."""
        self._kept = None

    @property
    def end(self) -> int:
        """The number in the log that the next id will have."""
        return self.first + self.count

    @property
    def room(self) -> int:
        return 0 if self.is_crowded else self.capacity - self.count

    @property
    def size_bytes(self) -> int:
        return size_of(self.capacity) + (0 if self._kept is None else self.capacity * KEPT_HASH_BYTES)

    @property
    def bucket_count(self) -> int:
        return self._bucket_count

    def add(self, hashes: Sequence[Hash]) -> None:
        """Add the next ids of the log, which must fit."""
        assert len(hashes) <= self.capacity - self.count
        bucket_count, counts, fingerprints, places = (
            self._bucket_count, self._counts, self._fingerprints, self._places
        )  # fmt: skip
        place, done_in_block = divmod(self.end, BLOCK_IDS)
        place -= self._block
        left = BLOCK_IDS - done_in_block
        for high, fingerprint in hashes:
            bucket = high * bucket_count >> 32
            count = counts[bucket]
            if count == SLOTS:
                bucket = self._next_with_room(bucket)
                count = counts[bucket]
            slot = bucket * SLOTS + count
            counts[bucket] = count + 1
            at = slot * FINGERPRINT_BYTES
            fingerprints[at : at + FINGERPRINT_BYTES] = fingerprint
            places[slot] = place
            left -= 1
            if not left:
                place, left = place + 1, BLOCK_IDS
        if self._kept is not None:
            self._kept += b"".join([_KEPT_HASH.pack(*one) for one in hashes])
        count_before = self.count
        self.count += len(hashes)
        whole_count = self.end // BLOCK_IDS * BLOCK_IDS - self.first if self.room else self.count
        if whole_count > count_before:
            self.whole_count, self.last_hash = whole_count, hashes[whole_count - count_before - 1]

    def _next_with_room(self, bucket: int) -> int:
        """Return the next bucket with a free slot. One exists, because a table has more slots than ids."""
        step_count = 0
        while self._counts[bucket] == SLOTS:
            bucket = (bucket + 1) % self._bucket_count
            step_count += 1
        if step_count >= CROWDED_BUCKETS:
            self.is_crowded = True
        return bucket

    def may_have(self, hashes: Sequence[Hash]) -> list[int]:
        """Return the positions of the digests that might have been added: all added ones, and a few others. `blocks_of`
        is more exact.
        """
        find, bucket_count, counts = self._fingerprints.find, self._bucket_count, self._counts
        return [
            position
            for position, (high, fingerprint) in enumerate(hashes)
            if find(
                fingerprint, start := (high * bucket_count >> 32) * _FINGERPRINTS_BYTES, start + _FINGERPRINTS_BYTES
            )
            >= 0
            or counts[start // _FINGERPRINTS_BYTES] == SLOTS
        ]

    def blocks_of(self, digest_hash: Hash) -> list[int]:
        """Return the possible blocks of the digest in the log. Of ids that were not added, 3 in a million have one."""
        high, fingerprint = digest_hash
        find, counts = self._fingerprints.find, self._counts
        bucket = high * self._bucket_count >> 32
        found: list[int] = []
        for _ in range(self._bucket_count):
            start = bucket * _FINGERPRINTS_BYTES
            end = start + counts[bucket] * FINGERPRINT_BYTES
            at = find(fingerprint, start, end)
            while at >= 0:
                if not at % FINGERPRINT_BYTES:
                    found.append(self._block + self._places[at // FINGERPRINT_BYTES])
                at = find(fingerprint, at + 1, end)
            if counts[bucket] < SLOTS:
                break
            bucket = (bucket + 1) % self._bucket_count
        return found

    def put(self, bucket: int, fingerprints: bytes, places: array[int]) -> None:
        """Put ids into a bucket, or into the next ones that have room, without counting them."""
        done, counts = 0, self._counts
        while done < len(places):
            if counts[bucket] == SLOTS:
                bucket = self._next_with_room(bucket)
            part = min(SLOTS - counts[bucket], len(places) - done)
            slot = bucket * SLOTS + counts[bucket]
            self._fingerprints[slot * FINGERPRINT_BYTES : (slot + part) * FINGERPRINT_BYTES] = fingerprints[
                done * FINGERPRINT_BYTES : (done + part) * FINGERPRINT_BYTES
            ]
            self._places[slot : slot + part] = places[done : done + part]
            counts[bucket] += part
            done += part

    def is_full_at(self, bucket: int) -> bool:
        """True if ids that lead to this bucket can stand in the next one."""
        return self._counts[bucket] == SLOTS

    def buckets(self, start: int, stop: int, count: int) -> tuple[bytes, bytes, array[int]]:
        """Return the content of these buckets with the first `count` ids: their counts, fingerprints and places.

        These are all ids, or they end a block. An id never moves, so a bucket begins with the older ids.
        """
        counts, places, fingerprints = self._counts[start:stop], self._places, self._fingerprints
        if count < self.count:
            end_place = (self.first + count) // BLOCK_IDS - self._block
            for at, bucket in enumerate(range(start, stop)):
                first_slot = bucket * SLOTS
                counts[at] = bisect_left(places, end_place, first_slot, first_slot + counts[at]) - first_slot
        some_fingerprints, some_places = bytearray(), array("H")
        for bucket, in_bucket in enumerate(counts, start):
            slot = bucket * SLOTS
            some_fingerprints += fingerprints[slot * FINGERPRINT_BYTES : (slot + in_bucket) * FINGERPRINT_BYTES]
            some_places += places[slot : slot + in_bucket]
        return bytes(counts), bytes(some_fingerprints), some_places

    def put_buckets(self, start: int, counts: bytes, fingerprints: bytes, places: array[int]) -> None:
        """Fill the empty buckets from `start` on with a result of `buckets`."""
        done = 0
        for bucket, in_bucket in enumerate(counts, start):
            slot, end = bucket * SLOTS, done + in_bucket
            at = slot * FINGERPRINT_BYTES
            self._fingerprints[at : at + in_bucket * FINGERPRINT_BYTES] = fingerprints[
                done * FINGERPRINT_BYTES : end * FINGERPRINT_BYTES
            ]
            self._places[slot : slot + in_bucket] = places[done:end]
            done = end
        self._counts[start : start + len(counts)] = counts
        self.count += done


def buckets_of(capacity: int) -> int:
    """Return the buckets of a table with this capacity."""
    return -(-capacity // BUCKET_IDS)


def rounded_up(capacity: int) -> int:
    """Return the next capacity whose buckets can be halved repeatedly."""
    bucket_count = buckets_of(capacity)
    zeros = bucket_count.bit_length() - _COUNT_BITS
    return capacity if zeros <= 0 else (-(-bucket_count >> zeros) << zeros) * BUCKET_IDS


def size_of(capacity: int) -> int:
    """Return the memory of a table of this capacity, in bytes."""
    return TABLE_BYTES + buckets_of(capacity) * BUCKET_BYTES


class SeenWindow:
    """The window of known ids of one namespace on one shard, from `edge` to `end` of its log.

    Tables follow each other, each for a stretch of the log, and are dropped as a whole once the edge has passed them.
    The shard adds committed ids, moves the edge, and deletes rows before it.
    """

    __slots__ = ("dropped_to", "edge", "end", "expected_end", "fill_end", "is_doomed", "last_first", "last_ms", "marks",
                 "moved_end", "namespace", "tables")  # fmt: skip

    def __init__(self, namespace: int, first: int = 0) -> None:
        """`first` is the number of the first id with a row, or of the next id if the log is empty."""
        self.namespace = namespace
        self.tables: list[SeenTable] = []
        self.edge = first
        """Ids before it are no longer known."""
        self.end = first
        """The number in the log that the next id will have."""
        self.is_doomed = False
        """True if its namespace is deleted, so that the whole log will be deleted."""
        self.expected_end = first
        """The end that it will have when its log is read."""
        self.fill_end = first
        """The number up to which its log is being read now."""
        self.dropped_to = first
        """All rows before it are deleted."""
        self.last_first = first
        """The number at which the last row begins. That row always stays, because numbers must not begin anew."""
        self.last_ms = 0
        """The time of the last id, on the shard's steady clock."""
        self.moved_end = 0
        """Ids from other shards stand before this number, behind younger ids. No id is dropped by number until as many
        later ids have come that this number is out of bounds as well.
        """
        self.marks: list[tuple[int, int]] = []
        """Numbers in the log with the time at which that id came, both in order; the first one is that of the edge."""

    @property
    def ids_count(self) -> int:
        return self.end - self.edge

    def probe(self, digests: Sequence[bytes]) -> dict[int, list[int]]:
        """Return the possible blocks of digests, newest first, by the positions of the digests that have any."""
        if not self.tables:
            return {}
        hashes = hashes_of(digests)
        edge_block = self.edge // BLOCK_IDS
        found: dict[int, list[int]] = {}
        for table in reversed(self.tables):
            for position in table.may_have(hashes):
                blocks = [block for block in table.blocks_of(hashes[position]) if block >= edge_block]
                if blocks:
                    found.setdefault(position, []).extend(reversed(blocks))
        return found

    def add(self, digests: Sequence[bytes], at_ms: int, table_ids_max: int) -> None:
        """Add the next ids of the log, committed at this time. A new table has room for about `table_ids_max`."""
        self.add_hashes(hashes_of(digests), at_ms, table_ids_max)

    def add_hashes(self, hashes: list[Hash], at_ms: int, table_ids_max: int) -> None:
        """Add the next ids of the log by the hashes of their digests."""
        self.mark(self.end, at_ms)
        done = 0
        while done < len(hashes):
            table = self.tables[-1] if self.tables else None
            if table is None or not table.room or table.end != self.end:
                table = self._next_table(table, table_ids_max)
            part = hashes[done : done + table.room]
            table.add(part)
            done += len(part)
            self.end += len(part)

    def attach(self, table: SeenTable, marks: Sequence[tuple[int, int]]) -> None:
        """Append a table with the next ids of the log. The first table can begin before the edge."""
        self.begin_at(table.first)
        assert table.end > self.end
        assert table.first == self.end or not self.tables
        for number, at_ms in marks:
            self.mark(number, at_ms)
        self.tables.append(table)
        self.end = table.end
        self.move_edge(self.tables[1].first if len(self.tables) > TABLES_MAX else self.edge)

    def begin_at(self, number: int) -> None:
        """Give the next id this number, if that is after the end. Ids between are unknown."""
        if number > self.end:
            self.end = number
            self.move_edge(number)

    def _next_table(self, last: SeenTable | None, table_ids_max: int) -> SeenTable:
        wanted = TABLE_IDS_FIRST if last is None else last.capacity * TABLE_IDS_RATIO
        wanted = max(wanted, self.fill_end - self.end)
        capacity = rounded_up(max(TABLE_IDS_FIRST, min(wanted, table_ids_max, TABLE_IDS_MAX)))
        if last is not None and len(self.tables) == 1 and last.end == self.end and capacity > last.capacity:
            larger = last.enlarged(capacity)
            if larger is not None:
                self.tables[0] = larger
                return larger
        table = SeenTable(self.end, capacity)
        if last is not None:
            last.stays_small()
            table.stays_small()
        self.tables.append(table)
        if len(self.tables) > TABLES_MAX:
            self.move_edge(self.tables[1].first)
        return table

    def mark(self, number: int, at_ms: int) -> None:
        """Note the time at which the id of this number came. A time before that of an earlier id counts as that one."""
        self.last_ms = max(self.last_ms, at_ms)
        marks = self.marks
        if not marks or self.last_ms - marks[-1][1] >= max(_MARK_MS_MIN, (self.last_ms - marks[0][1]) >> _MARKS_SHIFT):
            marks.append((number, self.last_ms))

    def age(self, now_ms: int, ids_max: int, ms_max: int) -> None:
        """Move the edge past all ids before the last `ids_max`, and past ids older than `ms_max`."""
        oldest_ms = now_ms - ms_max
        edge = self.end - ids_max
        if edge < self.moved_end:
            edge = self.edge
        if self.last_ms <= oldest_ms:
            edge = self.end
        marks = self.marks
        for number, at_ms in marks:
            if at_ms > oldest_ms:
                break
            # An id before a mark is no younger than the mark.
            edge = max(edge, number)
        if edge > self.edge:
            self.move_edge(edge)

    def move_edge(self, edge: int) -> None:
        """Forget the ids before this number."""
        assert self.edge <= edge <= self.end
        self.edge = edge
        while len(self.tables) > 1 and self.tables[0].end <= edge:
            del self.tables[0]
        if self.tables and self.tables[0].end <= edge:
            self.tables.clear()
        marks = self.marks
        passed = 0
        while passed + 1 < len(marks) and marks[passed + 1][0] <= edge:
            passed += 1
        del marks[:passed]

    def replace(self, table: SeenTable, smaller: SeenTable) -> None:
        """Replace a table by a smaller one. Ids before the oldest table are no longer known."""
        self.tables[self.tables.index(table)] = smaller
        if smaller.first > table.first:
            self.move_edge(max(self.edge, smaller.first))

    @property
    def droppable_to(self) -> int:
        """The number before which rows can be deleted: whole blocks before the edge, and never the last row."""
        if self.is_doomed:
            return self.end
        return max(self.dropped_to, min(self.edge, self.last_first) // BLOCK_IDS * BLOCK_IDS)

    def age_ms(self, now_ms: int) -> int | None:
        """Return the age up to which all ids are known, in milliseconds; None if all ids that ever came are known."""
        if not self.edge:
            return None
        passed_ms = next((at_ms for number, at_ms in self.marks if number >= self.edge), self.last_ms)
        return max(0, now_ms - passed_ms)

    @property
    def size_bytes(self) -> int:
        return WINDOW_BYTES + sum([table.size_bytes for table in self.tables])
