"""The stock of a topic on this host, for reports to other hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from foqs.background.tasks import Tasks
from foqs.contract.requests import EnqueueRequest
from foqs.host.admission.depths import Depths
from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.tenant import ReadyRing
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.model import limits, order
from foqs.model.aging import priority_at
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.shared_caps import CapKey
from foqs.model.stocks import NO_STOCK, Stock, Topic

READ_MS_MIN = 200
"""Shortest time between two reads of the meta database for unknown names of namespaces."""


class Stocks:
    """Implements foqs.cluster.routing.routing.LocalHost with the items and shards of this host."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        shards: Shards,
        namespaces: Namespaces,
        now_s: Callable[[], float],
        tasks: Tasks,
        depths: Depths,
        consumers: Consumers,
    ) -> None:
        """`now_s` is monotonic. `tasks` are those that read namespaces; the host stops them.

        `depths` counts the items of topics with a limit. `consumers` knows the calls that wait.
        """
        self._dispatcher = dispatcher
        self._depths = depths
        self.waits = consumers.waits_elsewhere
        self._shards = shards
        self.serves = shards.serves
        self._namespaces = namespaces
        self.number_of = namespaces.number_of
        self._now_s = now_s
        self._read_s = float("-inf")
        """The start of the last read."""
        self._reads_count = 0
        """Reads that have begun."""
        self._tasks = tasks
        self._reading: asyncio.Task[None] | None = None
        """The last read."""
        self._turn = asyncio.Lock()

    def serves_any(self) -> bool:
        return self._shards.owns_any

    def served(self) -> Collection[int]:
        return [shard.shard_id for _, shard in self._shards.owned()]

    def can_take(self, namespace_name: str, shard_id: int) -> bool:
        if shard_id in self._shards.draining:
            return False
        number = self.number_of(namespace_name)
        namespace = None if number is None else self._namespaces.settings.by_number.get(number)
        return namespace is None or namespace.settings.tier == self._shards.tier_of(shard_id)

    async def know(self, namespace_name: str | None) -> None:
        """Read the namespaces again if this name is unknown, because another host possibly made it just now.

        Returns after limits.ROUTE_WAIT_MS_MAX at the latest, also when the meta database does not answer. Raises
        UnavailableError if this host ends meanwhile.
        """
        if namespace_name is None or self.number_of(namespace_name) is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.ROUTE_WAIT_MS_MAX / 1000):
                await self._read_anew(self._reads_count, namespace_name)

    async def _read_anew(self, reads_count: int, namespace_name: str) -> None:
        """Wait until the name is known, or a read has ended that began after the first `reads_count` reads.

        Calls share their reads.
        """
        async with self._turn:
            while self.number_of(namespace_name) is None:
                if self._reading is not None:
                    await asyncio.wait([self._reading])  # A call that gives up cancels it for no other.
                    if self._reading.cancelled():
                        raise UnavailableError("this host ends: ask another one", nothing_done=True)
                if self._reads_count > reads_count:
                    return
                pause_s = self._read_s + READ_MS_MIN / 1000 - self._now_s()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                self._read_s = self._now_s()
                self._reads_count += 1
                self._reading = self._tasks.spawn(self._read(), "namespaces asked for")

    async def _read(self) -> None:
        with suppress(FoqsError):  # The caller gets the error of an unknown namespace, and can try again.
            await self._namespaces.refresh()

    def known_topics(self) -> Collection[Topic]:
        return [topic for topic, queue in self._dispatcher.queues.by_topic.items() if queue.base_queue is None]

    def cap_rate(self, key: CapKey) -> float:
        settings, (number, name) = self._dispatcher.settings, key
        return settings.policy(number, name).deliveries_per_second_max if name else settings.caps.get(number, 0.0)

    def cap_fed(self, key: CapKey) -> None:
        self._dispatcher.tokens.fed(*key)

    def stock(self, topic: Topic) -> Stock:
        """Return the ready items of healthy shards that can be delivered now, minus those that local calls want."""
        queue = self._dispatcher.queues.by_topic.get(topic)
        if queue is None or queue.is_held:
            return NO_STOCK
        if queue.keyed_ring is not None:
            is_short = bool(queue.in_flight_max) and self._dispatcher.permits.is_short(topic)
            return _stock_of_ring(queue, queue.keyed_ring, is_short=is_short)
        first = min(queue.first_unclaimed(), queue.buffer.first)
        if first == order.LAST and queue.in_flight_max and not self._dispatcher.permits.is_short(topic):
            # A call that comes for its items asks for permits.
            first = min([part.window.head for part in queue.parts.values()], default=order.LAST)
        if first == order.LAST:
            return NO_STOCK
        ready_count = max(1, sum([part.ready for part in queue.parts.values()])) - queue.waiting_count
        if first == order.FIRST or ready_count <= 0:
            return NO_STOCK
        place, due_at = order.urgency_of(first), order.due_at_of(first)
        if aging_ms := self.aging_ms(topic):
            return Stock(ready_count, priority_at(place, due_at, aging_ms), due_at, place)
        return Stock(ready_count, place, due_at)

    def aging_ms(self, topic: Topic) -> int:
        """Return the wait in which items of a topic become more urgent by one priority; 0 for strict priorities."""
        return self._dispatcher.settings.aging_ms(*topic)

    def depth(self, topic: Topic) -> int:
        return self._depths.here(topic)

    def limited_topics(self, request: EnqueueRequest) -> Sequence[Topic]:
        number = self.number_of(request.namespace_name or "")
        if number is None or self._depths.settings.depth_limits(number) is None:
            return ()
        return self._depths.limited(number, {new.topic or "" for new in request.items or ()})

    def follow_depths(self, elsewhere: Callable[[Topic], int]) -> None:
        self._depths.elsewhere = elsewhere

    def weight(self, topic: Topic) -> int:
        return self._dispatcher.settings.policy(*topic).weight

    def is_waited_for(self, topic: Topic) -> bool:
        queue = self._dispatcher.queues.by_topic.get(topic)
        return queue is not None and bool(
            queue.calls or (queue.keyed_ring is not None and queue.keyed_ring.callers_count)
        )


def _stock_of_ring(base: TopicQueue, ring: ReadyRing, *, is_short: bool) -> Stock:
    """Return the ready items of a base and its keyed topics, as far as the first one in turn tells.

    A call that comes for items without permits asks for some, unless the base waits for permits already.
    """
    if not ring.entries:
        lacks = base.in_flight_max and not is_short and any(part.lacks_permits for part in base.parts.values())
        return Stock(1) if lacks else NO_STOCK
    first = ring.first()
    sort_key = min(first.first_unclaimed(), first.buffer.first)
    keyed_count = len(ring.entries) - (base in ring.entries)
    if ring.levels is not None:  # Its keyed topics can have many items each.
        keyed_count = sum([part.keyed.ready for part in base.parts.values() if part.keyed is not None])
    ready_count = keyed_count + max(0, sum([part.ready for part in base.parts.values()]) - base.waiting_count)
    if sort_key == order.LAST:
        # The key in turn has an item out, and has not left the ring yet.
        ready_count -= 1
        return Stock(ready_count) if ready_count > 0 else NO_STOCK
    if sort_key == order.FIRST:
        return Stock(max(1, ready_count))
    oldest = [found for part in first.parts.values() if (found := part.oldest_due_at()) is not None]
    return Stock(max(1, ready_count), order.urgency_of(sort_key), min(oldest, default=0))
