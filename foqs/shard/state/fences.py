"""Proof that the shard is still ours, and that what was let in before is written."""

from __future__ import annotations

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.callers import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.inserts import Inserts


class Fences:
    """A fence is passed with a transaction that was begun after it was asked for, and committed.

    An owner that lost its shard passes none: it cannot commit.
    """

    def __init__(self, index: ShardIndex, inserts: Inserts) -> None:
        self._index = index
        self._inserts = inserts
        self._waiting: list[tuple[int, Completion]] = []
        self._in_flight: list[tuple[int, Completion]] = []

    def ask(self, namespace: int, completion: Completion) -> None:
        """The completion is over when the fence is passed and no item of the namespace is on its way; it may fail."""
        completion.open_count += 1
        self._waiting.append((namespace, completion))

    def take(self, transaction: Transaction, now: Now) -> None:
        if self._waiting:
            transaction.is_awaited = True
            self._in_flight, self._waiting = self._waiting, []

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        in_flight, self._in_flight = self._in_flight, []
        for namespace, completion in in_flight:
            if namespace and self._inserts.holds(namespace):
                self._waiting.append((namespace, completion))
            else:
                self._index.events.done(completion)

    def failed(self, error: FoqsError) -> None:
        in_flight, self._in_flight = self._in_flight, []
        for _, completion in in_flight:
            self._index.events.refuse(completion, error)

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._in_flight, self._waiting = self._in_flight + self._waiting, []
        self.failed(undone)
