"""Topic discovery: the topics of a namespace that hold items, with their counts over all shards."""

from __future__ import annotations

import asyncio
import heapq

from foqs.core import limits, order
from foqs.core.calls import TopicPage, TopicStats
from foqs.core.errors import UnavailableError
from foqs.core.namespace import Namespace
from foqs.core.topic import ShardTopic
from foqs.host import arguments
from foqs.host.dispatch import Dispatcher
from foqs.host.shards import Shards


class Topics:
    def __init__(self, shards: Shards, dispatcher: Dispatcher) -> None:
        self._shards = shards
        self._dispatcher = dispatcher

    async def page(self, namespace: Namespace, prefix: str, limit: int, page_token: str) -> TopicPage:
        """Topics of the shards that this host owns, by name, after `page_token`.

        A shard that is lost or sick stops no discovery of the others. Raises UnavailableError when the host owns none,
        and while rows are still being counted.
        """
        arguments.check_range("limit", limit, 1, limits.PAGE_ITEMS_MAX)
        self._shards.check_owns_any()
        await self._wait_for_counts()
        names = {
            name
            for _, shard in self._shards.owned()
            for (number, name), topic in shard.book.topics.items()
            if number == namespace.number and name > page_token and name.startswith(prefix) and not topic.empty
        }
        page = heapq.nsmallest(limit + 1, names)
        token = page[limit - 1] if len(page) > limit else ""
        return TopicPage([self._stats(namespace.number, name) for name in page[:limit]], token)

    async def _wait_for_counts(self) -> None:
        try:
            async with asyncio.timeout(limits.COUNT_WAIT_MS_MAX / 1000):
                for runner, _ in self._shards.owned():
                    await runner.counted.wait()
        except TimeoutError:
            raise UnavailableError(
                "the items of this host are still being counted: try again", nothing_done=True
            ) from None

    def _stats(self, number: int, name: str) -> TopicStats:
        parts: list[ShardTopic] = []
        for _, shard in self._shards.owned():
            topic = shard.book.topics.get((number, name))
            if topic is not None:
                parts.append(topic)
        ready = sum([part.ready for part in parts])
        held = self._dispatcher.held(number, name)
        claiming = [part.claim_head for part in parts if part.claim_head != order.LAST]
        places = [item.place for item in held] + claiming + [part.window.head for part in parts]
        first = min([place for place in places if order.FIRST < place < order.LAST], default=order.LAST)
        oldest = [part.window.oldest_due_at() for part in parts] + [item.due_at for item in held]
        oldest += map(order.due_at_of, claiming)
        return TopicStats(
            topic=name,
            ready=ready,
            delayed=sum([part.delayed for part in parts]),
            leased=sum([part.leased for part in parts]),
            dead=sum([part.dead for part in parts]),
            most_urgent_priority=order.urgency_of(first) if ready and first != order.LAST else 0,
            oldest_ready_at_ms=min([due_at for due_at in oldest if due_at is not None], default=0) if ready else 0,
        )
