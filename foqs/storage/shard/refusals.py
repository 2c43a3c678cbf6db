"""The meaning of a MySQL server's errors for a transaction of a shard, which is rolled back for them."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.constants import ER

from foqs.shard.port import (
    DeadlockError,
    DiskFullError,
    OwnershipLostError,
    PrivilegeMissingError,
    ReadOnlyError,
    SessionLostError,
    TransactionFailedError,
)
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.exchange import run_script
from foqs.storage.sessions.whole_reads import ShortReadError

READ_ONLY_CODES = frozenset({1290, 1792, 1836})
"""The server is read-only by an option, in a transaction, or by its mode."""
_DISK_FULL_CODES = frozenset({ER.DISK_FULL, ER.RECORD_FILE_FULL})
_PRIVILEGE_CODES = frozenset({ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR})


async def roll_back(session: Any, cause: Exception, shard_id: int, epoch: int) -> Exception:
    """Undo all of a transaction, and return the meaning of `cause`; the transaction then had no effect.

    After a lock wait timeout the server itself undoes only one statement. Raises SessionLostError.
    """
    try:
        *_, ((found_epoch, changed_count),), _ = await run_script(
            session, [sql.ROLLBACK, sql.READ_CHANGED, sql.ROLLBACK]
        )
    except (pymysql.err.Error, OSError, ValueError):
        raise SessionLostError(str(cause)) from cause
    if cause.args[0] == ER.BAD_NULL_ERROR and found_epoch == epoch:
        return OwnershipLostError(
            f"shard {shard_id}: its database does not have all rows that its owner knows: of those that a transaction "
            f"was to change or delete it has found {changed_count or 0}. Somebody has changed its tables by hand, or "
            "reads have left rows out: it is read anew"
        )
    return refusal_of(cause, shard_id, epoch)


def refusal_of(error: Exception, shard_id: int, epoch: int) -> TransactionFailedError | OwnershipLostError:
    """Return the meaning of a server's error for a rolled-back transaction under this epoch."""
    code = error.args[0]
    if isinstance(error, ShortReadError):
        return OwnershipLostError(f"shard {shard_id}: {error.args[1]}")
    if code == ER.BAD_NULL_ERROR:
        return OwnershipLostError(f"shard {shard_id} has another epoch than {epoch}")
    if code == ER.LOCK_DEADLOCK:
        return DeadlockError(str(error))
    if code in READ_ONLY_CODES:
        return ReadOnlyError(str(error))
    if code in _DISK_FULL_CODES:
        return DiskFullError(str(error))
    if code in _PRIVILEGE_CODES:
        return PrivilegeMissingError(str(error))
    return TransactionFailedError(str(error))
