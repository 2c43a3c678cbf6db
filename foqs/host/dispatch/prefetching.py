"""Prefetching: the numbers of items that are claimed and held of each topic, and the return of held ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.prefetch import PrefetchMemory
from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits, order
from foqs.model.item import ShardItem, by_topic
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.writer.shard_writer import ShardWriter


@mypyc_attr(allow_interpreted_subclasses=True)
class Prefetching:
    """The part of the dispatcher that claims items. It owns the queues of all topics and the prefetched items.

    A k-way merge over the shards' windows chooses the items to claim (after FOQS's prefetch buffer).
    """

    def __init__(self, writers: Mapping[int, ShardWriter], clock: Callable[[], float], settings: SettingsTable) -> None:
        """`writers` is the live mapping of the host's shard writers by id; `clock` is monotonic, in seconds.

        `settings` is the table that the shards read as well.
        """
        self.sick: set[int] = set()
        """Ids of the shards whose breakers are open."""
        self._leaving: set[int] = set()
        """Ids of the shards that this host hands over to another one."""
        self._writers = writers
        self._clock = clock
        self.settings = settings
        self._memory = PrefetchMemory(settings)
        self._queues: dict[tuple[int, str], TopicQueue] = {}
        self._active: dict[TopicQueue, None] = {}
        """The topics with calls, prefetched items or claims in flight."""
        self._tenants: dict[int, Tenant] = {}
        """The namespaces of these queues."""
        self._draining = False

    @property
    def prefetched_bytes(self) -> int:
        """Payload and metadata of all prefetch buffers."""
        return self._memory.prefetched_bytes

    def _queue(self, namespace: int, name: str) -> TopicQueue:
        queue = self._queues.get((namespace, name))
        if queue is None:
            tenant = self._tenant(namespace)
            tenant.queues_count += 1
            queue = self._queues[namespace, name] = TopicQueue(tenant, name)
        return queue

    def _tenant(self, namespace: int) -> Tenant:
        tenant = self._tenants.get(namespace)
        if tenant is None:
            tenant = self._tenants[namespace] = Tenant(namespace)
        return tenant

    def _queue_of(self, topic: ShardTopic) -> TopicQueue:
        queue = self._queue(topic.namespace, topic.name)
        if topic.shard_id in self.sick:
            queue.parts.pop(topic.shard_id, None)
            queue.sick_parts[topic.shard_id] = topic
        elif queue.parts.get(topic.shard_id) is not topic:
            queue.parts[topic.shard_id] = topic
            queue.sick_parts.pop(topic.shard_id, None)
        return queue

    def _rest(self, queue: TopicQueue) -> None:
        """Deactivate an idle queue, and forget one without parts, so that it costs neither time nor memory."""
        if not (queue.calls or queue.buffer.sort_keys or queue.claims_count or queue.expects_consumers):
            self._active.pop(queue, None)
            if not (queue.parts or queue.sick_parts):
                self._forget(queue)

    def _forget(self, queue: TopicQueue) -> None:
        if self._queues.pop((queue.namespace, queue.name), None) is not None:
            queue.tenant.queues_count -= 1
            queue.tenant.leave(queue)
            queue.parked_slot = 0

    def _claims_started(self, topic: ShardTopic, count: int, last: int) -> None:
        queue = self._queue_of(topic)
        queue.note_claims_started(count, last)
        if topic.shard_id not in self.sick:
            self._memory.claims_started(topic, count)
        self._writers[topic.shard_id].wake()

    def _may_claim(self, queue: TopicQueue) -> bool:
        if self._draining or queue.namespace in self.settings.dequeue_paused:
            return False
        if self._memory.prefetched_bytes < limits.PREFETCH_BYTES_MAX or not queue.buffer:
            return True
        # True if no prefetched item can be delivered until a more urgent one is claimed.
        return bool(queue.calls) and not queue.servable_count(1)

    def _claim(self, queue: TopicQueue) -> None:
        """Claim ready items that are wanted, and refill windows that run low."""
        parts = [part for part in queue.parts.values() if part.window.head != order.LAST]
        if not parts:
            return  # Checked first, because most topics of a call that names many have no items.
        count = queue.demand_count()
        if not count or not self._may_claim(queue):
            return
        demand = queue.demand(min(count, self._memory.room(queue.namespace)))
        owned: list[ShardTopic] = []
        for part in parts:
            writer = self._writers[part.shard_id]
            if writer.shard is not None:
                owned.append(part)
                if part.window.wants_refill:
                    writer.shard.want_refill(part, with_payload=True)
                    writer.wake()
        for shard_id, part_count in queue.choose(owned, demand).items():
            shard = self._writers[shard_id].shard
            assert shard is not None
            topic = queue.parts[shard_id]
            sort_keys = topic.window.take(part_count)
            shard.claim(topic, sort_keys)
            self._claims_started(topic, part_count, sort_keys[-1])

    def _drop(self, queue: TopicQueue, items: list[ShardItem]) -> None:
        """Remove the items from the prefetch buffer."""
        queue.buffer.remove(items)
        self._memory.release(items)

    def _release_for_calls(self, queue: TopicQueue) -> None:
        """Unclaim items that were claimed for calls when no call waits, and withdraw such claims that have not begun.

        Otherwise a new owner of the shard would treat the items as delivered. Items of a running transaction are
        unclaimed when it ends. If the host dies before that, the new owner does treat them as delivered.
        """
        if queue.has_prefetched_for_calls:
            queue.has_prefetched_for_calls = False
            if queue.buffer.sort_keys:
                self._unclaim(queue.buffer, [item for item in queue.buffer.items if not item.is_claimed_ahead])
        if queue.has_claims_for_calls:
            for topic in [*queue.parts.values(), *queue.sick_parts.values()]:
                writer = self._writers[topic.shard_id]
                if writer.held is not None and writer.held.withdraw_for_calls(topic):
                    writer.wake()

    def _unclaim(self, buffer: PrefetchBuffer, items: list[ShardItem]) -> None:
        if not items:
            return
        buffer.remove(items)
        self._memory.release(items)
        for topic, some in by_topic(items).items():
            writer = self._writers[topic.shard_id]
            if writer.held is not None and writer.held.unclaim_all(topic, some):
                writer.wake()
