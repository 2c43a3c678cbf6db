"""The verbs on consumers: the list of their waiting calls and leases, and the end of the leases of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from foqs.contract import requests as of
from foqs.contract.permissions import sees_hosts
from foqs.host import arguments
from foqs.host.dispatch.consumers import Consumers, WaitingConsumer
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.consumer_rows import ConsumerRows, place_of
from foqs.host.verbs.page_reads import Slices, lost
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.holder import ConsumerPage, LeaseHolder, ReleaseResult, RowKey, holder_name, without_hosts
from foqs.model.item import ItemEvent, Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import check_group, parts
from foqs.shard.port import Rewrite
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter

LEASES_PER_SLICE = 2_000
"""Leases, waiting calls or consumers that one slice of the event loop's time looks at."""
RELEASES_PER_SLICE = 250
"""Leases that one slice ends, each of which costs far more than a look."""
RELEASES_WAITING_MAX = 4_000
"""Ends of leases of one call that wait for transactions; as many fit into one."""


class _Wanted(NamedTuple):
    """The consumers and topics of a call, after all checks."""

    namespace: int
    topic: str
    group: str | None
    name_prefix: str = ""

    def has(self, topic: ShardTopic) -> bool:
        return topic.namespace == self.namespace and self.has_names(*topic.shown)

    def has_names(self, topic: str, group: str | None) -> bool:
        return (not self.topic or topic == self.topic) and (self.group is None or (group or "") == self.group)


