"""Enqueue: the buffer of enqueued items, and their state after the transaction that inserts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Protocol

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.copy_steps import CopyStep
from foqs.model.errors import FoqsError, NotWrittenError, OverloadedError
from foqs.model.item import Phase, ShardItem, by_topic, count_of, rows_came, singles, undivided
from foqs.model.topic import ShardTopic
from foqs.shard.port import TIMER_LANE, Transaction, TransactionResult
from foqs.shard.state.events import Completion, Enqueued
from foqs.shard.state.index import ENQUEUE_BUFFER_RETRY_MS, ShardIndex
from foqs.shard.state.ops.claim import Claims
from foqs.shard.state.ops.operation import Operation
from foqs.shard.state.ops.wake import Timers

_key = attrgetter("key")


class FirstItems(Protocol):
    """A batch of items that are the first ones with their dedup ids."""

    def refuse(self, error: FoqsError) -> None:
        """Note that items were not made. This method reports it to the call in place of the batch."""


class EnqueuedBatch:
    """One call's items for this shard."""

    __slots__ = ("completion", "count", "delayed", "expires_first_ms", "firsts", "items", "ready", "size_bytes")

    def __init__(
        self, items: list[ShardItem], size_bytes: int, completion: Completion, firsts: FirstItems | None = None
    ) -> None:
        self.items = items
        self.count = count_of(items)
        self.size_bytes = size_bytes
        self.completion = completion
        self.firsts = firsts
        self.ready: dict[ShardTopic, list[ShardItem]] = {}
        self.delayed: list[ShardItem] = []
        ready, expires_first_ms = self.ready, items[0].expires_at
        for item in items:
            topic = item.topic
            if item.expires_at < expires_first_ms:
                expires_first_ms = item.expires_at
            if item.due_at > item.enqueued_at:
                self.delayed.append(item)
            elif topic in ready:
                ready[topic].append(item)
            else:
                ready[topic] = [item]
        self.expires_first_ms = expires_first_ms
        """The time at which its first item expires."""

    def enqueued(self, at_ms: int) -> list[Enqueued]:
        """Return all items by topic, durable since this time."""
        return [
            Enqueued(topic, at_ms, [item.priority for item in items])
            for some in (self.ready, by_topic(self.delayed))
            for topic, items in some.items()
        ]


