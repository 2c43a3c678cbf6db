"""Delayed items: the sweep that makes them ready when they are due.

The timer lane has a bounded window like any topic. Its head is the checkpoint: no delayed row is due before it, so a
sweep never reads the delete-marked index entries of the past (after FOQS's checkpointed scans).
"""

from __future__ import annotations

from typing import NamedTuple

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import rows_came
from foqs.model.serial import SERIAL_DUE_AT
from foqs.model.topic import ReadyWindow, ShardTopic
from foqs.model.window_budget import WindowBudget
from foqs.shard.port import TIMER_LANE, Refill, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.operation import Operation

TIMER_ENTRIES_SPARE = 4_000
"""Entries that the timers can hold beyond the delayed items in their window."""
SWEEP_CHUNK_ITEMS = 200
"""Delayed items that one transaction makes ready. Larger chunks make enqueues wait longer beside many delayed items."""


class Timer(NamedTuple):
    """One delayed row."""

    key: int
    topic: ShardTopic
    urgency: int
    due_at: int


class Timers:
    """Delayed items: their window, and the sweep that makes them ready when they are due.

    Inserts and settlements add items, changes remove them, and every transaction sweeps. It owns the checkpoint before
    which no delayed row is due.
    """

    def __init__(self, index: ShardIndex, delay_checkpoint: int) -> None:
        self.changing: dict[int, int] = {}
        """The due times of delayed and dead rows with a change under way, by key; dead rows are never due."""
        self.first_due_ms = 0
        """No delayed row is due before this, except those in `changing`."""
        self.sweep_at_ms = 0
        """The earliest time at which the sweep can have work; 0 while its window runs low."""
        self._index = index
        self._window = ReadyWindow(WindowBudget(), complete=False)
        self._window.edge = order.sort_key(0, max(0, delay_checkpoint - 1), (1 << 64) - 1, (1 << 16) - 1)
        self._topics: dict[int, tuple[ShardTopic, int]] = {}
        """The topic of each item, and its urgency once it is ready, by key."""
        self._note_first()

    def add(self, key: int, topic: ShardTopic, urgency: int, due_at: int) -> None:
        sort_key = order.sort_key(0, due_at, key, self._index.shard_id)
        if sort_key <= self._window.edge:
            self._window.add(sort_key)
            self._topics[key] = (topic, urgency)
            if due_at < self.first_due_ms:
                self.first_due_ms = due_at
            if due_at < self.sweep_at_ms:
                self.sweep_at_ms = due_at
            if len(self._topics) > len(self._window) + TIMER_ENTRIES_SPARE:
                kept = {order.key_of(sort_key) for sort_key in self._window.sort_keys}
                self._topics = {key: entry for key, entry in self._topics.items() if key in kept}

    def change(self, key: int, due_at: int | None) -> None:
        """Keep a row with a waiting or pending change from waking. `due_at` is None for a dead letter."""
        self.changing[key] = limits.NEVER_MS if due_at is None else due_at
        if due_at is not None and self._window.remove(order.sort_key(0, due_at, key, self._index.shard_id)):
            del self._topics[key]
        self._note_first()

    def changed(self, key: int) -> None:
        """Note that the change has ended, written or not."""
        del self.changing[key]

    def lag_ms(self, now_ms: int) -> int:
        """Return the delay of the sweep: how long the first delayed item has been due."""
        return max(0, now_ms - order.due_at_of(self._window.head)) if len(self._window) else 0

    def first_due_ms_of(self, topic: ShardTopic, count_max: int) -> int:
        """Return the due time of the first item of a topic among the first `count_max` delayed ones, or 0."""
        for sort_key in self._window.first(count_max, bound=count_max):
            found = self._topics.get(order.key_of(sort_key))
            if found is not None and found[0] is topic:
                return order.due_at_of(sort_key)
        return 0

    def _note_first(self) -> None:
        window = self._window
        head = window.sort_keys[0] if window.sort_keys else window.edge
        self.first_due_ms = due_at = limits.NEVER_MS if head == order.LAST else order.due_at_of(head)
        self.sweep_at_ms = 0 if window.wants_refill else due_at if window.sort_keys else limits.NEVER_MS

    def begin(self, transaction: Transaction, now: Now) -> list[Waking]:
        """Take due items, and read on if the window runs low."""
        window = self._window
        refill: Refill | None = None
        if window.wants_refill:
            window.refilling = True
            # It reads at least as many rows as one sweep takes.
            limit = min(window.budget.refill_items, max(SWEEP_CHUNK_ITEMS, self._index.read_budget.rows_max))
            refill = Refill(TIMER_LANE, window.edge, limit)
        due = 0
        for sort_key in window.first(SWEEP_CHUNK_ITEMS):
            if order.due_at_of(sort_key) > now.server_ms:
                break
            due += 1
        timers: list[Timer] = []
        for sort_key in window.take(due):
            key = order.key_of(sort_key)
            topic, urgency = self._topics.pop(key)
            timers.append(Timer(key, topic, urgency, order.due_at_of(sort_key)))
        self._note_first()
        if refill is None and not timers:
            return []
        operation = Waking(self, self._index, timers, refill)
        operation.write(transaction, now)
        return [operation]

    def refilled(self, refill: Refill, rows: list[tuple[int, int, int, int, int]]) -> None:
        """Add the rows that a read beyond the edge of the window has found."""
        self._window.refilling = False
        if self._window.edge != refill.edge:
            self._note_first()
            return  # A trim has moved the edge back, so these rows lie beyond it and are read again.
        sort_keys = [order.sort_key(row[0], row[1], row[2], self._index.shard_id) for row in rows]
        edge = sort_keys[-1] if len(sort_keys) == refill.limit else order.LAST
        kept = []
        for sort_key, (_, _, key, number, urgency) in zip(sort_keys, rows, strict=True):
            if key not in self.changing:
                self._topics[key] = (self._index.by_number[number], urgency)
                kept.append(sort_key)
        self._window.extend(kept, edge)
        self._note_first()

    def put_back(self, timers: list[Timer]) -> None:
        """Make these items due again, because the transaction has failed."""
        self._window.refilling = False
        for timer in timers:
            self.add(*timer)
        self._note_first()


