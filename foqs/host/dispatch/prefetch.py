"""Prefetching: the numbers of items that are claimed and held of each topic, and the return of held ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.item import ShardItem, by_topic
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import ClaimsEnded, Demand
from foqs.shard.writer.shard_writer import ShardWriter

DRAINED_PER_TURN = 1_000
"""Topics and prefetched items that a draining host releases in one turn of the event loop."""

_size_bytes = attrgetter("size_bytes")


class PrefetchMemory:
    """The memory of prefetched items on the host, and the most that those may take whose claims are in flight.

    `Prefetch` owns it, reports every claim and item to it, and asks how much room is left.
    """

    def __init__(self, settings: SettingsTable) -> None:
        self.prefetched_bytes = 0
        """Payload and metadata of all prefetch buffers."""
        self._settings = settings
        self._claiming_bytes = 0
        self._claiming_bytes_of: dict[ShardTopic, int] = {}
        """The bytes of claims in flight by topic, of healthy shards only, because a sick shard's come late, or never.
        """

    def room(self, namespace: int) -> int:
        """Return the number of items, each of the largest size, that fit; at least one, so that work continues."""
        bytes_left = limits.PREFETCH_BYTES_MAX - self.prefetched_bytes - self._claiming_bytes
        return max(1, bytes_left // self._bytes_each(namespace))

    def release(self, items: list[ShardItem]) -> None:
        self.prefetched_bytes -= sum(map(_size_bytes, items))

    def claims_started(self, topic: ShardTopic, count: int) -> None:
        size_bytes = count * self._bytes_each(topic.namespace)
        self._claiming_bytes_of[topic] = self._claiming_bytes_of.get(topic, 0) + size_bytes
        self._claiming_bytes += size_bytes

    def claims_ended(self, topic: ShardTopic, count: int, items: list[ShardItem]) -> None:
        """Note that `count` claims of a topic ended and brought `items`; its `claiming_count` claims remain."""
        if items:
            sizes_bytes = list(map(_size_bytes, items))
            self.prefetched_bytes += sum(sizes_bytes)
            self._settings.note_item_bytes(topic.namespace, max(sizes_bytes))
        size_bytes = self._claiming_bytes_of.pop(topic, 0)
        if size_bytes:
            left_bytes = size_bytes * topic.claiming_count // (topic.claiming_count + count)
            self._claiming_bytes -= size_bytes - left_bytes
            if left_bytes:
                self._claiming_bytes_of[topic] = left_bytes

    def forget_claims(self, topic: ShardTopic) -> None:
        self._claiming_bytes -= self._claiming_bytes_of.pop(topic, 0)

    def _bytes_each(self, namespace: int) -> int:
        return limits.RESIDENT_ITEM_BYTES + self._settings.item_bytes_max(namespace)


class Prefetch:
    """The part of the dispatcher that claims items and holds them until they are delivered.

    A k-way merge over the shards' windows picks the items to claim (after FOQS's prefetch buffer). It writes the
    buffer, the claims and the delivery rate of a queue.
    """

    def __init__(self, queues: Queues, writers: Mapping[int, ShardWriter], settings: SettingsTable) -> None:
        self._queues = queues
        self._writers = writers
        self._settings = settings
        self._memory = PrefetchMemory(settings)
        self._draining = False

    @property
    def prefetched_bytes(self) -> int:
        """Payload and metadata of all prefetch buffers."""
        return self._memory.prefetched_bytes

    # ---- claims ----

    def demand(self, queue: TopicQueue) -> Demand | None:
        """The demand for items that are about to be written; None if there is none."""
        if not self._may_claim(queue):
            return None
        count = queue.demand_count()
        return queue.demand(count) if count else None

    def _may_claim(self, queue: TopicQueue) -> bool:
        if self._draining or queue.namespace in self._settings.dequeue_paused:
            return False
        if self._memory.prefetched_bytes < limits.PREFETCH_BYTES_MAX or not queue.buffer:
            return True
        # No prefetched item can be delivered before something more urgent is claimed.
        return bool(queue.calls) and not queue.servable_count(1)

    def claim(self, queue: TopicQueue) -> None:
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
            self.claims_started(topic, part_count, sort_keys[-1])

    def claim_for(self, queue: TopicQueue, call: DequeueCall, unbacked: list[ShardItem], now_s: float) -> None:
        """Claim items of one topic again for the call, because their present claims do not back its lease."""
        for topic, items in by_topic(unbacked).items():
            if topic.shard_id in self._queues.sick:
                self.unclaim(queue, items)
                continue
            shard = self._writers[topic.shard_id].shard
            assert shard is not None
            self.drop(queue, items)
            shard.claim_for_call(topic, items)
            queue.has_claims_for_calls = True
            self.claims_started(topic, len(items), items[-1].sort_key)
            call.claimed_for[queue] = queue.claims_started_count
            call.claimed_for_s = now_s

    def claims_started(self, topic: ShardTopic, count: int, last: int) -> None:
        """Note that `count` claims have begun, of items up to the sort key `last`."""
        queue = self._queues.of(topic)
        queue.note_claims_started(count, last)
        if topic.shard_id not in self._queues.sick:
            self._memory.claims_started(topic, count)
        self._writers[topic.shard_id].wake()

    def claims_ended(self, topic: ShardTopic, ended: ClaimsEnded) -> None:
        """Hold the items of claims that have ended, unless they must go back."""
        queue, items = self._queues.of(topic), ended.items
        self._memory.claims_ended(topic, ended.count, items)
        queue.claims_ended_count += ended.count
        if queue.has_claims_for_calls:  # Not checked item by item, because thousands can end at once.
            queue.has_prefetched_for_calls = True
            queue.has_claims_for_calls = queue.claims_count > 0
        self._queues.activate(queue)
        queue.expired_claims_in_row = (
            0 if items else min(queue.expired_claims_in_row + ended.count, limits.TRANSACTION_CLAIMS_MAX)
        )
        if items:
            queue.buffer.add(items)
            if self._draining or topic.shard_id in self._queues.leaving:
                self.unclaim(queue, items)

    def forget_claims(self, topic: ShardTopic) -> None:
        """Expect nothing of the claims in flight on a sick shard, because they end late, or never."""
        self._memory.forget_claims(topic)

    def lose_claims(self, topic: ShardTopic, queue: TopicQueue | None) -> None:
        """Count the claims in flight on a lost shard as ended."""
        self._memory.forget_claims(topic)
        if queue is not None:
            queue.claims_ended_count += topic.claiming_count

    # ---- held items ----

    def take(self, queue: TopicQueue, items: list[ShardItem], now_s: float) -> None:
        """Take the next items out of the buffer to deliver them."""
        queue.buffer.take(len(items))
        queue.note_served(len(items), now_s)
        self._memory.release(items)

    def drop(self, queue: TopicQueue, items: list[ShardItem]) -> None:
        """Remove the items from the prefetch buffer."""
        queue.buffer.remove(items)
        self._memory.release(items)

    def drop_shard(self, shard_id: int) -> None:
        """Drop all items of a lost shard."""
        for queue in self._queues.with_prefetched():
            self.drop(queue, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def unclaim(self, queue: TopicQueue, items: list[ShardItem]) -> None:
        """Undo the claims of items that are held."""
        if not items:
            return
        queue.buffer.remove(items)
        self._memory.release(items)
        for topic, some in by_topic(items).items():
            writer = self._writers[topic.shard_id]
            if writer.held is not None and writer.held.unclaim_all(topic, some):
                writer.wake()

    def unclaim_shard(self, shard_id: int) -> None:
        """Unclaim all held items of a shard that leaves."""
        for queue in self._queues.with_prefetched():
            self.unclaim(queue, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def unclaim_old(self, queue: TopicQueue) -> None:
        """Unclaim the items that were prefetched too long ago."""
        self.unclaim(queue, queue.buffer.prefetched_long(self._writers))

    def release_for_calls(self, queue: TopicQueue) -> None:
        """Unclaim items claimed for calls when no call waits: a new owner of their shard would count them as delivered.

        Claims for calls that have not begun are withdrawn. Claims that a transaction is making are undone when it has
        ended: if the host dies before, its call has ended without it, and the new owner counts them as delivered.
        """
        if queue.has_prefetched_for_calls:
            queue.has_prefetched_for_calls = False
            if queue.buffer.sort_keys:
                self.unclaim(queue, [item for item in queue.buffer.items if not item.is_claimed_ahead])
        if queue.has_claims_for_calls:
            for topic in [*queue.parts.values(), *queue.sick_parts.values()]:
                writer = self._writers[topic.shard_id]
                if writer.held is not None and writer.held.withdraw_for_calls(topic):
                    writer.wake()

    def note_time(self, queue: TopicQueue, now_s: float) -> None:
        """Let the delivery rate of a topic follow the time, even if nothing is delivered."""
        queue.note_served(0, now_s)

    def drain(self) -> Iterator[None]:
        """Stop claims, and unclaim all prefetched items and those that claims in flight will bring.

        Each step takes one turn of the event loop, for DRAINED_PER_TURN topics and items.
        """
        self._draining = True
        done_count = 0
        for queue in list(self._queues.active):
            items = queue.buffer.items if queue.buffer.sort_keys else []
            self.unclaim(queue, items)
            done_count += 1 + len(items)
            if done_count >= DRAINED_PER_TURN:
                yield
                done_count = 0