class Inserts:
    """The buffer of enqueued items: each call's items are inserted by one transaction.

    The host adds calls. They stay here, and count as buffered, until their transaction has ended.
    """

    def __init__(self, index: ShardIndex, claims: Claims, timers: Timers) -> None:
        self.buffered_count = 0
        """Items that are not committed yet."""
        self.buffered_bytes = 0
        self.waiting: deque[EnqueuedBatch] = deque()
        self.in_flight: list[EnqueuedBatch] = []
        self.steps: dict[EnqueuedBatch, CopyStep] = {}
        """The batches of copies for new consumer groups, until they end."""
        self._index = index
        self._claims = claims
        self._timers = timers
        self._namespaces_stored = set(index.namespace_names)

    def add(self, items: list[ShardItem], size_bytes: int, completion: Completion) -> None:
        """Buffer one call's items. Raises OverloadedError if the buffer is full."""
        batch = EnqueuedBatch(items, size_bytes, completion)
        self.hold(batch.count, size_bytes)
        self.put(batch)

    def put(self, batch: EnqueuedBatch) -> None:
        """Put held items into the next transaction."""
        batch.completion.open_count += 1
        self.waiting.append(batch)
        self._index.waiting_calls_count += 1

    def hold(self, count: int, size_bytes: int) -> None:
        """Count items as buffered until they are released. Raises OverloadedError if the buffer is full."""
        if (
            self.buffered_count + count > limits.ENQUEUE_BUFFER_ITEMS_MAX
            or self.buffered_bytes + size_bytes > limits.ENQUEUE_BUFFER_BYTES_MAX
        ):
            raise OverloadedError(
                f"shard {self._index.shard_id} has {self.buffered_count} items of {self.buffered_bytes} bytes waiting "
                "to be written, which is its limit: try again",
                retry_after_ms=ENQUEUE_BUFFER_RETRY_MS,
            )
        self.buffered_count += count
        self.buffered_bytes += size_bytes

    def release(self, count: int, size_bytes: int) -> None:
        self.buffered_count -= count
        self.buffered_bytes -= size_bytes

    def evict(self, reason: str) -> None:
        """Refuse the batches that no transaction has taken yet. They are certainly not written, so another shard can
        take them.
        """
        evicted, self.waiting = self.waiting, deque()
        self._index.waiting_calls_count -= len(evicted)
        for batch in evicted:
            self.refuse(batch, NotWrittenError(f"shard {self._index.shard_id} takes no items now: {reason}"))

    def holds(self, namespace: int) -> bool:
        """True if items of the namespace wait here, or are under way."""
        return any(batch.items[0].topic.namespace == namespace for batch in self.batches())

    def batches(self) -> Iterator[EnqueuedBatch]:
        yield from self.waiting
        yield from self.in_flight

    def topics_arriving(self) -> Iterable[ShardTopic]:
        """Return the topics of the ready items in the next transaction, for which it needs the demand."""
        return dict.fromkeys([topic for batch in self._first() for topic in batch.ready])

    def begin(self, transaction: Transaction, now: Now) -> Inserting:
        """Take the calls whose items the next transaction inserts, in their order of arrival."""
        self.in_flight = self._first()
        for _ in self.in_flight:
            self.waiting.popleft()
        self._index.waiting_calls_count -= len(self.in_flight)
        operation = Inserting(self, self._index, self._claims, self._timers, self.in_flight)
        operation.write(transaction, now)
        return operation

    def _first(self) -> list[EnqueuedBatch]:
        batches: list[EnqueuedBatch] = []
        count = size_bytes = 0
        for batch in self.waiting:
            if count >= limits.TRANSACTION_INSERTS_MAX or size_bytes >= limits.TRANSACTION_INSERT_BYTES_MAX:
                break
            batches.append(batch)
            count += batch.count
            size_bytes += batch.size_bytes
        return batches

    def store_topics(self, topics: Iterable[ShardTopic]) -> tuple[list[ShardTopic], dict[int, bytes]]:
        """Mark the topics as stored. Returns the new topics, and the names of new namespaces."""
        topics_new: list[ShardTopic] = []
        namespaces_new: dict[int, bytes] = {}
        for topic in topics:
            if not topic.stored:
                topic.stored = True
                topics_new.append(topic)
                if topic.namespace not in self._namespaces_stored:
                    self._namespaces_stored.add(topic.namespace)
                    namespaces_new[topic.namespace] = self._index.namespace_names[topic.namespace].encode()
        return topics_new, namespaces_new

    def unstore_topics(self, topics: Iterable[ShardTopic], namespaces: Iterable[int]) -> None:
        for topic in topics:
            topic.stored = False
        self._namespaces_stored.difference_update(namespaces)

    def store_name(self, namespace: int, name: bytes) -> bool:
        """Mark the name of a namespace as stored. Returns True if it was not."""
        self._index.namespace_names.setdefault(namespace, name.decode())
        is_new = namespace not in self._namespaces_stored
        self._namespaces_stored.add(namespace)
        return is_new

    def abandon(self, undone: FoqsError) -> None:
        self.evict(undone.message)

    def end(self, batch: EnqueuedBatch) -> None:
        """Release the items of a batch whose transaction has ended, or that has none."""
        self.release(batch.count, batch.size_bytes)
        if self.steps:
            self.steps.pop(batch, None)

    def refuse(self, batch: EnqueuedBatch, error: FoqsError) -> None:
        self.end(batch)
        if batch.firsts is None:
            self._index.events.refuse(batch.completion, error)
        else:
            batch.firsts.refuse(error)


