"""The dispatcher, which assigns items to calls; shards, the verb dequeue and the tick call it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.any_topic import AnyTopic
from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import ClaimsEnded, Demand, Events
from foqs.shard.writer.shard_writer import ShardWriter

DRAINED_PER_TURN = 1_000
"""Topics and prefetched items that a draining host releases in one turn of the event loop."""


@mypyc_attr(allow_interpreted_subclasses=True)  # The simulation observes it by a subclass.
class Dispatcher(AnyTopic):
    """Delivers the items of every shard of a host, on the event loop's thread only.

    A shard's writer asks for the demand before it plans a transaction, and brings the events afterwards. The verb
    dequeue starts calls here. The dispatcher owns the demand and the prefetched items of every topic.
    """

    def __init__(
        self,
        writers: Mapping[int, ShardWriter],
        clock: Callable[[], float],
        settings: SettingsTable,
        record: Callable[[Events], None],
    ) -> None:
        """`record` counts the events of items; the other arguments are those of `Prefetching`."""
        super().__init__(writers, clock, settings)
        self._record = record
        self._unswept: list[TopicQueue] = []
        """Topics that the current sweep has still to check."""

    # ---- calls of shards' writers (ShardListener) ----

    def demand(self, topics: Iterable[ShardTopic]) -> dict[ShardTopic, Demand]:
        """Return the demand for the items of these topics that the next transaction of their shard inserts."""
        found: dict[ShardTopic, Demand] = {}
        for topic in topics:
            if self._hungry_count and topic.shard_id not in self._leaving:
                self._attach_arriving(topic)
            queue = self._queues.get((topic.namespace, topic.name))
            if queue is None or queue not in self._active or topic.shard_id in self._leaving:
                continue
            if queue.version != self.settings.version:
                self._refresh(queue)
            if queue.is_throttled:
                self._admit_arriving(queue)
            if self._may_claim(queue):
                count = queue.demand_count()
                if count:
                    found[topic] = queue.demand(count)
        return found

    def on_events(self, events: Events) -> None:
        """Complete calls, then apply the events and deliver items."""
        for completion in events.completed:
            completion.on_done(completion)  # First, so that no defect below costs a call its answer.
        for item in events.withdrawn:
            self._drop(self._queue_of(item.topic), [item])
        for topic, count, last in events.claims_started:
            self._claims_started(topic, count, last)
        for topic, ended in events.claims_ended.items():
            self._claims_ended(topic, ended)
        if events.counted or events.ends or events.enqueued:
            self._record(events)
        for look_up, rows, error in events.looked_up:
            if error is None:
                look_up.on_rows(rows)
            else:
                look_up.on_failed(error)
        changed = self.on_changed
        for topic in events.topics_changed:
            if changed is not None:
                changed((topic.namespace, topic.name))
            queue = self._queues.get((topic.namespace, topic.name))
            if queue is None or queue.parts.get(topic.shard_id) is not topic:
                queue = self._queue_of(topic)
            if not queue.in_ring and (queue.buffer.sort_keys or topic.window.head != order.LAST):
                self._enter(queue)
            if queue in self._active:
                self.serve(queue)
        for topic in events.topics_gone:
            self._topic_gone(topic)
        self._serve_any()

    def _claims_ended(self, topic: ShardTopic, ended: ClaimsEnded) -> None:
        queue, items = self._queue_of(topic), ended.items
        self._memory.claims_ended(topic, ended.count, items)
        queue.claims_ended_count += ended.count
        if queue.has_claims_for_calls:  # Not checked item by item, because thousands can end at once.
            queue.has_prefetched_for_calls = True
            queue.has_claims_for_calls = queue.claims_count > 0
        self._active[queue] = None
        queue.expired_claims_in_row = (
            0 if items else min(queue.expired_claims_in_row + ended.count, limits.TRANSACTION_CLAIMS_MAX)
        )
        if items:
            queue.buffer.add(items)
            if self._draining or topic.shard_id in self._leaving:
                self._unclaim(queue.buffer, items)

    def _topic_gone(self, topic: ShardTopic) -> None:
        queue = self._queues.get((topic.namespace, topic.name))
        if queue is None:
            return
        if queue.sick_parts.get(topic.shard_id) is topic:
            del queue.sick_parts[topic.shard_id]
            self._rest(queue)
        if queue.parts.get(topic.shard_id) is topic:
            del queue.parts[topic.shard_id]
            self.serve(queue)
            self._rest(queue)

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        self.shard_health(shard_id, topics, healthy=True)

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        for topic in topics:
            if topic.shard_id in self.sick:
                self._set_aside(topic)
                continue
            queue = self._queue_of(topic)
            if not queue.in_ring:
                self._enter(queue)
            self._changed(topic)
            if queue.calls:
                self.serve(queue)
        self._serve_any()

    def _changed(self, topic: ShardTopic) -> None:
        """Report a changed topic for other hosts."""
        if self.on_changed is not None:
            self.on_changed((topic.namespace, topic.name))

    def _set_aside(self, topic: ShardTopic) -> None:
        self._memory.forget_claims(topic)
        queue = self._queues.get((topic.namespace, topic.name))
        if queue is not None and queue.parts.pop(topic.shard_id, None) is not None:
            queue.sick_parts[topic.shard_id] = topic
            self._changed(topic)
            self.serve(queue)

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        for queue in self._with_prefetched():
            self._drop(queue, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])
        self.disown(topics)

    def disown(self, topics: Collection[ShardTopic]) -> None:
        queues: dict[TopicQueue, None] = {}
        for topic in topics:
            self._memory.forget_claims(topic)
            queue = self._queues.get((topic.namespace, topic.name))
            if queue is None:
                continue
            for parts in (queue.parts, queue.sick_parts):
                if parts.get(topic.shard_id) is topic:
                    del parts[topic.shard_id]
            queue.claims_ended_count += topic.claiming_count
            self._changed(topic)
            queues[queue] = None
        # Served only now, because a call for several topics takes items of all its topics.
        for queue in queues:
            self.serve(queue)
            self._rest(queue)

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Set the health of a shard. Ready items of a sick one do not count, so that no delivery waits for them."""
        if healthy and shard_id not in self._leaving:
            self.sick.discard(shard_id)
        else:
            self.sick.add(shard_id)
        self.adopt(topics)

    def shard_leaves(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Prepare the hand-over of a shard: it counts as sick, and its prefetched items are unclaimed.

        `topics` are some of its topics, and the others come by `adopt`.
        """
        self._leaving.add(shard_id)
        self.shard_health(shard_id, topics, healthy=False)
        for queue in self._with_prefetched():
            self._unclaim(queue.buffer, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def _with_prefetched(self) -> list[TopicQueue]:
        """Return the topics with prefetched items, usually few of the many topics that calls wait for."""
        return [queue for queue in self._active if queue.buffer.sort_keys]

    def queue_slices(self) -> list[list[TopicQueue]]:
        """Return all known topics in slices, one for each turn of the event loop."""
        queues, size = list(self._queues.values()), limits.TOPICS_PER_TICK_MAX
        return [queues[start : start + size] for start in range(0, len(queues), size)]

    def drop_parts(self, shard_id: int, queues: Iterable[TopicQueue]) -> None:
        """Remove the parts of a lost shard from these topics. Its last events can have added one after the loss."""
        for queue in queues:
            for parts in (queue.parts, queue.sick_parts):
                if parts.pop(shard_id, None) is not None:
                    self.serve(queue)
                    self._rest(queue)

    def shard_left(self, shard_id: int) -> None:
        """Forget a shard that has left, after its topics (`disown`)."""
        self._leaving.discard(shard_id)
        self.sick.discard(shard_id)

    # ---- calls ----

    def find(self, topic: Topic) -> TopicQueue | None:
        """Return the queue of a topic, or None if this host does not know it."""
        return self._queues.get(topic)

    @property
    def known_topics(self) -> Collection[Topic]:
        return self._queues.keys()

    def prefetched(self, namespace: int, name: str) -> PrefetchBuffer:
        """Return the claimed items of a topic that are not delivered yet."""
        queue = self._queues.get((namespace, name))
        return queue.buffer if queue is not None else PrefetchBuffer()

    def start(self, namespace: int, wants: dict[str, int], call: DequeueCall) -> None:
        """Serve the call now or make it wait."""
        self.waiting_count += 1
        self.waiting_topics_count += len(wants)
        for name, count in wants.items():
            queue = self._queue(namespace, name)
            if queue.version != self.settings.version:
                self._refresh(queue)
            call.wants[queue] = count
            queue.calls[call] = None
            if queue.pausing is not None:
                queue.pausing.appendleft(call)
            queue.waiting_count += count
            self._active[queue] = None
        if len(wants) > 1:
            for queue in call.wants:
                self._claim(queue)  # Before any is served, because the first topics can be enough to answer the call.
        for queue in call.wants:
            if call.items is not None:
                break
            self.serve(queue)

    def has_candidates(self, call: DequeueCall) -> bool:
        """True if items for the call are ready or being claimed."""
        ring = call.ring
        if ring is not None and call.count_left and ring.entries:
            cap = ring.tenant.cap
            if not ring.tenant.parked_slot or (cap is not None and cap.is_asking):
                return True
        if call.passed is not None and call.passed.may_bring():
            return True  # Earlier calls want all its known items, and can leave some.
        return any(queue.may_bring() for queue in call.wants)

    def end(self, call: DequeueCall) -> None:
        """End a call without items, and serve the calls that waited behind it."""
        if call.items is None:
            self.answer(call, [])
            for queue in call.wants:
                if queue.calls and queue.buffer.sort_keys:
                    self.serve(queue)
                if self.on_changed is not None and queue.has_something():
                    self.on_changed((queue.namespace, queue.name))  # Its items were reserved for this call.
            self._serve_any()

    def unclaim(self, items: list[ShardItem]) -> None:
        """Undo the delivery of items whose caller left without them, and serve other calls with them."""
        queues: dict[TopicQueue, None] = {}
        for item in items:
            writer = self._writers.get(item.topic.shard_id)
            shard = writer.held if writer is not None else None
            if writer is None or shard is None:
                continue
            if item.phase is Phase.LEASED and shard.index.leases.get(item.key) is item:
                if shard.unclaim(item):
                    writer.wake()
                queues[self._queue_of(item.topic)] = None
        for queue in queues:
            self.serve(queue)
        self._serve_any()

    def tick(self) -> None:
        """Apply settings, serve topics that waited for tokens and calls that lingered, and continue the sweep."""
        self._follow_settings()
        self._turn_wheel()
        lingering, self._lingering = self._lingering, {}
        for queue in lingering:
            self.serve(queue)
        self._renew_calls()
        self._serve_any()
        if self._unswept:
            self._sweep_some()

    def sweep(self) -> None:
        """Begin to unclaim items that were prefetched too long ago, and to deactivate idle topics.

        The next ticks continue.
        """
        if not self._unswept:
            self._unswept = list(self._active)
            self._look_for_room()
        self._sweep_some()

    def _sweep_some(self) -> None:
        now_s = self._clock()
        some, self._unswept = self._unswept[: limits.SWEEP_QUEUES_MAX], self._unswept[limits.SWEEP_QUEUES_MAX :]
        for queue in some:
            if queue not in self._active:
                continue
            queue.note_served(0, now_s)
            self.serve(queue)
            self._unclaim(queue.buffer, queue.buffer.prefetched_long(self._writers))
            self._rest(queue)

    def drain(self) -> Iterator[None]:
        """Stop claims, and unclaim all prefetched items and those that claims in flight will bring.

        Each step takes one turn of the event loop, for DRAINED_PER_TURN topics and items.
        """
        self._draining = True
        done_count = 0
        for queue in list(self._active):
            items = queue.buffer.items if queue.buffer.sort_keys else []
            self._unclaim(queue.buffer, items)
            done_count += 1 + len(items)
            if done_count >= DRAINED_PER_TURN:
                yield
                done_count = 0
