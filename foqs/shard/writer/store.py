"""What the runner of a shard needs of those around it."""

from __future__ import annotations

from typing import Protocol

import structlog

from foqs.model import limits
from foqs.shard.port import DeadlockError, ShardImage, Tenure, Transaction, TransactionResult

_log = structlog.get_logger(__name__)


class Store(Protocol):
    """What the runner needs of a shard's storage; foqs.storage.shard_store.ShardStore is the real one."""

    def open(self, tenure: Tenure | None = None) -> ShardImage: ...
    def wait_for_owner(self) -> None: ...
    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None: ...
    def reopen(self) -> int: ...
    def renew_epoch(self) -> int: ...
    def close(self) -> None: ...
    def interrupt(self) -> None: ...
    def is_session_lost(self) -> bool: ...
    def check(self) -> list[str]: ...
    async def now_ms(self) -> int: ...
    async def run(self, transaction: Transaction) -> TransactionResult: ...


class TransactionMeter(Protocol):
    def waited(self, shard_id: int, wait_s: float) -> None:
        """For a slot of the server, before a transaction."""

    def ended(self, shard_id: int, transaction: Transaction, elapsed_s: float, outcome: str) -> None:
        """`outcome` is committed, failed or unknown."""


async def run_past_deadlocks(store: Store, transaction: Transaction, shard_id: int) -> TransactionResult:
    """Like Store.run; again when the server rolled the transaction back to resolve a deadlock."""
    for _ in range(limits.DEADLOCK_TRIES_MAX - 1):
        try:
            return await store.run(transaction)
        except DeadlockError as error:
            _log.warning("transaction_deadlocked", shard=shard_id, error=str(error))
    return await store.run(transaction)
