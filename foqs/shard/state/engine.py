"""One shard's state: its ready, delayed, claimed and leased items, and the plan of the next transaction.

Pure: the time comes in as an argument, and another module owns the database. The owner calls `take` for the next
transaction when the last one has ended, runs it, and reports `committed` or `failed`. The state calls no other part:
the consumers' demand for topics comes in as a value, and `Events` come out as one, which the caller passes on. All
state lives on one thread, so it needs no locks; it runs unchanged in a simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from mypy_extensions import mypyc_attr

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import UnavailableError
from foqs.model.item import Phase, ShardItem, by_topic, rows_came
from foqs.model.namespace import SettingsTable
from foqs.model.topic import KEYED_TOPIC_IDLE_MS, ShardTopic
from foqs.shard.port import TIMER_LANE, ClaimedRow, LaneCounts, ShardImage, StoredClaim, Transaction, TransactionResult
from foqs.shard.state.events import Demand, Events
from foqs.shard.state.index import ShardIndex, fill_head
from foqs.shard.state.journal import Journal
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops.change import Changes
from foqs.shard.state.ops.claim import Claims
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.extend import Extensions
from foqs.shard.state.ops.fence import Fences
from foqs.shard.state.ops.free import Frees
from foqs.shard.state.ops.group_copy import GroupCopies
from foqs.shard.state.ops.insert import Inserts
from foqs.shard.state.ops.look_up import LookUps
from foqs.shard.state.ops.operation import Operation
from foqs.shard.state.ops.refill import Refills
from foqs.shard.state.ops.settle import Settlements
from foqs.shard.state.ops.slot_move import SlotMoves
from foqs.shard.state.ops.wake import Timers

ROOM_REPORTED_PER_TICK = 500
"""Serial topics of which a tick reports that they can deliver, which takes the dispatcher some milliseconds."""
STEADY_WRITE_MS = 2 * limits.SECOND_MS
"""How often a shard with open leases writes its steady clock. After a takeover, leases can run this much longer."""


@mypyc_attr(allow_interpreted_subclasses=True)  # The simulation subclasses it to observe it.
class ShardState:
    """One shard as its owner knows it, and the plan of its transactions.

    The host submits the calls (`insert`, `claim`, `settle`, `extend`, `delete`, ...), and each kind waits in its own
    file of foqs/shard/state/ops. The shard's writer plans a transaction, and reports how it has ended.
    """

    def __init__(self, shard_id: int, image: ShardImage, settings: SettingsTable, unseen: Collection[int] = ()) -> None:
        """`unseen`: keys of items whose claims in the image back no lease, because this process knows that no consumer
        has them.
        """
        self.shard_id, self.opened_at_ms = shard_id, image.now_ms
        """`opened_at_ms` is the time at which this host took the shard, on the server's clock."""
        self.epoch = self.since_epoch = image.epoch
        """The present epoch of this ownership, and the one with which it began."""
        self.in_flight: Transaction | None = None
        self.index = index = ShardIndex(shard_id, image, settings)
        self._batch: list[Operation] = []
        """The operations of the transaction in flight."""
        self._has_failed = False
        """True if the last transaction failed."""
        self.has_events = False
        """True if planning the transaction has produced events, which must be taken before it runs."""
        self.leases = leases = LeaseTable(index)
        self.journal = journal = Journal(index)
        self.refills = Refills(index)
        self.timers = timers = Timers(index, image.delay_checkpoint)
        self.settlements = settlements = Settlements(index, journal, timers, leases)
        self.claims = Claims(index, journal, settlements)
        self.inserts = Inserts(index, self.claims, timers)
        self.extensions = Extensions(index, journal, leases)
        self.changes = Changes(index, settlements, self.claims, timers, leases)
        self.look_ups = LookUps(index)
        self.dedup = dedup = Dedup(index, self.inserts, image.seen, image.seen_images, image.holding)
        self.checks, self.forgetfulness, self.images = dedup.checks, dedup.forgetfulness, dedup.images
        self.fences = Fences(index, self.inserts, dedup)
        self.slot_moves = SlotMoves(index, self.inserts, dedup)
        self.group_copies = GroupCopies(index, self.inserts)
        self.frees, self.held = Frees(index, dedup), dedup.held
        # The calls that other parts can make on a shard; they never use its parts directly.
        self.insert, self.topics_arriving = self.inserts.add, self.inserts.topics_arriving
        self.insert_once, self.load_seen, self.load_seen_from = dedup.insert_once, dedup.load, dedup.load_from
        self.next_seen_image, self.load_seen_image = dedup.next_image, dedup.load_image
        self.refuse_seen_image = dedup.images.refuse
        self.dedup_window_ms = dedup.window_ms
        self.free_dedup_ids, self.release_dedup_ids = self.frees.free, self.frees.release
        self.claim, self.claim_for_call = self.claims.claim, self.claims.claim_for_call
        self.unclaim_for_calls = self.claims.unclaim_for_calls
        self.under_lease, self.lease_of = leases.by_receipt, leases.find
        self.deliver, self.end_leases = leases.begin, leases.end
        self.hand_over, self.work_begins, self.suspects = leases.hand_over, leases.work_begins, leases.suspects
        self.settle, self.expire = settlements.settle, settlements.expire
        self.unclaim, self.unclaim_all = settlements.unclaim, settlements.unclaim_all
        self.failed_attempt = settlements.failed_attempt
        self.extend = self.extensions.extend
        self.delete, self.redrive, self.expire_row = self.changes.delete, self.changes.redrive, self.changes.expire
        self.state_of, self.topic_of, self.bury = self.changes.state_of, self.changes.topic_of, self.changes.bury
        self.look_up = self.look_ups.look_up
        self.want_refill = self.refills.want
        self.ask_fence = self.fences.ask
        self.sweep_lag_ms = timers.lag_ms
        self.make_exact = journal.make_exact
        self._transaction_number = image.transaction_number
        self._steady_written_ms = image.steady_ms
        self._topics_gone: list[int] = []
        self._had_no_room: list[ShardTopic] = []
        """Serial topics that have room again, because the rows were counted or their slots opened. They are reported in
        steps, since a shard can have as many as it has ordering keys.
        """
        self._adopt_claims(image)
        self._unclaim(unseen)

    @property
    def buffered_count(self) -> int:
        """Enqueued items that are not committed yet."""
        return self.inserts.buffered_count

    @property
    def buffered_bytes(self) -> int:
        return self.inserts.buffered_bytes

    @property
    def items_count(self) -> int:
        return self.index.counts.total

    def unseen_keys(self) -> frozenset[int]:
        """Return the keys of items that no consumer got, though they were claimed or might be. Any thread can call it
        once the shard is lost.
        """
        return frozenset([key for key, item in self.index.leases.items() if not item.lease_due_at])

    def items_of(self, namespace: int) -> int:
        """Return the number of items of the namespace; exact once they are counted."""
        counts = self.index.namespaces.get(namespace)
        return 0 if counts is None else counts.total

    def holds_topic(self, namespace: int, name: str) -> bool:
        """Return True if the topic or a keyed topic of it has items here, or items of it wait to be inserted.

        Exact once rows are counted.
        """
        topic = self.index.topics.get((namespace, name))
        if topic is not None and topic.holds_any:
            return True
        return any((one.namespace, one.base_name) == (namespace, name) for one in self._topics_waiting())

    def shut_slots(self, slots: frozenset[int]) -> None:
        """Deliver no item of the serial topics of these slots from now on, and again of all other slots."""
        opened = self.index.topic_table.shut(slots)
        if self.index.counted:  # Before, none has room, and all are reported then.
            self._had_no_room += opened
            self._report_room()

    def serial_topics_of(self, slot: int) -> Collection[ShardTopic]:
        """Return the serial topics of a slot that the shard knows."""
        return self.index.topic_table.serial_by_slot.get(slot, ())

    def topics_that_can_hold(self, namespace: int) -> list[tuple[ShardTopic, bool]]:
        """Return the topics of a namespace, or of all for 0, each with True if items of it wait to be inserted."""
        waiting = self._topics_waiting()
        known: Iterable[ShardTopic] = self.index.topics.values()
        if namespace:
            waiting = {topic for topic in waiting if topic.namespace == namespace}
            of_namespace = self.index.namespaces.get(namespace)
            known = of_namespace.all() if of_namespace is not None else ()
        return [(topic, True) for topic in waiting] + [(topic, False) for topic in known]

    def _topics_waiting(self) -> set[ShardTopic]:
        waiting = {item.topic for batch in self.inserts.batches() for item in batch.items}
        return waiting | self.dedup.topics_waiting()

    def waits_up_to(self, key: int) -> bool:
        """Return True if an item with this key or an earlier one waits to be inserted."""
        first = min([batch.items[0].key for batch in self.inserts.batches()], default=key + 1)
        return min(first, self.dedup.first_key_waiting()) <= key

    def take_events(self) -> Events:
        """Take the events since the last call.

        Call it after `tick`, after `take` if it `has_events`, and after a deletion.
        """
        events, self.index.events = self.index.events, Events()
        return events

    def tick(self, now: Now) -> bool:
        """Do the work that is due by time alone. Returns True if that needs a transaction.

        A part without work is not entered, because a host with many shards would be busy while it has nothing to do.
        """
        steady_ms, table = now.steady_ms, self.index.topic_table
        ended = self.settlements.tick(now) if self.leases.is_due(steady_ms) else 0
        if self.refills.cold:
            self.refills.warm_up()
        is_refill = bool(self.refills.wanted)
        table.steady_ms = steady_ms
        if table.empty_since_ms or table.empty_keyed_since_ms:
            self._forget_idle_topics(steady_ms)
        if self._had_no_room:
            self._report_room()
        is_due = False
        if self.dedup.loading:
            self.dedup.tick()
        if self.dedup.windows:
            is_due = self.forgetfulness.tick(now)
        is_due = is_due or self.images.is_due(now)
        if self.slot_moves.waiting:
            is_due = is_due or self.slot_moves.is_due()
        if self.index.leases:
            is_due = is_due or self._is_steady_due(now)
        is_due = is_due or self.timers.sweep_at_ms <= now.server_ms
        return bool(ended or is_refill or self._topics_gone) or is_due

    def _is_steady_due(self, now: Now) -> bool:
        """True if the steady clock must be written: a new owner restarts it from there, which prolongs leases."""
        return bool(self.index.leases) and now.steady_ms - self._steady_written_ms >= STEADY_WRITE_MS

    def take(self, now: Now, demand: Mapping[ShardTopic, Demand], *, probe: bool = False) -> Transaction | None:
        """Return the next transaction with all waiting work, or None if nothing waits and no `probe` is wanted.

        `demand` is the consumers' demand by topic. Inserted items of other topics are not claimed with the insert.
        """
        assert self.in_flight is None, "one transaction at a time"
        transaction = Transaction(self._transaction_number + 1, delay_checkpoint=now.server_ms)
        batch = self._plan(transaction, now, demand)
        if self.held.namespaces:
            self.held.note_ends(transaction)
        self._has_failed = False
        events = self.index.events
        self.has_events = bool(events.claims_started or events.claims_ended or events.completed)
        is_worth_commit = bool(batch or self._topics_gone)
        journal = self.journal
        if journal.new or journal.gone or journal.sparse:
            batch += journal.begin(transaction, now, is_worth_commit=is_worth_commit)
        if not batch and not is_worth_commit and not probe and not self._is_steady_due(now):
            return None
        transaction.steady_ms = self._steady_written_ms = now.steady_ms
        transaction.topic_number_last = self.index.topic_number_last
        transaction.claim_checkpoint = journal.checkpoint() if journal.open or journal.gone else self.index.last_key
        # No delayed row is due before this after the transaction, regardless of the outcome on the clock.
        starts = (transaction.delay_checkpoint, self.timers.first_due_ms, *self.timers.changing.values())
        transaction.delay_checkpoint = min(starts)
        transaction.topics_gone, self._topics_gone = self._topics_gone, []
        self._transaction_number += 1
        self.in_flight, self._batch = transaction, batch
        return transaction

    def _plan(self, transaction: Transaction, now: Now, demand: Mapping[ShardTopic, Demand]) -> list[Operation]:
        """Begin one operation of each kind that waits, in the order in which they write and end.

        Reads come first, so that they see no row of the transaction. Inserts come before claims, because items with
        waiting consumers are claimed with their insert, and before other claims are taken.
        """
        batch: list[Operation] = []
        if self.checks.waiting:
            batch.append(self.checks.begin(transaction, now))
        if self.refills.wanted:
            batch += self.refills.begin(transaction, now)
        if self.timers.sweep_at_ms <= now.server_ms:
            batch += self.timers.begin(transaction, now)
        if self.group_copies.waiting or self.group_copies.ended:
            batch.append(self.group_copies.begin_operation(transaction, now))
        if self.inserts.waiting:
            self.claims.demand = demand
            batch.append(self.inserts.begin(transaction, now))
            if self.dedup.firsts_count:
                batch += self.dedup.begin(transaction, now)
        if self.slot_moves.waiting:
            batch += self.slot_moves.begin(transaction, now)
        if self.frees.waiting:
            batch.append(self.frees.begin(transaction, now))
        if self.forgetfulness.waiting:
            batch.append(self.forgetfulness.begin(transaction, now))
        if self.images.gone or self.images.making is not None:
            batch += self.images.begin(transaction, now)
        if self.claims.waiting or self.claims.fresh or self.claims.waiting_for_calls:
            batch += self.claims.begin(transaction, now)
        if self.extensions.waiting:
            batch += self.extensions.begin(transaction, now)
        if self.settlements.acks or self.settlements.nacks or self.settlements.ended:
            batch.append(self.settlements.begin(transaction, now, after_failure=self._has_failed))
        if self.changes.waiting:
            batch.append(self.changes.begin(transaction, now))
        if self.look_ups.waiting:
            batch.append(self.look_ups.begin(transaction, now))
        if self.fences.waiting:
            batch.append(self.fences.begin(transaction, now))
        return batch

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch between two transactions: new items get keys of it from now on. All else stays."""
        assert self.in_flight is None, "a transaction is of one epoch"
        self.epoch = epoch
        self.index.begin_epoch(epoch)

    def committed(self, result: TransactionResult, now: Now) -> Events:
        """Apply the committed transaction to the state."""
        if result.read_count:
            self.index.read_budget.read(result.read_count, result.read_us)
        for operation in self._end():
            operation.committed(result, now)
        events, self.index.events = self.index.events, Events()
        return events

    def failed(self, reason: str) -> Events:
        """Undo the plan of the transaction, which certainly did not happen."""
        assert self.in_flight is not None
        self._topics_gone += self.in_flight.topics_gone
        error = UnavailableError(f"shard {self.shard_id} could not write: {reason}", nothing_done=True)
        for operation in self._end():
            operation.rolled_back(error)
        self._has_failed = True
        return self.take_events()

    def _end(self) -> list[Operation]:
        """End the transaction in flight. Returns its operations."""
        assert self.in_flight is not None
        batch, self._batch, self.in_flight = self._batch, [], None
        return batch

    def evict(self, reason: str) -> Events:
        """Refuse the enqueued items that no transaction has taken yet, so that another shard can take them."""
        self.inserts.evict(reason)
        self.dedup.evict(reason)
        return self.take_events()

    def refuse_undone(self, reason: str) -> Events:
        """Refuse all calls whose work is certainly not done, because the server hangs.

        These are all calls that no transaction has taken, and the reads of the transaction under way. Its writes have
        to wait for an answer, and work without a caller continues to wait.
        """
        undone = UnavailableError(
            f"shard {self.shard_id} is sick, {reason}: nothing was done, try again",
            retry_after_ms=limits.SICK_RETRY_MS,
            nothing_done=True,
        )
        for operation in self._batch:
            operation.refuse_undone(undone)
        self.inserts.evict(reason)
        self.dedup.evict(reason)
        self.settlements.refuse_undone(undone)
        self.extensions.refuse_undone(undone)
        self.changes.refuse_undone(undone)
        self.look_ups.refuse_undone(undone)
        self.frees.refuse_undone(undone)
        self.fences.refuse_undone(undone)
        return self.take_events()

    def abandon(self, reason: str) -> Events:
        """End all waiting calls with their known or unknown outcome, because the shard is lost."""
        lost = f"this host lost shard {self.shard_id}"
        unknown = UnavailableError(f"{lost}, the outcome is unknown: {reason}")
        undone = UnavailableError(f"{lost} before anything was written: {reason}", nothing_done=True)
        if self.in_flight is not None:
            for operation in self._end():
                operation.lost(unknown, undone)
        self.inserts.abandon(undone)
        self.dedup.abandon(undone)
        self.settlements.abandon(undone)
        self.extensions.abandon(undone, unknown)
        self.changes.abandon(undone)
        self.look_ups.abandon(undone)
        self.fences.abandon(undone)
        self.slot_moves.abandon(undone)
        self.frees.abandon(undone)
        events = self.take_events()
        events.forget_items()
        return events

    def add_counts(self, counts: LaneCounts) -> Iterator[None]:
        """Add the numbers of rows at the take-over; until then the topics count changes since.

        Yields where the rest is left for another turn of the event loop.
        """
        lanes = [(lane, rows, 0) for lane, rows in counts.lanes] + [
            (number, 0, rows) for number, rows in counts.delayed
        ]
        for start in range(0, len(lanes), limits.TOPICS_PER_TICK_MAX):
            for lane, rows, delayed in lanes[start : start + limits.TOPICS_PER_TICK_MAX]:
                topic = self.index.by_number.get(abs(lane))
                if topic is not None:
                    rows_came(topic, lane, rows)
                    rows_came(topic, TIMER_LANE, delayed)
            yield
        self.index.counted = True
        self._had_no_room = self.index.serial_topics[::-1]
        self._report_room()

    def _report_room(self) -> None:
        """Report some of the serial topics that have room again."""
        for _ in range(min(len(self._had_no_room), ROOM_REPORTED_PER_TICK)):
            topic = self._had_no_room.pop()
            if self.index.by_number.get(topic.number) is topic:
                self.index.events.topics_changed[topic] = None

    def _forget_idle_topics(self, steady_ms: int) -> None:
        """Forget topics that were empty for a while: they leave the topic table.

        Each tick checks only a bounded number of topics, which were empty for long enough. All forgotten topics are
        deleted by one transaction, because the next one can use their names again.
        """
        index = self.index
        if not index.counted:
            return
        table = index.topic_table
        arriving: set[ShardTopic] | None = None
        for empty_since_ms, idle_ms in (
            (table.empty_keyed_since_ms, KEYED_TOPIC_IDLE_MS),
            (table.empty_since_ms, limits.TOPIC_IDLE_MS),
        ):
            for _ in range(min(len(empty_since_ms), limits.TOPICS_PER_TICK_MAX)):
                topic, since_ms = next(iter(empty_since_ms.items()))
                is_full = len(self._topics_gone) >= limits.TRANSACTION_TOPICS_GONE_MAX
                if is_full or steady_ms - since_ms <= idle_ms:
                    break
                del empty_since_ms[topic]
                if not topic.empty or topic.keyed is not None:
                    continue  # It is noted again when it is empty, or its last keyed topic is forgotten.
                if arriving is None:
                    arriving = {item.topic for batch in self.inserts.batches() for item in batch.items}
                    arriving |= self.dedup.topics_waiting()
                if topic in arriving:
                    table.note_empty(topic)
                else:
                    self._forget_topic(topic)

    def _forget_topic(self, topic: ShardTopic) -> None:
        self.index.remove_topic(topic)
        self.refills.forget(topic)
        if topic.stored:
            self._topics_gone.append(topic.number)
        self.index.events.topics_gone.append(topic)

    def _adopt_claims(self, image: ShardImage) -> None:
        """Adopt the open claims: the newest claim of an item counts, if it is for the row's present delivery.

        An at-most-once item is delivered only under the claim of a call, so no consumer has one that was claimed ahead.
        """
        newest: dict[int, StoredClaim] = {}
        for claim in image.claims:
            for key, delivery in claim.entries:
                row = image.claimed_rows.get(key)
                if row is not None and row.lane > 0 and row.deliveries + 1 == delivery:
                    newest[key] = claim
        kept: dict[int, list[ShardItem]] = {}
        for key, claim in newest.items():
            row = image.claimed_rows[key]
            if not (claim.is_ahead and row.at_most_once):
                kept.setdefault(claim.id, []).append(self._claimed_item(row))
        for claim in image.claims:
            items = kept.get(claim.id, [])
            for topic, some in by_topic(items).items():
                self.leases.begin(some, claim.due_at)
                if topic.is_serial:
                    topic.run += some
            self.journal.adopt(claim, items)

    def _unclaim(self, unseen: Collection[int]) -> None:
        for key in unseen:
            item = self.index.leases.get(key)
            if item is not None and item.phase is Phase.LEASED:  # Else one before it in its run has taken it along.
                self.settlements.unclaim(item)

    def _claimed_item(self, row: ClaimedRow) -> ShardItem:
        sort_key = order.sort_key(row.urgency, row.due_at, row.key, self.shard_id)
        item = ShardItem(row.key, self.index.by_number[row.topic], row.priority, row.due_at, sort_key)
        fill_head(item, row)
        self.index.leases[row.key] = item
        return item
