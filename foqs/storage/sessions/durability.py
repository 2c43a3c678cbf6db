"""Checks that a server is durable, so that an answered COMMIT survives a power cut.

kill -9 of the server proves nothing about it, because the kernel keeps the written data; so this module reads the
settings. A host checks them when it takes a shard and regularly after, because they can change at run time.
"""

from __future__ import annotations

from typing import Any

import pymysql

from foqs.storage.sessions.whole_reads import ShortReadError

_VARIABLES = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "innodb_flush_method",
    "debug_no_sync",
    "log_bin",
    "sync_binlog",
)
_VARIABLES_OF_ALL = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin")
"""The variables that every server has."""
_SAFE_DOUBLEWRITE = {"ON", "1", "DETECT_AND_RECOVER", "FAST"}
"""MySQL 8.0.30 and MariaDB 11 have more values than ON; DETECT_ONLY finds torn pages but cannot repair them."""


def check_durable(connection: pymysql.Connection[Any]) -> list[str]:
    """Return the settings that keep this server from being durable, each as a sentence with the value; empty if none.

    Raises the connection's errors.
    """
    with connection.cursor() as cursor:
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        cursor.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        found = list(cursor.fetchall())
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'")
        found += cursor.fetchall()
    values = {str(name).lower(): str(value).upper() for name, value in found}
    if missing := [name for name in _VARIABLES_OF_ALL if name not in values]:
        raise ShortReadError(f"the server's variables came without {missing[0]}")
    return durability_problems(values)


def durability_problems(values: dict[str, str]) -> list[str]:
    """Judge the server's variables and status for check_durable (upper-case values by lower-case name)."""
    problems = []
    flush = values.get("innodb_flush_log_at_trx_commit")
    if flush != "1":
        problems.append(f"innodb_flush_log_at_trx_commit is {flush}: set it to 1, or answered commits can be lost")
    if values.get("log_bin") in ("ON", "1") and values.get("sync_binlog") != "1":
        problems.append(f"sync_binlog is {values.get('sync_binlog')} with a binary log: set it to 1")
    doublewrite = values.get("innodb_doublewrite")
    if doublewrite not in _SAFE_DOUBLEWRITE:
        problems.append(f"innodb_doublewrite is {doublewrite}: set it to ON, or a power cut can tear pages")
    if values.get("innodb_redo_log_enabled") == "OFF":  # Only MySQL can disable it.
        problems.append("the redo log is disabled: enable it by ALTER INSTANCE ENABLE INNODB REDO_LOG")
    if "NOSYNC" in values.get("innodb_flush_method", ""):
        problems.append("innodb_flush_method is nosync: nothing is flushed to the disk")
    if values.get("debug_no_sync") in ("ON", "1"):
        problems.append("debug_no_sync is ON: nothing is flushed to the disk")
    return problems
