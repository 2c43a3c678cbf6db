"""Who gets which item: demand by topic, the prefetch buffer, and the order of hand-out.

A k-way merge over the shards' windows picks what to claim (after FOQS's prefetch buffer). Nothing is handed
out past a more urgent item that is ready: the buffer never holds a less urgent item back in front of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from foqs.core import limits, order
from foqs.core.item import Item, Phase
from foqs.core.topic import ShardTopic
from foqs.shard.state import ShardState


class DequeueCall:
    """One dequeue that waits; `on_items` is called once."""

    __slots__ = ("done", "lease_ms", "lease_ms_default", "on_items", "since_ms", "wants")

    def __init__(
        self,
        wants: dict[str, int],
        lease_ms: int | None,
        lease_ms_default: int,
        on_items: Callable[[list[Item]], None],
    ) -> None:
        self.wants = wants
        self.lease_ms = lease_ms
        self.lease_ms_default = lease_ms_default
        self.on_items = on_items
        self.done = False
        self.since_ms = 0.0


class TopicQueue:
    """One topic over all shards of this host."""

    __slots__ = (
        "buffer",
        "calls",
        "claims_count",
        "lease_ms",
        "name",
        "namespace",
        "parts",
        "rate",
        "rated_at_s",
        "served_count",
    )

    def __init__(self, namespace: int, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.parts: dict[int, ShardTopic] = {}
        self.buffer: list[Item] = []
        """Claimed items, the most urgent last."""
        self.calls: deque[DequeueCall] = deque()
        self.claims_count = 0
        """Claims on the way to the database."""
        self.lease_ms = limits.LEASE_MS_DEFAULT
        """The longest lease that consumers asked for."""
        self.rate = 0.0
        """Items handed out a second, lately."""
        self.rated_at_s = 0.0
        self.served_count = 0

    def wanted_count(self) -> int:
        while self.calls and self.calls[0].done:
            self.calls.popleft()
        waiting = sum([call.wants.get(self.name, 0) for call in self.calls if not call.done])
        return min(waiting, limits.TRANSACTION_CLAIMS_MAX) + self.prefetch_target()

    def prefetch_target(self) -> int:
        return min(int(self.rate * limits.PREFETCH_HORIZON_MS / 1000), limits.PREFETCH_ITEMS_PER_TOPIC_MAX)

    def shortage(self) -> int:
        return self.wanted_count() - len(self.buffer) - self.claims_count

    def first_unclaimed(self) -> int:
        return min([part.first_place for part in self.parts.values()], default=order.LAST)

    def servable_count(self, bound: int) -> int:
        """How many buffered items precede every ready item that is not in the buffer."""
        first = self.first_unclaimed()
        buffer = self.buffer
        if first == order.LAST:
            return min(len(buffer), bound)
        count = 0
        for item in reversed(buffer):
            if count == bound or item.place > first:
                break
            count += 1
        return count

    def note_served(self, count: int, now_s: float) -> None:
        self.served_count += count
        elapsed_s = now_s - self.rated_at_s
        if elapsed_s >= 0.1:
            self.rate = (self.rate + self.served_count / elapsed_s) / 2 if elapsed_s < 2 else 0.0
            self.served_count = 0
            self.rated_at_s = now_s


class Dispatcher:
    """The listener of every shard of a host; all on the event loop's thread."""

    def __init__(self, shard_of: Callable[[int], ShardState | None], wake: Callable[[int], None],
                 now_ms: Callable[[int], int], attempts_max: Callable[[int], int]) -> None:  # fmt: skip
        self._shard_of = shard_of
        self._wake = wake
        self._now_ms = now_ms
        self._attempts_max = attempts_max
        self._queues: dict[tuple[int, str], TopicQueue] = {}
        self._active: dict[TopicQueue, None] = {}
        """With calls, held items or claims on the way."""
        self.waiting_count = 0

    # ---- ShardListener ----

    def attempts_max(self, namespace: int) -> int:
        return self._attempts_max(namespace)

    def unmet_demand(self, namespace: int, topic: str) -> int:
        queue = self._queues.get((namespace, topic))
        return queue.shortage() if queue is not None else 0

    def claims_started(self, topic: ShardTopic, count: int) -> None:
        self.queue_of(topic).claims_count += count
        self._wake(topic.shard_id)

    def claims_ended(self, topic: ShardTopic, count: int, items: list[Item]) -> None:
        queue = self.queue_of(topic)
        queue.claims_count -= count
        self._active[queue] = None
        if items:
            queue.buffer += items
            queue.buffer.sort(key=_place, reverse=True)
        self.serve(queue)

    def topic_gone(self, topic: ShardTopic) -> None:
        queue = self._queues.get((topic.namespace, topic.name))
        if queue is not None and queue.parts.get(topic.shard_id) is topic:
            del queue.parts[topic.shard_id]
            self._rest(queue)

    def became_ready(self, topic: ShardTopic) -> None:
        self.serve(self.queue_of(topic))

    # ---- calls ----

    def queue(self, namespace: int, name: str) -> TopicQueue:
        queue = self._queues.get((namespace, name))
        if queue is None:
            queue = self._queues[namespace, name] = TopicQueue(namespace, name)
        return queue

    def queue_of(self, topic: ShardTopic) -> TopicQueue:
        queue = self.queue(topic.namespace, topic.name)
        if queue.parts.get(topic.shard_id) is not topic:
            queue.parts[topic.shard_id] = topic
            topic.lease_ms = queue.lease_ms
        return queue

    def learn(self, shard: ShardState) -> None:
        for topic in shard.topics.values():
            self.queue_of(topic)

    def forget_shard(self, shard_id: int) -> None:
        """The shard is lost: what was claimed there is not ours to hand out."""
        for queue in self._queues.values():
            part = queue.parts.pop(shard_id, None)
            if part is not None:
                queue.buffer = [item for item in queue.buffer if item.topic is not part]
                queue.claims_count = 0 if not queue.parts else queue.claims_count

    def start(self, namespace: int, call: DequeueCall) -> None:
        """Serve the call now or let it wait."""
        call.since_ms = time.monotonic() * 1000
        queues = [self.queue(namespace, name) for name in call.wants]
        for queue in queues:
            queue.calls.append(call)
            self._active[queue] = None
            queue.lease_ms = max(queue.lease_ms, call.lease_ms or call.lease_ms_default)
            for part in queue.parts.values():
                part.lease_ms = queue.lease_ms
        self.waiting_count += 1
        for queue in queues:
            self.serve(queue)

    def is_hopeful(self, namespace: int, call: DequeueCall) -> bool:
        """Something of the call's topics is ready or on the way."""
        return any(
            queue.claims_count or queue.buffer or any(part.ready > 0 for part in queue.parts.values())
            for queue in [self.queue(namespace, name) for name in call.wants]
        )

    def end(self, call: DequeueCall) -> None:
        """The call wants nothing more."""
        if not call.done:
            call.done = True
            self.waiting_count -= 1

    def serve(self, queue: TopicQueue) -> None:
        """Hand out what may be handed out, then claim what is still wanted."""
        while queue.calls:
            call = queue.calls[0]
            if call.done:
                queue.calls.popleft()
                continue
            want = call.wants[queue.name]
            count = queue.servable_count(want)
            if count == 0 or (count < want and queue.claims_count and not self._lingered(call)):
                break
            self._answer(queue, call)
            if not call.done and not queue.servable_count(1):
                break
        self._claim(queue)

    def tick(self) -> None:
        """Give back what was held too long; answer the calls that lingered."""
        now_s = time.monotonic()
        for queue in list(self._active):
            queue.note_served(0, now_s)
            self.serve(queue)
            if queue.buffer and not queue.calls:
                self._give_back_old(queue)
            self._rest(queue)

    def give_all_back(self) -> None:
        for queue in self._queues.values():
            buffer, queue.buffer = queue.buffer, []
            for item in buffer:
                self._give_back(item)

    def _rest(self, queue: TopicQueue) -> None:
        """A queue that nothing happens in costs no time; one that nothing refers to costs no memory."""
        if not (queue.calls or queue.buffer or queue.claims_count):
            self._active.pop(queue, None)
            if not queue.parts:
                self._queues.pop((queue.namespace, queue.name), None)

    def queues_of(self, namespace: int) -> list[TopicQueue]:
        return [queue for (number, _), queue in self._queues.items() if number == namespace]

    def _lingered(self, call: DequeueCall) -> bool:
        return time.monotonic() * 1000 - call.since_ms > limits.LINGER_MS

    def _answer(self, queue: TopicQueue, call: DequeueCall) -> None:
        items: list[Item] = []
        size_bytes = 0
        for name, want in call.wants.items():
            other = queue if name == queue.name else self.queue(queue.namespace, name)
            count = other.servable_count(min(want, limits.DEQUEUE_ITEMS_MAX - len(items)))
            given = 0
            while given < count and size_bytes < limits.DEQUEUE_ANSWER_BYTES_MAX:
                item = other.buffer.pop()
                if item.phase is not Phase.HELD:
                    count -= 1  # Deleted while it was held.
                    continue
                if not self._lease(item, call):
                    break
                given += 1
                size_bytes += len(item.payload or b"") + len(item.metadata)
                items.append(item)
            other.note_served(given, time.monotonic())
        if items:
            self.end(call)
            call.on_items(items)

    def _lease(self, item: Item, call: DequeueCall) -> bool:
        """Start the lease of a held item; False when it went back or its TTL ended in the buffer."""
        shard_id = item.topic.shard_id
        shard = self._shard_of(shard_id)
        claim = item.claim
        assert shard is not None
        assert claim is not None
        now_ms = self._now_ms(shard_id)
        lease_due_at = now_ms + (call.lease_ms or item.lease_ms or call.lease_ms_default)
        if claim.due_at < lease_due_at:
            # Its claim is too short for the lease that is asked for: it is claimed anew.
            shard.give_back(item)
            return False
        shard.hand_out(item, lease_due_at)
        if item.expires_at <= now_ms:
            shard.settle(item, None, None)
            self._wake(shard_id)
            return False
        return True

    def _claim(self, queue: TopicQueue) -> None:
        """K-way merge over the heads of the shards' windows."""
        urgent = len(queue.buffer) and queue.first_unclaimed() < queue.buffer[-1].place
        count = max(queue.shortage(), 1 if urgent and queue.calls else 0)
        if count <= 0:
            return
        heads: list[list[int]] = []
        for shard_id, topic in queue.parts.items():
            shard = self._shard_of(shard_id)
            if shard is None:
                continue
            if topic.window.wants_refill:
                shard.want_refill(topic)
                self._wake(shard_id)
            room = limits.OPEN_LEASES_MAX - len(shard.leases)
            heads.append(topic.window.first(min(count, room)))
        chosen = sorted(chain.from_iterable(heads))[:count]
        for shard_id, topic in queue.parts.items():
            part = [place for place in chosen if place & 0xFFFF == shard_id]
            shard = self._shard_of(shard_id)
            if part and shard is not None:
                shard.claim(topic, topic.window.take(len(part)))

    def _give_back_old(self, queue: TopicQueue) -> None:
        held, queue.buffer = queue.buffer, []
        for item in held:
            claim = item.claim
            assert claim is not None
            left_ms = claim.due_at - self._now_ms(item.topic.shard_id) - queue.lease_ms
            if left_ms > limits.CLAIM_SLACK_MS - limits.PREFETCH_HOLD_MS_MAX:
                queue.buffer.append(item)
            else:
                self._give_back(item)

    def _give_back(self, item: Item) -> None:
        shard = self._shard_of(item.topic.shard_id)
        if shard is not None and item.phase is Phase.HELD:
            shard.give_back(item)


def _place(item: Item) -> int:
    return item.place