class Waking(Operation):
    """Delayed items that one transaction makes ready, and the rows of the timer lane that it reads."""

    __slots__ = ("_in_place", "_index", "_refill", "_source", "_timers")

    def __init__(self, source: Timers, index: ShardIndex, timers: list[Timer], refill: Refill | None) -> None:
        self._source = source
        self._index = index
        self._timers = timers
        self._refill = refill
        self._in_place: set[int] = set()
        """Keys of items of serial topics."""

    def write(self, transaction: Transaction, now: Now) -> None:
        if self._refill is not None:
            transaction.refills.append(self._refill)
        # An item of a serial topic comes back to its place, before all later ones.
        self._in_place = {timer.key for timer in self._timers if timer.topic.is_serial}
        transaction.wakes = [timer.key for timer in self._timers if timer.key not in self._in_place]
        transaction.wakes_in_place = sorted(self._in_place)

    def committed(self, result: TransactionResult, now: Now) -> None:
        if self._refill is not None:
            self._source.refilled(self._refill, result.refilled[-1])
        for key, topic, urgency, due_at in self._timers:
            rows_came(topic, TIMER_LANE, -1)
            rows_came(topic, topic.number, 1)
            due_at = SERIAL_DUE_AT if key in self._in_place else due_at  # noqa: PLW2901
            topic.window.add(order.sort_key(urgency, due_at, key, self._index.shard_id))
            self._index.events.topics_changed[topic] = None

    def rolled_back(self, error: FoqsError) -> None:
        self._source.put_back(self._timers)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing, because no caller waits for it."""
