"""Enqueued items on their way to the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, NotWrittenError, OverloadedError
from foqs.model.item import Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.callers import Completion
from foqs.shard.state.claims import Claims
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.timers import Timers


class EnqueuedBatch:
    """One call's items for this shard."""

    __slots__ = ("completion", "delayed", "items", "ready", "size_bytes")

    def __init__(self, items: list[ShardItem], size_bytes: int, completion: Completion) -> None:
        self.items = items
        self.size_bytes = size_bytes
        self.completion = completion
        self.ready: dict[ShardTopic, list[ShardItem]] = {}
        self.delayed: list[ShardItem] = []
        ready = self.ready
        for item in items:
            topic = item.topic
            if item.due_at > item.enqueued_at:
                self.delayed.append(item)
            elif topic in ready:
                ready[topic].append(item)
            else:
                ready[topic] = [item]


class Inserts:
    """The buffer of enqueued items: each call's items go into one transaction."""

    def __init__(self, index: ShardIndex, claims: Claims, timers: Timers) -> None:
        self.buffered_count = 0
        """Items that are not committed yet."""
        self.buffered_bytes = 0
        self._index = index
        self._claims = claims
        self._timers = timers
        self._waiting: deque[EnqueuedBatch] = deque()
        self._in_flight: list[EnqueuedBatch] = []
        self._topics_new: list[ShardTopic] = []
        self._namespaces_new: dict[int, bytes] = {}
        self._namespaces_stored = set(index.namespace_names)

    def add(self, items: list[ShardItem], size_bytes: int, completion: Completion) -> None:
        """Buffer one call's items. Raises OverloadedError when the buffer is full."""
        if (
            self.buffered_count + len(items) > limits.ENQUEUE_BUFFER_ITEMS_MAX
            or self.buffered_bytes + size_bytes > limits.ENQUEUE_BUFFER_BYTES_MAX
        ):
            raise OverloadedError(
                f"shard {self._index.shard_id} has {self.buffered_count} items of {self.buffered_bytes} bytes waiting "
                "to be written, which is its limit: try again",
                retry_after_ms=limits.ENQUEUE_BUFFER_RETRY_MS,
            )
        self.buffered_count += len(items)
        self.buffered_bytes += size_bytes
        completion.open_count += 1
        self._waiting.append(EnqueuedBatch(items, size_bytes, completion))

    def evict(self, reason: str) -> None:
        """Give back what no transaction has taken yet: certainly not written, so it may go to another shard."""
        evicted, self._waiting = self._waiting, deque()
        for batch in evicted:
            self._fail(batch, NotWrittenError(f"shard {self._index.shard_id} takes no items now: {reason}"))

    @property
    def waiting_count(self) -> int:
        """Calls whose items no transaction has taken yet."""
        return len(self._waiting)

    def holds(self, namespace: int) -> bool:
        """Whether items of the namespace wait here, or are on their way."""
        return any(batch.items[0].topic.namespace == namespace for batch in self.batches())

    def batches(self) -> Iterator[EnqueuedBatch]:
        yield from self._waiting
        yield from self._in_flight

    def _next(self) -> list[EnqueuedBatch]:
        """What the next transaction takes."""
        batches: list[EnqueuedBatch] = []
        count = size_bytes = 0
        for batch in self._waiting:
            if count >= limits.TRANSACTION_INSERTS_MAX or size_bytes >= limits.TRANSACTION_INSERT_BYTES_MAX:
                break
            batches.append(batch)
            count += len(batch.items)
            size_bytes += batch.size_bytes
        return batches

    def topics_arriving(self) -> Iterable[ShardTopic]:
        """Those of which the next transaction inserts ready items: what is wanted of them is to be known by then."""
        return dict.fromkeys([topic for batch in self._next() for topic in batch.ready])

    def take(self, transaction: Transaction, now: Now) -> None:
        self._in_flight = self._next()
        delayed: list[ShardItem] = []
        ready: dict[ShardTopic, list[ShardItem]] = {}
        for batch in self._in_flight:
            self._waiting.popleft()
            delayed += batch.delayed
            for topic, some in batch.ready.items():
                if topic in ready:
                    ready[topic] += some
                else:
                    ready[topic] = some.copy()
        for topic in dict.fromkeys([*ready, *[item.topic for item in delayed]]):
            if not topic.stored:
                topic.stored = True
                self._topics_new.append(topic)
                if topic.namespace not in self._namespaces_stored:
                    self._namespaces_stored.add(topic.namespace)
                    self._namespaces_new[topic.namespace] = self._index.namespace_names[topic.namespace].encode()
        transaction.namespaces_new = list(self._namespaces_new.items())
        transaction.topics_new += self._topics_new
        transaction.inserts = delayed
        for topic, ready_items in ready.items():
            # What has no backlog before it has its turn soon.
            is_soon = topic.window.edge == order.LAST
            (transaction.inserts_short_lived if is_soon else transaction.inserts).extend(ready_items)
        transaction.inserts.sort(key=_key)  # Keys in their order cost the server less.
        for topic, ready_items in ready.items():
            self._claims.claim_fresh(topic, ready_items)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        in_flight, self._in_flight, self._topics_new, self._namespaces_new = self._in_flight, [], [], {}
        topics_changed = self._index.events.topics_changed
        expires_first_ms = self._index.expires_first_ms
        ready: list[ShardItem] = []
        for batch in in_flight:
            self._unbuffer(batch)
            for topic, items in batch.ready.items():
                topic.count(rows=len(items))
                topics_changed[topic] = None
                ready += [item for item in items if item.phase is Phase.INSERTING]
            for item in batch.delayed:
                item.topic.count(delayed=1)
                self._timers.add(item.key, item.topic, item.priority, item.due_at)
            for item in batch.items:
                if item.expires_at < expires_first_ms:
                    expires_first_ms = item.expires_at
            self._index.events.done(batch.completion)
        self._index.make_ready(ready)
        self._index.expires_first_ms = expires_first_ms

    def failed(self, error: FoqsError) -> None:
        in_flight, self._in_flight = self._in_flight, []
        topics_new, self._topics_new = self._topics_new, []
        for topic in topics_new:
            topic.stored = False
        self._namespaces_stored.difference_update(self._namespaces_new)
        self._namespaces_new = {}
        for batch in in_flight:
            self._fail(batch, NotWrittenError(error.message))

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        for batch in self._in_flight:
            self._fail(batch, unknown)
        self._in_flight = []
        self.evict(undone.message)

    def _fail(self, batch: EnqueuedBatch, error: FoqsError) -> None:
        self._unbuffer(batch)
        self._index.events.refuse(batch.completion, error)

    def _unbuffer(self, batch: EnqueuedBatch) -> None:
        self.buffered_count -= len(batch.items)
        self.buffered_bytes -= batch.size_bytes


def _key(item: ShardItem) -> int:
    return item.key
