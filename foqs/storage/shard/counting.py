"""Counts a shard's rows after a take-over, in parallel to its transactions."""

from __future__ import annotations

from typing import Any

import pymysql

from foqs.model import limits
from foqs.shard.port import LaneCounts, SessionLostError
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.session import connect
from foqs.storage.sessions.whole_reads import without_end


def open_snapshot(url: str) -> Any:
    """Open a session with a snapshot of the shard's current state. Raises pymysql's errors."""
    snapshot = connect(url, limits.COUNT_MS_MAX, limits.COUNT_MS_MAX)
    with snapshot.cursor() as cursor:
        cursor.execute(sql.REPEATABLE)
        cursor.execute(sql.SNAPSHOT)
    return snapshot


def count_lanes(snapshot: Any) -> LaneCounts:
    """Count the rows in the snapshot of this session, and close the session. Raises SessionLostError."""
    try:
        with snapshot.cursor() as cursor:
            cursor.execute(sql.COUNT_LANES)
            lanes = without_end(cursor.fetchall())
            cursor.execute(sql.COUNT_DELAYED)
            return LaneCounts(lanes, without_end(cursor.fetchall()))
    except (pymysql.err.Error, OSError) as error:
        raise SessionLostError(str(error)) from error
    finally:
        snapshot._force_close()
