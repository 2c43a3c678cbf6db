"""The delivery of held items to calls: its order, and the leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.tokens import Tokens
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.shard.writer.shard_writer import ShardWriter


@mypyc_attr(allow_interpreted_subclasses=True)
class HandOut:
    """The part of the dispatcher that delivers items. It owns the calls that wait.

    No item is delivered before a more urgent ready item; prefetched items behind such an item wait until it is claimed.
    """

    def __init__(self, writers: Mapping[int, ShardWriter], clock: Callable[[], float], settings: SettingsTable) -> None:
        """`writers` is the live mapping of the host's shard writers by id; `clock` is monotonic, in seconds.

        `settings` is the table that the shards read as well.
        """
        self.queues = Queues()
        self.prefetch = Prefetch(self.queues, writers, settings)
        self.tokens = Tokens(self.queues, self.prefetch, clock, settings)
        self._writers = writers
        self._clock = clock
        self.settings = settings
        self._lingering: dict[TopicQueue, None] = {}
        """Topics that are served again in the next tick."""
        self._due_calls: dict[DequeueCall, None] = {}
        """Calls for any topic that can be answered once all events of a turn are applied."""

    def answer(self, call: DequeueCall, items: list[ShardItem]) -> None:
        call.items = items
        self.queues.end_call(call)
        for queue in call.wants:
            if (queue.has_prefetched_for_calls or queue.has_claims_for_calls) and not queue.calls:
                self.prefetch.release_for_calls(queue)
            if not queue.parts:
                self._rest(queue)  # It does not exist here. Sweeps would forget many such names too late.
        if call.answered is not None and not call.answered.done():
            call.answered.set_result(None)

    def serve(self, queue: TopicQueue) -> None:
        """Deliver the deliverable items, then claim the items that calls still want."""
        if queue.version != self.settings.version:
            self.tokens.refresh(queue)
        if queue.namespace in self.settings.dequeue_paused:
            self._pause(queue)
            return
        if queue.is_throttled:
            if queue.is_paused:
                self._pause_topic(queue)
            else:
                self.tokens.admit(queue)
        while queue.calls:
            call = next(iter(queue.calls))
            if call.ring is not None:
                self._due_calls[call] = None
                break
            want = call.wants[queue]
            count = queue.servable_count(want)
            if count == 0:
                break
            if count < want:
                self.prefetch.claim(queue)  # First, so that the call waits for ready items as well.
                if not queue.has_waited(call, self._clock()):
                    self._lingering[queue] = None
                    break
            if not self._deliver_to(call):
                break
        if (queue.has_prefetched_for_calls or queue.has_claims_for_calls) and not queue.calls:
            self.prefetch.release_for_calls(queue)
        self.prefetch.claim(queue)
        if queue.is_throttled:
            self._settle_tokens(queue)

    def _settle_tokens(self, queue: TopicQueue) -> None:
        if self.tokens.settle(queue):
            queue.tenant.leave(queue)

    def _rest(self, queue: TopicQueue) -> None:
        if self.queues.deactivate_if_idle(queue):
            self._forget(queue)

    def _forget(self, queue: TopicQueue) -> None:
        self.tokens.forget(queue)
        queue.tenant.leave(queue)

    def _pause_topic(self, queue: TopicQueue) -> None:
        """End the calls that wait only for paused topics.

        Each call is checked once here; if another of its topics is paused later, that topic checks it again.
        """
        for call in self.tokens.paused_calls(queue):
            if call.ring is not None:
                self._detach(call, queue)
            elif all(other.is_paused for other in call.wants):
                call.is_paused = True
                self.answer(call, [])
        if queue.pausing:
            self._lingering[queue] = None

    def _detach(self, call: DequeueCall, queue: TopicQueue) -> None:
        """Remove a topic from the wants of a call for any topic."""
        call.count_left += self.queues.unwant(call, queue)
        if (queue.has_prefetched_for_calls or queue.has_claims_for_calls) and not queue.calls:
            self.prefetch.release_for_calls(queue)

    def _pause(self, queue: TopicQueue) -> None:
        """End the waiting calls, and unclaim the prefetched items."""
        for call in list(islice(queue.calls, limits.DEQUEUES_ENDED_PER_TICK)):
            call.is_paused = True
            self.answer(call, [])
        if queue.calls:
            self._lingering[queue] = None
        self.prefetch.unclaim(queue, queue.buffer.items)
        if queue.is_throttled:
            self._settle_tokens(queue)

    def _deliver_to(self, call: DequeueCall) -> bool:
        """Deliver items of all the topics where the call is the first one; it ends if it gets any.

        Returns True if items have left a buffer; otherwise the call must wait for claims.
        """
        turns = [queue for queue in call.wants if next(iter(queue.calls)) is call]
        for queue in turns:
            if queue.version != self.settings.version:
                self.tokens.refresh(queue)
        clocks: dict[int, Now] = {}
        next_items, unbacked = call.next_items(turns, clocks, self._writers)
        while unbacked:
            for queue, items in unbacked.items():
                self.prefetch.claim_for(queue, call, items, self._clock())
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

    def _deliver(
        self,
        queue: TopicQueue,
        call: DequeueCall,
        items: list[ShardItem],
        clocks: dict[int, Now],
        given: list[ShardItem],
    ) -> None:
        """Lease the next items of the buffer to the call, and add the items that have not expired to `given`."""
        self.prefetch.take(queue, items, self._clock())
        given_count = len(given)
        for item in items:
            shard_id = item.topic.shard_id
            writer, now = self._writers[shard_id], clocks[shard_id]
            shard = writer.shard
            assert shard is not None
            shard.deliver(item, now.steady_ms + (call.lease_ms or item.lease_ms or call.lease_ms_default))
            if call.says_begun:
                shard.hand_over(item)
            if item.expires_at <= now.server_ms:
                shard.expire(item, now.server_ms)
                writer.wake()
            else:
                item.delivered_at = now.server_ms
                given.append(item)
        if queue.is_throttled:
            self.tokens.spend(queue, len(given) - given_count)
