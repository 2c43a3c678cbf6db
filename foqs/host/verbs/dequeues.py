"""Dequeue: the wants of a call, the wait for items, and the deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import islice

from foqs.contract.requests import DequeueRequest
from foqs.host import arguments
from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.tenant import ReadyRing
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.model import limits
from foqs.model.calls import NO_CONTENT, CallContext, Delivery
from foqs.model.delivered import Delivered, DeliveredBundle
from foqs.model.errors import OverloadedError, PausedError
from foqs.model.groups import check_consumed
from foqs.model.item import ItemEvent, ShardItem, count_of, undivided
from foqs.model.namespace import Namespace
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import is_of_group, parts


class Dequeues:
    """The verb dequeue, which asks the dispatcher for items, waits for them, and returns them to the caller.

    The host ticks it, and drains it before the front door. It owns the calls that wait.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        count_event: Callable[[int, ItemEvent, int], None],
        consumers: Consumers,
    ) -> None:
        """`clock` is monotonic, in seconds; `count_event` counts events of items by namespace."""
        self._namespaces = namespaces
        self._shards = shards
        self._dispatcher = dispatcher
        self._clock = clock
        self._count_event = count_event
        self._consumers = consumers
        self._draining = False
        self._waiting: dict[DequeueCall, None] = {}
        """Calls that wait, the oldest first."""

    async def drain(self) -> None:
        """Answer every waiting call with no items, and let no call wait from now on.

        Up to 50,000 calls wait, and up to 200,000 topics of calls, so that they end in several turns of the event loop.
        """
        self._draining = True
        done_count = 0
        for call in list(self._waiting):
            if call.done:
                continue
            self._dispatcher.deliveries.answer(call, [])
            done_count += 1 + len(call.wants)
            if done_count >= limits.DEQUEUES_ENDED_PER_TICK:
                await asyncio.sleep(0)
                done_count = 0

    def tick(self) -> None:
        """End the waiting calls of a host that has lost its shards, because other hosts can serve them."""
        if self._waiting and not self._shards.owns_any:
            for call in list(islice(self._waiting, limits.DEQUEUES_ENDED_PER_TICK)):
                self._dispatcher.end(call)

    async def dequeue(self, context: CallContext, request: DequeueRequest) -> Sequence[Delivery]:
        """Lease ready items of the topics. Without items, wait for them up to `wait_ms`, but not beyond the deadline.

        With `topic_prefix`, lease up to `count` items of any topics that begin with it, of one group. Raises
        UnavailableError when this host owns no shard, also when it loses the last one meanwhile; PausedError when all
        topics are paused; and OverloadedError when too many calls or topics wait.
        """
        namespace = self._namespaces.serving(request.namespace_name)
        settings, lease_ms = namespace.settings, request.lease_ms
        if settings.dequeue_paused:
            raise self._paused(namespace, ())
        if lease_ms is not None:
            arguments.check_range("lease_ms", lease_ms, limits.LEASE_MS_MIN, settings.lease_ms_max)
        wait_ms = arguments.check_range("wait_ms", request.wait_ms, 0, limits.WAIT_MS_MAX)
        wants, any_count = arguments.check_demands(request)
        consumer = arguments.check_consumer(request.consumer)
        if wants and all(self._dispatcher.settings.policy(namespace.number, name).dequeue_paused for name in wants):
            raise self._paused(namespace, wants)
        self._shards.check_owns_any()
        self._check_groups(namespace, wants)
        queues = self._dispatcher.queues
        if queues.waiting_count >= limits.DEQUEUES_WAITING_MAX:
            raise OverloadedError(
                f"{queues.waiting_count} dequeue calls wait on this host, which is its limit: try again",
                retry_after_ms=1_000,
            )
        if queues.waiting_topics_count + len(wants) > limits.DEQUEUE_TOPICS_WAITING_MAX:
            raise OverloadedError(
                f"dequeue calls wait for {queues.waiting_topics_count} topics on this host, and may for "
                f"{limits.DEQUEUE_TOPICS_WAITING_MAX}: name fewer topics, or try again",
                retry_after_ms=1_000,
            )
        if context.deadline_s is not None:
            wait_ms = min(wait_ms, max(0, round((context.deadline_s - self._clock()) * 1000)))
        says_begun = bool(request.says_begun)
        holder = self._consumers.asks(context, namespace.number, consumer)
        call = DequeueCall(lease_ms, settings.lease_ms_default, self._clock(), says_begun, holder)
        if any_count is None:
            self._dispatcher.start(namespace.number, wants, call)
        else:
            ring = self._dispatcher.rings.ring(namespace.number, request.topic_prefix or "", request.group or "")
            await self._start_any(ring, any_count, call)
        with nullcontext() if call.done else self._consumers.waits(context, namespace.number, wants, request):
            items = await self._wait_for_items(namespace, wants, call, wait_ms)
        if not items:
            self._shards.check_owns_any()
        self._count_event(namespace.number, ItemEvent.DELIVERED, count_of(items))
        return self._delivered(items, marks_suspects=says_begun)

    def _check_groups(self, namespace: Namespace, wants: Collection[str]) -> None:
        """Check that the groups of the named topics exist.

        A host without shards does not check, because it can know a new group later than the owners of shards.
        """
        groups = self._namespaces.settings.groups.get(namespace.number)
        if groups is not None or any(map(is_of_group, wants)):
            for name in wants:
                check_consumed(groups, *parts(name))

    async def _start_any(self, ring: ReadyRing, count: int, call: DequeueCall) -> None:
        """Start a call for any topic of a ring. The topics of a new one are found in several turns of the loop."""
        while ring.unfilled:
            self._dispatcher.rings.fill(ring)
            await asyncio.sleep(0)
        self._dispatcher.start_any(ring, count, call)

    async def _wait_for_items(
        self, namespace: Namespace, wants: Collection[str], call: DequeueCall, wait_ms: int
    ) -> list[ShardItem]:
        served = self._outcome(call, namespace, wants)  # A name of its own, or mypy believes call.items to stay None.
        if served is not None:
            return served
        if self._draining:  # Checked here because draining can begin while the topics of a prefix are found.
            wait_ms = 0
        loop = asyncio.get_running_loop()
        call.answered = loop.create_future()
        timer = loop.call_later(wait_ms / 1000, self._out_of_time, loop, call, call.since_s + wait_ms / 1000)
        call.timer = timer
        self._waiting[call] = None
        try:
            await call.answered
        except asyncio.CancelledError:
            if call.items:
                self._dispatcher.deliveries.unclaim(call.items)
            raise
        finally:
            call.timer.cancel()
            del self._waiting[call]
            if call.items is None:
                self._dispatcher.end(call)
        return self._outcome(call, namespace, wants) or []

    def _outcome(self, call: DequeueCall, namespace: Namespace, wants: Collection[str]) -> list[ShardItem] | None:
        """Return the items of a call that is over, or None.

        Raises PausedError if a pause ended it, and the errors of `check_consumed` if the end of a group did.
        """
        if call.is_paused:
            self._check_groups(namespace, wants)
            raise self._paused(namespace, wants)
        return call.items

    def _paused(self, namespace: Namespace, wants: Collection[str]) -> PausedError:
        """Make the error of a pause; `wants` are the topics that the call names."""
        settings = self._dispatcher.settings
        name = next(iter(wants), None)
        shown = "" if name is None else " of group ".join([repr(part) for part in parts(name) if part])
        known = settings.by_number.get(namespace.number, namespace).settings
        if name is None or known.dequeue_paused:
            return PausedError(
                f"dequeues of namespace {namespace.name!r} are paused by an operator{arguments.why(known.pause_reason)}"
            )
        reason = settings.policy(namespace.number, name).reason
        others = f" and {len(wants) - 1} others" if len(wants) > 1 else ""
        return PausedError(f"dequeues of topic {shown}{others} are paused by an operator{arguments.why(reason)}")

    def _out_of_time(self, loop: asyncio.AbstractEventLoop, call: DequeueCall, deadline_s: float) -> None:
        """Answer without items, unless some are ready: these are worth their commit even without a wait."""
        if call.done:
            return
        overdue_s = self._clock() - deadline_s
        if overdue_s < limits.CLAIM_WAIT_MS_MAX / 1000 and call.has_candidates():
            call.timer = loop.call_later(limits.TICK_MS / 1000, self._out_of_time, loop, call, deadline_s)
        else:
            self._dispatcher.end(call)

    def _delivered(self, items: list[ShardItem], *, marks_suspects: bool) -> Delivered:
        """Make the deliveries of items. Each item drops its content, which its consumer has, as leases can be long."""
        ahead_by_shard: dict[int, int] = {}
        """The lead of the database server's clock over the steady clock, in milliseconds."""
        parts: list[Delivery | DeliveredBundle] = []
        topic: ShardTopic | None = None
        for item in items:
            if item.topic is not topic:  # What items of one topic share is found once.
                topic = item.topic
                name, group = topic.shown
                ordering_key, fairness_key = topic.ordering_key, topic.fairness_key
                if topic.shard_id not in ahead_by_shard:
                    ahead_by_shard[topic.shard_id] = self._shards.writers[topic.shard_id].now().on_server(0)
                ahead_ms = ahead_by_shard[topic.shard_id]
            # `shown_due_at` and `ItemContent.fields` written out: a call for each item costs more than what they do.
            receipt, (payload, metadata, trace_context) = item.receipt, item.first_content or NO_CONTENT
            delivery = Delivery(
                receipt[: receipt.rindex(":")],
                receipt,
                name,
                item.priority,
                item.due_at or item.enqueued_at,
                item.enqueued_at,
                item.lease_due_at + ahead_ms,
                item.failed_attempts + 1,
                payload,
                metadata,
                trace_context.decode(errors="replace") if trace_context else None,
                None,
                group,
                ordering_key,
                fairness_key,
            )
            if item.bundle is None:
                parts.append(delivery)
                if marks_suspects and self._is_suspect(item):  # A suspect is no part of a bundle.
                    delivery.suspect = True
            else:
                payloads = item.bundle.payloads
                parts.append(DeliveredBundle(delivery, topic.shard_id, item.key, item.deliveries + 1, payloads))
            for part in undivided([item]):
                part.forget_content()
        return Delivered(parts)

    def _is_suspect(self, item: ShardItem) -> bool:
        shard = self._shards.writers[item.topic.shard_id].shard
        return shard is not None and item.key in shard.suspects
