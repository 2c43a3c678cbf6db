"""Lines of the event log, and the lines that wait while the disk refuses them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foqs.model import limits


class Line(NamedTuple):
    """A line of a file, with its line end."""

    text: bytes
    records_count: int
    """The number of its records: lives, or one row of a roll-up."""
    items_count: int
    """The number of enqueues and ends of these records."""


class WaitingLines:
    """Unwritten lines, in their order. Their bytes are bounded, so that adding lines returns the dropped ones."""

    def __init__(self) -> None:
        self.records_count = 0
        self._lines: deque[Line] = deque()
        self._size_bytes = 0

    def add(self, lines: Iterable[Line]) -> list[Line]:
        """Add lines behind the waiting ones. Returns the oldest lines, which are dropped for want of room."""
        gone: list[Line] = []
        for line in lines:
            self._lines.append(line)
            self._count(line, 1)
            gone += self._too_many()
        return gone

    def put_back(self, lines: Sequence[Line]) -> list[Line]:
        """Put lines back before the waiting ones. Returns the oldest lines, which are dropped for want of room."""
        for line in reversed(lines):
            self._lines.appendleft(line)
            self._count(line, 1)
        return self._too_many()

    def take(self) -> Line | None:
        """Remove and return the oldest line, or None."""
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
