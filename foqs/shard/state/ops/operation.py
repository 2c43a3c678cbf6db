"""The operations that make up a transaction: each stands in one file with everything that becomes of it."""

from __future__ import annotations

from typing import Protocol

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult


class Operation(Protocol):
    """One kind of work in one transaction, for many calls or items at a time.

    What waits of a kind begins its operation while the engine plans a transaction, and lets it write. When the
    transaction has ended the engine calls exactly one of the operation's ends.
    """

    def write(self, transaction: Transaction, now: Now) -> None:
        """Put the rows into the transaction. The state changes only as far as others must see it meanwhile."""

    def give_back(self, undone: FoqsError) -> None:
        """The transaction gets no answer for long: callers for whom it only reads are told so, and wait no more.

        It may still end, as if they had asked for nothing.
        """
        return

    def committed(self, result: TransactionResult, now: Now) -> None:
        """All of the transaction happened."""

    def rolled_back(self, error: FoqsError) -> None:
        """Certainly nothing of the transaction happened: everything is as it was before `write`."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """The shard is lost, and whether the transaction happened is `unknown`; what only reads is `undone`."""
