"""Reads of fake servers that can return too few rows, as with a limit on a session's selects, or behind a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from foqs.model.errors import UnavailableError
from foqs.shard.port import SessionLostError
from foqs.storage.sessions import whole_reads

T = TypeVar("T", bound=Sequence[Any])

_END = (None,)


class ReadCut:
    """The rows that a server returns of a read: all, or at most `rows_max` if the read is cut."""

    def __init__(self) -> None:
        self.rows_max: int | None = None
        """Most rows of a cut read; None while reads are not cut."""
        self.is_cut: Callable[[], bool] = lambda: True
        """True if the next read is cut."""
        self.cut_count = 0
        """Number of reads that lost rows."""

    def whole(self, rows: Sequence[T]) -> list[T]:
        """The rows of a read that has an end. Raises ShortReadError if some are missing."""
        return whole_reads.without_end(self.some([*rows, _END]))

    def some(self, rows: list[Any]) -> list[Any]:
        """The rows that the server returns of these."""
        if self.rows_max is None or len(rows) <= self.rows_max or not self.is_cut():
            return rows
        self.cut_count += 1
        return rows[: self.rows_max]


@contextmanager
def losing_session(shard_id: int) -> Iterator[None]:
    """Give up a session that leaves rows out, as the real store does."""
    try:
        yield
    except whole_reads.ShortReadError as error:
        raise SessionLostError(f"shard {shard_id}: {error.args[1]}") from error


@contextmanager
def not_read(shard_id: int) -> Iterator[None]:
    """The same for readers beside the owner."""
    try:
        yield
    except whole_reads.ShortReadError as error:
        raise UnavailableError(f"shard {shard_id} cannot be read now: {error.args[1]}", nothing_done=True) from error
