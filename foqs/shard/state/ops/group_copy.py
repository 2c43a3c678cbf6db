"""Copies of waiting items for new consumer groups: their beginnings, their positions and their ends."""

from __future__ import annotations

from foqs.model.clock import Now
from foqs.model.copy_steps import CopyKey, CopyStep
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.insert import EnqueuedBatch, Inserts
from foqs.shard.state.ops.operation import Operation


class GroupCopies:
    """The copies that are under way on a shard.

    A copy begins with the last key that was assigned before the first item that has a copy of its own. The transaction
    that stores this key comes no later than that item's. So a new owner, too, copies exactly the items that lack a
    copy.
    """

    def __init__(self, index: ShardIndex, inserts: Inserts) -> None:
        self.known: set[CopyKey] = set()
        """The copies that have begun in this process."""
        self.waiting: list[tuple[CopyKey, int]] = []
        """Copies whose beginnings are not stored yet, each with the last key of an item that can lack its copy."""
        self.ended: list[CopyKey] = []
        """Copies whose rows are to be deleted."""
        self._index = index
        self._inserts = inserts

    def begin(self, copy: CopyKey) -> None:
        """Begin a copy unless it has begun. Call it before the first item is made that has a copy of its own."""
        if copy not in self.known:
            self.known.add(copy)
            self.waiting.append((copy, self._index.last_key))

    def end(self, copy: CopyKey) -> None:
        """Forget a copy that is over."""
        if copy in self.known:
            self.known.discard(copy)
            self.waiting = [one for one in self.waiting if one[0] != copy]
            self.ended.append(copy)

    def insert(self, items: list[ShardItem], size_bytes: int, completion: Completion, step: CopyStep) -> None:
        """Insert copies together with their position. Raises OverloadedError if the buffer is full."""
        self._inserts.hold(len(items), size_bytes)
        batch = EnqueuedBatch(items, size_bytes, completion)
        self._inserts.steps[batch] = step
        self._inserts.put(batch)

    def begin_operation(self, transaction: Transaction, now: Now) -> GroupCopying:
        taken, self.waiting = self.waiting, []
        ended, self.ended = self.ended, []
        operation = GroupCopying(self, taken, ended)
        operation.write(transaction, now)
        return operation


class GroupCopying(Operation):
    """The beginnings and ends of copies that one transaction stores."""

    __slots__ = ("_begun", "_ended", "_source")

    def __init__(self, source: GroupCopies, begun: list[tuple[CopyKey, int]], ended: list[CopyKey]) -> None:
        self._source = source
        self._begun = begun
        self._ended = ended

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.copies_ended = self._ended
        transaction.copies_begun = self._begun

    def committed(self, result: TransactionResult, now: Now) -> None:
        return

    def rolled_back(self, error: FoqsError) -> None:
        """Store the beginnings with the next transaction, which is the first that can insert later items."""
        self._source.waiting[:0] = self._begun
        self._source.ended[:0] = self._ended

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        return
