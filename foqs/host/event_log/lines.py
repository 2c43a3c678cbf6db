"""Lines of the event log, and those that wait for a disk that refuses them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foqs.model import limits


class Line(NamedTuple):
    """A line as it is written, with its end."""

    text: bytes
    records_count: int
    """How many records it has: lives, or one row of a roll-up."""
    items_count: int
    """How many enqueues and ends these stand for."""


class WaitingLines:
    """Lines that no file has, in their order. Their bytes are bounded: who adds to them gets what has to go."""

    def __init__(self) -> None:
        self.records_count = 0
        self._lines: deque[Line] = deque()
        self._size_bytes = 0

    def add(self, lines: Iterable[Line]) -> list[Line]:
        """Let them wait behind the others. Returns the oldest ones, for which there is no room then."""
        gone: list[Line] = []
        for line in lines:
            self._lines.append(line)
            self._count(line, 1)
            gone += self._too_many()
        return gone

    def put_back(self, lines: Sequence[Line]) -> list[Line]:
        """Let lines that came before all others wait again. Returns the oldest ones, for which there is no room."""
        for line in reversed(lines):
            self._lines.appendleft(line)
            self._count(line, 1)
        return self._too_many()

    def take(self) -> Line | None:
        """The oldest one, which waits no longer."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        self._count(line, -1)
        return line

    def _too_many(self) -> list[Line]:
        gone: list[Line] = []
        while self._size_bytes > limits.EVENT_LOG_UNWRITTEN_BYTES_MAX and (line := self.take()) is not None:
            gone.append(line)
        return gone

    def _count(self, line: Line, times: int) -> None:
        self.records_count += times * line.records_count
        self._size_bytes += times * len(line.text)