class ConsumerVerbs:
    """The verbs listConsumers and releaseLeases.

    Both walk through the leases of the wanted shards in slices, so that no number of leases holds the event loop.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        consumers: Consumers,
        waiting: Waiting,
        slices: Slices,
        host: str,
        wall_ms: Callable[[], int],
        count_event: Callable[[int, ItemEvent, int], None],
    ) -> None:
        """`host` is the name of this host; `count_event` counts events by namespace."""
        self._namespaces = namespaces
        self._shards = shards
        self._consumers = consumers
        self._waiting = waiting
        self._slices = slices
        self._host = host
        self._wall_ms = wall_ms
        self._count_event = count_event

    async def list_consumers(self, context: CallContext, request: of.ListConsumersRequest) -> ConsumerPage:
        """Return up to `limit` rows: the waiting calls of this host, and the leases of the wanted shards.

        Raises UnavailableError for shards that this host does not serve, unless the caller accepts a `partial` page,
        which names these.
        """
        number = self._namespaces.get(request.namespace_name).number
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        wanted = _Wanted(number, *_topic_and_group(request.topic, request.group), request.name_prefix or "")
        rows = ConsumerRows(place_of(request.page_token) if request.page_token else None, limit)
        away = self._away(context)
        if away and not request.partial:
            raise self._shards.none_served(away)
        for shard_id in sorted(self._asked(context)):
            if shard_id not in away:
                await self._count_held(shard_id, wanted, rows, is_partial=bool(request.partial))
        pairs = _calls_and_topics(list(self._consumers.waiting), number)
        while some := list(islice(pairs, LEASES_PER_SLICE)):
            await self._slices.run(partial(self._add_waiting, some, wanted, rows))
        known = self._consumers.known() if not wanted.topic else []
        for first in range(0, len(known), LEASES_PER_SLICE):
            some_known = known[first : first + LEASES_PER_SLICE]
            await self._slices.run(partial(self._add_known, some_known, wanted, rows))
        if context.shards is not None and not request.partial:
            self._shards.asked(context.shards)  # The leases of a shard that has left meanwhile are not all counted.
        found, token = rows.page(self._host, self._at_ms)
        page = ConsumerPage(found, token, [self._shards.not_served(shard_id).message for shard_id in away])
        return page if context.peer or sees_hosts(context) else without_hosts(page)

    async def release_leases(self, context: CallContext, request: of.ReleaseLeasesRequest) -> ReleaseResult:
        """End the leases of a consumer on the wanted shards as releases; return once that is durable.

        Raises UnavailableError for shards that this host does not serve, and if leases could not be ended.
        """
        namespace = self._namespaces.serving(request.namespace_name)
        name = arguments.check_consumer(request.consumer, is_shown=True)
        assert name is not None, "it is required"
        wanted = _Wanted(namespace.number, *_topic_and_group(request.topic, request.group))
        if away := self._away(context):
            raise self._shards.none_served(away)
        release = _Release(self._waiting, wanted, name, at_most_once=bool(request.at_most_once))
        failure: FoqsError | None = None
        try:
            for shard_id in sorted(self._asked(context)):
                await self._release_on(shard_id, release)
        except FoqsError as error:
            failure = error
        try:
            await release.end()
        except FoqsError as error:
            failure = failure or error
        self._count_event(namespace.number, ItemEvent.NACKED, release.released)
        if failure is not None or release.failed_count:
            raise _incomplete(release, failure)
        return ReleaseResult(release.released, release.left_at_most_once)

    def _asked(self, context: CallContext) -> Collection[int]:
        return self._shards.here if context.shards is None else context.shards

    def _away(self, context: CallContext) -> list[int]:
        """Return the wanted shards that this host does not serve."""
        if context.shards is None:
            self._shards.check_owns_any()
        return sorted(shard_id for shard_id in self._asked(context) if not self._shards.serves(shard_id))

    # ---- the list ----

    async def _count_held(self, shard_id: int, wanted: _Wanted, rows: ConsumerRows, *, is_partial: bool) -> None:
        writer = self._shards.writers.get(shard_id)
        shard = writer.shard if writer is not None else None
        if shard is None:
            if is_partial:
                return
            raise lost(shard_id)
        leases = list(shard.index.leases.values())  # A bundle is there once for each of its items.
        for first in range(0, len(leases), LEASES_PER_SLICE):
            some = leases[first : first + LEASES_PER_SLICE]
            await self._slices.run(partial(self._add_held, shard, some, wanted, rows))

    def _add_held(self, shard: ShardState, leases: Sequence[ShardItem], wanted: _Wanted, rows: ConsumerRows) -> None:
        counts: dict[tuple[LeaseHolder | None, bool, ShardTopic], list[int]] = {}
        samples: dict[tuple[LeaseHolder | None, bool, ShardTopic], ShardItem] = {}
        for item in leases:
            if item.phase is not Phase.LEASED:
                continue
            # What is the same for many items is found once for each kind of these.
            kind = item.holder, not item.delivered_at, item.topic
            found = counts.get(kind)
            if found is None:
                counts[kind] = [1, item.delivered_at]
                samples[kind] = item
            else:
                found[0] += 1
                if item.delivered_at < found[1]:
                    found[1] = item.delivered_at
        names: dict[ShardTopic, tuple[str, str] | None] = {}
        for kind, (count, since_ms) in counts.items():
            holder, _, topic = kind
            if topic not in names:
                names[topic] = (topic.shown[0], topic.shown[1] or "") if wanted.has(topic) else None
            shown_names = names[topic]
            if shown_names is None:
                continue
            name = holder.name if holder is not None else holder_name(samples[kind], shard.opened_at_ms)
            if name.startswith(wanted.name_prefix):
                rows.add(RowKey(name, *shown_names), holder, 0, count, since_ms)
        rows.prune()

    def _add_waiting(self, pairs: Sequence[tuple[WaitingConsumer, str]], wanted: _Wanted, rows: ConsumerRows) -> None:
        for call, hidden_name in pairs:
            topic, group = parts(hidden_name) if call.prefix is None else ("", call.group or "")
            holder = call.holder
            if wanted.has_names(topic, group) and holder.name.startswith(wanted.name_prefix):
                key = RowKey(holder.name, topic, group, call.prefix is not None, call.prefix or "")
                rows.add(key, holder, waiting=1)
        rows.prune()

    def _add_known(self, known: Sequence[tuple[int, LeaseHolder]], wanted: _Wanted, rows: ConsumerRows) -> None:
        for number, holder in known:
            is_wanted = number == wanted.namespace and holder.name.startswith(wanted.name_prefix)
            if is_wanted and holder.dequeued_s is not None and not self._consumers.is_forgotten(holder):
                rows.add(RowKey(holder.name, "", ""), holder)
        rows.prune()

    def _at_ms(self, clock_s: float) -> int:
        return self._wall_ms() - round((self._consumers.clock() - clock_s) * 1000)

    # ---- releases ----

    async def _release_on(self, shard_id: int, release: _Release) -> None:
        writer, shard = self._shards.serving(shard_id)
        keys = list(shard.index.leases)
        first = 0
        while first < len(keys):
            first = await self._slices.run(partial(release.some, writer, shard, keys, first))
            if release.open_count >= RELEASES_WAITING_MAX:
                await release.end()


class _Release:
    """The leases that one call ends."""

    def __init__(self, waiting: Waiting, wanted: _Wanted, name: str, *, at_most_once: bool) -> None:
        self._waiting = waiting
        self._wanted = wanted
        self._name = name
        self._at_most_once = at_most_once
        self._answer: Answer | None = None
        self.open_count = 0
        """Ends of leases that wait for `end`."""
        self.released = self.left_at_most_once = self.failed_count = 0
        self.failure: FoqsError | None = None
        self.has_begun = False
        """True once the end of a lease was passed to a shard."""

    def some(self, writer: ShardWriter, shard: ShardState, keys: Sequence[int], first: int) -> int:
        """Look at some leases by key, and end those of the consumer. Returns the position of the next one."""
        if writer.shard is not shard:
            raise lost(shard.shard_id)
        picked: dict[ShardItem, None] = {}
        last = min(len(keys), first + LEASES_PER_SLICE)
        while first < last and len(picked) < RELEASES_PER_SLICE:
            key, first = keys[first], first + 1
            item = shard.index.leases.get(key)
            if item is None or not self._is_wanted(shard, item):
                continue
            item = shard.index.one(item, key)
            if item is None or item in picked:
                continue
            if item.at_most_once and not self._at_most_once:
                self.left_at_most_once += 1
                continue
            picked[item] = None
            for behind in item.topic.run:  # Those behind it come back with it.
                if self._is_wanted(shard, behind) and (self._at_most_once or not behind.at_most_once):
                    picked[behind] = None
        if picked:
            self._end_leases(writer, shard, list(picked))
        return first

    def _is_wanted(self, shard: ShardState, item: ShardItem) -> bool:
        return (
            item.phase is Phase.LEASED
            and self._wanted.has(item.topic)
            and holder_name(item, shard.opened_at_ms) == self._name
        )

    def _end_leases(self, writer: ShardWriter, shard: ShardState, items: list[ShardItem]) -> None:
        now_ms = writer.now_ms()
        rewrites: list[Rewrite | None] = [
            shard.failed_attempt(item, now_ms, cause="released", release=True) for item in items
        ]
        shard.end_leases(items)
        if self._answer is None:
            self._answer = Answer(self._waiting)
        shard.settle(items, rewrites, self._answer, range(self.open_count, self.open_count + len(items)))
        self.open_count += len(items)
        self.has_begun = True
        writer.wake()

    async def end(self) -> None:
        """Return once all ends of leases are durable or have failed."""
        answer, count = self._answer, self.open_count
        self._answer, self.open_count = None, 0
        if answer is None:
            return
        await answer.done
        self.released += count - len(answer.errors)
        self.failed_count += len(answer.errors)
        if answer.errors and self.failure is None:
            self.failure = next(iter(answer.errors.values()))


def _incomplete(release: _Release, failure: FoqsError | None) -> UnavailableError:
    """Return the error of a call that did not end all leases, or of which that is not known."""
    cause = failure or release.failure
    assert cause is not None, "something failed"
    return UnavailableError(
        f"{release.released} leases were ended, and others perhaps not: {cause.message}: call again",
        retry_after_ms=cause.retry_after_ms,
        nothing_done=cause.nothing_done and not release.has_begun,
    )


def _calls_and_topics(calls: Sequence[WaitingConsumer], namespace: int) -> Iterator[tuple[WaitingConsumer, str]]:
    """Yield the waiting calls of a namespace, with each of their topics; with a prefix once."""
    for call in calls:
        if call.namespace == namespace:
            for name in call.topics if call.prefix is None else ("",):
                yield call, name


def _topic_and_group(topic: str | None, group: str | None) -> tuple[str, str | None]:
    """Return a topic and its group, which a call can leave out, after a check."""
    name = arguments.check_topic(topic) if topic else ""
    return name, None if group is None else check_group(group, name)
