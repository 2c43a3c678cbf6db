"""The meaning of a MySQL server's errors for a transaction of a shard."""

from __future__ import annotations

from pymysql.constants import ER

from foqs.shard.port import (
    DeadlockError,
    DiskFullError,
    OwnershipLostError,
    PrivilegeMissingError,
    ReadOnlyError,
    TransactionFailedError,
)

READ_ONLY_CODES = frozenset({1290, 1792, 1836})
"""The server is read-only by an option, in a transaction, or by its mode."""
_DISK_FULL_CODES = frozenset({ER.DISK_FULL, ER.RECORD_FILE_FULL})
_PRIVILEGE_CODES = frozenset({ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR})


def refusal_of(error: Exception, shard_id: int, epoch: int) -> TransactionFailedError | OwnershipLostError:
    """The meaning of a server's error for a transaction under this epoch that is rolled back."""
    code = error.args[0]
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
