"""Reads of fake servers that may come back short, as under a limit on what a session may select, or behind a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from foqs.model.errors import UnavailableError
from foqs.shard.port import SessionLostError
from foqs.storage import whole_reads

T = TypeVar("T", bound=Sequence[Any])

_END = (None,)


class ReadCut:
    """What a server returns of a read: all, or `rows_max` rows at most of those reads that it cuts."""

    def __init__(self) -> None:
        self.rows_max: int | None = None
        """None while nothing is cut."""
        self.is_cut: Callable[[], bool] = lambda: True
        """Whether the next read is one that it cuts."""
        self.cut_count = 0
        """Reads of which something was left out."""

    def whole(self, rows: Sequence[T]) -> list[T]:
        """The rows of a read that has an end. Raises ShortReadError when they are not all."""
        return whole_reads.without_end(self.some([*rows, _END]))

    def some(self, rows: list[Any]) -> list[Any]:
        """Those of the rows that come back."""
        if self.rows_max is None or len(rows) <= self.rows_max or not self.is_cut():
            return rows
        self.cut_count += 1
        return rows[: self.rows_max]


@contextmanager
def losing_session(shard_id: int) -> Iterator[None]:
    """A session that leaves rows out is given up, as the real store does."""
    try:
        yield
    except whole_reads.ShortReadError as error:
        raise SessionLostError(f"shard {shard_id}: {error.args[1]}") from error


@contextmanager
def not_read(shard_id: int) -> Iterator[None]:
    """The same for who reads beside the owner."""
    try:
        yield
    except whole_reads.ShortReadError as error:
        raise UnavailableError(f"shard {shard_id} cannot be read now: {error.args[1]}", nothing_done=True) from error