class Inserting(Operation):
    """Items of calls that are inserted by one transaction."""

    __slots__ = ("_batches", "_claims", "_index", "_namespaces_new", "_source", "_timers", "_topics_new")

    def __init__(
        self, source: Inserts, index: ShardIndex, claims: Claims, timers: Timers, batches: list[EnqueuedBatch]
    ) -> None:
        self._source = source
        self._index = index
        self._claims = claims
        self._timers = timers
        self._batches = batches
        self._topics_new: list[ShardTopic] = []
        self._namespaces_new: dict[int, bytes] = {}

    def write(self, transaction: Transaction, now: Now) -> None:
        delayed: list[ShardItem] = []
        ready: dict[ShardTopic, list[ShardItem]] = {}
        for batch in self._batches:
            delayed += batch.delayed
            for topic, some in batch.ready.items():
                if topic in ready:
                    ready[topic] += some
                else:
                    ready[topic] = some.copy()
        topics = dict.fromkeys([*ready, *[item.topic for item in delayed]])
        self._topics_new, self._namespaces_new = self._source.store_topics(topics)
        transaction.namespaces_new = list(self._namespaces_new.items())
        transaction.topics_new = self._topics_new
        transaction.inserts = delayed
        if steps := self._source.steps:
            transaction.copy_steps = [steps[batch] for batch in self._batches if batch in steps]
        transaction.delay_checkpoint = min([transaction.delay_checkpoint, *[item.due_at for item in delayed]])
        for topic, ready_items in ready.items():
            # Items of a topic without a backlog have their turn soon.
            is_soon = topic.window.edge == order.LAST
            if is_soon:
                transaction.inserts_short_lived += ready_items
            else:
                transaction.inserts += [one for item in ready_items for one in singles(item)]
        if any(topic.has_places for topic in topics):
            _set_placed_apart(transaction)
        transaction.inserts.sort(key=_key)  # Keys in order cost the server less.
        demand = self._claims.demand
        for topic, ready_items in ready.items():
            if topic in demand:
                self._claims.claim_fresh(topic, ready_items)

    def committed(self, result: TransactionResult, now: Now) -> None:
        index, events = self._index, self._index.events
        for batch in self._batches:
            self._source.end(batch)
            for topic, whole in batch.ready.items():
                # The claims of the other items are in the same transaction.
                items = undivided(whole)
                if topic.is_serial and topic.empty:
                    topic.first_enqueued_at = items[0].enqueued_at
                index.make_ready(topic, [item for item in items if item.phase is Phase.INSERTING], Phase.INSERTING)
                (topic.base or topic).enqueued_count += count_of(items)
                events.topics_changed[topic] = None
            if index.settings.has_event_log:
                events.enqueued += batch.enqueued(now.server_ms)
            for item in batch.delayed:
                rows_came(item.topic, TIMER_LANE, 1)
                (item.topic.base or item.topic).enqueued_count += 1
                self._timers.add(item.key, item.topic, order.urgency_of(item.sort_key), item.due_at)
            index.expires_first_ms = min(index.expires_first_ms, batch.expires_first_ms)
            events.done(batch.completion)
        self._source.in_flight = []

    def rolled_back(self, error: FoqsError) -> None:
        self._source.in_flight = []
        self._source.unstore_topics(self._topics_new, self._namespaces_new)
        for batch in self._batches:
            self._source.refuse(batch, NotWrittenError(error.message))

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._source.in_flight = []
        for batch in self._batches:
            self._source.refuse(batch, unknown)


def _set_placed_apart(transaction: Transaction) -> None:
    """Insert the items of topics that age by themselves: their rows have a column more, and packs have no places."""
    for some in (transaction.inserts, transaction.inserts_short_lived):
        transaction.inserts_placed += [one for item in some if item.topic.has_places for one in singles(item)]
        some[:] = [item for item in some if not item.topic.has_places]
    transaction.inserts_placed.sort(key=_key)
