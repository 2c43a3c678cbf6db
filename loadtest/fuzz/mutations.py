"""Messages that are nearly right, by a seed: real ones with a few bytes changed, moved, cut out or put in."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from loadtest.fuzz.corpus import EDGES, dictionary

_KINDS = bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 99, 255])
_CONTAINERS = (
    b"\x0c\0\1",
    b"\x0f\0\1\x0f\0\0\0\1",
    b"\x0f\0\1\x0c\0\0\0\1",
    b"\x0d\0\1\3\x0d\0\0\0\1\1",
)
"""Openings of a struct, a list of lists, a list of structs and a map of maps."""
_MESSAGE_BYTES_MAX = 64 * 1024


class Mutator:
    """The same seed gives the same messages."""

    def __init__(self, seed: object, seeds: Sequence[bytes]) -> None:
        self._chance = random.Random(repr(seed))
        self._seeds = seeds
        self._pieces = dictionary()
        self._edges = [value.to_bytes(4, "big", signed=True) for value in EDGES]
        self._steps: list[Callable[[bytearray], None]] = [
            self._flip_bit,
            self._set_byte,
            self._set_kind,
            self._set_number,
            self._set_number,
            self._cut_off,
            self._cut_out,
            self._put_in_piece,
            self._put_in_nesting,
            self._repeat,
            self._splice,
        ]

    def message(self) -> bytes:
        """One message; one in twenty is a seed as it is."""
        chance = self._chance
        data = bytearray(chance.choice(self._seeds))
        if chance.random() < 0.05:
            return bytes(data)
        return self.mutate(data)

    def mutate(self, data: bytearray) -> bytes:
        """One to four changes to `data`."""
        chance = self._chance
        for _ in range(1 if chance.random() < 0.6 else chance.randrange(2, 5)):
            if not data:
                break
            self._steps[int(chance.random() * len(self._steps))](data)
        return bytes(data[:_MESSAGE_BYTES_MAX])

    def _at(self, data: bytearray) -> int:
        return int(self._chance.random() * len(data))

    def _flip_bit(self, data: bytearray) -> None:
        data[self._at(data)] ^= 1 << int(self._chance.random() * 8)

    def _set_byte(self, data: bytearray) -> None:
        data[self._at(data)] = int(self._chance.random() * 256)

    def _set_kind(self, data: bytearray) -> None:
        data[self._at(data)] = _KINDS[int(self._chance.random() * len(_KINDS))]

    def _set_number(self, data: bytearray) -> None:
        """Mostly where a number stands already: after a zero byte."""
        at = self._at(data)
        zero = data.find(0, at)
        at = zero if zero >= 0 else at
        data[at : at + 4] = self._chance.choice(self._edges)

    def _cut_off(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _cut_out(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + 1 + int(self._chance.random() * 12)]

    def _put_in_piece(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._chance.choice(self._pieces)

    def _put_in_nesting(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._chance.choice(_CONTAINERS) * self._chance.randrange(1, 40)

    def _repeat(self, data: bytearray) -> None:
        at = self._at(data)
        part = data[at : at + 1 + int(self._chance.random() * 40)]
        data[at:at] = part * self._chance.randrange(1, 200)

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._seeds)
        at = int(self._chance.random() * len(other))
        data[self._at(data) :] = other[at:]
