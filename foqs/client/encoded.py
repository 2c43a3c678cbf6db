"""Items that are encoded already, for callers with columnar data: one buffer instead of an object for each item."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

Bytes = bytes | memoryview


class EncodedItems(Sequence[Bytes]):
    """Encoded items: NewItem structs of the contract, back to back in one buffer.

    A slice shares the buffer. Items are not parsed here, so the encoder must follow the contract.
    """

    __slots__ = ("_data", "_ends", "_first", "_last")

    def __init__(self, data: Bytes, ends: Sequence[int], first: int = 0, last: int | None = None) -> None:
        """Use the items from `first` to `last`; item n is `data[ends[n]:ends[n + 1]]`."""
        self._data = memoryview(data)
        self._ends = ends
        self._first = first
        self._last = len(ends) - 1 if last is None else last

    @classmethod
    def of(cls, items: Iterable[Bytes]) -> EncodedItems:
        """Copy items from separate buffers into one."""
        data = bytearray()
        ends = [0]
        for item in items:
            data += item
            ends.append(len(data))
        return cls(bytes(data), ends)

    def __len__(self) -> int:
        return self._last - self._first

    @overload
    def __getitem__(self, at: int) -> Bytes: ...

    @overload
    def __getitem__(self, at: slice) -> EncodedItems: ...

    def __getitem__(self, at: int | slice) -> Bytes | EncodedItems:
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            if step != 1:
                return EncodedItems.of(self[position] for position in range(first, last, step))
            return EncodedItems(self._data, self._ends, self._first + first, self._first + max(first, last))
        place = self._first + range(len(self))[at]
        return self._data[self._ends[place] : self._ends[place + 1]]

    def __iter__(self) -> Iterator[Bytes]:
        """Iterate without the lookup for each item that a Sequence does by default."""
        data, ends = self._data, self._ends
        begin = ends[self._first]
        for place in range(self._first + 1, self._last + 1):
            end = ends[place]
            yield data[begin:end]
            begin = end

    @property
    def size_bytes(self) -> int:
        """Size of all items in bytes."""
        return self._ends[self._last] - self._ends[self._first]

    def parts(self) -> list[Bytes]:
        """Return the bytes of all items in the fewest parts."""
        return [self._data[self._ends[self._first] : self._ends[self._last]]]

    def batches(self, items_max: int, bytes_max: int) -> Iterator[tuple[int, EncodedItems]]:
        """Split into pieces of at most `items_max` items and `bytes_max` bytes, with their first positions.

        A piece of a single item can exceed `bytes_max`.
        """
        ends, first = self._ends, self._first
        while first < self._last:
            last = min(first + items_max, self._last)
            if ends[last] - ends[first] > bytes_max:
                last = max(first + 1, bisect_right(ends, ends[first] + bytes_max, first + 1, last) - 1)
            yield first - self._first, EncodedItems(self._data, ends, first, last)
            first = last
