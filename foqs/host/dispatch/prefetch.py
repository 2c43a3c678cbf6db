"""Prefetching: the numbers of items that are claimed and held of each topic, and the return of held ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.item import ShardItem, by_topic, count_of, undivided
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import ClaimsEnded, Demand
from foqs.shard.writer.shard_writer import ShardWriter

DRAINED_PER_TURN = 1_000
"""Topics and prefetched items that a draining host releases in one turn of the event loop."""

_size_bytes = attrgetter("size_bytes")


class Prefetch:
    """The part of the dispatcher that claims items and holds them until they are delivered.

    A k-way merge over the shards' windows picks the items to claim (after FOQS's prefetch buffer). It writes the
    buffer, the claims and the delivery rate of a queue.
    """

    def __init__(self, queues: Queues, writers: Mapping[int, ShardWriter], settings: SettingsTable) -> None:
        self._queues = queues
        self._writers = writers
        self._settings = settings
        self._draining = False
        self.prefetched_bytes = 0
        """Payload and metadata of all prefetch buffers."""
        self._claiming_bytes = 0
        """The memory that claims in flight can take."""
        self._claiming_bytes_of: dict[ShardTopic, int] = {}
        """The same by topic, of healthy shards only, because a sick shard's claims end late, or never."""

    # ---- claims ----

    def demand(self, queue: TopicQueue) -> Demand | None:
        """The demand for items that are about to be written, or None."""
        count = queue.demand_count() if self.can_claim(queue) else 0
        return queue.demand(count) if count else None

    def can_claim(self, queue: TopicQueue) -> bool:
        """Return True if items of the topic can be claimed, as far as the memory for prefetched items is concerned."""
        if self._draining or queue.namespace in self._settings.dequeue_paused:
            return False
        if self.prefetched_bytes < limits.PREFETCH_BYTES_MAX or not queue.buffer:
            return True
        # No prefetched item can be delivered before something more urgent is claimed.
        return bool(queue.calls) and not queue.servable_count(1)

    def _room(self, namespace: int) -> int:
        """Return the number of items, each of the largest size, that fit; at least one, so that work continues."""
        bytes_left = limits.PREFETCH_BYTES_MAX - self.prefetched_bytes - self._claiming_bytes
        return max(1, bytes_left // self._bytes_each(namespace))

    def _bytes_each(self, namespace: int) -> int:
        return limits.RESIDENT_ITEM_BYTES + self._settings.item_bytes_max(namespace)

    def claim(self, queue: TopicQueue) -> None:
        """Claim ready items that are wanted, and refill windows that run low."""
        parts = [part for part in queue.parts.values() if part.window.head != order.LAST]
        if not parts:
            return  # Checked first, because most topics of a call that names many have no items.
        count = queue.demand_count()
        if not count or not self.can_claim(queue):
            return
        demand = queue.demand(min(count, self._room(queue.namespace)))
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
            self.claims_started(topic, count_of(items), items[-1].sort_keys[-1])
            call.claimed_for[queue] = queue.claims_started_count
            call.claimed_for_s = now_s

    def claims_started(self, topic: ShardTopic, count: int, last: int) -> None:
        """Note that `count` claims have begun, of items up to the sort key `last`."""
        queue = self._queues.of(topic)
        if queue.claims_count <= count or last > queue.claiming_last:
            queue.claiming_last = last
        if topic.shard_id not in self._queues.sick:
            size_bytes = count * self._bytes_each(topic.namespace)
            self._expect(topic, self._claiming_bytes_of.get(topic, 0) + size_bytes)
        self._writers[topic.shard_id].wake()

    def claims_ended(self, topic: ShardTopic, ended: ClaimsEnded) -> None:
        """Hold the items of claims that have ended, unless they must be unclaimed."""
        queue, items = self._queues.of(topic), undivided(ended.items)
        if claiming_bytes := self._claiming_bytes_of.get(topic):
            left_count = topic.claiming_count
            self._expect(topic, claiming_bytes * left_count // (left_count + ended.count))
        queue.claims_ended_count += ended.count
        if queue.has_claims_for_calls:  # Not checked item by item, because thousands can end at once.
            queue.has_prefetched_for_calls = True
            queue.has_claims_for_calls = queue.claims_count > 0
        self._queues.activate(queue)
        queue.expired_claims_in_row = (
            0 if items else min(queue.expired_claims_in_row + ended.count, limits.TRANSACTION_CLAIMS_MAX)
        )
        if items:
            self.prefetched_bytes += sum(map(_size_bytes, items))
            self._settings.note_item_bytes(topic.namespace, max([item.item_bytes_max for item in items]))
            queue.buffer.add(items)
            if self._draining or topic.shard_id in self._queues.leaving or (topic.is_serial and topic.holds_back):
                self.unclaim(queue, items)

    def _expect(self, topic: ShardTopic, size_bytes: int) -> None:
        """Set the memory that claims in flight of a topic can take."""
        self._claiming_bytes += size_bytes - self._claiming_bytes_of.pop(topic, 0)
        if size_bytes:
            self._claiming_bytes_of[topic] = size_bytes

    def forget_claims(self, topic: ShardTopic) -> None:
        """Expect no items from the claims in flight on a sick shard, because they end late, or never."""
        self._expect(topic, 0)

    def lose_claims(self, topic: ShardTopic, queue: TopicQueue | None) -> None:
        """Count the claims in flight on a lost shard as ended."""
        self.forget_claims(topic)
        if queue is not None:
            queue.claims_ended_count += topic.claiming_count

    # ---- held items ----

    def take(self, queue: TopicQueue, items: list[ShardItem], now_s: float) -> None:
        """Take the next items out of the buffer to deliver them."""
        count = count_of(items)
        queue.buffer.take(count)
        queue.note_served(count, now_s)
        self.prefetched_bytes -= sum(map(_size_bytes, items))

    def drop(self, queue: TopicQueue, items: list[ShardItem]) -> None:
        """Remove the items from the prefetch buffer."""
        queue.buffer.remove(items)
        self.prefetched_bytes -= sum(map(_size_bytes, items))

    def drop_shard(self, shard_id: int) -> None:
        """Drop all items of a lost shard."""
        for queue in self._queues.with_prefetched():
            self.drop(queue, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def unclaim(self, queue: TopicQueue, items: list[ShardItem]) -> None:
        """Undo the claims of items that are held."""
        self.drop(queue, items)
        for topic, some in by_topic(items).items():
            writer = self._writers[topic.shard_id]
            if writer.held is not None and writer.held.unclaim_all(topic, some):
                writer.wake()

    def unclaim_behind(self, queue: TopicQueue) -> None:
        """Unclaim the held items of a serial topic that are not the next ones: those behind a ready item, which came
        just now or whose claim failed, and all while the topic holds them back.

        Then it claims them together with that item.
        """
        behind: list[ShardItem] = []
        for topic, items in by_topic(queue.buffer.items).items():
            head = order.FIRST if topic.holds_back else topic.window.head
            behind += [item for item in items if item.sort_key > head]
        if behind:
            self.unclaim(queue, behind)
            self.claim(queue)

    def unclaim_shard(self, shard_id: int) -> None:
        """Unclaim all held items of a shard that leaves."""
        for queue in self._queues.with_prefetched():
            self.unclaim(queue, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def unclaim_old(self, queue: TopicQueue) -> None:
        """Unclaim the items that were prefetched too long ago."""
        self.unclaim(queue, queue.buffer.prefetched_long(self._writers))

    def release_for_calls(self, queue: TopicQueue) -> None:
        """Unclaim items that were claimed for calls if no call waits, and unclaim such claims that have not begun.

        Otherwise a new owner of the shard would treat the items as delivered. Items of a running transaction are
        unclaimed when it ends. If the host dies before that, the new owner does treat them as delivered.
        """
        if queue.calls:
            return
        if queue.is_serial and queue.buffer.sort_keys:
            self.unclaim(queue, queue.buffer.items)  # No other item is delivered while one is held.
        if queue.has_prefetched_for_calls:
            queue.has_prefetched_for_calls = False
            if queue.buffer.sort_keys:
                self.unclaim(queue, [item for item in queue.buffer.items if not item.is_claimed_ahead])
        if queue.has_claims_for_calls:
            for topic in [*queue.parts.values(), *queue.sick_parts.values()]:
                writer = self._writers[topic.shard_id]
                if writer.held is not None and writer.held.unclaim_for_calls(topic):
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
            done_count += 1 + count_of(items)
            if done_count >= DRAINED_PER_TURN:
                yield
                done_count = 0
