"""Counting a shard's rows after a take-over, beside its transactions."""

from __future__ import annotations

from typing import Any

import pymysql

from foqs.shard.port import LaneCounts, SessionLostError
from foqs.storage import statements as sql


def count_lanes(snapshot: Any) -> LaneCounts:
    """Count what the session, which has a snapshot of the shard, sees, and close it. Raises SessionLostError."""
    try:
        with snapshot.cursor() as cursor:
            cursor.execute(sql.COUNT_LANES)
            lanes = list(cursor.fetchall())
            cursor.execute(sql.COUNT_DELAYED)
            return LaneCounts(lanes, list(cursor.fetchall()))
    except (pymysql.err.Error, OSError) as error:
        raise SessionLostError(str(error)) from error
    finally:
        snapshot._force_close()
