"""Delayed items: the sweep that makes them ready when they are due.

The timer lane has a bounded window like any topic. Its head is the checkpoint: no delayed row is due before
it, so a sweep never reads the delete-marked index entries of the past (after FOQS's checkpointed scans).
"""

from __future__ import annotations

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.topic import ShardTopic
from foqs.model.window import ReadyWindow, WindowBudget
from foqs.shard.port import TIMER_LANE, Refill, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex


class Timers:
    """Delayed items: their window, and the sweep that makes them ready when they are due.

    Inserts and settlements add to it, look-ups take out of it, and every transaction sweeps. It owns the checkpoint
    before which no delayed row is due.
    """

    def __init__(self, index: ShardIndex, delay_checkpoint: int) -> None:
        self.changing: dict[int, int] = {}
        """Delayed and dead rows with a change on the way, by key: when they are due, dead ones never."""
        self._index = index
        self._window = ReadyWindow(WindowBudget(), complete=False)
        self._window.edge = order.sort_key(0, max(0, delay_checkpoint - 1), (1 << 64) - 1, (1 << 16) - 1)
        self._topics: dict[int, tuple[ShardTopic, int]] = {}
        """Topic and priority by key."""
        self._refill: Refill | None = None
        self._in_flight: list[tuple[int, ShardTopic, int, int]] = []
        """(key, topic, priority, due_at)."""

    def add(self, key: int, topic: ShardTopic, priority: int, due_at: int) -> None:
        sort_key = order.sort_key(0, due_at, key, self._index.shard_id)
        if sort_key <= self._window.edge:
            self._window.add(sort_key)
            self._topics[key] = (topic, priority)
            if len(self._topics) > len(self._window) + limits.TIMER_ENTRIES_SPARE:
                kept = {order.key_of(sort_key) for sort_key in self._window.sort_keys}
                self._topics = {key: entry for key, entry in self._topics.items() if key in kept}

    def remove(self, key: int, due_at: int) -> None:
        if self._window.remove(order.sort_key(0, due_at, key, self._index.shard_id)):
            del self._topics[key]

    def is_due(self, now_ms: int) -> bool:
        """The sweep has something to do."""
        window = self._window
        return window.wants_refill or (len(window) > 0 and order.due_at_of(window.head) <= now_ms)

    def lag_ms(self, now_ms: int) -> int:
        """How long the first delayed item has been due: what the sweep is behind."""
        return max(0, now_ms - order.due_at_of(self._window.head)) if len(self._window) else 0

    def checkpoint(self, transaction: Transaction, now_ms: int) -> int:
        """No row of the timer lane is due before this after the transaction, whatever becomes of the clock."""
        head = self._window.head
        lowest = now_ms if head == order.LAST else order.due_at_of(head)
        starts = [item.due_at for item in transaction.inserts if item.due_at > item.enqueued_at]
        starts += [rewrite.due_at for rewrite in transaction.rewrites if rewrite.lane == TIMER_LANE]
        return min([lowest, now_ms, *starts, *self.changing.values()])

    def take(self, transaction: Transaction, now: Now) -> None:
        window = self._window
        if window.wants_refill:
            window.refilling = True
            # No fewer than are swept at a time.
            limit = min(window.budget.refill_items, max(limits.SWEEP_CHUNK_ITEMS, self._index.read_budget.rows_max))
            self._refill = Refill(TIMER_LANE, window.edge, limit)
            transaction.refills.append(self._refill)
        due = 0
        for sort_key in window.first(limits.SWEEP_CHUNK_ITEMS):
            if order.due_at_of(sort_key) > now.server_ms:
                break
            due += 1
        for sort_key in window.take(due):
            key = order.key_of(sort_key)
            topic, priority = self._topics.pop(key)
            self._in_flight.append((key, topic, priority, order.due_at_of(sort_key)))
            transaction.wakes.append(key)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        if self._refill is not None:
            self._apply_refill(self._refill, result.refilled[transaction.refills.index(self._refill)])
            self._refill = None
        in_flight, self._in_flight = self._in_flight, []
        for key, topic, priority, due_at in in_flight:
            topic.count(rows=1, delayed=-1)
            topic.window.add(order.sort_key(priority, due_at, key, self._index.shard_id))
            self._index.events.topics_changed[topic] = None

    def failed(self, error: FoqsError) -> None:
        self._window.refilling = False
        self._refill = None
        in_flight, self._in_flight = self._in_flight, []
        for entry in in_flight:
            self.add(*entry)

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        return None

    def _apply_refill(self, refill: Refill, rows: list[tuple[int, int, int, int, int]]) -> None:
        self._window.refilling = False
        if self._window.edge != refill.edge:
            return  # A trim has moved the edge back meanwhile: what was read lies beyond it and is read again.
        sort_keys = [order.sort_key(row[0], row[1], row[2], self._index.shard_id) for row in rows]
        edge = sort_keys[-1] if len(sort_keys) == refill.limit else order.LAST
        kept = []
        for sort_key, (_, _, key, number, priority) in zip(sort_keys, rows, strict=True):
            if key not in self.changing:
                self._topics[key] = (self._index.by_number[number], priority)
                kept.append(sort_key)
        self._window.extend(kept, edge)
