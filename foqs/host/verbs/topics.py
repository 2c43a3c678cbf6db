"""Topic discovery: the topics of a namespace that hold items, with their counts over all shards."""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Collection, Sequence
from itertools import groupby, islice

from foqs.contract.requests import ActiveTopicsRequest
from foqs.host import arguments
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.metrics.rates import Rates
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.head_priorities import Head, is_place, read_priorities
from foqs.host.verbs.page_reads import Slices
from foqs.model import limits, order
from foqs.model.calls import CallContext, TopicPage, TopicStats
from foqs.model.errors import UnavailableError
from foqs.model.topic import ItemCounts, KeyedTopics, ShardTopic
from foqs.model.topic_name import hidden

SLICE_TOPICS_MAX = 125
"""Topics, counted once per shard, that a page reads in one turn of the event loop, which takes about a millisecond."""

KEYS_SHOWN_MAX = 16
"""Keys of a topic that are checked for its most urgent and its oldest item."""


class Topics:
    """The verb getActiveTopics, which lists the topics of a namespace in pages, in the order of their names.

    A page starts where the last one ended. It is built in slices, so that no page holds the event loop.
    """

    def __init__(
        self, namespaces: Namespaces, shards: Shards, dispatcher: Dispatcher, slices: Slices, rates: Rates
    ) -> None:
        self._namespaces = namespaces
        self._shards = shards
        self._dispatcher = dispatcher
        self._slices = slices
        self._rates = rates

    async def get_active_topics(self, context: CallContext, request: ActiveTopicsRequest) -> TopicPage:
        """Return up to `limit` topics of the shards that this host owns, by name, after `page_token`.

        A sick shard counts like a healthy one. Raises UnavailableError when the host owns no shard and the call names
        none, and while rows are still being counted. It also raises it for shards without a server, unless the caller
        accepts a `partial` page, which names these shards.
        """
        namespace = self._namespaces.serving(request.namespace_name)
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        prefix, partial = request.prefix, request.partial
        if context.shards is None:
            self._shards.check_owns_any()
        asked = self._shards.here if context.shards is None else context.shards
        lost = sorted(at for at in asked if not self._shards.serves(at))
        if lost and not partial:
            raise self._shards.none_served(lost)
        await self._wait_for_counts()
        found: list[TopicStats] = []
        heads: list[Head] = []
        after: str | None = request.page_token
        while after is not None and len(found) <= limit:
            after = await self._slices.run(
                functools.partial(self._find, context.shards, namespace.number, prefix, after, limit + 1, found, heads)
            )
        if heads:
            for at, priority in (await read_priorities(self._shards, heads)).items():
                found[at].most_urgent_priority = priority
        if context.shards is not None and not partial:
            self._shards.asked(context.shards)  # A shard that has left meanwhile is not counted in full.
        if request.with_rates:
            await self._slices.each(functools.partial(self._add_rates, namespace.number), found)
        token = hidden(found[limit - 1].topic, found[limit - 1].group) if len(found) > limit else ""
        return TopicPage(found[:limit], token, [self._shards.not_served(at).message for at in lost])

    def _add_rates(self, number: int, some: Sequence[TopicStats]) -> list[None]:
        for stats in some:
            stats.rates = self._rates.of_topic(number, hidden(stats.topic, stats.group))
        return []

    def _find(
        self,
        asked: Collection[int] | None,
        number: int,
        prefix: str,
        after: str,
        count: int,
        found: list[TopicStats],
        heads: list[Head],
    ) -> str | None:
        """Add topics that hold items to `found`, up to `count` in all, and check about SLICE_TOPICS_MAX topics.

        The first items of those that age are added to `heads`.

        Returns the name to continue after, or None at the end.
        """
        namespaces = [
            shard.index.namespaces.get(number)
            for _, shard in self._shards.owned()
            if asked is None or shard.shard_id in asked
        ]
        parts_of = [namespace.after(after, prefix) for namespace in namespaces if namespace is not None]
        scanned_count = 0
        for name, parts in groupby(heapq.merge(*parts_of, key=_name), key=_name):
            if scanned_count >= SLICE_TOPICS_MAX or len(found) >= count:
                return after
            some = list(parts)
            scanned_count += len(some)
            after = name
            if any(part.total or (part.keyed is not None and part.keyed.total) for part in some):
                found.append(self._stats(some, len(found), heads))
        return None

    async def _wait_for_counts(self) -> None:
        try:
            async with asyncio.timeout(limits.COUNT_WAIT_MS_MAX / 1000):
                for writer, _ in self._shards.owned():
                    await writer.counted.wait()
        except TimeoutError:
            raise UnavailableError(
                "the items of this host are still being counted: try again", nothing_done=True
            ) from None

    def _stats(self, parts: list[ShardTopic], position: int, heads: list[Head]) -> TopicStats:
        keyed = [part.keyed for part in parts if part.keyed is not None]
        counts: list[ItemCounts] = [*parts, *keyed]
        ready = sum([part.ready for part in counts])
        prefetched = self._dispatcher.queues.prefetched(parts[0].namespace, parts[0].name)
        shown = parts if not keyed else [*parts, *_first_of(keyed)]
        claiming = [part.claim_head for part in shown if part.claim_head != order.LAST]
        sort_keys = [prefetched.first, *claiming, *[part.window.head for part in shown]]
        first = min([sort_key for sort_key in sort_keys if order.FIRST < sort_key < order.LAST], default=order.LAST)
        oldest = [part.oldest_due_at() for part in shown]
        if not any(part.is_serial for part in shown):
            oldest += [prefetched.oldest_due_at(), *map(order.due_at_of, claiming)]
        topic, group = parts[0].shown
        settings = self._dispatcher.settings
        has_first = bool(ready) and first != order.LAST
        if has_first and is_place(first, aging_ms := settings.aging_ms(parts[0].namespace, parts[0].name)):
            heads.append(Head(position, first, aging_ms))
        return TopicStats(
            topic=topic,
            ready=ready,
            delayed=sum([part.delayed for part in counts]),
            leased=sum([part.leased for part in counts]),
            dead=sum([part.dead for part in counts]),
            most_urgent_priority=order.urgency_of(first) if has_first else 0,
            oldest_ready_at_ms=min([due_at for due_at in oldest if due_at is not None], default=0) if ready else 0,
            group=group,
            serial=any(part.is_serial for part in parts),
            in_flight_max=settings.policy(parts[0].namespace, parts[0].name).in_flight_max or None,
            ordering_keys=sum([one.holding_count - one.holding_fair_count for one in keyed]) or None,
            fairness_keys=sum([one.holding_fair_count for one in keyed]) or None,
        )


def _first_of(keyed: Sequence[KeyedTopics]) -> list[ShardTopic]:
    """Return some keyed topics: of many, the first ones by name stand for all."""
    return [topic for one in keyed for topic in islice(one.by_name.values(), KEYS_SHOWN_MAX)]


def _name(topic: ShardTopic) -> str:
    return topic.name
