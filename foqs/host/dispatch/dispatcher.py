"""The dispatcher, which assigns items to calls; shards, the verb dequeue and the tick call it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice

from foqs.host.dispatch.deliveries import Deliveries, DispatchObserver
from foqs.host.dispatch.permits import Permits
from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.prefix_sweep import PrefixSweep
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.rings import Rings
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.dispatch.tokens import NewCap, Tokens
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.caps import TokenBucket
from foqs.model.namespace import SettingsTable
from foqs.model.permit_book import PermitAnswer, PermitAsk
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import Demand, Events
from foqs.shard.writer.shard_writer import ShardWriter


class Dispatcher:
    """Delivers the items of every shard of a host, on the event loop's thread only.

    A shard's writer asks for the demand before it plans a transaction, and brings the events afterwards. The verb
    dequeue starts calls here. The dispatcher owns its parts, and has the order in which they are asked. A part asks
    only the parts that are made before it.
    """

    def __init__(
        self,
        writers: Mapping[int, ShardWriter],
        clock: Callable[[], float],
        settings: SettingsTable,
        record: Callable[[Events], None],
        on_changed: Callable[[Topic], None] = lambda _: None,
        new_cap: NewCap = lambda _, rate, now_s: TokenBucket(rate, now_s),
        observer: DispatchObserver | None = None,
    ) -> None:
        """`writers` is the live mapping of the host's shard writers by id; `clock` is monotonic, in seconds.

        `settings` is the table that the shards read as well. `record` counts the events of items. `on_changed` is
        called with each topic whose ready items possibly changed, because other hosts need these reports.
        """
        self.settings = settings
        self.queues = queues = Queues(on_changed)
        self.prefetch = prefetch = Prefetch(queues, writers, settings)
        self.permits = permits = Permits(queues, prefetch, writers, clock, settings)
        self.tokens = tokens = Tokens(queues, prefetch, permits, clock, settings, new_cap)
        self.rings = rings = Rings(queues, prefetch, tokens, clock, settings)
        self.deliveries = Deliveries(queues, prefetch, tokens, rings, writers, clock, settings, observer)
        self._clock = clock
        self._record = record
        self._observer = observer
        self._unswept: list[TopicQueue] = []
        """Topics that the current sweep has still to check."""
        self._prefix_sweep = PrefixSweep()
        self._keyed_sweeps: deque[Iterator[TopicQueue]] = deque()
        """The keyed topics whose base has another policy."""
        self._namespaces_paused: frozenset[int] = frozenset()
        """The paused namespaces that calls for any topic have followed."""
        self._caps_known: Mapping[int, float] = {}
        """The caps of namespaces that have been followed."""

    # ---- calls of shards' writers (ShardListener) ----

    def demand(self, topics: Iterable[ShardTopic]) -> dict[ShardTopic, Demand]:
        """Return the demand for the items of these topics that the next transaction of their shard inserts."""
        found: dict[ShardTopic, Demand] = {}
        queues = self.queues
        for topic in topics:
            if topic.shard_id in queues.leaving:
                continue
            if self.rings.waiting_any_count:
                self.rings.attach_arriving(topic)
            queue = queues.by_topic.get((topic.namespace, topic.name))
            if queue is None or queue not in queues.active:
                continue
            self.tokens.refresh(queue)
            if (queue.base_queue or queue).in_flight_max and not topic.needs_permits:
                queues.of(topic)  # The topic or its base is new here, or is not announced yet: it has no permits.
            if queue.is_throttled:
                self.tokens.admit_arriving(queue, queue.tokens_wanted())
            demand = self.prefetch.demand(queue)
            if demand is not None:
                found[topic] = demand
        return found

    def on_events(self, events: Events) -> None:
        """Complete calls, then apply the events and deliver items."""
        queues = self.queues
        for completion in events.completed:
            completion.on_done(completion)  # First, so that no defect below costs a call its answer.
        for item in events.unclaimed:
            self.prefetch.drop(queues.of(item.topic), [item])
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
            queue = queues.by_topic.get((topic.namespace, topic.name))
            if queue is None or queue.parts.get(topic.shard_id) is not topic:
                queue = queues.of(topic)
            base = queue.base_queue or queue
            if not queue.in_ring and (queue.buffer.sort_keys or topic.window.head != order.LAST):
                self.rings.enter(queue)
            elif base.keyed_ring is not None:
                self.rings.relevel(queue)
            if base.in_flight_max and base.keyed_ring is not None:
                self.rings.retry_lacking(base)
            queues.on_changed(base.topic)  # Not before: the stock of a base is that of its ring.
            if queue in queues.active:
                self.deliveries.serve(queue)
        for topic in events.topics_gone:
            self.permits.gone(topic)
            if (gone := queues.remove(topic)) is not None:
                self._part_gone(gone)
        if self.rings.fed or self.rings.fed_keyed or self.rings.due:
            self.deliveries.serve_any()

    def _part_gone(self, queue: TopicQueue) -> None:
        self.deliveries.serve(queue)
        self.deliveries.deactivate_if_idle(queue)

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        self.shard_health(shard_id, topics, healthy=True)

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        queues = self.queues
        for topic in topics:
            if topic.shard_id in queues.sick:
                self.prefetch.forget_claims(topic)
                if (aside := queues.set_aside(topic)) is not None:
                    queues.changed(aside)
                    self.deliveries.serve(aside)
                continue
            queue = queues.of(topic)
            self.rings.enter(queue)
            queues.changed(queue)
            if queue.calls:
                self.deliveries.serve(queue)
        self.deliveries.serve_any()

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        self.prefetch.drop_shard(shard_id)
        self.disown(topics)

    def disown(self, topics: Collection[ShardTopic]) -> None:
        queues: dict[TopicQueue, None] = {}
        for topic in topics:
            queue = self.queues.remove(topic)
            self.prefetch.lose_claims(topic, queue)
            if queue is not None:
                self.queues.changed(queue)
                queues[queue] = None
        # Served only now, because a call for several topics takes items of all its topics.
        for queue in queues:
            self._part_gone(queue)

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Set the health of a shard. Ready items of a sick one do not count, so that no delivery waits for them."""
        self.queues.shard_health(shard_id, healthy=healthy)
        self.adopt(topics)

    def shard_leaves(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Prepare the hand-over of a shard: it counts as sick, and its prefetched items are unclaimed.

        `topics` are some of its topics, and `adopt` adds the others.
        """
        self.queues.shard_leaves(shard_id)
        self.shard_health(shard_id, topics, healthy=False)
        self.prefetch.unclaim_shard(shard_id)

    def drop_parts(self, shard_id: int, queues: Iterable[TopicQueue]) -> None:
        """Remove the parts of a lost shard from these topics. Its last events can have added one after the loss."""
        for queue in queues:
            if self.queues.drop_part(queue, shard_id):
                self._part_gone(queue)

    # ---- calls ----

    def start(self, namespace: int, wants: dict[str, int], call: DequeueCall) -> None:
        """Serve the call now or make it wait."""
        self.queues.begin_call()
        for name, count in wants.items():
            queue = self.queues.get(namespace, name)
            self.tokens.refresh(queue)
            if queue.keyed_ring is None:
                self.queues.want(call, queue, count)
            else:
                self.rings.start(queue.keyed_ring, count, call)
            self.tokens.call_begins(queue, call)
        if len(wants) > 1:
            for queue in call.wants:
                self.prefetch.claim(queue)  # Before any is served: the first ones can be enough for an answer.
        for queue in list(call.wants):
            if call.items is not None:
                break
            self.deliveries.serve(queue)
        if call.lacks:
            self.deliveries.serve_any()

    def start_any(self, ring: ReadyRing, count: int, call: DequeueCall) -> None:
        """Serve a call for up to `count` items of any topic of a ring now, or make it wait."""
        self.queues.begin_call()
        self.rings.start(ring, count, call)
        if ring.entries:
            self.deliveries.serve_any()

    def end(self, call: DequeueCall) -> None:
        """End a call without items, and serve the calls that waited behind it."""
        if call.items is None:
            self.deliveries.answer(call, [])
            for queue in call.wants:
                if queue.calls and queue.buffer.sort_keys:
                    self.deliveries.serve(queue)
                if queue.has_something():
                    self.queues.changed(queue)  # Its items were reserved for this call.
            self.deliveries.serve_any()

    # ---- permits ----

    def permits_answered(self, asks: Mapping[Topic, PermitAsk], answers: Mapping[Topic, PermitAnswer]) -> None:
        """Take the answers of books, and deliver items with the permits that they bring."""
        for topic, ask in asks.items():
            queue = self.permits.answered(topic, ask, answers.get(topic))
            if queue is not None:
                self.deliveries.resume(queue)
        self.deliveries.serve_any()

    # ---- effects of time, and settings of operators ----

    def tick(self) -> None:
        """Apply settings, serve topics that waited for tokens and calls that lingered, and continue the sweep."""
        self._follow_settings()
        # A part without work is not entered, because most ticks of most hosts have none.
        for queue in self.tokens.topic_wheel.take_due(limits.SWEEP_QUEUES_MAX):
            self.deliveries.resume(queue)
        for tenant in self.tokens.tenant_wheel.take_due():
            self._wake_tenant(tenant)
        self.deliveries.serve_lingering()
        self.rings.renew_calls()
        for topic in self.permits.tick():
            self.queues.on_changed(topic)
        if self.rings.fed or self.rings.fed_keyed or self.rings.due:
            self.deliveries.serve_any()
        if self._unswept:
            self._sweep_some()

    def sweep(self) -> None:
        """Begin to unclaim items that were prefetched too long ago, and to deactivate idle topics.

        The next ticks continue.
        """
        if not self._unswept:
            self._unswept = list(self.queues.active)
            self.rings.retry_waiting_for_room()
        self._sweep_some()

    def _sweep_some(self) -> None:
        now_s = self._clock()
        some, self._unswept = self._unswept[: limits.SWEEP_QUEUES_MAX], self._unswept[limits.SWEEP_QUEUES_MAX :]
        for queue in some:
            if queue not in self.queues.active:
                continue
            self.prefetch.note_time(queue, now_s)
            self.deliveries.serve(queue)
            self.prefetch.unclaim_old(queue)
            self.deliveries.deactivate_if_idle(queue)

    def _follow_settings(self) -> None:
        """Apply changes of policies, caps and pauses, also to waiting calls, and to topics that wait for tokens."""
        settings, changes = self.settings, self.settings.policy_changes
        if changes:
            for _ in range(min(len(changes), limits.SWEEP_QUEUES_MAX)):
                self._follow_policy(changes.popleft())
        if settings.prefix_changes or self._prefix_sweep.is_under_way:
            for topic in self._prefix_sweep.take(
                settings.prefix_changes, lambda: [*self.queues.by_topic, *self.tokens.caps]
            ):
                self._follow_policy(topic)
        if self._keyed_sweeps:
            self._follow_bases()
        if settings.dequeue_paused is not self._namespaces_paused or settings.caps is not self._caps_known:
            self._follow_namespaces()
        if self._observer is not None:
            self._observer.settings_followed()

    def _follow_bases(self) -> None:
        """Apply the policies of bases to some of their keyed topics."""
        left_count = limits.SWEEP_QUEUES_MAX
        while self._keyed_sweeps and left_count:
            some = list(islice(self._keyed_sweeps[0], left_count))
            left_count -= len(some)
            if left_count:
                self._keyed_sweeps.popleft()
            for queue in some:
                if queue.base_queue is not None and queue in queue.base_queue.keyed:
                    self._follow_policy(queue.topic)

    def _follow_namespaces(self) -> None:
        paused, caps = self.settings.dequeue_paused, self.settings.caps
        tenants = self.queues.tenants
        for number in {*paused, *[number for number, _ in caps.items() ^ self._caps_known.items()]}:
            tenant = tenants.get(number)
            if tenant is None:
                self.tokens.forget_cap(number, "")
            elif number in paused:
                for call in tenant.waiting_calls():  # The others end with the next ticks.
                    call.is_paused = True
                    self.deliveries.answer(call, [])
            else:
                self._wake_tenant(tenant)
        if any(number in tenants and tenants[number].waiting_any_count for number in paused):
            return  # More calls must be ended.
        self._namespaces_paused, self._caps_known = paused, caps

    def _follow_policy(self, topic: Topic) -> None:
        """Apply the current policy to a topic."""
        queue = self.queues.by_topic.get(topic)
        if queue is None:
            self.tokens.forget_cap(*topic)
            return
        self.tokens.topic_wheel.leave(queue)
        self.tokens.refresh(queue)
        self.deliveries.resume(queue)
        if queue.keyed:
            self._keyed_sweeps.append(iter(list(queue.keyed)))

    def _wake_tenant(self, tenant: Tenant) -> None:
        """Give the tokens of a namespace to topics that wait for them, in their order, and to calls for any topic."""
        for queue in self.tokens.turns(tenant):
            if queue is None:
                self.rings.feed(tenant)
            else:
                self.deliveries.resume(queue)
