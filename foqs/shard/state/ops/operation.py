"""The operations that make up a transaction. Each stands in one file with all its effects."""

from __future__ import annotations

from typing import Protocol

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult


class Operation(Protocol):
    """One kind of work in one transaction, for many calls or items at a time.

    The owner of the waiting work begins its operation while the engine plans a transaction, and lets it write. When the
    transaction has ended the engine calls exactly one of the operation's ends.
    """

    def write(self, transaction: Transaction, now: Now) -> None:
        """Put the rows into the transaction. The state changes only as far as other operations must see it before the
        end.
        """

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse the callers for whom the transaction only reads, because it has had no answer for long.

        It can still end, as if they had asked for nothing.
        """
        return

    def committed(self, result: TransactionResult, now: Now) -> None:
        """Apply the committed operation to the state."""

    def rolled_back(self, error: FoqsError) -> None:
        """Restore the state before `write`, because the transaction certainly did not happen."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """End the operation because the shard is lost. The outcome of writes is `unknown`; reads are `undone`."""
