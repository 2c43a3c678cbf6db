"""Who gets which item: demand by topic, the prefetch buffer, and the order of delivery.

A k-way merge over the shards' windows picks what to claim (after FOQS's prefetch buffer). Nothing is handed
out past a more urgent item that is ready: the buffer never holds a less urgent item back in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from mypy_extensions import mypyc_attr

from foqs.host.prefetch import PrefetchMemory
from foqs.host.topic_queue import DequeueCall, PrefetchBuffer, TopicQueue
from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.item import Phase, ShardItem, by_topic
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import ClaimsEnded, Demand, Events
from foqs.shard.writer.shard_writer import ShardWriter


@mypyc_attr(allow_interpreted_subclasses=True)  # The simulation watches it so.
class Dispatcher:
    """Delivers the items of every shard of a host; all on the event loop's thread.

    No shard calls it: the shard's writer asks for the demand before it plans a transaction, and brings the events
    afterwards. The verb dequeue starts calls here. It owns the demand and the prefetched items of every topic.
    """

    def __init__(
        self,
        writers: Mapping[int, ShardWriter],
        clock: Callable[[], float],
        settings: SettingsTable,
        record: Callable[[Events], None],
    ) -> None:
        """`writers` are those of the host's shards, by id, and come and go; `clock` is monotonic, in seconds.

        `settings` is what shards read as well; `record` takes down what has become of items.
        """
        self.sick: set[int] = set()
        """Ids of the shards whose breakers are open."""
        self._leaving: set[int] = set()
        """Those of them that this host hands on to another one."""
        self._writers = writers
        self._clock = clock
        self.settings = settings
        self._record = record
        self._memory = PrefetchMemory(settings)
        self._queues: dict[tuple[int, str], TopicQueue] = {}
        self._active: dict[TopicQueue, None] = {}
        """Those with calls, prefetched items or claims in flight."""
        self._lingering: dict[TopicQueue, None] = {}
        self._unswept: list[TopicQueue] = []
        """What the sweep that began has still to look at."""
        self._draining = False
        self.waiting_count = 0
        """Dequeue calls that wait."""
        self.waiting_topics_count = 0
        """Topics of each of them."""

    @property
    def prefetched_bytes(self) -> int:
        """Payload and metadata of all prefetch buffers."""
        return self._memory.prefetched_bytes

    # ---- what shards' writers ask and bring (ShardListener) ----

    def demand(self, topics: Iterable[ShardTopic]) -> dict[ShardTopic, Demand]:
        """What to claim of the items of these topics that the next transaction of their shard inserts."""
        found: dict[ShardTopic, Demand] = {}
        for topic in topics:
            queue = self._queues.get((topic.namespace, topic.name))
            if queue is None or queue not in self._active or topic.shard_id in self._leaving:
                continue
            if self._may_claim(queue):
                count = queue.demand_count()
                if count:
                    found[topic] = queue.demand(count)
        return found

    def on_events(self, events: Events) -> None:
        """Tell callers what became of what they asked for, then deliver what there is."""
        for completion in events.completed:
            completion.on_done(completion)  # First: whatever else meets a defect here, they have their answers.
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
        for topic in events.topics_changed:
            queue = self._queues.get((topic.namespace, topic.name))
            if queue is None or queue.parts.get(topic.shard_id) is not topic:
                queue = self._queue_of(topic)
            if queue in self._active:
                self.serve(queue)
        for topic in events.topics_gone:
            self._topic_gone(topic)

    def _claims_started(self, topic: ShardTopic, count: int, last: int) -> None:
        queue = self._queue_of(topic)
        queue.note_claims_started(count, last)
        if topic.shard_id not in self.sick:
            self._memory.claims_started(topic, count)
        self._writers[topic.shard_id].wake()

    def _claims_ended(self, topic: ShardTopic, ended: ClaimsEnded) -> None:
        queue, items = self._queue_of(topic), ended.items
        self._memory.claims_ended(topic, ended.count, items)
        queue.claims_ended_count += ended.count
        if queue.has_claims_for_calls:  # Whether these are is not looked up item by item: there may be thousands.
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
            if queue.calls:
                self.serve(queue)

    def _set_aside(self, topic: ShardTopic) -> None:
        self._memory.forget_claims(topic)
        queue = self._queues.get((topic.namespace, topic.name))
        if queue is not None and queue.parts.pop(topic.shard_id, None) is not None:
            queue.sick_parts[topic.shard_id] = topic
            self.serve(queue)

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        for queue in self._active:
            if queue.buffer:
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
            queues[queue] = None
        # Only now: a call of several topics is served from all of them.
        for queue in queues:
            self.serve(queue)
            self._rest(queue)

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """The ready items of a sick shard count for nothing, so that others are served past them."""
        if healthy and shard_id not in self._leaving:
            self.sick.discard(shard_id)
        else:
            self.sick.add(shard_id)
        self.adopt(topics)

    def shard_leaves(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """The host is about to hand the shard on: it counts as sick, and what is prefetched of it goes back.

        `topics` are some of it, and the others come by `adopt`.
        """
        self._leaving.add(shard_id)
        self.shard_health(shard_id, topics, healthy=False)
        for queue in self._active:
            self._unclaim(queue.buffer, [item for item in queue.buffer.items if item.topic.shard_id == shard_id])

    def shard_left(self, shard_id: int) -> None:
        """The shard is gone, and so are its topics (`disown`)."""
        self._leaving.discard(shard_id)
        self.sick.discard(shard_id)

    # ---- calls ----

    def prefetched(self, namespace: int, name: str) -> PrefetchBuffer:
        """What is claimed of a topic and not delivered yet."""
        queue = self._queues.get((namespace, name))
        return queue.buffer if queue is not None else PrefetchBuffer()

    def start(self, namespace: int, wants: dict[str, int], call: DequeueCall) -> None:
        """Serve the call now or let it wait."""
        self.waiting_count += 1
        self.waiting_topics_count += len(wants)
        for name, count in wants.items():
            queue = self._queue(namespace, name)
            call.wants[queue] = count
            queue.calls[call] = None
            queue.waiting_count += count
            self._active[queue] = None
        if len(wants) > 1:
            for queue in call.wants:
                self._claim(queue)  # Those before it may have enough to answer each call at once.
        for queue in call.wants:
            if call.items is not None:
                break
            self.serve(queue)

    def has_candidates(self, call: DequeueCall) -> bool:
        """Something of the call's topics is ready or on the way."""
        return any(queue.coming_count or queue.buffer or queue.first_unclaimed() < order.LAST for queue in call.wants)

    def end(self, call: DequeueCall) -> None:
        """The call wants nothing more: who waited behind it may be served now."""
        if call.items is None:
            self.answer(call, [])
            for queue in call.wants:
                if queue.calls and queue.buffer.sort_keys:
                    self.serve(queue)

    def unclaim(self, items: list[ShardItem]) -> None:
        """Their caller is gone and has not seen them: whoever else waits for them is served now."""
        queues: dict[TopicQueue, None] = {}
        for item in items:
            writer = self._writers.get(item.topic.shard_id)
            shard = writer.shard if writer is not None else None
            if writer is None or shard is None:
                continue
            if item.phase is Phase.LEASED and shard.index.leases.get(item.key) is item:
                if shard.unclaim(item):
                    writer.wake()
                queues[self._queue_of(item.topic)] = None
        for queue in queues:
            self.serve(queue)

    def answer(self, call: DequeueCall, items: list[ShardItem]) -> None:
        call.items = items
        self.waiting_count -= 1
        self.waiting_topics_count -= len(call.wants)
        for queue, count in call.wants.items():
            del queue.calls[call]
            queue.waiting_count -= count
            if (queue.has_prefetched_for_calls or queue.has_claims_for_calls) and not queue.calls:
                self._release_for_calls(queue)
            if not queue.parts:
                self._rest(queue)  # A topic that does not exist here: sweeps would come too late for many names.
        if call.answered is not None and not call.answered.done():
            call.answered.set_result(None)

    def end_all(self) -> None:
        """Answer every call that waits, with nothing."""
        for queue in list(self._queues.values()):
            for call in list(queue.calls):
                self.answer(call, [])

    def serve(self, queue: TopicQueue) -> None:
        """Deliver what may be delivered, then claim what is still wanted."""
        if queue.namespace in self.settings.dequeue_paused:
            self._pause(queue)
            return
        while queue.calls:
            call = next(iter(queue.calls))
            want = call.wants[queue]
            count = queue.servable_count(want)
            if count == 0:
                break
            if count < want:
                self._claim(queue)  # First, so that the call waits for what is ready as well.
                if not queue.has_waited(call, self._clock()):
                    self._lingering[queue] = None
                    break
            if not self._deliver_to(call):
                break
        if (queue.has_prefetched_for_calls or queue.has_claims_for_calls) and not queue.calls:
            self._release_for_calls(queue)
        self._claim(queue)

    def _pause(self, queue: TopicQueue) -> None:
        """End the calls that wait, and give back what is prefetched."""
        for call in list(islice(queue.calls, limits.DEQUEUES_ENDED_PER_TICK)):
            call.is_paused = True
            self.answer(call, [])
        if queue.calls:
            self._lingering[queue] = None
        self._unclaim(queue.buffer, queue.buffer.items)

    def tick(self) -> None:
        """Answer the calls that lingered, and go on with the sweep."""
        lingering, self._lingering = self._lingering, {}
        for queue in lingering:
            self.serve(queue)
        if self._unswept:
            self._sweep_some()

    def sweep(self) -> None:
        """Give back what was prefetched too long ago, and forget what rests: now and in the ticks to come."""
        if not self._unswept:
            self._unswept = list(self._active)
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

    def drain(self) -> None:
        """Claim nothing more; what is prefetched, and what claims in flight will bring, goes back."""
        self._draining = True
        for queue in self._queues.values():
            self._unclaim(queue.buffer, queue.buffer.items)

    # ---- how ----

    def _queue(self, namespace: int, name: str) -> TopicQueue:
        queue = self._queues.get((namespace, name))
        if queue is None:
            queue = self._queues[namespace, name] = TopicQueue(namespace, name)
        return queue

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
        """A queue that nothing happens in costs no time; one that nothing refers to costs no memory."""
        if not (queue.calls or queue.buffer.sort_keys or queue.claims_count or queue.expects_consumers):
            self._active.pop(queue, None)
            if not (queue.parts or queue.sick_parts):
                self._queues.pop((queue.namespace, queue.name), None)

    def _deliver_to(self, call: DequeueCall) -> bool:
        """Deliver what the call may have of all its topics; it ends unless there is nothing.

        Returns whether something has left a buffer; if not, the call has to wait for claims.
        """
        turns = [queue for queue in call.wants if next(iter(queue.calls)) is call]
        clocks: dict[int, Now] = {}
        next_items, unbacked = call.next_items(turns, clocks, self._writers)
        while unbacked:
            for queue, items in unbacked.items():
                self._claim_for(queue, call, items)
            next_items, unbacked = call.next_items(turns, clocks, self._writers)
        if call.claimed_for and call.awaits_claims(self._clock()):
            self._lingering.update(dict.fromkeys(turns))
            return False
        given: list[ShardItem] = []
        for queue, items in next_items.items():
            self._deliver(queue, call, items, clocks, given)
        if given:
            self.answer(call, given)
        return bool(next_items)

    def _claim_for(self, queue: TopicQueue, call: DequeueCall, unbacked: list[ShardItem]) -> None:
        """Claim items of one topic anew, for the call: the claims that are there do not back its lease."""
        by_topic: dict[ShardTopic, list[ShardItem]] = {}
        for item in unbacked:
            by_topic.setdefault(item.topic, []).append(item)
        for topic, items in by_topic.items():
            shard = self._writers[topic.shard_id].shard
            assert shard is not None
            if topic.shard_id in self.sick:
                self._unclaim(queue.buffer, items)
                continue
            self._drop(queue, items)
            shard.claim_for_call(topic, items)
            queue.has_claims_for_calls = True
            self._claims_started(topic, len(items), items[-1].sort_key)
            call.claimed_for[queue] = queue.claims_started_count
            call.claimed_for_s = self._clock()

    def _deliver(
        self,
        queue: TopicQueue,
        call: DequeueCall,
        items: list[ShardItem],
        clocks: dict[int, Now],
        given: list[ShardItem],
    ) -> None:
        """Lease the next items of the buffer to the call; those that have not expired are added to `given`."""
        queue.take(len(items), self._clock())
        size_bytes = 0
        for item in items:
            shard_id = item.topic.shard_id
            writer, now = self._writers[shard_id], clocks[shard_id]
            shard = writer.shard
            assert shard is not None
            size_bytes += item.size_bytes
            shard.deliver(item, now.steady_ms + (call.lease_ms or item.lease_ms or call.lease_ms_default))
            if item.expires_at <= now.server_ms:
                shard.expire(item)
                writer.wake()
            else:
                item.delivered_at = now.server_ms
                given.append(item)
        self._memory.prefetched_bytes -= size_bytes

    def _may_claim(self, queue: TopicQueue) -> bool:
        if self._draining or queue.namespace in self.settings.dequeue_paused:
            return False
        if self._memory.prefetched_bytes < limits.PREFETCH_BYTES_MAX or not queue.buffer:
            return True
        # Nothing of what is prefetched can be delivered before something more urgent is claimed.
        return bool(queue.calls) and not queue.servable_count(1)

    def _claim(self, queue: TopicQueue) -> None:
        """Claim what is wanted of what is ready, and let windows that run low read on."""
        parts = [part for part in queue.parts.values() if part.window.head != order.LAST]
        if not parts:
            return  # Most topics of a call that names many have nothing, and it asks for each of them.
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
        """These are not held any more."""
        queue.buffer.remove(items)
        self._memory.release(items)

    def _release_for_calls(self, queue: TopicQueue) -> None:
        """What was claimed for calls goes back when none of them waits: a new owner would take it for delivered.

        So does what is still to be claimed. What a transaction is claiming goes back when that has ended: if the host
        dies in between, its call has ended without it, and the new owner takes it for delivered all the same.
        """
        if queue.has_prefetched_for_calls:
            queue.has_prefetched_for_calls = False
            if queue.buffer.sort_keys:
                self._unclaim(queue.buffer, [item for item in queue.buffer.items if not item.is_claimed_ahead])
        if queue.has_claims_for_calls:
            for topic in [*queue.parts.values(), *queue.sick_parts.values()]:
                writer = self._writers[topic.shard_id]
                if writer.shard is not None and writer.shard.withdraw_for_calls(topic):
                    writer.wake()

    def _unclaim(self, buffer: PrefetchBuffer, items: list[ShardItem]) -> None:
        if not items:
            return
        buffer.remove(items)
        self._memory.release(items)
        for topic, some in by_topic(items).items():
            writer = self._writers[topic.shard_id]
            if writer.shard is not None and writer.shard.unclaim_all(topic, some):
                writer.wake()
