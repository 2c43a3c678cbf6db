"""A proxy that cuts what a server returns: every result has so many rows at most, and nothing tells that it was cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from pymysql.connections import MySQLResult

from foqs.storage.sessions.exchange import ReplyReader


@dataclass
class Cut:
    """Which reads are cut, of those of more than `rows_max` rows."""

    rows_max: int
    at: int | None = None
    """The number of the only read that is cut; None if all are."""
    reads_count: int = 0
    cut_count: int = 0

    def is_due(self, count: int) -> bool:
        """True if a read of so many rows, which begins now, is cut."""
        if count <= self.rows_max:
            return False
        self.reads_count += 1
        if is_due := self.at in (None, self.reads_count - 1):
            self.cut_count += 1
        return is_due


@contextmanager
def cut_reads(rows_max: int, at: int | None = None) -> Iterator[Cut]:
    """For all sessions of this process, those that there are as well."""
    read, end = MySQLResult._read_rowdata_packet, ReplyReader._end_result
    cut = Cut(rows_max, at)

    def read_some(result: Any) -> None:
        read(result)
        if cut.is_due(len(result.rows)):
            result.rows = result.rows[:rows_max]
            result.affected_rows = len(result.rows)

    def end_some(reader: Any, status: int) -> None:
        if cut.is_due(len(reader._rows)):
            del reader._rows[rows_max:]
        end(reader, status)

    with (
        patch.object(MySQLResult, "_read_rowdata_packet", read_some),
        patch.object(ReplyReader, "_end_result", end_some),
    ):
        yield cut
