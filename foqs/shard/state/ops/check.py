"""Items whose dedup ids might be taken. The log's blocks in which the id would stand are read to decide, and the holder
of the id if items of its namespace hold theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, NotWrittenError
from foqs.model.held import Holder, NamespaceDigest
from foqs.model.item import ShardItem
from foqs.model.seen import known_by
from foqs.shard.port import SeenRow, Transaction, TransactionResult
from foqs.shard.state.events import Completion, OnceOutcome
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.hold import changes_of
from foqs.shard.state.ops.operation import Operation

if TYPE_CHECKING:
    from foqs.shard.state.ops.dedup import Dedup

NO_ITEM: Final = 0
"""The key in the log of an id that an operator has made free. No item has it."""
CHECKS_MAX: Final = 2_000
"""Checks of one transaction. A check reads the holder of one id, besides blocks of the log."""


class Check(NamedTuple):
    """An item whose digest is pending, and the possible blocks of the digest in its namespace's log."""

    item: ShardItem
    digest: bytes
    blocks: list[int]
    completion: Completion
    outcome: OnceOutcome


class Checks:
    """The items that wait for a check of the log."""

    def __init__(self, index: ShardIndex, dedup: Dedup) -> None:
        self.waiting: deque[Check] = deque()
        self.in_flight: list[Check] = []
        self.repeats_count = 0
        """Repeats found in the log since the shard was opened."""
        self.misses_count = 0
        """Items that the log did not have, although the filter had not excluded them."""
        self._index = index
        self._dedup = dedup

    def add(self, check: Check) -> None:
        check.completion.open_count += 1
        self.waiting.append(check)

    def held(self) -> Iterator[Check]:
        yield from self.waiting
        yield from self.in_flight

    def holds(self, namespace: int) -> bool:
        return any(check.item.topic.namespace == namespace for check in self.held())

    def answered(self, completion: Completion, count: int) -> None:
        """Note that `count` items of a call no longer wait."""
        self._index.events.done(completion, count)

    def refuse_waiting(self, error: FoqsError) -> None:
        waiting, self.waiting = self.waiting, deque()
        for check in waiting:
            self.refuse(check, error)

    def refuse(self, check: Check, error: FoqsError) -> None:
        self._dedup.refuse_held(check, error)

    def begin(self, transaction: Transaction, now: Now) -> Checking:
        """Take the first checks, as many as the bound on the blocks of one transaction allows."""
        blocks: dict[tuple[int, int], None] = {}
        taken: list[Check] = []
        while self.waiting and len(blocks) < limits.TRANSACTION_DEDUP_BLOCKS_MAX and len(taken) < CHECKS_MAX:
            check = self.waiting.popleft()
            taken.append(check)
            blocks.update(dict.fromkeys([(check.item.topic.namespace, block) for block in check.blocks]))
        self.in_flight = taken
        operation = Checking(self, self._dedup, taken, list(blocks))
        operation.write(transaction, now)
        return operation


class Checking(Operation):
    """Checks whose blocks one transaction reads, before it writes anything."""

    __slots__ = ("_blocks", "_checks", "_dedup", "_source")

    def __init__(self, source: Checks, dedup: Dedup, checks: list[Check], blocks: list[tuple[int, int]]) -> None:
        self._source = source
        self._dedup = dedup
        self._checks = checks
        self._blocks = blocks

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.seen_reads = self._blocks
        holding = self._dedup.held.namespaces
        if holding and self._checks:
            ids = [NamespaceDigest(check.item.topic.namespace, check.digest) for check in self._checks]
            changes_of(transaction).reads += [one for one in ids if one.namespace in holding]

    def refuse_undone(self, undone: FoqsError) -> None:
        self._refuse(undone)
        self._checks = []

    def committed(self, result: TransactionResult, now: Now) -> None:
        source, dedup = self._source, self._dedup
        source.in_flight = []
        new: dict[int, list[Check]] = {}
        for check in self._checks:
            first, is_elsewhere = self._first_of(check, result)
            if first is None:
                new.setdefault(id(check.outcome), []).append(check)
                continue
            source.repeats_count += 1
            shard_id, key, copies_count = first
            check.outcome.firsts[check.item.key] = (shard_id, key)
            if copies_count:
                check.outcome.first_copies[check.item.key] = copies_count
            if is_elsewhere:
                check.outcome.elsewhere[check.item.key] = check.digest
            copies_counts = {key: copies_count} if copies_count else {}
            dedup.note_firsts([check.digest], shard_id, [key], copies_counts, is_held_elsewhere=is_elsewhere)
            dedup.end(check.item, check.completion, check.outcome)
        for checks in new.values():
            source.misses_count += sum([bool(check.blocks) for check in checks])
            _, _, _, completion, outcome = checks[0]
            dedup.insert([check.item for check in checks], [check.digest for check in checks], completion, outcome)
            source.answered(completion, len(checks))

    def _first_of(self, check: Check, result: TransactionResult) -> tuple[Holder | None, bool]:
        """Return the item that has taken the id, and True if it held the id on another shard."""
        namespace = check.item.topic.namespace
        seen = find_seen(namespace, check.digest, check.blocks, result.seen)
        holder = result.held.get(NamespaceDigest(namespace, check.digest)) if result.held else None
        if seen is not None or holder is None:
            return seen, False
        return holder, holder.shard_id != self._dedup.held.shard_id

    def rolled_back(self, error: FoqsError) -> None:
        self._refuse(NotWrittenError(error.message))

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._refuse(undone)

    def _refuse(self, error: FoqsError) -> None:
        self._source.in_flight = []
        for check in self._checks:
            self._source.refuse(check, error)


def find_seen(
    namespace: int, digest: bytes, blocks: Sequence[int], seen: Mapping[tuple[int, int], list[SeenRow]]
) -> Holder | None:
    """Return the first item with the digest; if several count as first, the youngest.

    None if the log does not have the digest, and if its youngest entry says that it was made free.
    """
    known = known_by(digest)
    for block in sorted(blocks, reverse=True):
        for row in reversed(seen.get((namespace, block), [])):
            for at in range(len(row.digests) - 1, -1, -1):
                if known_by(row.digests[at]) == known:
                    shard_id, key = row.items[at]
                    return Holder(shard_id, key, row.copies_of(at)) if key != NO_ITEM else None
    return None
