"""Changes by operators and the TTL scan: deletion of an item in any state, and redrive of a dead letter."""

from __future__ import annotations

from collections import deque

from foqs.model import limits
from foqs.model.aging import aging_place
from foqs.model.calls import ItemState
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.item import ItemEvent, Outcome, Phase, ShardItem, rows_came
from foqs.model.serial import SERIAL_DUE_AT
from foqs.model.topic import ShardTopic
from foqs.shard.port import TIMER_LANE, ItemRow, Rewrite, Transaction, TransactionResult
from foqs.shard.state.events import Completion, Ends
from foqs.shard.state.index import ShardIndex, fill_head
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops.claim import Claims
from foqs.shard.state.ops.operation import Operation
from foqs.shard.state.ops.settle import Settlements
from foqs.shard.state.ops.wake import Timers


class RowChange:
    """A change of a delayed or dead row. If `rewrite` is None it is deleted, for the reason in `outcome`."""

    __slots__ = ("completion", "outcome", "position", "rewrite", "row")

    def __init__(
        self,
        row: ItemRow,
        rewrite: Rewrite | None,
        completion: Completion,
        position: int,
        outcome: Outcome = Outcome.DELETED,
    ) -> None:
        self.row = row
        self.rewrite = rewrite
        self.completion = completion
        self.position = position
        self.outcome = outcome


