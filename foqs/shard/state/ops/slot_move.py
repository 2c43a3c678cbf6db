"""Slots that leave and arrive: the owner's part of a move (docs/decisions/0036-moving-slots.md).

The shard that gives slots admits no more of their ids, waits for pending ones, and writes the table in which the slots
lead elsewhere. The receiving shard records the move before that, appends the ids that the other one knows to its own
log, and takes new ids once it has them all. All steps are part of the owner's transactions, so that a host that has
lost the shard cannot do any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.held import HeldId, Holder, NamespaceDigest
from foqs.model.seen import BLOCK_IDS, SeenWindow
from foqs.model.slot_changes import SlotChanges, SlotIds
from foqs.model.slots import SlotMove, SlotTable
from foqs.shard.port import SeenIds, Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.hold import changes_of
from foqs.shard.state.ops.insert import Inserts
from foqs.shard.state.ops.operation import Operation


class MovedId(NamedTuple):
    """A dedup id as another shard knows it."""

    age_ms: int
    digest: bytes
    item: tuple[int, int]
    """Shard and key."""
    copies_count: int = 0
    """The number of copies behind the item."""


class MovedIds(NamedTuple):
    """The next ids of a namespace that arrive with slots, oldest first."""

    namespace: int
    name: bytes
    ids: Sequence[MovedId]
    read_to: int
    """The number up to which the log of the other shard is read with these."""
    move: SlotMove


class _Work(NamedTuple):
    """The part of a move in one transaction."""

    changes: SlotChanges
    completion: Completion
    given: frozenset[int] = frozenset()
    """Slots without pending ids when the transaction begins."""
    taken: frozenset[int] = frozenset()
    """The slots whose ids are taken from then on."""
    moved: MovedIds | None = None
    held: Sequence[HeldId] = ()
    """Ids that items of other shards hold."""
    released: Sequence[tuple[NamespaceDigest, Holder]] = ()
    """Ids that items of this shard hold no longer."""


class SlotMoves:
    """The steps of moves that wait for a transaction, in the order of the host's requests."""

    def __init__(self, index: ShardIndex, inserts: Inserts, dedup: Dedup) -> None:
        self.waiting: deque[_Work] = deque()
        self._index = index
        self._inserts = inserts
        self._dedup = dedup

    def give(self, table: SlotTable, slots: frozenset[int], completion: Completion) -> None:
        """Take no more ids of these slots, and make `table` the shard's own once the pending ids are written."""
        self._dedup.closed_slots |= slots
        self._ask(_Work(SlotChanges(kept=table), completion, given=slots))

    def close(self, slots: frozenset[int]) -> None:
        """Close slots that a new owner has found to be under way to this shard."""
        self._dedup.closed_slots |= slots

    def expect(self, move: SlotMove, completion: Completion) -> None:
        """Take no ids of the slots of the move until they have `arrived`, under any owner."""
        self._dedup.closed_slots |= frozenset(move.slots)
        self._ask(_Work(SlotChanges(arriving=move), completion))

    def append(self, moved: MovedIds, completion: Completion) -> None:
        """Append these ids, at least one, to the log of their namespace, as the youngest ones."""
        self._ask(_Work(SlotChanges(), completion, moved=moved))

    def hold(
        self, held: Sequence[HeldId], released: Sequence[tuple[NamespaceDigest, Holder]], completion: Completion
    ) -> None:
        """Take the ids of `held` for held by items of other shards. Items of this shard hold those of `released` no
        longer, because an operator has made them free while their slot was elsewhere.
        """
        self._ask(_Work(SlotChanges(), completion, held=held, released=released))

    def arrived(self, table: SlotTable, slots: frozenset[int], completion: Completion) -> None:
        """Take new ids of the slots, because all their known ids are known here."""
        self._ask(_Work(SlotChanges(kept=table, has_arrived=True), completion, taken=slots))

    def is_due(self) -> bool:
        return bool(self.waiting) and self._can_start(self.waiting[0])

    def _ask(self, work: _Work) -> None:
        work.completion.open_count += 1
        self.waiting.append(work)

    def _can_start(self, work: _Work) -> bool:
        if work.given and self._dedup.holds_slots(work.given):
            return False
        return work.moved is None or work.moved.namespace not in self._dedup.loading

    def begin(self, transaction: Transaction, now: Now) -> list[Operation]:
        """Begin the first step that waits, unless it has to wait on."""
        if not self.is_due():
            return []
        operation = SlotMoving(self, self._index, self._inserts, self._dedup, self.waiting.popleft())
        operation.write(transaction, now)
        return [operation]

    def abandon(self, undone: FoqsError) -> None:
        waiting, self.waiting = self.waiting, deque()
        for work in waiting:
            self._index.events.refuse(work.completion, undone)


