"""The delivery of prefetched items to calls: its order, and the leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Protocol

from foqs.host.dispatch.levels import in_turns
from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.rings import Rings
from foqs.host.dispatch.tokens import Tokens
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.item import Phase, ShardItem, by_topic, count_of, undivided
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.writer.shard_writer import ShardWriter


class DispatchObserver(Protocol):
    """Watches a dispatcher. Tests check its answers by it."""

    def settings_followed(self) -> None:
        """Note that waiting calls and topics have followed the settings, as far as one turn does that."""

    def delivering(self, call: DequeueCall) -> None:
        """Note that an answer is about to be put together."""

    def answering(self, call: DequeueCall, items: list[ShardItem]) -> None:
        """Note the items of an answer, before the call ends."""

    def answered(self, call: DequeueCall, items: list[ShardItem]) -> None:
        """Note that a call has ended."""


class Deliveries:
    """The part of the dispatcher that delivers items: it serves topics, and answers calls.

    No item is delivered past a more urgent one that is ready: the buffer never holds a less urgent item in front of
    it.
    """

    def __init__(
        self,
        queues: Queues,
        prefetch: Prefetch,
        tokens: Tokens,
        rings: Rings,
        writers: Mapping[int, ShardWriter],
        clock: Callable[[], float],
        settings: SettingsTable,
        observer: DispatchObserver | None,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._queues = queues
        self._prefetch = prefetch
        self._tokens = tokens
        self._rings = rings
        self._writers = writers
        self._clock = clock
        self._settings = settings
        self._observer = observer
        self._lingering: dict[TopicQueue, None] = {}
        """Topics that are served again in the next tick."""

    # ---- answers ----

    def answer(self, call: DequeueCall, items: list[ShardItem]) -> None:
        """End a call with these items."""
        observer, rings = self._observer, self._rings
        if observer is not None:
            observer.answering(call, items)
        call.items = items
        self._queues.end_call(call)
        for queue in call.wants:
            self._prefetch.release_for_calls(queue)
            if not queue.parts:
                self.deactivate_if_idle(queue)  # An unknown topic: sweeps would come too late for many names.
        if call.answered is not None and not call.answered.done():
            call.answered.set_result(None)
        if call.lacks:
            rings.end(call, items)
        for queue in call.wants:
            if queue.parts or queue.buffer.sort_keys:
                rings.enter(queue)  # Items that the call wanted and did not get are free for other calls.
        if observer is not None:
            observer.answered(call, items)

    def unclaim(self, items: list[ShardItem]) -> None:
        """Undo the delivery of items whose caller left without them, and serve other calls with them."""
        queues: dict[TopicQueue, None] = {}
        for item in undivided(items):
            writer = self._writers.get(item.topic.shard_id)
            shard = writer.held if writer is not None else None
            if shard is not None and item.phase is Phase.LEASED and shard.index.leases.get(item.key) is item:
                if shard.unclaim(item):
                    self._writers[item.topic.shard_id].wake()
                queues[self._queues.of(item.topic)] = None
        for queue in queues:
            self.serve(queue)
            self._rings.enter(queue)  # It left them when it gave these items.
        self.serve_any()

    # ---- topics ----

    def serve(self, queue: TopicQueue) -> None:
        """Deliver the deliverable items, then claim the items that calls still want."""
        self._tokens.refresh(queue)
        if queue.namespace in self._settings.dequeue_paused:
            self._pause(queue)
            return
        if queue.is_throttled:
            if queue.is_paused:
                self._pause_topic(queue)
            else:
                self._tokens.admit(queue)
        while queue.calls:
            call = next(iter(queue.calls))
            if call.lacks:
                self._rings.note_due(call)
                break
            want = call.wants[queue]
            count = queue.servable_count(want)
            if count == 0:
                break
            if count < want:
                self._prefetch.claim(queue)  # First, so that the call waits for ready items as well.
                if not queue.has_waited(call, self._clock()):
                    self._lingering[queue] = None
                    break
            if not self._deliver_to(call):
                break
        self._prefetch.release_for_calls(queue)
        self._prefetch.claim(queue)
        if (queue.base_queue or queue).in_flight_max:
            self._tokens.permits.settle(queue)
        self._rings.settle(queue)

    def serve_any(self) -> None:
        """Find topics for calls that want any topic, and answer the calls that wait for nothing more."""
        while due := self._rings.take_due():
            for call in due:
                if call.items is None and not call.awaits_more(self._clock()):
                    self._answer_any(call)

    def serve_lingering(self) -> None:
        """Serve the topics that were left to this tick."""
        if not self._lingering:
            return
        lingering, self._lingering = self._lingering, {}
        for queue in lingering:
            self.serve(queue)

    def resume(self, queue: TopicQueue) -> None:
        """Resume a topic that waited for a token or for an operator."""
        if queue.calls or queue.pausing:  # Calls for a base wait in its ring.
            self._queues.activate(queue)
        if queue in self._queues.active:
            self.serve(queue)
        self._rings.enter(queue)
        if not queue.token_wait_slot:
            self._queues.changed(queue)

    def deactivate_if_idle(self, queue: TopicQueue) -> None:
        """Let a queue cost no time if it is idle, and no memory if nothing refers to it."""
        if self._queues.deactivate_if_idle(queue):
            self._tokens.forget(queue)
            self._rings.forget(queue)

    def _answer_any(self, call: DequeueCall) -> None:
        self._deliver_to(call)
        if call.items is None:
            return  # No item has come, or all had expired. The next tick tries again.
        for queue in call.wants:
            if queue.calls or queue.is_throttled:
                self.serve(queue)

    def _pause_topic(self, queue: TopicQueue) -> None:
        """End the calls that wait only for paused topics.

        Each call is checked once here; if another of its topics is paused later, that topic checks it again.
        """
        for call in self._tokens.paused_calls(queue):
            if queue in call.attached:
                self._rings.detach(call, queue)
            if call.wants_paused_only():
                call.is_paused = True
                self.answer(call, [])
        if queue.pausing:
            self._lingering[queue] = None

    def _pause(self, queue: TopicQueue) -> None:
        """End the waiting calls, and unclaim the prefetched items."""
        for call in list(islice(queue.calls, limits.DEQUEUES_ENDED_PER_TICK)):
            call.is_paused = True
            self.answer(call, [])
        if queue.calls:
            self._lingering[queue] = None
        self._prefetch.unclaim(queue, queue.buffer.items)
        self._rings.settle(queue)

    # ---- items ----

    def _deliver_to(self, call: DequeueCall) -> bool:
        """Deliver items of all the topics where the call is the first one; it ends if it gets any.

        Returns True if items have left a buffer; otherwise the call must wait for claims.
        """
        if self._observer is not None:
            self._observer.delivering(call)
        turns = [queue for queue in call.wants if next(iter(queue.calls)) is call]
        for queue in turns:
            self._tokens.refresh(queue)
            if queue.is_serial and queue.buffer.sort_keys:
                self._prefetch.unclaim_behind(queue)
        clocks: dict[int, Now] = {}
        next_items, unbacked = call.next_items(turns, clocks, self._writers)
        while unbacked:
            for queue, items in unbacked.items():
                self._prefetch.claim_for(queue, call, items, self._clock())
            next_items, unbacked = call.next_items(turns, clocks, self._writers)
        if call.claimed_for and call.awaits_claims(self._clock()):
            self._lingering.update(dict.fromkeys(turns))
            return False
        given: list[ShardItem] = []
        for queue, items in next_items.items():
            given += self._deliver(queue, call, items, clocks)
        if call.holder is not None:
            for item in given:
                item.holder = call.holder
        if given:
            self.answer(call, in_turns(self._ones(given)) if call.lacks and call.takes_turns else given)
        return bool(next_items)

    def _deliver(
        self, queue: TopicQueue, call: DequeueCall, items: list[ShardItem], clocks: dict[int, Now]
    ) -> list[ShardItem]:
        """Lease the next items of the buffer to the call. Return the items that have not expired, without those behind
        an expired one that perhaps holds their topic as a dead letter.
        """
        self._prefetch.take(queue, items, self._clock())
        if queue.is_serial:
            items = self._ones(items)  # The run of a serial topic comes back from any of its items on.
        parts = by_topic(items)
        if any(item.expires_at <= clocks[topic.shard_id].server_ms for topic, some in parts.items() for item in some):
            items = self._without_expired(items, clocks)
            parts = by_topic(items)
        for topic, some in parts.items():
            self._lease(topic, some, call, clocks[topic.shard_id])
            (topic.base or topic).delivered_count += count_of(some)
            if queue.is_serial:
                topic.run = some  # Those that the call did not take wait until it has ended.
        if queue.is_throttled:
            self._tokens.spend(queue, count_of(items))
        return items

    def _ones(self, items: list[ShardItem]) -> list[ShardItem]:
        """Return the items, each by itself."""
        found: list[ShardItem] = []
        for item in items:
            shard = self._writers[item.topic.shard_id].shard
            found += [item] if shard is None else shard.index.ones([item])
        return found

    def _lease(self, topic: ShardTopic, items: list[ShardItem], call: DequeueCall, now: Now) -> None:
        """Begin the leases of a call on items of one topic of a shard."""
        shard = self._writers[topic.shard_id].shard
        assert shard is not None
        by_lease: dict[int, list[ShardItem]] = {}
        if call.lease_ms:
            by_lease[call.lease_ms] = items
        else:
            for item in items:
                by_lease.setdefault(item.lease_ms or call.lease_ms_default, []).append(item)
        for lease_ms, some in by_lease.items():
            shard.deliver(some, now.steady_ms + lease_ms, now.server_ms)
        if call.says_begun:
            shard.hand_over(items)

    def _without_expired(self, items: list[ShardItem], clocks: dict[int, Now]) -> list[ShardItem]:
        """End the items whose TTL is over. Return the others, without those behind an expired one that perhaps holds
        their topic as a dead letter: they are unclaimed.
        """
        left: list[ShardItem] = []
        holding: set[ShardTopic] = set()
        for item in self._ones(items):
            topic, shard_id = item.topic, item.topic.shard_id
            writer, now = self._writers[shard_id], clocks[shard_id]
            shard = writer.shard
            assert shard is not None
            if topic in holding:
                if shard.unclaim(item):
                    writer.wake()
            elif item.expires_at <= now.server_ms:
                shard.expire([item], now.server_ms)
                writer.wake()
                if topic.holds_on_dead:
                    holding.add(topic)
            else:
                left.append(item)
        return left
