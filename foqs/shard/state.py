"""One shard's state: what is ready, delayed, claimed and under lease, and what the next transaction shall do.

Pure: the time comes in as an argument, the database is somebody else's. The owner calls `take` for the next
transaction when the last one has ended, runs it, and reports `committed` or `failed`. All state lives on one
thread, so there are no locks; it runs unchanged in a simulation.
"""

from __future__ import annotations

from collections import deque

from foqs.core import ids, limits, order
from foqs.core.calls import ItemState
from foqs.core.errors import FoqsError, NotFoundError, OverloadedError, StaleLeaseError, UnavailableError
from foqs.core.item import Claim, Item, Phase
from foqs.core.topic import ShardTopic
from foqs.core.wheel import Wheel
from foqs.core.window import Window
from foqs.shard.flight import Extension, Flight, LookUp, RowChange, Settlement, ShardListener, Ticket
from foqs.storage.transaction import (
    TIMER_LANE,
    ItemRow,
    Refill,
    Rewrite,
    ShardImage,
    Transaction,
    TransactionResult,
)


class ShardState:
    def __init__(self, shard_id: int, image: ShardImage, listener: ShardListener) -> None:
        self.shard_id = shard_id
        self.epoch = image.epoch
        self.topics: dict[tuple[int, str], ShardTopic] = {}
        self.leases: dict[int, Item] = {}
        """Every item that is not ready: claimed, held, handed out or being settled."""
        self.flight: Flight | None = None
        self.buffered_count = 0
        self.buffered_bytes = 0
        self._listener = listener
        self._sequence = image.epoch << ids.SEQUENCE_BITS
        self._transaction_number = image.transaction_number
        self._topic_number_last = image.topic_number_last
        self._by_number: dict[int, ShardTopic] = {}
        self._wheel: Wheel[Item] = Wheel()
        self._claims: dict[int, Claim] = {}
        self._claims_gone: list[int] = []
        self._resident: dict[int, Item] = {}
        self._resident_bytes = 0
        self._timers = Window(complete=False)
        self._timers.edge = order.place(0, max(0, image.delay_checkpoint - 1), (1 << 64) - 1, (1 << 16) - 1)
        self._timer_topics: dict[int, tuple[ShardTopic, int]] = {}
        self._enqueues: deque[tuple[list[Item], Ticket]] = deque()
        self._claiming: deque[Item] = deque()
        self._settlements: deque[Settlement] = deque()
        self._extensions: deque[Extension] = deque()
        self._refills: dict[int, ShardTopic] = {}
        self._look_ups: deque[LookUp] = deque()
        self._changes: deque[RowChange] = deque()
        self._changing: set[int] = set()
        """Delayed and dead rows with a change on the way."""
        self._topics_gone: list[int] = []
        self._load(image)

    # ---- what callers ask ----

    def topic(self, namespace: int, name: str) -> ShardTopic:
        """The topic, made on first use."""
        topic = self.topics.get((namespace, name))
        if topic is None:
            if len(self.topics) >= limits.TOPICS_PER_SHARD_MAX:
                raise OverloadedError(f"shard {self.shard_id} has {len(self.topics)} topics, which is its limit")
            self._topic_number_last += 1
            topic = ShardTopic(self.shard_id, self._topic_number_last, namespace, name, stored=False)
            self._remember_topic(topic)
        return topic

    def next_key(self) -> int:
        self._sequence += 1
        return self._sequence

    def enqueue(self, items: list[Item], size_bytes: int, ticket: Ticket) -> None:
        """Buffer one call's items for the next transaction. Raises OverloadedError when the buffer is full."""
        if (
            self.buffered_count + len(items) > limits.ENQUEUE_BUFFER_ITEMS_MAX
            or self.buffered_bytes + size_bytes > limits.ENQUEUE_BUFFER_BYTES_MAX
        ):
            raise OverloadedError(
                f"shard {self.shard_id} has {self.buffered_count} items waiting to be written; try again",
                retry_after_ms=200,
            )
        self.buffered_count += len(items)
        self.buffered_bytes += size_bytes
        ticket.open_count = 1
        self._enqueues.append((items, ticket))

    def claim(self, topic: ShardTopic, places: list[int]) -> None:
        """Lease items that were just taken from the head of the topic's window."""
        for place in places:
            key = order.key_of(place)
            item = self._resident.get(key)
            if item is None:
                item = Item(key, topic, order.urgency_of(place), order.due_at_of(place), place)
            item.phase = Phase.CLAIMING
            self.leases[key] = item
            topic.claiming.add(place)
            self._claiming.append(item)
        self._listener.claims_started(topic, len(places))

    def hand_out(self, item: Item, lease_due_at: int) -> None:
        item.phase = Phase.LEASED
        item.lease_due_at = lease_due_at
        item.topic.leased += 1
        self._wheel.add(item.key, lease_due_at, item)

    def give_back(self, item: Item) -> None:
        """A held item was not handed out: ready again, under the same delivery number."""
        self._forget_lease(item)
        item.phase = Phase.READY
        item.topic.window.add(item.place)
        self._keep_resident(item)

    def lease_of(self, key: int, delivery: int) -> Item:
        """The item under this lease. Raises StaleLeaseError when the lease has ended."""
        item = self.leases.get(key)
        if item is None or item.phase is not Phase.LEASED or delivery not in (0, item.deliveries + 1):
            raise StaleLeaseError(
                "the lease of this receipt has ended: the item was settled, or given to somebody else"
            )
        return item

    def settle(self, item: Item, rewrite: Rewrite | None, ticket: Ticket | None, position: int = 0) -> None:
        """Delete the item's row, or rewrite it, and end its lease; the ticket is told once that is durable."""
        item.phase = Phase.SETTLING
        self._wheel.remove(item.key, item.lease_due_at)
        self._settlements.append(Settlement(item, rewrite, ticket, position))
        if ticket is not None:
            ticket.open_count += 1

    def extend(self, item: Item, lease_ms: int, ticket: Ticket, position: int) -> None:
        ticket.open_count += 1
        self._extensions.append(Extension(item, lease_ms, ticket, position))

    def want_refill(self, topic: ShardTopic) -> None:
        if topic.window.edge != order.LAST and not topic.window.refilling:
            self._refills[topic.number] = topic

    def failed_attempt(self, item: Item, now_ms: int, *, delay_ms: int = 0, reason: str = "", dead: bool = False,
                       release: bool = False, metadata: bytes | None = None) -> Rewrite | None:  # fmt: skip
        """What a nack, release or ended lease makes of the item's row; None deletes it (at-most-once)."""
        if item.at_most_once and not dead:
            return None
        failed = item.failed_attempts + (not release)
        deliveries = item.deliveries + 1
        if dead or (failed >= self._listener.attempts_max(item.topic.namespace) and not release):
            lane, urgency, due_at = -item.topic.number, 0, now_ms
            return Rewrite(item.key, lane, urgency, due_at, deliveries, failed, metadata, reason.encode())
        if delay_ms > 0:
            return Rewrite(item.key, TIMER_LANE, 0, now_ms + delay_ms, deliveries, failed, metadata)
        return Rewrite(item.key, item.topic.number, item.priority, item.due_at, deliveries, failed, metadata)

    # ---- rows that nobody holds ----

    def look_up(self, look_up: LookUp) -> None:
        """Read rows in the next transaction, in step with this state."""
        self._look_ups.append(look_up)

    def topic_of(self, row: ItemRow) -> ShardTopic:
        return self._by_number[row.topic]

    def state_of(self, row: ItemRow) -> ItemState:
        if row.lane < 0:
            return ItemState.DEAD
        if row.lane == TIMER_LANE:
            return ItemState.DELAYED
        item = self.leases.get(row.key)
        held = item is not None and item.phase in (Phase.LEASED, Phase.SETTLING)
        return ItemState.LEASED if held else ItemState.READY

    def delete(self, row: ItemRow, ticket: Ticket, position: int) -> None:
        """Delete a row that was just looked up, whatever its state. Raises NotFoundError if it is going already."""
        item = self.leases.get(row.key)
        if row.key in self._changing or (item is not None and item.phase is Phase.SETTLING):
            raise NotFoundError("the item is being settled by another call")
        if row.lane <= 0:
            self._change(RowChange(row, None, ticket, position))
            return
        if item is None:
            item = self._take_ready(row)
        if item.phase is not Phase.LEASED:
            item.topic.leased += 1
        self.settle(item, None, ticket, position)

    def redrive(self, row: ItemRow, now_ms: int, ticket: Ticket, position: int) -> None:
        """Make a dead row that was just looked up ready again. Raises NotFoundError if it is not dead."""
        if row.lane >= 0 or row.key in self._changing:
            raise NotFoundError("the item is not a dead letter")
        rewrite = Rewrite(row.key, row.topic, row.priority, now_ms, row.deliveries, 0, None, b"")
        self._change(RowChange(row, rewrite, ticket, position))

    def _change(self, change: RowChange) -> None:
        row = change.row
        self._changing.add(row.key)
        if row.lane == TIMER_LANE and self._timers.remove(order.place(0, row.due_at, row.key, self.shard_id)):
            self._timer_topics.pop(row.key, None)
        change.ticket.open_count += 1
        self._changes.append(change)

    def _take_ready(self, row: ItemRow) -> Item:
        """A ready row out of its window, so that nobody claims it."""
        place = order.place(row.urgency, row.due_at, row.key, self.shard_id)
        item = self._resident.get(row.key) or Item(row.key, self._by_number[row.topic], row.priority, row.due_at, place)
        item.topic.window.remove(place)
        self._drop_resident(item)
        self.leases[row.key] = item
        return item

    # ---- time ----

    def forget_idle_topics(self, now_ms: int) -> None:
        """Topics exist while they hold an item; one that was empty for a while leaves the topic table."""
        if self._enqueues or self.flight is not None:
            return
        for topic in list(self.topics.values()):
            if not topic.empty:
                topic.empty_since_ms = 0
            elif topic.empty_since_ms == 0:
                topic.empty_since_ms = now_ms
            elif now_ms - topic.empty_since_ms > limits.TOPIC_IDLE_MS:
                del self.topics[topic.namespace, topic.name]
                del self._by_number[topic.number]
                self._refills.pop(topic.number, None)
                if topic.stored:
                    self._topics_gone.append(topic.number)
                self._listener.topic_gone(topic)

    def tick(self, now_ms: int) -> None:
        """End the leases that are over."""
        for item in self._wheel.pop_due(now_ms):
            if item.phase is Phase.LEASED:
                self.settle(item, self.failed_attempt(item, now_ms, reason="lease ended"), None)

    # ---- the next transaction ----

    def take(self, now_ms: int) -> Flight | None:
        """The next transaction with all that waits, or None when nothing does."""
        assert self.flight is None, "one transaction at a time"
        flight = Flight(Transaction(self._transaction_number + 1))
        self._take_refills(flight)
        self._take_enqueues(flight, now_ms)
        self._take_claims(flight, now_ms)
        self._take_settlements(flight)
        self._take_extensions(flight, now_ms)
        self._take_wakes(flight, now_ms)
        self._take_changes(flight)
        if not (
            flight.refilled
            or flight.enqueues
            or flight.claimed
            or flight.settled
            or flight.extended
            or flight.woken
            or flight.changed
            or flight.look_ups
            or self._topics_gone
        ):
            return None
        transaction = flight.transaction
        transaction.claims_gone, self._claims_gone = self._claims_gone, []
        transaction.topics_gone, self._topics_gone = self._topics_gone, []
        transaction.topic_number_last = self._topic_number_last
        transaction.claim_checkpoint = next(iter(self._claims), self._sequence)
        transaction.delay_checkpoint = self._delay_checkpoint(transaction, now_ms)
        self._transaction_number += 1
        self.flight = flight
        return flight

    def _take_refills(self, flight: Flight) -> None:
        if self._timers.wants_refill:
            self._timers.refilling = True
            flight.refilled.append((self._timers, None))
            flight.transaction.refills.append(Refill(TIMER_LANE, self._timers.edge, limits.WINDOW_REFILL_ITEMS))
        while self._refills and len(flight.refilled) < limits.TRANSACTION_REFILLS_MAX:
            number, topic = self._refills.popitem()
            topic.window.refilling = True
            flight.refilled.append((topic.window, topic))
            flight.transaction.refills.append(Refill(number, topic.window.edge, limits.WINDOW_REFILL_ITEMS))

    def _take_enqueues(self, flight: Flight, now_ms: int) -> None:
        inserts = flight.transaction.inserts
        while self._enqueues and len(inserts) < limits.TRANSACTION_INSERTS_MAX:
            items, ticket = self._enqueues.popleft()
            flight.enqueues.append((items, ticket))
            inserts.extend(items)
        fresh: dict[ShardTopic, list[Item]] = {}
        for item in inserts:
            topic = item.topic
            if not topic.stored:
                topic.stored = True
                flight.transaction.topics_new.append(topic)
            if item.due_at <= item.enqueued_at:
                fresh.setdefault(topic, []).append(item)
        for topic, items in fresh.items():
            wanted = self._listener.unmet_demand(topic.namespace, topic.name)
            room = min(
                limits.OPEN_LEASES_MAX - len(self.leases),
                limits.TRANSACTION_CLAIMS_MAX - len(self._claiming),
            )
            if wanted > 0 and room > 0:
                self._claim_fresh(sorted(items, key=_place)[: min(wanted, room)], topic)

    def _claim_fresh(self, items: list[Item], topic: ShardTopic) -> None:
        """Flow-through: consumers wait for these, so their claim goes with their insert."""
        for item in items:
            item.phase = Phase.CLAIMING
            self.leases[item.key] = item
            self._claiming.append(item)
        self._listener.claims_started(topic, len(items))

    def _take_claims(self, flight: Flight, now_ms: int) -> None:
        by_lease: dict[int, list[Item]] = {}
        while self._claiming and len(flight.claimed) < limits.TRANSACTION_CLAIMS_MAX:
            item = self._claiming.popleft()
            flight.claimed.append(item)
            if item.payload is None:
                flight.transaction.fetches.append(item)
            lease_ms = max(item.topic.lease_ms, item.lease_ms)
            by_lease.setdefault(lease_ms, []).append(item)
        for lease_ms, items in by_lease.items():
            claim = Claim(self.next_key(), now_ms + lease_ms + limits.CLAIM_SLACK_MS, items)
            self._claims[claim.id] = claim
            flight.transaction.claims.append(claim)
            for item in items:
                item.claim = claim

    def _take_settlements(self, flight: Flight) -> None:
        while self._settlements and len(flight.settled) < limits.TRANSACTION_CHANGES_MAX:
            settlement = self._settlements.popleft()
            flight.settled.append(settlement)
            if settlement.rewrite is None:
                flight.transaction.deletes.append(settlement.item.key)
            else:
                flight.transaction.rewrites.append(settlement.rewrite)

    def _take_extensions(self, flight: Flight, now_ms: int) -> None:
        while self._extensions:
            extension = self._extensions.popleft()
            item = extension.item
            if item.phase is not Phase.LEASED:
                extension.ticket.errors[extension.position] = StaleLeaseError("the lease ended before its extension")
                extension.ticket.settle()
                continue
            self._wheel.remove(item.key, item.lease_due_at)
            claim = Claim(self.next_key(), now_ms + extension.lease_ms + limits.CLAIM_SLACK_MS, [item])
            self._claims[claim.id] = claim
            flight.transaction.claims.append(claim)
            flight.extended.append((extension, claim))

    def _take_wakes(self, flight: Flight, now_ms: int) -> None:
        due = self._timers.first(limits.SWEEP_CHUNK_ITEMS)
        count = 0
        for place in due:
            if order.due_at_of(place) > now_ms:
                break
            count += 1
        for place in self._timers.take(count):
            key = order.key_of(place)
            topic, priority = self._timer_topics.pop(key)
            flight.woken.append((key, topic, priority, order.due_at_of(place)))
            flight.transaction.wakes.append(key)

    def _take_changes(self, flight: Flight) -> None:
        transaction = flight.transaction
        while self._changes and len(flight.changed) < limits.TRANSACTION_CHANGES_MAX:
            change = self._changes.popleft()
            flight.changed.append(change)
            if change.rewrite is None:
                transaction.deletes.append(change.row.key)
            else:
                transaction.rewrites.append(change.rewrite)
        while self._look_ups and len(transaction.look_ups) < limits.TRANSACTION_LOOK_UPS_MAX:
            look_up = self._look_ups.popleft()
            flight.look_ups.append(look_up)
            transaction.look_ups += look_up.keys

    def _delay_checkpoint(self, transaction: Transaction, now_ms: int) -> int:
        """No row of the timer lane is due before this after the transaction, whatever becomes of the clock."""
        head = self._timers.head
        lowest = now_ms if head == order.LAST else order.due_at_of(head)
        starts = [item.due_at for item in transaction.inserts if item.due_at > item.enqueued_at]
        starts += [rewrite.due_at for rewrite in transaction.rewrites if rewrite.lane == TIMER_LANE]
        return min([lowest, now_ms, *starts])

    # ---- what came of it ----

    def committed(self, result: TransactionResult, now_ms: int) -> None:
        flight, self.flight = self.flight, None
        assert flight is not None
        self._apply_refills(flight, result)
        self._apply_enqueues(flight)
        self._apply_settlements(flight)
        for key, topic, priority, due_at in flight.woken:
            topic.delayed -= 1
            topic.rows += 1
            topic.window.add(order.place(priority, due_at, key, self.shard_id))
        for extension, claim in flight.extended:
            item = extension.item
            self._leave_claim(item)
            item.claim = claim
            item.lease_due_at = now_ms + extension.lease_ms
            self._wheel.add(item.key, item.lease_due_at, item)
            extension.ticket.settle()
        self._apply_claims(flight, result, now_ms)
        self._apply_changes(flight)
        for topic in {topic for _, topic, _, _ in flight.woken}:
            self._listener.became_ready(topic)
        for look_up in flight.look_ups:
            look_up.on_rows({key: result.looked_up[key] for key in look_up.keys if key in result.looked_up})

    def failed(self, error: str) -> None:
        """Certainly nothing of the transaction happened: everything is as it was before."""
        flight, self.flight = self.flight, None
        assert flight is not None
        failure = UnavailableError(f"shard {self.shard_id} could not write: {error}")
        for topic in flight.transaction.topics_new:
            topic.stored = False
        for window, _ in flight.refilled:
            window.refilling = False
        for key, topic, priority, due_at in flight.woken:
            self._add_timer(key, topic, priority, due_at)
        self._claims_gone += flight.transaction.claims_gone
        self._topics_gone += flight.transaction.topics_gone
        for change in flight.changed:
            self._changing.discard(change.row.key)
            if change.row.lane == TIMER_LANE:
                row = change.row
                self._add_timer(row.key, self._by_number[row.topic], row.priority, row.due_at)
            change.ticket.errors[change.position] = failure
            change.ticket.settle()
        for look_up in flight.look_ups:
            look_up.on_failed(failure)
        for claim in flight.transaction.claims:
            del self._claims[claim.id]
        inserted = {id(item) for item in flight.transaction.inserts}
        self._undo_claims(flight, inserted)
        for settlement in flight.settled:
            self._undo_settlement(settlement, failure)
        for extension, _ in flight.extended:
            self._wheel.add(extension.item.key, extension.item.lease_due_at, extension.item)
            extension.ticket.errors[extension.position] = failure
            extension.ticket.settle()
        for items, ticket in flight.enqueues:
            self._unbuffer(items)
            ticket.failure = failure
            ticket.settle()

    def abandon(self, reason: str) -> None:
        """The shard is lost: tell everyone who waits that the outcome is unknown."""
        failure = UnavailableError(f"this host lost shard {self.shard_id}: {reason}")
        flight, self.flight = self.flight, None
        enqueues = list(self._enqueues) + (flight.enqueues if flight else [])
        settlements = list(self._settlements) + (flight.settled if flight else [])
        extensions = list(self._extensions) + ([extension for extension, _ in flight.extended] if flight else [])
        for _, ticket in enqueues:
            ticket.failure = failure
            ticket.settle()
        changes = list(self._changes) + (flight.changed if flight else [])
        for look_up in [*self._look_ups, *(flight.look_ups if flight else [])]:
            look_up.on_failed(failure)
        waiting: list[Settlement | Extension | RowChange] = [*settlements, *extensions, *changes]
        for pending in waiting:
            if pending.ticket is not None:
                pending.ticket.errors[pending.position] = failure
                pending.ticket.settle()

    def _apply_refills(self, flight: Flight, result: TransactionResult) -> None:
        for (window, topic), refill, rows in zip(
            flight.refilled, flight.transaction.refills, result.refilled, strict=True
        ):
            window.refilling = False
            places = [order.place(row[0], row[1], row[2], self.shard_id) for row in rows]
            edge = places[-1] if len(places) == refill.limit else order.LAST
            if topic is None:
                unchanged = [row for row in rows if row[2] not in self._changing]
                places = [order.place(row[0], row[1], row[2], self.shard_id) for row in unchanged]
                for row in unchanged:
                    self._timer_topics[row[2]] = (self._by_number[row[3]], row[4])
                window.extend(places, edge)
            elif window.edge == refill.edge:
                window.extend([place for place in places if order.key_of(place) not in self.leases], edge)
            # A trim since has moved the edge back: what was read lies beyond it and is read again.
            if topic is not None:
                self._listener.became_ready(topic)

    def _apply_enqueues(self, flight: Flight) -> None:
        ready: set[ShardTopic] = set()
        for items, ticket in flight.enqueues:
            self._unbuffer(items)
            for item in items:
                topic = item.topic
                if item.due_at > item.enqueued_at:
                    topic.delayed += 1
                    self._add_timer(item.key, topic, item.priority, item.due_at)
                    continue
                topic.rows += 1
                if item.phase is Phase.INSERTING:
                    item.phase = Phase.READY
                    topic.window.add(item.place)
                    self._keep_resident(item)
                    ready.add(topic)
            ticket.settle()
        for topic in ready:
            self._listener.became_ready(topic)

    def _apply_settlements(self, flight: Flight) -> None:
        for settlement in flight.settled:
            item, rewrite = settlement.item, settlement.rewrite
            topic = item.topic
            topic.leased -= 1
            topic.rows -= 1
            self._forget_lease(item)
            item.phase = Phase.GONE
            if rewrite is not None:
                self._apply_rewrite(topic, item.priority, rewrite)
            if settlement.ticket is not None:
                settlement.ticket.settle()

    def _apply_changes(self, flight: Flight) -> None:
        for change in flight.changed:
            row, topic = change.row, self._by_number[change.row.topic]
            self._changing.discard(row.key)
            if row.lane == TIMER_LANE:
                topic.delayed -= 1
            else:
                topic.dead -= 1
            if change.rewrite is not None:
                self._apply_rewrite(topic, row.priority, change.rewrite)
            change.ticket.settle()

    def _apply_rewrite(self, topic: ShardTopic, priority: int, rewrite: Rewrite) -> None:
        if rewrite.lane == TIMER_LANE:
            topic.delayed += 1
            self._add_timer(rewrite.key, topic, priority, rewrite.due_at)
        elif rewrite.lane < 0:
            topic.dead += 1
        else:
            topic.rows += 1
            topic.window.add(order.place(rewrite.urgency, rewrite.due_at, rewrite.key, self.shard_id))
            self._listener.became_ready(topic)

    def _apply_claims(self, flight: Flight, result: TransactionResult, now_ms: int) -> None:
        by_topic: dict[ShardTopic, list[Item]] = {}
        counts: dict[ShardTopic, int] = {}
        for item in flight.claimed:
            topic = item.topic
            topic.claiming.discard(item.place)
            counts[topic] = counts.get(topic, 0) + 1
            assert item.claim is not None
            item.claim.items = None
            row = result.fetched.get(item.key)
            if row is not None:
                _fill(item, row)
            self._drop_resident(item)
            if item.phase is not Phase.CLAIMING:
                continue  # Deleted while its claim was on the way.
            item.phase = Phase.HELD
            if item.expires_at <= now_ms:
                topic.leased += 1
                self.settle(item, None, None)
            else:
                by_topic.setdefault(topic, []).append(item)
        for topic, count in counts.items():
            self._listener.claims_ended(topic, count, by_topic.get(topic, []))

    def _undo_claims(self, flight: Flight, inserted: set[int]) -> None:
        counts: dict[ShardTopic, int] = {}
        for item in flight.claimed:
            topic = item.topic
            counts[topic] = counts.get(topic, 0) + 1
            topic.claiming.discard(item.place)
            item.claim = None
            if item.phase is not Phase.CLAIMING:
                continue
            del self.leases[item.key]
            if id(item) in inserted:
                item.phase = Phase.INSERTING
            else:
                item.phase = Phase.READY
                topic.window.add(item.place)
        for topic, count in counts.items():
            self._listener.claims_ended(topic, count, [])

    def _undo_settlement(self, settlement: Settlement, failure: FoqsError) -> None:
        item = settlement.item
        if settlement.ticket is None:
            self._settlements.append(settlement)
            return
        item.phase = Phase.LEASED
        self._wheel.add(item.key, item.lease_due_at, item)
        settlement.ticket.errors[settlement.position] = failure
        settlement.ticket.settle()

    # ---- bookkeeping ----

    def _unbuffer(self, items: list[Item]) -> None:
        self.buffered_count -= len(items)
        self.buffered_bytes -= sum([len(item.payload or b"") + len(item.metadata) for item in items])

    def _add_timer(self, key: int, topic: ShardTopic, priority: int, due_at: int) -> None:
        place = order.place(0, due_at, key, self.shard_id)
        if place <= self._timers.edge:
            self._timers.add(place)
            self._timer_topics[key] = (topic, priority)
            if len(self._timer_topics) > len(self._timers) + limits.WINDOW_ITEMS_MAX:
                kept = {order.key_of(place) for place in self._timers.places}
                self._timer_topics = {k: v for k, v in self._timer_topics.items() if k in kept}

    def _keep_resident(self, item: Item) -> None:
        self._resident[item.key] = item
        self._resident_bytes += len(item.payload or b"") + len(item.metadata)
        while self._resident_bytes > limits.RESIDENT_BYTES_MAX:
            self._drop_resident(next(iter(self._resident.values())))

    def _drop_resident(self, item: Item) -> None:
        if self._resident.pop(item.key, None) is not None:
            self._resident_bytes -= len(item.payload or b"") + len(item.metadata)

    def _forget_lease(self, item: Item) -> None:
        del self.leases[item.key]
        self._leave_claim(item)

    def _leave_claim(self, item: Item) -> None:
        claim, item.claim = item.claim, None
        if claim is not None:
            claim.items = None
            claim.open_count -= 1
            if claim.open_count == 0:
                del self._claims[claim.id]
                self._claims_gone.append(claim.id)

    def _remember_topic(self, topic: ShardTopic) -> None:
        self.topics[topic.namespace, topic.name] = topic
        self._by_number[topic.number] = topic

    def _load(self, image: ShardImage) -> None:
        for number, namespace, name in image.topics:
            self._remember_topic(ShardTopic(self.shard_id, number, namespace, name.decode(), stored=True))
        for lane, rows in image.lanes:
            if lane > 0:
                self._by_number[lane].rows = rows
            elif lane < 0:
                self._by_number[-lane].dead = rows
        for number, rows in image.delayed:
            self._by_number[number].delayed = rows
        newest: dict[int, tuple[int, int]] = {}
        for claim_id, due_at, entries in image.claims:
            for key, delivery in entries:
                row = image.claimed_rows.get(key)
                if row is not None and row.lane > 0 and row.deliveries + 1 == delivery:
                    newest[key] = (claim_id, due_at)
        kept: dict[int, list[Item]] = {}
        for key, (claim_id, due_at) in newest.items():
            kept.setdefault(claim_id, []).append(self._leased_item(image.claimed_rows[key], due_at))
        for claim_id, due_at, _ in image.claims:
            items = kept.get(claim_id)
            if items is None:
                self._claims_gone.append(claim_id)
                continue
            claim = self._claims[claim_id] = Claim(claim_id, due_at, items)
            claim.items = None
            for item in items:
                item.claim = claim

    def _leased_item(self, row: ItemRow, due_at: int) -> Item:
        topic = self._by_number[row.topic]
        place = order.place(row.urgency, row.due_at, row.key, self.shard_id)
        item = Item(row.key, topic, row.priority, row.due_at, place)
        _fill(item, row)
        item.payload = None
        self.leases[row.key] = item
        self.hand_out(item, due_at)
        return item

    def rows_count(self) -> int:
        return sum(topic.rows + topic.delayed + topic.dead for topic in self.topics.values())


def _place(item: Item) -> int:
    return item.place


def _fill(item: Item, row: ItemRow) -> None:
    item.enqueued_at = row.enqueued_at
    item.expires_at = row.expires_at
    item.lease_ms = row.lease_ms
    item.at_most_once = bool(row.at_most_once)
    item.deliveries = row.deliveries
    item.failed_attempts = row.failed_attempts
    item.metadata = row.metadata
    item.payload = row.payload