class Changes:
    """The changes of delayed and dead rows that wait for a transaction. Changes of other rows are settlements."""

    def __init__(
        self, index: ShardIndex, settlements: Settlements, claims: Claims, timers: Timers, leases: LeaseTable
    ) -> None:
        self.waiting: deque[RowChange] = deque()
        self._index = index
        self._settlements = settlements
        self._claims = claims
        self._timers = timers
        self._leases = leases

    def topic_of(self, row: ItemRow) -> ShardTopic:
        return self._index.by_number[row.topic]

    def state_of(self, row: ItemRow) -> ItemState:
        """Return the state of the item whose row was just looked up."""
        if row.lane < 0:
            return ItemState.DEAD
        if row.lane == TIMER_LANE:
            return ItemState.DELAYED
        item = self._index.leases.get(row.key)
        held = item is not None and item.phase in (Phase.LEASED, Phase.SETTLING)
        return ItemState.LEASED if held else ItemState.READY

    def expire(self, row: ItemRow, now_ms: int, completion: Completion, position: int) -> None:
        """End the item of a row that was just looked up, whose TTL is over and which is not under lease.

        It is deleted, or becomes a dead letter (`Settlements.expiry`). Raises UnavailableError while another end of it
        is under way.
        """
        item = ShardItem(row.key, self.topic_of(row), row.priority, row.due_at, 0)
        fill_head(item, row)
        rewrite = self._settlements.expiry(item, now_ms, deliveries=row.deliveries)
        if rewrite is None:
            self.delete(row, completion, position, Outcome.EXPIRED)
            self._index.events.count(item.topic.namespace, ItemEvent.EXPIRED, 1)
            return
        if row.key in self._timers.changing or row.key in self._index.leases:
            raise being_settled()
        if row.lane == TIMER_LANE:
            self._change(RowChange(row, rewrite, completion, position))
            return
        item = self._index.take_ready(row)
        fill_head(item, row)
        item.content = None
        self._settlements.settle([item], [rewrite], completion, [position])

    def delete(self, row: ItemRow, completion: Completion, position: int, outcome: Outcome = Outcome.DELETED) -> None:
        """Delete a row that was just looked up, in any state, for the reason in `outcome`.

        The caller must take the shard's events before the next delivery, because the item might be prefetched. Raises
        UnavailableError while another end of it is under way.
        """
        item = self._index.leased(row.key)
        if row.key in self._timers.changing or (item is not None and item.phase is Phase.SETTLING):
            raise being_settled()
        if row.lane <= 0:
            self._change(RowChange(row, None, completion, position, outcome))
            return
        if item is None:
            item = self._index.take_ready(row)
        elif item.phase is Phase.PREFETCHED:
            self._index.events.unclaimed.append(item)
        elif item.phase is Phase.CLAIMING:
            self._claims.unclaim(item)
        elif item.phase is Phase.LEASED:
            self._leases.end([item])
        if not item.enqueued_at:  # It was never read before.
            fill_head(item, row)
        item.content = None
        self._settlements.settle([item], None, completion, [position], outcome)

    def redrive(
        self,
        row: ItemRow,
        now_ms: int,
        ttl_ms_max: int,
        completion: Completion,
        position: int,
        *,
        deliver_after_ms: int = 0,
    ) -> None:
        """Make a dead row that was just looked up ready again. Its TTL starts anew, `ttl_ms_max` at most.

        A `deliver_after_ms` in the future delays it until then. It keeps its reason of death, so that `bury` can undo
        the redrive.

        The row does not have the TTL itself: it is the time from the enqueue to the expiry, a delay included. A former
        redrive, when the clock was far behind, can have left an expiry before the enqueue: then the TTL is
        `ttl_ms_max`. In a topic that ages, the wait starts anew as well. Raises NotFoundError if the item is not dead,
        InvalidArgumentError if another delivery of it is forbidden.
        """
        if row.lane >= 0 or row.key in self._timers.changing:
            raise NotFoundError("the item is not a dead letter")
        if row.at_most_once:
            raise InvalidArgumentError("an at-most-once item cannot be redriven: it would be delivered twice")
        topic = self.topic_of(row)
        is_delayed = deliver_after_ms > now_ms
        if is_delayed and topic.is_serial:
            raise InvalidArgumentError("an item of a serial topic cannot be delayed, since those behind it would wait")
        ttl_ms = row.expires_at - row.enqueued_at
        expires_at = max(now_ms, deliver_after_ms) + (min(ttl_ms, ttl_ms_max) if ttl_ms > 0 else ttl_ms_max)
        if is_delayed:
            rewrite = Rewrite(
                row.key, TIMER_LANE, 0, deliver_after_ms, row.deliveries, 0, None, None, expires_at=expires_at
            )
            self._change(RowChange(row, rewrite, completion, position))
            return
        due_at = SERIAL_DUE_AT if topic.is_serial else now_ms
        aging_ms = self._index.settings.aging_ms(topic.namespace, topic.name)
        urgency = aging_place(now_ms, row.priority, aging_ms) if aging_ms else row.priority
        place = urgency if aging_ms or row.place is not None else None
        rewrite = Rewrite(
            row.key, row.topic, urgency, due_at, row.deliveries, 0, None, b"", expires_at=expires_at, place=place
        )
        self._change(RowChange(row, rewrite, completion, position))

    def bury(self, row: ItemRow, due_at: int, now_ms: int, completion: Completion, position: int) -> None:
        """Make a delayed row that was just looked up a dead letter again, with the reason of death that it has kept.

        Raises NotFoundError if it is not delayed until `due_at`, UnavailableError while a change of it is under way.
        """
        if row.lane != TIMER_LANE or row.due_at != due_at:
            raise NotFoundError("the item is not delayed any more, or until another time")
        if row.key in self._timers.changing:
            raise being_settled()
        rewrite = Rewrite(row.key, -row.topic, 0, now_ms, row.deliveries, row.failed_attempts)
        self._change(RowChange(row, rewrite, completion, position))

    def _change(self, change: RowChange) -> None:
        row = change.row
        self._timers.change(row.key, row.due_at if row.lane == TIMER_LANE else None)
        change.completion.open_count += 1
        self.waiting.append(change)

    def begin(self, transaction: Transaction, now: Now) -> Changing:
        """Take the first changes."""
        count = min(len(self.waiting), limits.TRANSACTION_CHANGES_MAX)
        taken = [self.waiting.popleft() for _ in range(count)]
        operation = Changing(self, self._index, self._settlements, self._timers, taken)
        operation.write(transaction, now)
        return operation

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse all changes that no transaction has taken; the rows are unchanged."""
        waiting, self.waiting = self.waiting, deque()
        for change in waiting:
            self.undo(change, undone)

    def undo(self, change: RowChange, error: FoqsError) -> None:
        """Undo a change that was certainly not written."""
        row = change.row
        self._timers.changed(row.key)
        if row.lane == TIMER_LANE:
            self._timers.add(row.key, self._index.by_number[row.topic], row.ready_urgency, row.due_at)
        self._index.events.fail(change.completion, [change.position], error)

    def abandon(self, undone: FoqsError) -> None:
        for change in self.waiting:
            self._index.events.fail(change.completion, [change.position], undone)


class Changing(Operation):
    """Changes of delayed and dead rows that are in one transaction."""

    __slots__ = ("_changes", "_index", "_settlements", "_source", "_timers")

    def __init__(
        self,
        source: Changes,
        index: ShardIndex,
        settlements: Settlements,
        timers: Timers,
        changes: list[RowChange],
    ) -> None:
        self._source = source
        self._index = index
        self._settlements = settlements
        self._timers = timers
        self._changes = changes

    def write(self, transaction: Transaction, now: Now) -> None:
        for change in self._changes:
            if change.rewrite is None:
                transaction.deletes.append(change.row.key)
            else:
                transaction.rewrites.append(change.rewrite)
                if change.rewrite.lane == TIMER_LANE:
                    transaction.delay_checkpoint = min(transaction.delay_checkpoint, change.rewrite.due_at)

    def committed(self, result: TransactionResult, now: Now) -> None:
        for change in self._changes:
            row, topic = change.row, self._index.by_number[change.row.topic]
            self._timers.changed(row.key)
            rows_came(topic, row.lane, -1)
            if topic.is_serial:
                self._index.events.topics_changed[topic] = None  # It has possibly waited for the row.
            if change.rewrite is not None:
                expires_at = change.rewrite.expires_at or row.expires_at
                self._index.expires_first_ms = min(self._index.expires_first_ms, expires_at)
                self._settlements.apply_rewrite(topic, row.ready_urgency, change.rewrite)
            if row.lane == TIMER_LANE and self._index.settings.has_event_log:  # Other items had ended before.
                item = ShardItem(row.key, topic, row.priority, row.due_at, 0, Phase.GONE)
                fill_head(item, row)
                outcome = change.outcome if change.rewrite is None else Outcome.DEAD
                self._index.events.ends.append(Ends(outcome, now.server_ms, {topic: [item]}))
            self._index.events.done(change.completion)

    def rolled_back(self, error: FoqsError) -> None:
        for change in self._changes:
            self._source.undo(change, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        for change in self._changes:
            self._index.events.fail(change.completion, [change.position], unknown)


def being_settled() -> UnavailableError:
    """Return the error for an item whose deletion is being written: until then it can come back."""
    return UnavailableError(
        "the item is being settled by another call: ask again", retry_after_ms=limits.TICK_MS, nothing_done=True
    )
