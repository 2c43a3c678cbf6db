"""The dispatcher, which assigns items to calls; shards, the verb dequeue and the tick call it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.any_topic import AnyTopic
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import Demand, Events
from foqs.shard.writer.shard_writer import ShardWriter


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
            if self._hungry_count and topic.shard_id not in self.queues.leaving:
                self._attach_arriving(topic)
            queue = self.queues.by_topic.get((topic.namespace, topic.name))
            if queue is None or queue not in self.queues.active or topic.shard_id in self.queues.leaving:
                continue
            if queue.version != self.settings.version:
                self.tokens.refresh(queue)
            if queue.is_throttled:
                self.tokens.admit_arriving(queue, queue.tokens_wanted())
            demand = self.prefetch.demand(queue)
            if demand is not None:
                found[topic] = demand
        return found

    def on_events(self, events: Events) -> None:
        """Complete calls, then apply the events and deliver items."""
        for completion in events.completed:
            completion.on_done(completion)  # First, so that no defect below costs a call its answer.
        for item in events.withdrawn:
            self.prefetch.drop(self.queues.of(item.topic), [item])
        for topic, count, last in events.claims_started:
            self.prefetch.claims_started(topic, count, last)
        for topic, ended in events.claims_ended.items():
            self.prefetch.claims_ended(topic, ended)
        if events.counted or events.ends or events.enqueued:
            self._record(events)
        for look_up, rows, error in events.looked_up:
            if error is None:
                look_up.on_rows(rows)
            else:
                look_up.on_failed(error)
        for topic in events.topics_changed:
            self.queues.notify(topic.namespace, topic.name)
            queue = self.queues.by_topic.get((topic.namespace, topic.name))
            if queue is None or queue.parts.get(topic.shard_id) is not topic:
                queue = self.queues.of(topic)
            if not queue.in_ring and (queue.buffer.sort_keys or topic.window.head != order.LAST):
                self._enter(queue)
            if queue in self.queues.active:
                self.serve(queue)
        for topic in events.topics_gone:
            self._topic_gone(topic)
        self._serve_any()

    def _topic_gone(self, topic: ShardTopic) -> None:
        queue = self.queues.remove(topic)
        if queue is not None:
            self.serve(queue)
            self._rest(queue)

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        self.shard_health(shard_id, topics, healthy=True)

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        for topic in topics:
            if topic.shard_id in self.queues.sick:
                self._set_aside(topic)
                continue
            queue = self.queues.of(topic)
            if not queue.in_ring:
                self._enter(queue)
            self.queues.notify(topic.namespace, topic.name)
            if queue.calls:
                self.serve(queue)
        self._serve_any()

    def _set_aside(self, topic: ShardTopic) -> None:
        self.prefetch.forget_claims(topic)
        queue = self.queues.set_aside(topic)
        if queue is not None:
            self.queues.notify(topic.namespace, topic.name)
            self.serve(queue)

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        self.prefetch.drop_shard(shard_id)
        self.disown(topics)

    def disown(self, topics: Collection[ShardTopic]) -> None:
        queues: dict[TopicQueue, None] = {}
        for topic in topics:
            queue = self.queues.remove(topic)
            self.prefetch.lose_claims(topic, queue)
            if queue is None:
                continue
            self.queues.notify(topic.namespace, topic.name)
            queues[queue] = None
        # Served only now, because a call for several topics takes items of all its topics.
        for queue in queues:
            self.serve(queue)
            self._rest(queue)

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Set the health of a shard. Ready items of a sick one do not count, so that no delivery waits for them."""
        self.queues.shard_health(shard_id, healthy=healthy)
        self.adopt(topics)

    def shard_leaves(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Prepare the hand-over of a shard: it counts as sick, and its prefetched items are unclaimed.

        `topics` are some of its topics, and the others come by `adopt`.
        """
        self.queues.shard_leaves(shard_id)
        self.shard_health(shard_id, topics, healthy=False)
        self.prefetch.unclaim_shard(shard_id)

    def drop_parts(self, shard_id: int, queues: Iterable[TopicQueue]) -> None:
        """Remove the parts of a lost shard from these topics. Its last events can have added one after the loss."""
        for queue in queues:
            if self.queues.drop_part(queue, shard_id):
                self.serve(queue)
                self._rest(queue)

    def shard_left(self, shard_id: int) -> None:
        """Forget a shard that has left, after its topics (`disown`)."""
        self.queues.shard_left(shard_id)

    # ---- calls ----

    def start(self, namespace: int, wants: dict[str, int], call: DequeueCall) -> None:
        """Serve the call now or make it wait."""
        self.queues.begin_call()
        for name, count in wants.items():
            queue = self.queues.get(namespace, name)
            if queue.version != self.settings.version:
                self.tokens.refresh(queue)
            self.queues.want(call, queue, count)
            self.tokens.call_begins(queue, call)
        if len(wants) > 1:
            for queue in call.wants:
                self.prefetch.claim(queue)  # Before any is served: the first ones can be enough for an answer.
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
                if queue.has_something():
                    self.queues.notify(queue.namespace, queue.name)  # Its items were reserved for this call.
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
                queues[self.queues.of(item.topic)] = None
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
            self._unswept = list(self.queues.active)
            self._look_for_room()
        self._sweep_some()

    def _sweep_some(self) -> None:
        now_s = self._clock()
        some, self._unswept = self._unswept[: limits.SWEEP_QUEUES_MAX], self._unswept[limits.SWEEP_QUEUES_MAX :]
        for queue in some:
            if queue not in self.queues.active:
                continue
            self.prefetch.note_time(queue, now_s)
            self.serve(queue)
            self.prefetch.unclaim_old(queue)
            self._rest(queue)

    def drain(self) -> Iterator[None]:
        """Claim nothing more, and unclaim all that is held; each step takes no longer than a turn of the loop may."""
        return self.prefetch.drain()