class SlotMoving(Operation):
    """One step of a move in a transaction."""

    __slots__ = ("_dedup", "_index", "_inserts", "_moved_end", "_name_is_new", "_rows", "_source", "_work")

    def __init__(self, source: SlotMoves, index: ShardIndex, inserts: Inserts, dedup: Dedup, work: _Work) -> None:
        self._source = source
        self._index = index
        self._inserts = inserts
        self._dedup = dedup
        self._work = work
        self._rows: list[SeenIds] = []
        self._name_is_new = False
        self._moved_end = 0

    def write(self, transaction: Transaction, now: Now) -> None:
        # No id of these slots is taken during the transaction, even if an earlier try has opened them again.
        self._dedup.closed_slots |= self._work.given
        transaction.slot_changes = self._work.changes
        if self._work.held or self._work.released:
            changes = changes_of(transaction)
            changes.new += self._work.held
            changes.released += self._work.released
            self._dedup.held.namespaces.update([held.namespace for held in self._work.held])
        moved = self._work.moved
        if moved is None:
            return
        self._name_is_new = self._inserts.store_name(moved.namespace, moved.name)
        if self._name_is_new:
            # The next owner does not find the log of a namespace without a name.
            transaction.namespaces_new.append((moved.namespace, moved.name))
        windows = self._dedup.windows
        window = windows.get(moved.namespace)
        if window is None:
            window = windows[moved.namespace] = SeenWindow(moved.namespace)
        # Number the ids after those of the items that this transaction inserts.
        before = [len(row.digests) for row in transaction.seen_new if row.namespace == moved.namespace]
        number = window.end + sum(before)
        self._rows = _rows(moved, number, now.steady_ms)
        self._moved_end = number + len(moved.ids)
        transaction.slot_changes = SlotChanges(
            appended=SlotIds(
                moved.namespace, moved.move.version, moved.move.slots, moved.read_to, number, self._moved_end
            )
        )
        transaction.seen_new = transaction.seen_new + self._rows

    def committed(self, result: TransactionResult, now: Now) -> None:
        dedup, work = self._dedup, self._work
        for row in self._rows:
            window = dedup.windows[row.namespace]
            window.moved_end = self._moved_end
            window.add(row.digests, row.at_ms, dedup.forgetfulness.table_ids_max(window))
            window.last_first = row.first
            dedup.forgetfulness.added(window, now.steady_ms, len(row.digests))
        dedup.closed_slots -= work.taken
        self._index.events.done(work.completion)

    def rolled_back(self, error: FoqsError) -> None:
        work = self._work
        if self._name_is_new and work.moved is not None:
            self._inserts.unstore_topics((), [work.moved.namespace])
        # They belong to this shard as before.
        self._dedup.closed_slots -= work.given
        if work.changes.arriving is not None:
            self._dedup.closed_slots -= frozenset(work.changes.arriving.slots)
        self._index.events.refuse(work.completion, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._index.events.refuse(self._work.completion, unknown)


def _rows(moved: MovedIds, number: int, steady_ms: int) -> list[SeenIds]:
    """Return the ids as rows of this shard's log, from this number on. A row is as young as its youngest id."""
    rows: list[SeenIds] = []
    start = 0
    while start < len(moved.ids):
        stop = start + BLOCK_IDS - number % BLOCK_IDS
        part = moved.ids[start:stop]
        at_ms = steady_ms - min([one.age_ms for one in part])
        keys, shard_ids = [one.item[1] for one in part], [one.item[0] for one in part]
        digests, copies_counts = [one.digest for one in part], [one.copies_count for one in part]
        rows.append(SeenIds(moved.namespace, number, at_ms, digests, keys, shard_ids, copies_counts))
        start, number = stop, number + len(part)
    return rows
