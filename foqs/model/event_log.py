"""The form of the event log, for the hosts that write it and the reports that read it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Final

from foqs.model import limits

FORMAT = 1
"""The `v` of each line. It changes when readers have to handle the lines differently."""
LIVES = "lives"
"""The folder of the ends of lives."""
ROLLUPS = "rollups"
"""The folder of the minute roll-ups."""
BOUNDS_MS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000,
)  # fmt: skip
"""Upper bounds of the buckets of a roll-up's times, in milliseconds. One more bucket holds all longer times."""
SERIES_ENQUEUED = "enqueued"
"""The outcome of roll-up rows that count enqueued items."""
SERIES_RATE_LIMITED = "rate_limited"
"""The outcome of roll-up rows that count items refused by the quota of their namespace."""
SERIES_LOST = "lost"
"""The outcome of roll-up rows that count events the host did not record, because its event log did not keep up."""
LIFE_COLUMNS: Final = (
    "key",
    "priority",
    "enqueued_at_ms",
    "ready_at_ms",
    "first_delivered_at_ms",
    "last_delivered_at_ms",
    "ended_at_ms",
    "attempts",
)
"""The columns of a line of lives. A column of one value has that value in the whole line."""
GZIP_WBITS = 31
_INFLATED_BYTES_MAX = 4 * limits.MIB
_CHUNK_BYTES = 16 * limits.KIB
_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def threshold_of(per_mille: int) -> int:
    """Return the bound on `sample_point_of` below which an item is in a sample of `per_mille` items in a thousand."""
    return (per_mille << 32) // 1000


def sample_point_of(key: int) -> int:
    """Return the place of an item in all samples, 0 to 2**32 - 1. It depends on the key alone, as each life is sampled
    whole.

    The key is multiplied by the golden ratio (Fibonacci hashing, Knuth), so that keys in a row are spread evenly, and a
    larger sample has all items of a smaller one.
    """
    return (key * _MIX & _WORD) >> 32


class FileLines:
    """The lines of a gzipped file, as far as it can be read.

    After the last line `is_torn` is True if part of its end is missing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.is_torn = False
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks():
            yield from block.split(b"\n")

    def blocks(self) -> Iterator[bytes]:
        """Yield the lines in blocks of bounded size, without the last line end of a block."""
        rest = b""
        for text in self._inflated():
            lines, end, rest = (rest + text).rpartition(b"\n")
            if end:
                yield lines
        self.is_torn = self.is_torn or bool(rest)

    def _inflated(self) -> Iterator[bytes]:
        """The contents in bounded parts, up to the first invalid byte."""
        inflater, left = zlib.decompressobj(GZIP_WBITS), b""
        while left := left or self._file.read(_CHUNK_BYTES):
            if inflater.eof:
                inflater = zlib.decompressobj(GZIP_WBITS)
            before = inflater.copy()
            try:
                yield inflater.decompress(left, _INFLATED_BYTES_MAX)
            except zlib.error:
                self.is_torn = True
                yield _inflated_up_to_error(before, left)
                return
            left = inflater.unconsumed_tail or inflater.unused_data
        # The remaining output of an inflater that has had all input has no whole line.
        self.is_torn = not inflater.eof


def _inflated_up_to_error(decompressor: zlib._Decompress, chunk: bytes) -> bytes:
    """Inflate a part of a gzipped file up to its first invalid byte, after inflating it whole has failed.

    `decompressor` is in the state before that attempt.
    """
    found = bytearray()
    with suppress(zlib.error):
        for at in range(len(chunk)):
            found += decompressor.decompress(chunk[at : at + 1])
    return bytes(found)
