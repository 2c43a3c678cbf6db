"""What a shard's state is made of: parts that each bring their work into the next transaction."""

from __future__ import annotations

from typing import Protocol

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult


class Part(Protocol):
    """One kind of work on a shard. At most one transaction is under way, and each part remembers its own share."""

    def take(self, transaction: Transaction, now: Now) -> None:
        """Move what waits into the next transaction."""

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None: ...

    def failed(self, error: FoqsError) -> None:
        """Certainly nothing of the transaction happened: all is as it was before `take`."""

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        """The shard is lost: `unknown` for what the last transaction took and its outcome is not known of.

        For what none has taken yet, and for what only reads, `undone`.
        """
