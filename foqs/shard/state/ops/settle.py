"""The ends of leases: ack, nack, release and expiry. The item's row is deleted or rewritten."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.failures import LEASE_ENDED, death_reason, entry
from foqs.model.item import (
    ItemEvent,
    Outcome,
    Phase,
    ShardItem,
    by_topic,
    count_of,
    keys_of,
    move,
    move_all,
    rows_came,
)
from foqs.model.topic import OPEN_LEASES_OF_TOPIC_RATIO, ShardTopic
from foqs.shard.port import TIMER_LANE, Rewrite, Transaction, TransactionResult
from foqs.shard.state.events import Completion, Ends
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.journal import Journal
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops import wake
from foqs.shard.state.ops.operation import Operation
from foqs.shard.state.ops.wake import Timers

TICK_LEASE_ENDS_MAX = 2_000
"""Leases that one tick ends. If more end together, the rest is left to the next ticks."""


class Settlement:
    """Leases that end together: those of one call and shard, or of one tick (then without a completion)."""

    __slots__ = ("completion", "items", "outcome", "positions", "rewrites", "topics")

    def __init__(
        self,
        items: list[ShardItem],
        rewrites: Sequence[Rewrite | None] | None,
        completion: Completion | None,
        positions: list[int],
        outcome: Outcome,
    ) -> None:
        self.items = items
        self.topics = by_topic(items)
        self.rewrites = rewrites
        """The new row of each item; None deletes the item. Without a list all items are deleted."""
        self.completion = completion
        self.positions = positions
        self.outcome = outcome
        """The outcome of all items if `rewrites` is None; otherwise each rewrite determines it."""

    def count(self) -> None:
        """Count the lives that have ended, and the failed attempts, of each topic."""
        for topic, some in self.topics.items():
            (topic.base or topic).ended_count += count_of(some)
        for item, rewrite in zip(self.items, self.rewrites or (), strict=False):
            if rewrite is not None:
                topic = item.topic.base or item.topic
                topic.ended_count -= rewrite.lane >= 0
                topic.failed_count += rewrite.failed_attempts > item.failed_attempts

    def ends(self, at_ms: int) -> list[Ends]:
        """Return the outcomes at that time, without deliveries that no consumer has seen."""
        if self.rewrites is None:
            return [Ends(self.outcome, at_ms, self.topics)]
        found: dict[Outcome, list[ShardItem]] = {}
        for item, rewrite in zip(self.items, self.rewrites, strict=True):
            outcome = _outcome_of(item, rewrite, is_of_call=self.completion is not None)
            if outcome is not None:
                found.setdefault(outcome, []).append(item)
        return [Ends(outcome, at_ms, by_topic(items)) for outcome, items in found.items()]


class Settlements:
    """The settlements that wait for a transaction: acks, nacks and ended leases, each kind by itself.

    The verbs settle here, the dispatcher undoes its claims, and `tick` ends leases that were not settled. Acks wait
    neither for nacks nor for many leases that end together.
    """

    def __init__(self, index: ShardIndex, journal: Journal, timers: Timers, leases: LeaseTable) -> None:
        self.acks: deque[Settlement] = deque()
        """Settlements by callers that delete all their items."""
        self.nacks: deque[Settlement] = deque()
        """All other settlements by callers."""
        self.ended: deque[Settlement] = deque()
        """Settlements without a caller."""
        self._index = index
        self._journal = journal
        self._timers = timers
        self._leases = leases

    def settle(
        self,
        items: list[ShardItem],
        rewrites: Sequence[Rewrite | None] | None = None,
        completion: Completion | None = None,
        positions: Sequence[int] = (),
        outcome: Outcome = Outcome.ACKED,
    ) -> None:
        """Write the ends of these leases in the next transaction; `completion` expects each item.

        `outcome` is the reason for the deletion of items if `rewrites` is None; otherwise no item is a bundle. Items of
        serial topics that come back take those behind them in their runs along.
        """
        if rewrites is not None and any(len(item.topic.run) > 1 for item in items):
            items, rewrites = self._with_runs(items, rewrites)
        settlement = Settlement(items, rewrites, completion, list(positions), outcome)
        for topic, some in settlement.topics.items():
            move_all(topic, some, some[0].phase, Phase.SETTLING)
        if completion is None:
            self.ended.append(settlement)
        else:
            (self.acks if rewrites is None else self.nacks).append(settlement)
            self._index.waiting_calls_count += 1
            completion.open_count += len(positions)

    def _with_runs(
        self, items: list[ShardItem], rewrites: Sequence[Rewrite | None]
    ) -> tuple[list[ShardItem], list[Rewrite | None]]:
        """Return the settled items, and those behind them that must come back as well, with their rewrites.

        An item that is delivered once at most stays out, because nobody knows if its consumer has begun.
        """
        first_back: dict[ShardTopic, int] = {}
        for item, rewrite in zip(items, rewrites, strict=True):
            topic = item.topic
            if topic.run and rewrite is not None and (rewrite.lane >= 0 or topic.holds_on_dead):
                first_back[topic] = min(item.sort_key, first_back.get(topic, order.LAST))
        settled = set(items)
        more = [
            one for topic, sort_key in first_back.items() for one in topic.run
            if one.phase is Phase.LEASED and one.sort_key > sort_key and not one.at_most_once and one not in settled
        ]  # fmt: skip
        self._leases.end(more)
        return [*items, *more], [*rewrites, *map(_released, more)]

    def expire(self, items: Sequence[ShardItem], now_ms: int) -> None:
        """End items of one topic whose TTL is over and that no consumer has: delete them, unless `expiry` keeps them.

        They are under claim, so their unseen deliveries count, as with any other end of a claim.
        """
        gone: list[ShardItem] = []
        kept: list[ShardItem] = []
        rewrites: list[Rewrite | None] = []
        for item in items:
            item.content = None
            rewrite = self.expiry(item, now_ms, deliveries=item.deliveries + 1)
            if rewrite is None:
                gone.append(item)
            else:
                kept.append(item)
                rewrites.append(rewrite)
        if gone:
            self.settle(gone, outcome=Outcome.EXPIRED)
            self._index.events.count(gone[0].topic.namespace, ItemEvent.EXPIRED, len(gone))
        if kept:
            self.settle(kept, rewrites)

    def expiry(self, item: ShardItem, now_ms: int, *, deliveries: int) -> Rewrite | None:
        """Return the row of a dead letter for an item whose TTL is over, if it ever failed or its namespace wants it.

        None deletes it.
        """
        if item.failed_attempts:
            reason = f"its TTL ended after failed attempts: {item.failed_attempts}"
        elif item.was_dead:
            reason = "its TTL ended after it was redriven"
        elif self._index.settings.dead_letter_on_expiry(item.topic.namespace, item.topic.name):
            reason = "its TTL ended"
        else:
            return None
        return Rewrite(item.key, -item.topic.number, 0, now_ms, deliveries, item.failed_attempts, None, reason.encode())

    def unclaim(self, item: ShardItem) -> bool:
        """Make an item ready again under the same delivery number. The delivery was not seen, so nothing is written.

        A new owner would take an item that was claimed for a call for delivered, so its row gets the next number first.
        Returns True if the next transaction has that work.
        """
        if item.lease_due_at:
            self._leases.end([item])
            item.holder = None
        if item.claim is not None and not item.claim.is_ahead:
            items = self._index.ones([item])
            self.settle(items, [_released(one) for one in items])
            return True
        self._index.end_leases([item])
        self._journal.leave([item])
        self._index.make_ready(item.topic, [item], item.phase)
        return False

    def unclaim_all(self, topic: ShardTopic, items: list[ShardItem]) -> bool:
        """Do the same for prefetched items of one topic."""
        ahead = [item for item in items if item.is_claimed_ahead]
        self._index.end_leases(ahead)
        self._journal.leave(ahead)
        self._index.make_ready(topic, ahead, Phase.PREFETCHED)
        for item in items:
            if item.phase is Phase.PREFETCHED:
                self.unclaim(item)
        return len(ahead) < len(items)

    def tick(self, now: Now) -> int:
        """End the leases that are over, up to a bound. Returns their number."""
        items = self._leases.pop_due(now.steady_ms, TICK_LEASE_ENDS_MAX)
        for some in _in_chunks(items):
            for topic, of_topic in by_topic(some).items():
                self._index.events.count(topic.namespace, ItemEvent.LEASE_ENDED, len(of_topic))
            self.settle(some, [self._ended_lease(item, now.server_ms) for item in some])
        return len(items)

    def _ended_lease(self, item: ShardItem, now_ms: int) -> Rewrite | None:
        """Return the row of an item whose lease ended. It is a failed attempt, unless only a past owner knew if the
        item was delivered, or its consumer had not begun to work on it.
        """
        claim = item.claim
        is_unseen = claim is not None and claim.is_ahead and claim.is_inherited
        is_untried = is_unseen or not self._leases.ended_in_work(item)
        failure = "" if is_untried else LEASE_ENDED
        rewrite = self.failed_attempt(item, now_ms, cause=LEASE_ENDED, release=is_untried, failure=failure)
        if rewrite is None or rewrite.lane < 0:
            self._leases.suspects.pop(item.key, None)
        return rewrite

    def failed_attempt(self, item: ShardItem, now_ms: int, *, delay_ms: int = 0, cause: str = "", reason: str = "",
                       dead: bool = False, release: bool = False, unseen: bool = False,
                       metadata: bytes | None = None, failure: str = "") -> Rewrite | None:  # fmt: skip
        """Return the row of an item after a nack, a release or the end of its lease; None deletes it (at-most-once).

        A failure without a delay of its own has the backoff of its topic. `cause` and the clean `reason` of the
        consumer are the reason of death if the item becomes a dead letter. `failure` is the text of this failure, empty
        for none, which the item keeps among its last ones.

        `unseen`: the owner's own delivery reached no caller, so an at-most-once item has not been delivered yet.
        """
        if item.at_most_once and not dead and not unseen:
            return None
        bytes_max = self._index.settings.errors_bytes_max(item.topic.namespace) if failure else 0
        if failure and not bytes_max:
            reason = ""
        rewrite = self._after_failure(item, now_ms, delay_ms, cause, reason, metadata, dead=dead, release=release)
        if failure:
            rewrite.error = entry(now_ms, item.failed_attempts + 1, failure, bytes_max) if bytes_max else b""
            rewrite.errors_bytes_max = bytes_max
        return rewrite

    def _after_failure(self, item: ShardItem, now_ms: int, delay_ms: int, cause: str, reason: str,
                       metadata: bytes | None, *, dead: bool, release: bool) -> Rewrite:  # fmt: skip
        """Return the row of an item that is not deleted."""
        failed = item.failed_attempts + (not release)
        deliveries = item.deliveries + 1
        topic = item.topic
        number = topic.number
        if dead or (failed >= self._index.settings.attempts_max(topic.namespace, topic.name) and not release):
            died = death_reason(cause, reason)
            return Rewrite(item.key, -number, 0, now_ms, deliveries, failed, metadata, died)
        if not delay_ms and not release:
            delay_ms = self._index.settings.backoff_ms(topic.namespace, topic.name, failed)
        if failed and now_ms + delay_ms >= item.expires_at:
            # Otherwise it would expire before its next delivery, and the failure would be lost.
            cause = f"{cause}, and its TTL ends before {'its delay' if delay_ms else 'another attempt'}"
            died = death_reason(cause, reason)
            return Rewrite(item.key, -number, 0, now_ms, deliveries, failed, metadata, died)
        if delay_ms > 0:
            return Rewrite(item.key, TIMER_LANE, 0, now_ms + delay_ms, deliveries, failed, metadata)
        sort_key = (number, order.urgency_of(item.sort_key), item.due_at)
        return Rewrite(item.key, *sort_key, deliveries, failed, metadata, is_in_place=True)

    def begin(self, transaction: Transaction, now: Now, *, after_failure: bool) -> Settling:
        """Take the settlements of the next transaction, the callers' acks first.

        `after_failure`: the last transaction failed. Then acks are written alone, because a server without room for a
        row might have room for them.
        """
        taken = _take(self.acks, limits.TRANSACTION_CHANGES_MAX)
        is_acks_only = after_failure and bool(taken)
        if not is_acks_only:
            taken += _take(self.nacks, limits.TRANSACTION_CHANGES_MAX)
        self._index.waiting_calls_count -= len(taken)
        if not is_acks_only:
            taken += _take(self.ended, limits.TRANSACTION_LEASE_ENDS_MAX)
        operation = Settling(self, self._index, self._journal, taken)
        operation.write(transaction, now)
        return operation

    def apply_rewrite(self, topic: ShardTopic, urgency: int, rewrite: Rewrite) -> None:
        """Update the state with a row as the rewrite has left it; a delayed item will have this urgency."""
        rows_came(topic, rewrite.lane, 1)
        if rewrite.lane == TIMER_LANE:
            self._timers.add(rewrite.key, topic, urgency, rewrite.due_at)
        elif rewrite.lane < 0:
            self._index.events.count(topic.namespace, ItemEvent.DEAD_LETTERED, 1)
        else:
            topic.window.add(order.sort_key(rewrite.urgency, rewrite.due_at, rewrite.key, self._index.shard_id))
            self._index.events.topics_changed[topic] = None

    def undo(self, settlement: Settlement) -> None:
        """Undo a caller's settlement that was not written: leases run on, and unseen items are ready again."""
        for item in settlement.items:
            if item.lease_due_at:
                self._leases.go_on(item)
            else:
                move(item, Phase.PREFETCHED)
                self.unclaim(item)
                self._index.events.topics_changed[item.topic] = None

    def put_back(self, settlement: Settlement) -> None:
        """Let a settlement without a caller wait for another transaction."""
        self.ended.append(settlement)

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse the callers' settlements that no transaction has taken; the leases run on."""
        waiting = [*self.acks, *self.nacks]
        self.acks, self.nacks = deque(), deque()
        self._index.waiting_calls_count -= len(waiting)
        for settlement in waiting:
            self.undo(settlement)
            self.fail(settlement, undone)

    def abandon(self, undone: FoqsError) -> None:
        for settlement in (*self.acks, *self.nacks):
            self.fail(settlement, undone)

    def fail(self, settlement: Settlement, error: FoqsError) -> None:
        if settlement.completion is not None:
            self._index.events.fail(settlement.completion, settlement.positions, error)


