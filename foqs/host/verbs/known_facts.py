"""The facts of this host from which explanations are made: settings of operators, shards, topics, and single items."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from foqs.contract.requests import GetFactsRequest
from foqs.host import arguments
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.page_reads import Slices
from foqs.host.verbs.topic_facts import HostTopics
from foqs.model import ids, order
from foqs.model.calls import ItemState, PositionErrors
from foqs.model.cluster import ShardUse
from foqs.model.errors import NotFoundError
from foqs.model.facts import Facts, HostFacts, HostTopic, ItemFacts, ItemStage, ShardFacts, TopicFacts
from foqs.model.failures import failures_of
from foqs.model.groups import GROUPS_PER_TOPIC_MAX, NO_GROUPS
from foqs.model.holder import holder_name
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace
from foqs.model.topic import NamespaceTopics
from foqs.model.topic_name import base_of
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.writer import ownership

TOPICS_ASKED_MAX = 64
"""The most topics in one question."""
TOPICS_PER_SLICE = 2_000
"""Topics that one slice of the event loop's time compares."""
LOOK_UP_MS_MAX = 1_500
"""The time in which the row of an item has to be read, in milliseconds."""


class LooksUp(Protocol):
    """Finds single items; foqs.host.verbs.inspection.Inspection is the real one."""

    def find_rows(
        self, namespace: Namespace, shard_id: int, keys: Sequence[int], found: Callable[[ShardState, ItemRow], None]
    ) -> Awaitable[PositionErrors]: ...


class KnownFacts:
    """Implements foqs.cluster.routing.explain.LocalFacts, and answers the questions of other hosts.

    It only reads, in slices, so that no number of topics holds the event loop.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        dispatcher: Dispatcher,
        shards: Shards,
        topics: HostTopics,
        items: LooksUp,
        slices: Slices,
        quota_left_ms: Callable[[int], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`quota_left_ms` returns the time until the quota of the namespace of this number has room, or 0."""
        self._quota_left_ms = quota_left_ms
        self._namespaces = namespaces
        self._dispatcher = dispatcher
        self._shards = shards
        self._topics = topics
        self._items = items
        self._slices = slices
        self._wall_ms = wall_ms

    # ---- settings of operators ----

    def facts(self, namespace_name: str) -> Facts:
        """Return the facts about the namespace as a whole. Raises UnknownNamespaceError."""
        namespace = self._namespaces.serving(namespace_name)
        settings = namespace.settings
        return Facts(
            namespace.name,
            is_paused=settings.dequeue_paused,
            pause_reason=settings.pause_reason,
            cap=self._dispatcher.settings.caps.get(namespace.number, 0.0),
            is_enqueue_paused=settings.enqueue_paused,
            is_closing=namespace.closing,
            now_ms=self._wall_ms(),
            quota=settings.enqueues_per_minute_max,
            quota_left_ms=self._quota_left_ms(namespace.number),
            tier=settings.tier,
            takes_items=any(
                use is ShardUse.SERVING and self._shards.tier_of(shard_id) == settings.tier
                for shard_id, use in self._shards.uses.items()
            ),
        )

    def of_topic(self, namespace_name: str, name: str) -> TopicFacts:
        """Return the settings of a topic, by its hidden name."""
        number, settings = self._namespaces.serving(namespace_name).number, self._dispatcher.settings
        policy = settings.policy(number, name)
        return TopicFacts(
            name,
            policy.dequeue_paused,
            policy.reason,
            policy.deliveries_per_second_max,
            policy.in_flight_max,
            policy.depth_max,
            policy.enqueue_paused,
            settings.groups.get(number, NO_GROUPS).is_read(base_of(name)),
        )

    def hidden_name(
        self, namespace_name: str, topic: str, group: str | None, ordering_key: str | None, fairness_key: str | None
    ) -> str:
        """Return the hidden name of a topic, or of a key of it, after a check. Raises InvalidArgumentError."""
        number = self._namespaces.serving(namespace_name).number
        buckets = self._dispatcher.settings.policy(number, topic).key_buckets
        return arguments.check_topic_of(topic, group, ordering_key, buckets, fairness_key)

    def number_of(self, namespace_name: str) -> int:
        return self._namespaces.serving(namespace_name).number

    # ---- the facts of this host ----

    async def host_facts(self, request: GetFactsRequest) -> HostFacts:
        """Return the facts of this host that a question is about. Raises UnknownNamespaceError."""
        namespace = self._namespaces.serving(request.namespace_name)
        found = HostFacts(self._wall_ms(), self._shard_facts())
        if request.item_id is not None:
            await self._look_up(namespace, request.item_id, found)
        before = None
        if request.urgency is not None:
            place = request.urgency, request.due_at_ms or 0, request.key or 0, request.shard_id or 0
            before = order.sort_key(*place)
        names: Sequence[str] = (request.names or ())[:TOPICS_ASKED_MAX]
        if request.prefix is not None:
            names = await self._most_ready(namespace.number, request, found)
        reads = [partial(self._topics.topic, namespace.number, name, before) for name in names]
        found.topics = [await self._slices.run(read) for read in reads]
        return found

    def _shard_facts(self) -> list[ShardFacts]:
        found = [
            ShardFacts(shard_id, "lost", 0, cause)
            for shard_id, cause in self._shards.refused.items()
            if shard_id not in self._shards.writers
        ]
        for shard_id, writer in self._shards.writers.items():
            shard = writer.held
            if shard is None:
                found.append(ShardFacts(shard_id, "lost", 0, writer.detail))
                continue
            state, detail = "owned", "" if writer.detail == ownership.OWNED else writer.detail
            if not writer.health.healthy:
                state, detail = "sick", writer.health.reason
            elif shard_id in self._dispatcher.queues.leaving or writer.shard is None:
                state = "leaving"
            elif not shard.index.counted:
                state = "counting"
            found.append(ShardFacts(shard_id, state, shard.epoch, detail))
        return sorted(found, key=lambda one: one.shard_id)

    # ---- topics ----

    async def _most_ready(self, number: int, request: GetFactsRequest, found: HostFacts) -> list[str]:
        """Return the names of the topics with the most ready items, and note the counts of the whole namespace."""
        prefix, group = request.prefix or "", request.group
        everything, counts = HostTopic(), dict[str, int]()
        for _, shard in self._shards.owned():
            namespace = shard.index.namespaces.get(number)
            if namespace is None:
                continue
            everything.ready += max(0, namespace.ready)
            everything.delayed += max(0, namespace.delayed)
            everything.leased += max(0, namespace.leased)
            everything.dead += max(0, namespace.dead)
            after: str | None = ""
            while after is not None:
                after = await self._slices.run(partial(_count_ready, namespace, prefix, after, group, counts))
        found.topics_count, found.all_topics = len(counts), everything
        limit = min(max(1, request.limit or 1), TOPICS_ASKED_MAX)
        names, best = list(counts), list[tuple[int, str]]()
        for first in range(0, len(names), TOPICS_PER_SLICE):
            some = names[first : first + TOPICS_PER_SLICE]
            best = await self._slices.run(partial(_with_most, best, some, counts, limit))
        return [name for _, name in best]

    # ---- items ----

    async def _look_up(self, namespace: Namespace, item_id: str, found: HostFacts) -> None:
        """Look an item up if its shard is here; of an item with copies, the first that is there."""
        first_id, copies_count = ids.without_copies(item_id)
        shard_id, first_key, _ = ids.parse(first_id)
        if not self._shards.serves(shard_id):
            return

        def act(shard: ShardState, row: ItemRow) -> None:
            if found.item is None:
                found.item = self._item_facts(shard, row)

        keys = range(first_key, first_key + 1 + min(copies_count, GROUPS_PER_TOPIC_MAX))
        try:
            async with asyncio.timeout(LOOK_UP_MS_MAX / 1000):
                errors = await self._items.find_rows(namespace, shard_id, keys, act)
        except TimeoutError:
            found.item_problem = f"shard {shard_id} was not read within {LOOK_UP_MS_MAX} ms"
            return
        problems = [error.message for error in errors.values() if not isinstance(error, NotFoundError)]
        if found.item is None and problems:
            found.item_problem = problems[0]

    def _item_facts(self, shard: ShardState, row: ItemRow) -> ItemFacts:
        writer, topic = self._shards.serving(shard.shard_id)[0], shard.topic_of(row)
        now, state = writer.now(), shard.state_of(row)
        failures = failures_of(row.errors, 1)
        item = ItemFacts(
            ids.item_id(shard.shard_id, row.key),
            topic.name,
            ItemStage[state.name],
            row.urgency,
            row.due_at,
            row.key,
            shard.shard_id,
            row.expires_at,
            failed_attempts=row.failed_attempts,
            error=failures[0].reason if failures else "",
        )
        if state is ItemState.DEAD:
            item.since_ms, item.detail = row.due_at, (row.death_reason or b"").decode(errors="replace")
        elif state is ItemState.DELAYED:
            item.until_ms = row.due_at
        elif (held := shard.index.leases.get(row.key)) is not None:
            item.state = _stage_of(held)
            if held.phase is Phase.LEASED:
                item.until_ms, item.since_ms = now.on_server(held.lease_due_at), held.delivered_at
                item.holder = holder_name(held, shard.opened_at_ms)
        return item


