"""The facts about one topic on this host, from memory: its items by the cause of their wait, and the waiting calls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice
from operator import neg

from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.tokens import SLOT_MS
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.host.metrics.rates import Rates
from foqs.host.shards.shards import Shards
from foqs.model import limits, order
from foqs.model.caps import NEVER_S
from foqs.model.facts import HostTopic
from foqs.model.holder import holder_name
from foqs.model.item import Phase
from foqs.model.shared_caps import SharedCap
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import base_of, is_ordered, parts
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter

KEYS_JUDGED_MAX = 250
"""Keys of a topic with items on one shard that are checked; the items of others are in the counts alone."""
KEYS_SCANNED_MAX = 5_000
"""Keys among which these are found."""
LEASES_JUDGED_MAX = 1_000
"""Leases of a shard among which the first end is sought."""
CALLS_JUDGED_MAX = 2_000
"""Waiting calls of a host without shards that are checked."""


class HostTopics:
    """Reads the memory of this host about topics. It changes nothing, and asks neither databases nor other hosts."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        shards: Shards,
        consumers: Consumers,
        rates: Rates,
        now_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """`now_s` is the clock of the dispatcher."""
        self._rates = rates
        self._dispatcher = dispatcher
        self._shards = shards
        self._consumers = consumers
        self._now_s = now_s
        self._wall_ms = wall_ms

    def topic(self, number: int, name: str, before: int | None = None) -> HostTopic:
        """Return the facts about a topic with its keys, by its hidden name.

        The items before the sort key `before` are counted, if it is given.
        """
        found, queues = HostTopic(name), self._dispatcher.queues
        for writer, shard in self._shards.owned():
            topic = shard.index.topics.get((number, name))
            if topic is None:
                continue
            self._add_counts(found, topic)
            for part in chain((topic,), _keyed_with_items(topic)):
                self._divide(found, writer, shard, part)
            if before is not None:
                self._count_before(found, topic, before)
        queue = queues.by_topic.get((number, name))
        if before is not None and queue is not None:
            sort_keys = queue.buffer.sort_keys  # The least urgent comes first.
            found.before += len(sort_keys) - bisect_left(sort_keys, -before + 1, key=neg)
        self._add_rates(found, number, name)
        self._add_caps(found, number, name)
        self._add_calls(found, number, name)
        return found

    def _add_rates(self, found: HostTopic, number: int, name: str) -> None:
        """Add the speed of the topic with all its keys; that of a single key is not measured."""
        rates = self._rates.of_topic(number, name) if name == base_of(name) else None
        if rates is not None:
            found.delivered_per_1000s = round(1_000 * rates.delivered_1min)
            found.ended_per_1000s = round(1_000 * rates.ended_1min)
            found.failed_per_1000s = round(1_000 * rates.failed_1min)

    # ---- items ----

    def _add_counts(self, found: HostTopic, topic: ShardTopic) -> None:
        for counts in (topic,) if topic.keyed is None else (topic, topic.keyed):
            found.ready += max(0, counts.ready)
            found.delayed += max(0, counts.delayed)
            found.leased += max(0, counts.leased)
            found.dead += max(0, counts.dead)

    def _divide(self, found: HostTopic, writer: ShardWriter, shard: ShardState, part: ShardTopic) -> None:
        """Divide the ready items of a topic of a shard by the cause of their wait."""
        if part.ready <= 0 and not part.window.sort_keys:
            return
        if part.shard_id in self._dispatcher.queues.sick:
            found.sick += max(0, part.ready)
            return
        queue = self._dispatcher.queues.by_topic.get((part.namespace, part.name))
        prefetched = 0 if queue is None else order.shards_of(queue.buffer.sort_keys).count(part.shard_id)
        claimed = min(part.claiming_count + prefetched, max(0, part.ready))
        found.claimed += claimed
        found.prefetched += prefetched
        if part.claiming_count and writer.is_idle:
            found.astray += part.claiming_count
        rest = max(part.ready - claimed, len(part.window))
        if rest <= 0:
            return
        if part.is_serial and self._divide_serial(found, writer, shard, part, rest):
            return
        if not part.room:
            holder = part if part.base is None else part.base
            if holder.permits is not None and holder.permits <= holder.out_count:
                found.no_permit += rest
            else:
                found.no_room += rest
            self._note_leases(found, writer, shard, part)
            return
        if not part.window.sort_keys:
            self._note_unread(found, shard, part, rest)
        elif queue is not None and not self._dispatcher.prefetch.can_claim(queue):
            found.no_memory += rest
        else:
            found.free += len(part.window)
            found.unread += rest - len(part.window)
            now_ms = writer.now_ms()
            found.free_ms = max(found.free_ms, now_ms - (part.oldest_due_at() or now_ms))

    def _divide_serial(
        self, found: HostTopic, writer: ShardWriter, shard: ShardState, part: ShardTopic, rest: int
    ) -> bool:
        """Do the same for the items of a serial topic. Return False if its order holds none back."""
        namespace = part.of_namespace
        if namespace is None or not namespace.is_counted():
            found.uncounted += rest
        elif namespace.is_shut(part.slot):
            found.moving += rest
        elif part.holds_on_dead and part.dead:
            found.held += rest
        elif part.has_run_out or part.out_count:
            found.busy += rest
            found.ordering_keys += is_ordered(part.name)
            self._note_leases(found, writer, shard, part)
            if not (part.leased or part.claiming_count or found.prefetched):
                found.astray += rest
        elif part.delayed:
            found.retrying += rest
            found.ordering_keys += is_ordered(part.name)
            found.due_at_ms = found.due_at_ms or shard.timers.first_due_ms_of(part, LEASES_JUDGED_MAX)
        elif not part.room and not part.needs_permits and len(shard.index.leases) < limits.OPEN_LEASES_MAX:
            found.astray += rest
        else:
            return False
        return True

    def _note_unread(self, found: HostTopic, shard: ShardState, part: ShardTopic, rest: int) -> None:
        """Note items of which no window has any."""
        window = part.window
        if window.complete:
            found.astray += rest if shard.index.counted else 0
            return
        found.unread += rest
        if not (window.refilling or part in shard.refills.wanted):
            found.unread_idle += rest

    def _note_leases(self, found: HostTopic, writer: ShardWriter, shard: ShardState, part: ShardTopic) -> None:
        """Note the end of the first lease for which items wait, among the oldest leases of the shard."""
        now = writer.now()
        items = part.run if part.is_serial else islice(shard.index.leases.values(), LEASES_JUDGED_MAX)
        holder = part if part.base is None else part.base
        for item in items:
            if item.phase is Phase.LEASED and holder in (item.topic, item.topic.base):
                until_ms = now.on_server(item.lease_due_at)
                if not found.busy_until_ms or until_ms < found.busy_until_ms:
                    found.busy_until_ms = until_ms
                    found.busy_by = holder_name(item, shard.opened_at_ms)

    def _count_before(self, found: HostTopic, part: ShardTopic, before: int) -> None:
        window = part.window
        found.before += bisect_left(window.sort_keys, before) + part.claiming_count
        if window.edge < before:
            found.before_is_exact = False

    # ---- caps ----

    def _add_caps(self, found: HostTopic, number: int, name: str) -> None:
        queues = self._dispatcher.queues
        queue = queues.by_topic.get((number, name))
        if queue is None or queue.is_paused:
            return
        base, now_s = queue.base_queue or queue, self._now_s()
        # Only read, because an ask of the cap itself would bring tokens to this host.
        slots = {queue.token_wait_slot, base.token_wait_slot} - {0}
        left_s = 0.0 if queue.cap is None or queue.allowed_count else queue.cap.left_s(now_s)
        found.waits_for_token = bool(slots or left_s)
        if not found.waits_for_token and queue.shared_cap is not None and not queue.allowed_count:
            left_s = queue.shared_cap.left_s(now_s)
            found.waits_for_namespace = left_s > 0
        dates_ms = [slot * SLOT_MS - now_s * 1000 for slot in slots if slot > 0]
        if dates_ms or 0 < left_s < NEVER_S:
            left_ms = round(min(dates_ms, default=left_s * 1000))
            found.cap_until_ms, found.cap_late_ms = self._wall_ms() + max(0, left_ms), max(0, -left_ms)
        if slots or left_s:
            found.is_cap_lost = any(isinstance(cap, SharedCap) and cap.is_without_tokens for cap in base.caps())

    # ---- calls ----

    def _add_calls(self, found: HostTopic, number: int, name: str) -> None:
        queues, now_s = self._dispatcher.queues, self._now_s()
        since_s = now_s
        for calls in self._calls(number, name):
            found.waiting_calls += len(calls)
            since_s = min(since_s, min([call.since_s for call in islice(calls, 1)], default=now_s))
        found.waited_ms = round((now_s - since_s) * 1000)
        queue = queues.by_topic.get((number, name))
        if queue is not None:
            some = islice(queue.keyed, KEYS_JUDGED_MAX)
            found.has_consumers = queue.expects_consumers or any(one.expects_consumers for one in some)
        if not self._shards.owns_any:
            self._add_calls_elsewhere(found, number, name)

    def _calls(self, number: int, name: str) -> Iterator[Collection[DequeueCall]]:
        """Yield the calls that wait for a topic: those that name it, and those for any topic with a prefix."""
        queues = self._dispatcher.queues
        queue = queues.by_topic.get((number, name))
        base_name = base_of(name)
        base = queues.by_topic.get((number, base_name))
        for one in (queue, base) if base is not queue else (queue,):
            if one is not None:
                yield one.calls
        if base is not None and base.keyed_ring is not None:
            yield base.keyed_ring.waiting
        tenant = queues.tenants.get(number)
        if tenant is not None:
            for ring in tenant.rings_of(*parts(name)):
                yield ring.waiting

    def _add_calls_elsewhere(self, found: HostTopic, number: int, name: str) -> None:
        """Count the calls that wait on a host without shards, for items of other hosts."""
        base, (topic, group) = base_of(name), parts(name)
        for call in islice(self._consumers.waiting, CALLS_JUDGED_MAX):
            is_named = call.prefix is None and base in call.topics
            is_any = call.prefix is not None and topic.startswith(call.prefix) and (call.group or "") == group
            if call.namespace == number and (is_named or is_any):
                found.waiting_calls += 1
                found.waited_ms = max(found.waited_ms, round((self._now_s() - call.since_s) * 1000))


def _keyed_with_items(topic: ShardTopic) -> Iterator[ShardTopic]:
    """Yield some of the keyed topics that have items which are ready or under lease."""
    if topic.keyed is not None:
        some = islice(topic.keyed.by_name.values(), KEYS_SCANNED_MAX)
        yield from islice((one for one in some if one.rows), KEYS_JUDGED_MAX)