class Settling(Operation):
    """Settlements that are in one transaction."""

    __slots__ = ("_index", "_journal", "_settlements", "_source")

    def __init__(self, source: Settlements, index: ShardIndex, journal: Journal, settlements: list[Settlement]) -> None:
        self._source = source
        self._index = index
        self._journal = journal
        self._settlements = settlements

    def write(self, transaction: Transaction, now: Now) -> None:
        for settlement in self._settlements:
            if settlement.rewrites is None:
                transaction.deletes += keys_of(settlement.items)
                continue
            rewrites = [rewrite for rewrite in settlement.rewrites if rewrite is not None]
            transaction.rewrites += rewrites
            delayed = [rewrite.due_at for rewrite in rewrites if rewrite.lane == TIMER_LANE]
            transaction.delay_checkpoint = min([transaction.delay_checkpoint, *delayed])
            ends = zip(settlement.items, settlement.rewrites, strict=True)
            transaction.deletes += [item.key for item, rewrite in ends if rewrite is None]

    def committed(self, result: TransactionResult, now: Now) -> None:
        leases, events = self._index.leases, self._index.events
        has_event_log = self._index.settings.has_event_log
        was_crowded = len(leases) >= OPEN_LEASES_OF_TOPIC_RATIO * (limits.OPEN_LEASES_MAX - len(leases))
        for settlement in self._settlements:
            self._journal.leave(settlement.items)
            settlement.count()
            self._index.end_leases(settlement.items)
            for topic, some in settlement.topics.items():
                move_all(topic, some, Phase.SETTLING, Phase.GONE)
                if topic.run and not topic.has_run_out:
                    topic.run = []
                if was_crowded or topic.is_serial or topic.needs_permits:  # Topics might have had no room.
                    events.topics_changed[topic] = None
            for rewrite, item in zip(settlement.rewrites or (), settlement.items, strict=False):
                if rewrite is not None:
                    self._source.apply_rewrite(item.topic, order.urgency_of(item.sort_key), rewrite)
            if has_event_log:
                events.ends += settlement.ends(now.server_ms)
            if settlement.completion is not None:
                events.done(settlement.completion, len(settlement.positions))

    def rolled_back(self, error: FoqsError) -> None:
        for settlement in self._settlements:
            if settlement.completion is None:
                self._source.put_back(settlement)
            else:
                self._source.undo(settlement)
                self._source.fail(settlement, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        for settlement in self._settlements:
            self._source.fail(settlement, unknown)


def _released(item: ShardItem) -> Rewrite:
    """Return the row of an item that comes back to its place without a failed attempt, under another receipt."""
    sort_key = (item.topic.number, order.urgency_of(item.sort_key), item.due_at)
    return Rewrite(item.key, *sort_key, item.deliveries + 1, item.failed_attempts, is_in_place=True)


def _outcome_of(item: ShardItem, rewrite: Rewrite | None, *, is_of_call: bool) -> Outcome | None:
    """Return the outcome of the rewrite's delivery, or None if no consumer has seen it."""
    if rewrite is None:
        return Outcome.AT_MOST_ONCE
    if rewrite.lane < 0:
        return Outcome.DEAD
    if rewrite.failed_attempts > item.failed_attempts:
        return Outcome.NACKED if is_of_call else Outcome.LEASE_ENDED
    return Outcome.RELEASED if is_of_call else None


def _in_chunks(items: list[ShardItem]) -> Iterator[list[ShardItem]]:
    """Divide items whose leases end together for settlements of SWEEP_CHUNK_ITEMS each. A run is not divided, because
    an item takes those behind it along; a larger one is a settlement of its own.
    """
    count_max = wake.SWEEP_CHUNK_ITEMS
    alone = [item for item in items if len(item.topic.run) <= 1]
    for start in range(0, len(alone), count_max):
        yield alone[start : start + count_max]
    if len(alone) == len(items):
        return
    chunk: list[ShardItem] = []
    for run in by_topic([item for item in items if len(item.topic.run) > 1]).values():
        if chunk and len(chunk) + len(run) > count_max:
            yield chunk
            chunk = []
        chunk += run
    yield chunk


def _take(waiting: deque[Settlement], items_max: int) -> list[Settlement]:
    taken: list[Settlement] = []
    count = 0
    while waiting and count < items_max:
        settlement = waiting.popleft()
        taken.append(settlement)
        count += count_of(settlement.items)
    return taken
