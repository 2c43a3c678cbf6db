"""Makes tables of dedup ids smaller if memory is short. The older half of the ids is dropped, or the spare room.

A table does not have the hashes of its ids, but buckets that stand side by side form one bucket of a table with fewer
buckets. An id can lead to an earlier bucket only if the buckets from there on are full. If those are two buckets of the
smaller table, the id is put into both. So the result can have a few extra ids, but never denies an id.
"""

from __future__ import annotations

from array import array
from typing import Final

from foqs.model import seen
from foqs.model.seen import BLOCK_IDS, FINGERPRINT_BYTES, SLOTS, SeenTable, SeenWindow

_SPARE_IDS: Final = 10
"""Average places per bucket for ids that stand in several buckets, which leaves room for the others."""


class TableShrink:
    """Makes a table with fewer buckets from one that is closed to new ids, a few buckets at a time."""

    def __init__(self, window: SeenWindow, table: SeenTable, first: int, shift: int) -> None:
        """Keep the ids from `first` on, which begins a block or the table; `1 << shift` buckets become one."""
        self.window = window
        self.table = table
        self.smaller = SeenTable(first, (table.bucket_count >> shift) * seen.BUCKET_IDS)
        self.smaller.is_made_smaller = True
        self.smaller.stays_small()
        self.has_failed = False
        """True if too many ids would have to stand in several buckets, as only ids made for that purpose do."""
        self._shift = shift
        self._next = 0
        self._full_count = 0
        """Full buckets in a row before the next one."""
        while self._full_count < table.bucket_count and table.is_full_at(-1 - self._full_count):
            self._full_count += 1
        self._spare = _SPARE_IDS * self.smaller.bucket_count
        self._was_crowded = table.is_crowded
        table.is_crowded = True

    @property
    def is_over(self) -> bool:
        """True if it is done, or no longer useful."""
        return self.has_failed or self._next == self.table.bucket_count or self.table not in self.window.tables

    def go_on(self, buckets_max: int) -> int:
        """Convert up to `buckets_max` buckets, but at least a group that becomes one. Returns their number."""
        width = 1 << self._shift
        start = self._next
        stop = min(self.table.bucket_count, start + max(width, buckets_max // width * width))
        counts, fingerprints, places = self.table.buckets(start, stop, self.table.count)
        at = 0
        for bucket, count in enumerate(counts, start):
            if count:
                stop_at = at + count
                found = fingerprints[at * FINGERPRINT_BYTES : stop_at * FINGERPRINT_BYTES]
                self._put(bucket, *self._younger(found, places[at:stop_at]))
                at = stop_at
            self._full_count = self._full_count + 1 if count == SLOTS else 0
        self._next = stop
        return stop - start

    def _younger(self, fingerprints: bytes, places: array[int]) -> tuple[bytes, array[int]]:
        """Return the ids of a bucket that stay, with their places in the smaller table."""
        before = self.smaller.first // BLOCK_IDS - self.table.first // BLOCK_IDS
        if not before:
            return fingerprints, places
        kept = [slot for slot, place in enumerate(places) if place >= before]
        if kept and kept[0] + len(kept) == len(places):
            found = fingerprints[kept[0] * FINGERPRINT_BYTES :]
        else:
            found = b"".join([fingerprints[slot * FINGERPRINT_BYTES : (slot + 1) * FINGERPRINT_BYTES] for slot in kept])
        return found, array("H", [places[slot] - before for slot in kept])

    def _put(self, bucket: int, fingerprints: bytes, places: array[int]) -> None:
        """Put the ids of a bucket into the buckets that they can lead to: this one, or full ones before it."""
        if not places:
            return
        homes = {
            ((bucket - back) % self.table.bucket_count) >> self._shift
            for back in range(min(self._full_count, self.table.bucket_count - 1) + 1)
        }
        self._spare -= (len(homes) - 1) * len(places)
        if self._spare < 0:
            self.has_failed = True
        if not self.has_failed:
            for home in homes:
                self.smaller.put(home, fingerprints, places)

    def end(self) -> None:
        """Replace the table by the smaller one. If the table stays, it takes ids again."""
        table, smaller = self.table, self.smaller
        if self.has_failed or table not in self.window.tables:
            table.is_crowded = self._was_crowded
            return
        smaller.count = table.end - smaller.first
        self.window.replace(table, smaller)


def shrink(window: SeenWindow, table: SeenTable, first: int) -> TableShrink | None:
    """Start to keep the ids of a table from this number on, in as few buckets as they need; None if that saves none."""
    needed, shift = max(1, seen.buckets_of(table.end - first)), 0
    while table.bucket_count % (2 << shift) == 0 and table.bucket_count >> (shift + 1) >= needed:
        shift += 1
    return TableShrink(window, table, first, shift) if shift else None


def least_loss(window: SeenWindow, ids_kept: int) -> int | TableShrink | None:
    """Return how a window can free memory: a number before which all ids are dropped, or a table to make smaller.

    At least half of its ids stay, and the last `ids_kept`. None if it can then free nothing.
    """
    tables = window.tables
    if not tables:
        return None
    oldest, youngest = tables[0], tables[-1]
    if 2 * seen.size_of(max(1, youngest.room)) > window.size_bytes:
        # Unused room is freed without a loss of ids.
        smaller = shrink(window, youngest, youngest.first)
        if smaller is not None:
            return smaller
    kept = max(window.ids_count // 2, min(ids_kept, window.ids_count))
    if len(tables) > 1 and window.end - tables[1].first >= kept:
        return tables[1].first
    first = (window.end - kept) // BLOCK_IDS * BLOCK_IDS
    return shrink(window, oldest, max(oldest.first, first))
