"""Proof that this owner still has the shard, and that all items admitted before are written."""

from __future__ import annotations

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.insert import Inserts
from foqs.shard.state.ops.operation import Operation


class Fences:
    """The waiting fences. A fence is passed with a committed transaction that began after the request for it.

    An owner that lost its shard passes no fence, because it cannot commit.
    """

    def __init__(self, index: ShardIndex, inserts: Inserts, dedup: Dedup) -> None:
        self.waiting: list[tuple[int, Completion]] = []
        self._index = index
        self._inserts = inserts
        self._dedup = dedup

    def holds(self, namespace: int) -> bool:
        """True if items of the namespace are under way."""
        return self._inserts.holds(namespace) or self._dedup.holds(namespace)

    def ask(self, namespace: int, completion: Completion) -> None:
        """Complete the completion once the fence is passed and no item of the namespace is under way; it can fail."""
        completion.open_count += 1
        self.waiting.append((namespace, completion))

    def begin(self, transaction: Transaction, now: Now) -> Fencing:
        """Take all waiting fences."""
        taken, self.waiting = self.waiting, []
        operation = Fencing(self, self._index, taken)
        operation.write(transaction, now)
        return operation

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse the fences that no transaction has taken."""
        waiting, self.waiting = self.waiting, []
        self.refuse(waiting, undone)

    def abandon(self, undone: FoqsError) -> None:
        self.refuse_undone(undone)

    def refuse(self, fences: list[tuple[int, Completion]], error: FoqsError) -> None:
        for _, completion in fences:
            self._index.events.refuse(completion, error)


class Fencing(Operation):
    """Fences that one transaction passes."""

    __slots__ = ("_fences", "_index", "_source")

    def __init__(self, source: Fences, index: ShardIndex, fences: list[tuple[int, Completion]]) -> None:
        self._source = source
        self._index = index
        self._fences = fences

    def refuse_undone(self, undone: FoqsError) -> None:
        self._source.refuse(self._fences, undone)
        self._fences = []

    def write(self, transaction: Transaction, now: Now) -> None:
        """Write nothing: the transaction, empty or not, commits only while this owner has the shard."""

    def committed(self, result: TransactionResult, now: Now) -> None:
        for namespace, completion in self._fences:
            if namespace and self._source.holds(namespace):
                self._source.waiting.append((namespace, completion))
            else:
                self._index.events.done(completion)

    def rolled_back(self, error: FoqsError) -> None:
        self._source.refuse(self._fences, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        self.rolled_back(undone)
