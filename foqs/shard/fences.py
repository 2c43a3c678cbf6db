"""Proof that the shard is still ours, and that what was let in before is written."""

from __future__ import annotations

from foqs.core.clock import Now
from foqs.core.errors import FoqsError
from foqs.shard.inserts import Inserts
from foqs.shard.parts import Ticket
from foqs.storage.transaction import Transaction, TransactionResult


class Fences:
    """A fence is passed with a transaction that was begun after it was asked for, and committed.

    An owner that lost its shard passes none: it cannot commit.
    """

    def __init__(self, inserts: Inserts) -> None:
        self._inserts = inserts
        self._waiting: list[tuple[int, Ticket]] = []
        self._flying: list[tuple[int, Ticket]] = []

    def ask(self, namespace: int, ticket: Ticket) -> None:
        """Settle the ticket when the fence is passed and no item of the namespace is on its way; it may fail."""
        ticket.open_count += 1
        self._waiting.append((namespace, ticket))

    def take(self, transaction: Transaction, now: Now) -> None:
        if self._waiting:
            transaction.is_awaited = True
            self._flying, self._waiting = self._waiting, []

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        flying, self._flying = self._flying, []
        for namespace, ticket in flying:
            if namespace and self._inserts.holds(namespace):
                self._waiting.append((namespace, ticket))
            else:
                ticket.settle()

    def failed(self, error: FoqsError) -> None:
        flying, self._flying = self._flying, []
        for _, ticket in flying:
            ticket.failure = error
            ticket.settle()

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._flying, self._waiting = self._flying + self._waiting, []
        self.failed(undone)
