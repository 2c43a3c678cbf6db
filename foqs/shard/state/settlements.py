"""How a lease ends: ack, nack, release, expiry.

The item goes, or its row is rewritten.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from foqs.model import ids, limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.item import ItemEvent, Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.model.wheel import Wheel
from foqs.shard.port import TIMER_LANE, Rewrite, Transaction, TransactionResult
from foqs.shard.state.callers import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.journal import Journal
from foqs.shard.state.timers import Timers


class Settlement:
    """Leases that end together: of one call and shard, or of one tick (then without a completion)."""

    __slots__ = ("completion", "items", "positions", "rewrites")

    def __init__(
        self,
        items: list[ShardItem],
        rewrites: Sequence[Rewrite | None] | None,
        completion: Completion | None,
        positions: list[int],
    ) -> None:
        self.items = items
        self.rewrites = rewrites
        """By item; None lets the item go, and no list at all lets all go."""
        self.completion = completion
        self.positions = positions


class Settlements:
    """Begins leases and ends them: delivery, ack, nack, release, expiry.

    The dispatcher delivers and unclaims here, the verbs settle, and `tick` ends what nobody settled. It owns the leases
    by receipt, the wheel of their ends, and the settlements that wait for a transaction.
    """

    def __init__(self, index: ShardIndex, journal: Journal, timers: Timers) -> None:
        self._index = index
        self._journal = journal
        self._timers = timers
        self.under_lease: dict[str, ShardItem] = {}
        """By receipt."""
        self._wheel: Wheel[ShardItem] = Wheel()
        # Apart, so that acks wait neither for nacks nor for many leases that end together.
        self._acks: deque[Settlement] = deque()
        """Of callers, whose items all go."""
        self._nacks: deque[Settlement] = deque()
        """Of callers, the others."""
        self._ended: deque[Settlement] = deque()
        """Without a caller."""
        self._in_flight: list[Settlement] = []
        self._has_failed = False
        """The last transaction: where acks wait the next one takes no other settlements, which may need room."""

    # ---- leases ----

    def lease_of(self, key: int, delivery: int) -> ShardItem:
        """The item under this lease; `delivery` 0 asks for any. Raises StaleLeaseError when the lease has ended."""
        item = self._index.leases.get(key)
        if item is None or item.phase is not Phase.LEASED or delivery not in (0, item.deliveries + 1):
            raise self.stale_lease()
        return item

    def stale_lease(self) -> StaleLeaseError:
        return StaleLeaseError("the lease of this receipt has ended: the item was settled or given to another")

    def deliver(self, item: ShardItem, lease_due_at: int) -> None:
        item.phase = Phase.LEASED
        item.topic.count_leased(1)
        item.lease_due_at = lease_due_at
        item.receipt = receipt = ids.receipt(self._index.shard_id, item.key, item.deliveries + 1)
        self.under_lease[receipt] = item
        self._wheel.add(item.key, lease_due_at, item)

    def unclaim(self, item: ShardItem) -> bool:
        """Nobody has seen this delivery: ready again under the same delivery number, and nothing to write.

        But for one that was claimed for a call, which a new owner would take for delivered: its row gets the next
        number first. Returns whether there is that for the next transaction.
        """
        if item.claim is not None and not item.claim.is_ahead:
            self._release(item)
            return True
        if item.phase is Phase.LEASED:
            item.topic.count_leased(-1)
            self.end_lease(item)
        del self._index.leases[item.key]
        self._journal.leave([item])
        self._index.make_ready([item])
        return False

    def _release(self, item: ShardItem) -> None:
        if item.phase is not Phase.LEASED:
            item.topic.count_leased(1)
        self.end_lease(item)
        sort_key = (item.topic.number, item.priority, item.due_at)
        counts = (item.deliveries + 1, item.failed_attempts)
        self.settle([item], [Rewrite(item.key, *sort_key, *counts, is_in_place=True)])

    def pause_lease(self, item: ShardItem) -> None:
        """The lease does not end while its extension is on the way."""
        self._wheel.remove(item.key, item.lease_due_at)

    def resume_lease(self, item: ShardItem, lease_due_at: int) -> None:
        if item.phase is Phase.LEASED:
            self._wheel.remove(item.key, item.lease_due_at)  # Of another extension in the same transaction.
            self._wheel.add(item.key, lease_due_at, item)
        item.lease_due_at = lease_due_at  # Of one that is being settled too: that may fail.

    def tick(self, now: Now) -> int:
        """End the leases that are over, up to a bound; returns how many."""
        due = self._wheel.pop_due(now.steady_ms, limits.TICK_LEASE_ENDS_MAX)
        items = [item for item in due if item.phase is Phase.LEASED]
        for item in items:
            item.phase = Phase.SETTLING
            del self.under_lease[item.receipt]
        for namespace, count in Counter([item.topic.namespace for item in items]).items():
            self._index.events.count(namespace, ItemEvent.LEASE_ENDED, count)
        for start in range(0, len(items), limits.SWEEP_CHUNK_ITEMS):
            some = items[start : start + limits.SWEEP_CHUNK_ITEMS]
            self.settle(some, [self._ended_lease(item, now.server_ms) for item in some])
        return len(items)

    def _ended_lease(self, item: ShardItem, now_ms: int) -> Rewrite | None:
        """It counts as a failed attempt, unless only an owner that is gone knew whether anybody had the item."""
        claim = item.claim
        is_unseen = claim is not None and claim.is_ahead and claim.is_inherited
        return self.failed_attempt(item, now_ms, reason="lease ended", release=is_unseen)

    # ---- their ends ----

    def end_lease(self, item: ShardItem) -> None:
        """Nobody else ends it now; `settle` is to follow at once."""
        item.phase = Phase.SETTLING
        self.under_lease.pop(item.receipt, None)
        self._wheel.remove(item.key, item.lease_due_at)

    def settle(
        self,
        items: list[ShardItem],
        rewrites: Sequence[Rewrite | None] | None = None,
        completion: Completion | None = None,
        positions: list[int] | None = None,
    ) -> None:
        """Write how these leases ended with the next transaction; `completion` expects each item of it."""
        settlement = Settlement(items, rewrites, completion, positions or [])
        if completion is None:
            self._ended.append(settlement)
        else:
            (self._acks if rewrites is None else self._nacks).append(settlement)
            completion.open_count += len(items)

    @property
    def waiting_count(self) -> int:
        """Callers' settlements that no transaction has taken yet."""
        return len(self._acks) + len(self._nacks)

    def failed_attempt(self, item: ShardItem, now_ms: int, *, delay_ms: int = 0, reason: str = "", dead: bool = False,
                       release: bool = False, metadata: bytes | None = None) -> Rewrite | None:  # fmt: skip
        """What a nack, release or ended lease makes of the item's row; with None it goes (at-most-once)."""
        if item.at_most_once and not dead:
            return None
        failed = item.failed_attempts + (not release)
        deliveries = item.deliveries + 1
        number = item.topic.number
        if dead or (failed >= self._index.settings.attempts_max(item.topic.namespace) and not release):
            return Rewrite(item.key, -number, 0, now_ms, deliveries, failed, metadata, reason.encode())
        if delay_ms > 0:
            return Rewrite(item.key, TIMER_LANE, 0, now_ms + delay_ms, deliveries, failed, metadata)
        sort_key = (number, item.priority, item.due_at)
        return Rewrite(item.key, *sort_key, deliveries, failed, metadata, is_in_place=True)

    # ---- part of a transaction ----

    def take(self, transaction: Transaction, now: Now) -> None:
        is_acks_only, self._has_failed = self._has_failed and bool(self._acks), False
        self._take(self._acks, limits.TRANSACTION_CHANGES_MAX, transaction)
        if is_acks_only:
            return  # A server without room for a row may have some for them.
        self._take(self._nacks, limits.TRANSACTION_CHANGES_MAX, transaction)
        self._take(self._ended, limits.TRANSACTION_LEASE_ENDS_MAX, transaction)

    def _take(self, waiting: deque[Settlement], items_max: int, transaction: Transaction) -> None:
        count = 0
        while waiting and count < items_max:
            settlement = waiting.popleft()
            self._in_flight.append(settlement)
            count += len(settlement.items)
            if settlement.rewrites is None:
                transaction.deletes += [item.key for item in settlement.items]
                continue
            transaction.rewrites += [rewrite for rewrite in settlement.rewrites if rewrite is not None]
            ends = zip(settlement.items, settlement.rewrites, strict=True)
            transaction.deletes += [item.key for item, rewrite in ends if rewrite is None]

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        in_flight, self._in_flight = self._in_flight, []
        leases = self._index.leases
        events = self._index.events
        was_crowded = len(leases) >= limits.OPEN_LEASES_OF_TOPIC_RATIO * (limits.OPEN_LEASES_MAX - len(leases))
        for settlement in in_flight:
            self._journal.leave(settlement.items)
            for item in settlement.items:
                del leases[item.key]
                item.phase = Phase.GONE
            for topic, count in Counter([item.topic for item in settlement.items]).items():
                topic.count(rows=-count, leased=-count)
                if was_crowded:  # Topics may have had no room.
                    events.topics_changed[topic] = None
            for rewrite, item in zip(settlement.rewrites or (), settlement.items, strict=False):
                if rewrite is not None:
                    self.apply_rewrite(item.topic, item.priority, rewrite)
            if settlement.completion is not None:
                events.done(settlement.completion, len(settlement.items))

    def apply_rewrite(self, topic: ShardTopic, priority: int, rewrite: Rewrite) -> None:
        """What a rewritten row means."""
        if rewrite.lane == TIMER_LANE:
            topic.count(delayed=1)
            self._timers.add(rewrite.key, topic, priority, rewrite.due_at)
        elif rewrite.lane < 0:
            topic.count(dead=1)
            self._index.events.count(topic.namespace, ItemEvent.DEAD_LETTERED, 1)
        else:
            topic.count(rows=1)
            topic.window.add(order.sort_key(rewrite.urgency, rewrite.due_at, rewrite.key, self._index.shard_id))
            self._index.events.topics_changed[topic] = None

    def failed(self, error: FoqsError) -> None:
        self._has_failed = True
        in_flight, self._in_flight = self._in_flight, []
        for settlement in in_flight:
            if settlement.completion is None:
                self._ended.append(settlement)
                continue
            for item in settlement.items:
                self._undo(item)
            self._index.events.fail(settlement.completion, settlement.positions, error)

    def _undo(self, item: ShardItem) -> None:
        """The end of the lease was not written, so it goes on; one that never was handed out is ready again."""
        if item.lease_due_at:
            item.phase = Phase.LEASED
            self.under_lease[item.receipt] = item
            self._wheel.add(item.key, item.lease_due_at, item)
        else:
            item.topic.count_leased(-1)
            self.unclaim(item)
            self._index.events.topics_changed[item.topic] = None

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        for settlements, error in ((self._in_flight, unknown), (self._acks, undone), (self._nacks, undone)):
            for settlement in settlements:
                if settlement.completion is not None:
                    self._index.events.fail(settlement.completion, settlement.positions, error)
