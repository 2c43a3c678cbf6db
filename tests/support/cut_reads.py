"""A proxy that cuts what a server returns: every result has so many rows at most, and nothing tells that it was cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pymysql.connections import MySQLResult

from foqs.storage.sessions.exchange import ReplyReader


@contextmanager
def cut_reads(rows_max: int) -> Iterator[None]:
    """For all sessions of this process, those that there are as well."""
    read, end = MySQLResult._read_rowdata_packet, ReplyReader._end_result

    def read_some(result: Any) -> None:
        read(result)
        result.rows = result.rows[:rows_max]
        result.affected_rows = len(result.rows)

    def end_some(reader: Any, status: int) -> None:
        del reader._rows[rows_max:]
        end(reader, status)

    with (
        patch.object(MySQLResult, "_read_rowdata_packet", read_some),
        patch.object(ReplyReader, "_end_result", end_some),
    ):
        yield
