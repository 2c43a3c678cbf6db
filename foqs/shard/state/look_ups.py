"""LookUps that nobody holds: look-ups in step with the state, and changes of delayed and dead rows."""

from __future__ import annotations

from collections import deque

from foqs.model import limits
from foqs.model.calls import ItemState
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.item import Phase
from foqs.model.topic import ShardTopic
from foqs.shard.port import TIMER_LANE, ItemRow, Rewrite, Transaction, TransactionResult
from foqs.shard.state.callers import Completion, LookUp
from foqs.shard.state.claims import Claims
from foqs.shard.state.events import LookedUp
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.settlements import Settlements
from foqs.shard.state.timers import Timers


class RowChange:
    """A change of a delayed or dead row; `rewrite` None deletes it."""

    __slots__ = ("completion", "position", "rewrite", "row")

    def __init__(self, row: ItemRow, rewrite: Rewrite | None, completion: Completion, position: int) -> None:
        self.row = row
        self.rewrite = rewrite
        self.completion = completion
        self.position = position


class LookUps:
    """Rows that nobody has under lease: reads in step with the state, and changes, for operators and the TTL scan.

    The host's inspection calls it. It owns the look-ups and the changes of delayed and dead rows that wait.
    """

    def __init__(self, index: ShardIndex, settlements: Settlements, claims: Claims, timers: Timers) -> None:
        self._index = index
        self._claims = claims
        self._settlements = settlements
        self._timers = timers
        self._look_ups: deque[LookUp] = deque()
        self._changes: deque[RowChange] = deque()
        self._in_flight_look_ups: list[LookUp] = []
        self._in_flight_changes: list[RowChange] = []

    def look_up(self, look_up: LookUp) -> None:
        """Read rows in the next transaction, in step with this state. Raises OverloadedError when too many wait."""
        if len(self._look_ups) >= limits.LOOK_UPS_WAITING_MAX:
            raise self._index.overloaded(f"{len(self._look_ups)} look-ups wait for it")
        self._look_ups.append(look_up)

    def topic_of(self, row: ItemRow) -> ShardTopic:
        return self._index.by_number[row.topic]

    def state_of(self, row: ItemRow) -> ItemState:
        if row.lane < 0:
            return ItemState.DEAD
        if row.lane == TIMER_LANE:
            return ItemState.DELAYED
        item = self._index.leases.get(row.key)
        held = item is not None and item.phase in (Phase.LEASED, Phase.SETTLING)
        return ItemState.LEASED if held else ItemState.READY

    def delete(self, row: ItemRow, completion: Completion, position: int) -> None:
        """Delete a row that was just looked up, whatever its state.

        The shard's events are to be taken before anything else is handed out: the item may be prefetched.
        Raises UnavailableError while another end of it is on the way.
        """
        item = self._index.leases.get(row.key)
        if row.key in self._timers.changing or (item is not None and item.phase is Phase.SETTLING):
            raise being_settled()
        if row.lane <= 0:
            self._change(RowChange(row, None, completion, position))
            return
        if item is None:
            item = self._index.take_ready(row)
        if item.phase is Phase.PREFETCHED:
            self._index.events.withdrawn.append(item)
        elif item.phase is Phase.CLAIMING:
            self._claims.withdraw(item)
        if item.phase is not Phase.LEASED:
            item.topic.count_leased(1)
        self._settlements.end_lease(item)
        self._settlements.settle([item], None, completion, [position])

    def redrive(self, row: ItemRow, now_ms: int, ttl_ms_max: int, completion: Completion, position: int) -> None:
        """Make a dead row that was just looked up ready again. Its TTL starts anew, `ttl_ms_max` at most.

        The row does not have the TTL itself: it lasts as long as it was from the enqueue to its end, a delay included.
        Raises NotFoundError if it is not dead, InvalidArgumentError if it may not be delivered again.
        """
        if row.lane >= 0 or row.key in self._timers.changing:
            raise NotFoundError("the item is not a dead letter")
        if row.at_most_once:
            raise InvalidArgumentError("an at-most-once item cannot be redriven: it would be delivered twice")
        expires_at = now_ms + min(row.expires_at - row.enqueued_at, ttl_ms_max)
        rewrite = Rewrite(row.key, row.topic, row.priority, now_ms, row.deliveries, 0, None, b"", expires_at=expires_at)
        self._change(RowChange(row, rewrite, completion, position))

    def _change(self, change: RowChange) -> None:
        row = change.row
        self._timers.changing[row.key] = row.due_at if row.lane == TIMER_LANE else limits.NEVER_MS
        if row.lane == TIMER_LANE:
            self._timers.remove(row.key, row.due_at)
        change.completion.open_count += 1
        self._changes.append(change)

    # ---- part of a transaction ----

    def take(self, transaction: Transaction, now: Now) -> None:
        while self._changes and len(self._in_flight_changes) < limits.TRANSACTION_CHANGES_MAX:
            change = self._changes.popleft()
            self._in_flight_changes.append(change)
            if change.rewrite is None:
                transaction.deletes.append(change.row.key)
            else:
                transaction.rewrites.append(change.rewrite)
        if self._look_ups:
            with_payload = transaction.look_ups_with_payload = self._look_ups[0].with_payload
            count_max = limits.TRANSACTION_PAYLOAD_LOOK_UPS_MAX if with_payload else limits.TRANSACTION_LOOK_UPS_MAX
            count = 0
            while self._look_ups and self._look_ups[0].with_payload is with_payload and count < count_max:
                look_up = self._look_ups.popleft()
                self._in_flight_look_ups.append(look_up)
                count += len(look_up.keys)
                transaction.look_ups += look_up.keys
                transaction.is_awaited = True

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        changes, self._in_flight_changes = self._in_flight_changes, []
        look_ups, self._in_flight_look_ups = self._in_flight_look_ups, []
        for change in changes:
            row, topic = change.row, self._index.by_number[change.row.topic]
            del self._timers.changing[row.key]
            if row.lane == TIMER_LANE:
                topic.count(delayed=-1)
            else:
                topic.count(dead=-1)
            if change.rewrite is not None:
                expires_at = change.rewrite.expires_at or row.expires_at
                self._index.expires_first_ms = min(self._index.expires_first_ms, expires_at)
                self._settlements.apply_rewrite(topic, row.priority, change.rewrite)
            self._index.events.done(change.completion)
        rows = result.looked_up
        if rows is None:
            self._look_ups.extendleft(reversed(look_ups))
            return
        for look_up in look_ups:
            found = {key: rows[key] for key in look_up.keys if key in rows}
            self._index.events.looked_up.append(LookedUp(look_up, found))

    def failed(self, error: FoqsError) -> None:
        changes, self._in_flight_changes = self._in_flight_changes, []
        look_ups, self._in_flight_look_ups = self._in_flight_look_ups, []
        for change in changes:
            row = change.row
            del self._timers.changing[row.key]
            if row.lane == TIMER_LANE:
                self._timers.add(row.key, self._index.by_number[row.topic], row.priority, row.due_at)
            self._index.events.fail(change.completion, [change.position], error)
        self._fail(look_ups, error)

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        events = self._index.events
        for change in self._in_flight_changes:
            events.fail(change.completion, [change.position], unknown)
        for change in self._changes:
            events.fail(change.completion, [change.position], undone)
        self._fail([*self._in_flight_look_ups, *self._look_ups], undone)

    def _fail(self, look_ups: list[LookUp], error: FoqsError) -> None:
        self._index.events.looked_up += [LookedUp(look_up, {}, error) for look_up in look_ups]


def being_settled() -> UnavailableError:
    """Whether the item goes is not known before that is written, and it may come back."""
    return UnavailableError(
        "the item is being settled by another call: ask again", retry_after_ms=limits.TICK_MS, nothing_done=True
    )
