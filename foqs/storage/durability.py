"""Is this server durable: does an answered COMMIT survive a power cut?

kill -9 of the server proves nothing about it, because the kernel keeps what was written; so the settings are
read. A host does so when it takes a shard and regularly after, for a setting may change under way.
"""

from __future__ import annotations

from typing import Any

import pymysql

from foqs.storage.whole_reads import ShortReadError

_VARIABLES = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "innodb_flush_method",
    "debug_no_sync",
    "log_bin",
    "sync_binlog",
)
_VARIABLES_OF_ALL = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin")
"""Every server has these."""
_SAFE_DOUBLEWRITE = {"ON", "1", "DETECT_AND_RECOVER", "FAST"}
"""MySQL 8.0.30 and MariaDB 11 know more than ON; DETECT_ONLY finds torn pages and cannot repair them."""


def check_durable(connection: pymysql.Connection[Any]) -> list[str]:
    """The settings that keep this server from being durable, each a sentence with the value found; empty when it is.

    Raises what the connection raises.
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
    """The judgement of check_durable on the server's variables and status (upper-case values by lower-case name)."""
    problems = []
    flush = values.get("innodb_flush_log_at_trx_commit")
    if flush != "1":
        problems.append(f"innodb_flush_log_at_trx_commit is {flush}: set it to 1, or answered commits can be lost")
    if values.get("log_bin") in ("ON", "1") and values.get("sync_binlog") != "1":
        problems.append(f"sync_binlog is {values.get('sync_binlog')} with a binary log: set it to 1")
    doublewrite = values.get("innodb_doublewrite")
    if doublewrite not in _SAFE_DOUBLEWRITE:
        problems.append(f"innodb_doublewrite is {doublewrite}: set it to ON, or a power cut can tear pages")
    if values.get("innodb_redo_log_enabled") == "OFF":  # Which only MySQL can do.
        problems.append("the redo log is disabled: enable it by ALTER INSTANCE ENABLE INNODB REDO_LOG")
    if "NOSYNC" in values.get("innodb_flush_method", ""):
        problems.append("innodb_flush_method is nosync: nothing is flushed to the disk")
    if values.get("debug_no_sync") in ("ON", "1"):
        problems.append("debug_no_sync is ON: nothing is flushed to the disk")
    return problems
