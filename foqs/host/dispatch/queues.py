"""The topics that a host knows, with their parts on its shards and the calls that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import base_of, is_fair


class Queues:
    """The part of the dispatcher that all others ask: it finds, makes and forgets queues.

    It writes the parts and the calls of a queue.
    """

    def __init__(self, on_changed: Callable[[Topic], None]) -> None:
        """`on_changed` is called with each topic whose ready items possibly changed."""
        self.on_changed = on_changed
        self.by_topic: dict[Topic, TopicQueue] = {}
        """The queues by namespace and name."""
        self.tenants: dict[int, Tenant] = {}
        """The namespaces of these queues, and those that calls wait for."""
        self.active: dict[TopicQueue, None] = {}
        """The topics with calls, prefetched items or claims in flight."""
        self.sick: set[int] = set()
        """Ids of the shards whose breakers are open, and of those that leave."""
        self.leaving: set[int] = set()
        """Ids of the shards that this host hands over to another one."""
        self.waiting_count = 0
        """Dequeue calls that wait."""
        self.waiting_topics_count = 0
        """Topics that they wait for, counted once for each call."""
        self.calls_before: dict[TopicQueue, deque[DequeueCall]] = {}
        """The calls that waited for a base when its ring was made. Rings takes them out."""
        self.unkeyed: dict[TopicQueue, None] = {}
        """Bases whose last keyed topic was forgotten, perhaps for a moment."""

    def changed(self, queue: TopicQueue) -> None:
        """Note that the ready items of a topic possibly changed. A base stands for its keyed topics."""
        self.on_changed((queue.base_queue or queue).topic)

    def get(self, namespace: int, name: str) -> TopicQueue:
        """Return the queue of a topic; make it if it is new."""
        queue = self.by_topic.get((namespace, name))
        if queue is None:
            tenant = self.tenant(namespace)
            tenant.queues_count += 1
            queue = self.by_topic[namespace, name] = TopicQueue(tenant, name)
            if (base := base_of(name)) != name:
                self._join(self.get(namespace, base), queue)
        return queue

    def _join(self, base: TopicQueue, queue: TopicQueue) -> None:
        """Make a queue one of the keyed topics of a base, which has a ring from then on."""
        queue.base_queue = base
        base.keyed[queue] = None
        if base.keyed_ring is None:
            ring = base.keyed_ring = ReadyRing(base.tenant, "", base.group, base)
            if base.in_ring:
                ring.join(base)
                ring.is_offered = True
            if base.calls:
                self.calls_before[base] = deque(base.calls)
        if is_fair(queue.name):
            base.keyed_ring.rank()

    def drop_ring(self, base: TopicQueue) -> None:
        """Forget the ring of a base that has no keyed topics, and that no call takes items of."""
        base.keyed_ring = None
        self.calls_before.pop(base, None)

    def of(self, topic: ShardTopic) -> TopicQueue:
        """Return the queue of a shard's topic, which is one of its parts from now on."""
        queue = self.get(topic.namespace, topic.name)
        if topic.shard_id in self.sick:
            queue.parts.pop(topic.shard_id, None)
            queue.sick_parts[topic.shard_id] = topic
        elif queue.parts.get(topic.shard_id) is not topic:
            queue.parts[topic.shard_id] = topic
            queue.sick_parts.pop(topic.shard_id, None)
        if queue.in_flight_max and topic.permits is None:
            topic.permits = 0
        if topic.base is not None:
            self.of(topic.base)
        return queue

    def tenant(self, namespace: int) -> Tenant:
        tenant = self.tenants.get(namespace)
        if tenant is None:
            tenant = self.tenants[namespace] = Tenant(namespace)
        return tenant

    def prefetched(self, namespace: int, name: str) -> PrefetchBuffer:
        """Return the claimed items of a topic that are not delivered yet."""
        queue = self.by_topic.get((namespace, name))
        return queue.buffer if queue is not None else PrefetchBuffer()

    def with_prefetched(self) -> list[TopicQueue]:
        """Return the topics with prefetched items, usually few of the many topics that calls wait for."""
        return [queue for queue in self.active if queue.buffer.sort_keys]

    def slices(self) -> list[list[TopicQueue]]:
        """Return all known topics in slices, one for each turn of the event loop."""
        queues, size = list(self.by_topic.values()), limits.TOPICS_PER_TICK_MAX
        return [queues[start : start + size] for start in range(0, len(queues), size)]

    # ---- parts on shards ----

    def shard_health(self, shard_id: int, *, healthy: bool) -> None:
        """Count a shard as healthy or sick. One that leaves stays sick."""
        if healthy and shard_id not in self.leaving:
            self.sick.discard(shard_id)
        else:
            self.sick.add(shard_id)

    def shard_leaves(self, shard_id: int) -> None:
        """Note that this host hands a shard on. `shard_health` must follow for its topics."""
        self.leaving.add(shard_id)

    def shard_left(self, shard_id: int) -> None:
        """Forget a shard that has left, after its topics."""
        self.leaving.discard(shard_id)
        self.sick.discard(shard_id)

    def set_aside(self, topic: ShardTopic) -> TopicQueue | None:
        """Count a topic of a sick shard for nothing. Return its queue if it counted before."""
        queue = self.by_topic.get((topic.namespace, topic.name))
        return self.of(topic) if queue is not None and topic.shard_id in queue.parts else None

    def remove(self, topic: ShardTopic) -> TopicQueue | None:
        """Take a shard's topic out of its queue, and return the queue, or None."""
        queue = self.by_topic.get((topic.namespace, topic.name))
        if queue is not None:
            for parts in (queue.parts, queue.sick_parts):
                if parts.get(topic.shard_id) is topic:
                    del parts[topic.shard_id]
        return queue

    def drop_part(self, queue: TopicQueue, shard_id: int) -> bool:
        """Take any topic of a shard out of a queue. True if the queue had one."""
        healthy, sick = queue.parts.pop(shard_id, None), queue.sick_parts.pop(shard_id, None)
        return healthy is not None or sick is not None

    # ---- calls ----

    def begin_call(self) -> None:
        """Count a call that waits."""
        self.waiting_count += 1

    def want(self, call: DequeueCall, queue: TopicQueue, count: int) -> None:
        """Let a call wait for `count` items of a topic, or for as many more."""
        if queue in call.wants:
            call.wants[queue] += count
        else:
            call.wants[queue] = count
            queue.calls[call] = None
            self.waiting_topics_count += 1
        queue.waiting_count += count
        self.active[queue] = None

    def unwant(self, call: DequeueCall, queue: TopicQueue) -> int:
        """Let a call wait no more for a topic. Return the number of items that it wanted."""
        count = call.wants.pop(queue)
        del queue.calls[call]
        queue.waiting_count -= count
        self.waiting_topics_count -= 1
        return count

    def end_call(self, call: DequeueCall) -> None:
        """Take a call that is over out of its queues. It keeps its wants, the topics that it has waited for."""
        self.waiting_count -= 1
        self.waiting_topics_count -= len(call.wants)
        for queue, count in call.wants.items():
            del queue.calls[call]
            queue.waiting_count -= count

    # ---- the active ones ----

    def activate(self, queue: TopicQueue) -> None:
        self.active[queue] = None

    def deactivate(self, queue: TopicQueue) -> None:
        self.active.pop(queue, None)

    def deactivate_if_idle(self, queue: TopicQueue) -> bool:
        """Let an idle queue cost no time, and forget it if nothing refers to it. True if it is forgotten.

        The parts that know it must forget it, too.
        """
        if queue.calls or queue.buffer.sort_keys or queue.claims_count or queue.expects_consumers:
            return False
        self.active.pop(queue, None)
        if queue.parts or queue.sick_parts or queue.keyed_ring is not None:
            return False
        if self.by_topic.pop(queue.topic, None) is not None:
            queue.tenant.queues_count -= 1
            if (base := queue.base_queue) is not None:
                del base.keyed[queue]
                if not base.keyed:
                    self.unkeyed[base] = None
        return True

    def forget_tenant_if_unused(self, tenant: Tenant) -> None:
        if not (tenant.queues_count or tenant.waiting_any_count or tenant.rings):
            self.tenants.pop(tenant.namespace, None)