def _stage_of(item: ShardItem) -> ItemStage:
    claim = item.claim
    if item.phase is Phase.LEASED:
        is_inherited = claim is not None and claim.is_inherited and claim.is_ahead and item.holder is None
        return ItemStage.INHERITED if is_inherited else ItemStage.LEASED
    return {
        Phase.CLAIMING: ItemStage.CLAIMING,
        Phase.ARRIVING: ItemStage.CLAIMING,
        Phase.PREFETCHED: ItemStage.PREFETCHED,
        Phase.SETTLING: ItemStage.SETTLING,
    }.get(item.phase, ItemStage.READY)


def _count_ready(
    namespace: NamespaceTopics, prefix: str, after: str, group: str | None, counts: dict[str, int]
) -> str | None:
    """Add the ready items of some topics of a shard that hold items to the counts by name.

    Returns the name to continue after, or None at the end.
    """
    last: str | None = None
    for number, topic in enumerate(namespace.after(after, prefix)):
        if number == TOPICS_PER_SLICE:
            return last
        last = topic.name
        if (group is None or (topic.shown[1] or "") == group) and not (topic.empty and topic.keyed is None):
            counts[topic.name] = counts.get(topic.name, 0) + topic.ready_with_keyed
    return None


def _with_most(
    best: list[tuple[int, str]], names: Sequence[str], counts: Mapping[str, int], limit: int
) -> list[tuple[int, str]]:
    """Return the `limit` topics with the most ready items among those before and these, each with its negated count."""
    return heapq.nsmallest(limit, [*best, *[(-counts[name], name) for name in names]])
