"""Limits of items in flight: the permits of topics on the shards of this host, and the asks for more.

Every topic with a limit has a book in the meta database (foqs.model.permit_book), which notes each shard's permits. A
shard claims no more items of the topic than it has permits. docs/decisions/0067-items-in-flight.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits
from foqs.model.namespace import SettingsTable
from foqs.model.permit_book import WANT_MS, PermitAnswer, PermitAsk, PermitBook, ShardAsk
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import is_of_group
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter

KEPT_MS = 2 * limits.SECOND_MS
"""Time for which a topic waits for permits after the last call for its items: consumers of other hosts come again."""
RETRY_MS = 50
"""Pause between two asks of a topic that waits for permits."""
TURN_MS = 200
"""Time for which a host keeps new permits, though others wait for them."""
AGAIN_MS = WANT_MS / 3
"""A topic that waits asks again after this time, or its book forgets that it waits."""
ANY_TOPICS_MAX = 100
"""Topics that a call for any topic asks for permits of."""


class _Short:
    """A topic whose ready items wait for permits."""

    __slots__ = ("again_s", "count", "until_s")

    def __init__(self, count: int, until_s: float) -> None:
        self.count = count
        """The permits that calls lack."""
        self.until_s = until_s
        self.again_s = 0.0
        """The time before which it does not ask again."""


class Permits:
    """The part of the dispatcher that knows the permits. It writes those of each topic of a shard, and the fields
    of a queue about its limit.

    Before it gives permits back, it claims no more with them; it uses new ones only when the book has answered. So the
    book never has fewer permits for a shard than the shard uses, even if the ask fails.
    """

    def __init__(
        self,
        queues: Queues,
        prefetch: Prefetch,
        writers: Mapping[int, ShardWriter],
        clock: Callable[[], float],
        settings: SettingsTable,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._queues = queues
        self._prefetch = prefetch
        self._writers = writers
        self._clock = clock
        self._settings = settings
        self._is_limiting = False
        """True if a topic had a limit at the last tick."""
        self.on_wanted: Callable[[], None] = lambda: None
        """Is called when asks are to be sent, and when the first topic has a limit."""
        self._wanted: dict[Topic, None] = {}
        """Topics whose books are to be asked."""
        self._asking: dict[Topic, None] = {}
        """Topics whose books have not answered yet."""
        self._short: dict[Topic, _Short] = {}
        self._lacking: dict[int, dict[TopicQueue, None]] = {}
        """Topics with ready items and without permits, by namespace, in which calls for any topic find nothing."""
        self._refused: dict[int, int] = {}
        """Shards for which a book knows a later owner, or has no room, with the epoch of the ask."""
        self._noted: dict[Topic, set[int]] = {}
        """Shards without the topic for which its book possibly has permits."""

    @property
    def has_wanted(self) -> bool:
        return bool(self._wanted)

    @property
    def has_short(self) -> bool:
        """True if ready items wait for permits."""
        return bool(self._short)

    # ---- the limit ----

    def limit(self, queue: TopicQueue, in_flight_max: int) -> None:
        """Apply a new limit. Below a lower one nothing more is claimed until the book has answered."""
        before, queue.in_flight_max = queue.in_flight_max, in_flight_max
        parts = [*queue.parts.values(), *queue.sick_parts.values()]
        for part in parts:
            if not in_flight_max:
                part.permits = None
            elif part.permits is None or in_flight_max < before:
                part.permits = 0
        if not in_flight_max:
            self._forget(queue)
        if any(part.out_count or part.permits_granted for part in parts):
            self._want(queue.topic)

    def gone(self, topic: ShardTopic) -> None:
        """Give back the permits of a topic that its shard has forgotten."""
        if topic.permits is not None:
            key = topic.namespace, topic.name
            self._noted.setdefault(key, set()).add(topic.shard_id)
            self._want(key)

    def forget(self, queue: TopicQueue) -> None:
        """Forget a queue that is forgotten."""
        if queue.in_flight_max:
            self._forget(queue)

    def _forget(self, queue: TopicQueue) -> None:
        self._short.pop(queue.topic, None)
        self._found(queue)
        self._asked(queue)

    # ---- items that wait for permits ----

    def settle(self, queue: TopicQueue) -> None:
        """Hold no more items with a limit than calls wait for, and ask for the permits that these lack.

        `queue` is a topic with a limit, or a keyed topic of it.
        """
        excess = len(queue.buffer) - queue.waiting_count
        if excess > 0:
            self._prefetch.unclaim(queue, queue.buffer.least_urgent(excess))
        self.check(queue.base_queue or queue)

    def check(self, queue: TopicQueue) -> None:
        """Ask for permits that calls lack, and give those back that others wait for."""
        lacks = any(part.lacks_permits for part in queue.parts.values())
        if lacks and not is_of_group(queue.name):
            self._lacking.setdefault(queue.namespace, {})[queue] = None
        elif queue.lacks_permits:
            self._found(queue)
        queue.lacks_permits = lacks
        short = self._short.get(queue.topic)
        count = self._lacked_count(queue) if lacks else 0
        now_s = self._clock()
        if count > 0:
            if short is None:
                short = self._short[queue.topic] = _Short(count, now_s)
            short.count, short.until_s = count, now_s + KEPT_MS / 1000
        elif short is not None and not lacks:
            del self._short[queue.topic]
            short = None
        has_more = any(part.permits_granted > max(part.permits or 0, part.out_count) for part in self._parts(queue))
        if has_more or (count > 0 and short is not None and now_s >= short.again_s):
            self._want(queue.topic)

    def check_any(self, tenant: Tenant) -> None:
        """Ask for permits of topics that a call for any topic can have items of."""
        for queue in list(islice(self._lacking.get(tenant.namespace, ()), ANY_TOPICS_MAX)):
            self.check(queue)

    def is_short(self, topic: Topic) -> bool:
        """True if the topic waits for permits here, so that nobody need come for its items."""
        return topic in self._short

    def _lacked_count(self, queue: TopicQueue) -> int:
        """Return the permits that calls lack, up to the limit."""
        count = queue.waiting_count - len(queue.buffer) - queue.coming_count
        if queue.keyed_ring is not None:
            count += queue.keyed_ring.wanted_count()
        if not is_of_group(queue.name):
            count += queue.tenant.waiting_any_count
        return min(count, queue.in_flight_max, limits.TRANSACTION_CLAIMS_MAX)

    def _found(self, queue: TopicQueue) -> None:
        queue.lacks_permits = False
        of_namespace = self._lacking.get(queue.namespace)
        if of_namespace is not None:
            of_namespace.pop(queue, None)
            if not of_namespace:
                del self._lacking[queue.namespace]

    def _parts(self, queue: TopicQueue) -> list[ShardTopic]:
        return [*queue.parts.values(), *queue.sick_parts.values()]

    # ---- asks ----

    def _want(self, topic: Topic) -> None:
        """Ask the book of a topic soon."""
        queue = self._queues.by_topic.get(topic)
        if queue is not None and not queue.is_asking_permits:
            queue.is_asking_permits = True
            queue.tenant.asking_permits_count += 1
        if topic not in self._wanted:
            self._wanted[topic] = None
            self.on_wanted()

    def take_asks(self, count_max: int) -> dict[Topic, PermitAsk]:
        """Return up to `count_max` asks. Each must be answered, or failed, before its topic is asked again."""
        topics = [topic for topic in islice(self._wanted, count_max) if topic not in self._asking]
        asks: dict[Topic, PermitAsk] = {}
        for topic in topics:
            del self._wanted[topic]
            self._asking[topic] = None
            asks[topic] = self._ask_of(topic)
        return asks

    def _ask_of(self, topic: Topic) -> PermitAsk:
        version = self._settings.policies_version(topic[0])  # First: another thread can bring newer policies meanwhile.
        limit = self._settings.policy(*topic).in_flight_max
        noted = self._noted.pop(topic, set())
        shards = {shard_id: shard for shard_id, writer in self._writers.items() if (shard := writer.shard) is not None}
        parts = {shard_id: _part(shard, topic) for shard_id, shard in shards.items()}
        wanted = self._wanted_counts(topic, parts)
        asks: list[ShardAsk] = []
        for shard_id, part in parts.items():
            epoch, since_epoch = shards[shard_id].epoch, shards[shard_id].since_epoch
            if part is None or part.permits is None:
                if shard_id in noted or part is not None:
                    used_count = part.out_count if part is not None and limit else 0
                    asks.append(ShardAsk(shard_id, epoch, 0, used_count, 0, since_epoch))
                continue
            if wanted and shard_id not in wanted:
                part.permits = min(part.permits, part.out_count)  # What it has free is for the others here.
            wanted_count = wanted.get(shard_id, 0)
            asks.append(ShardAsk(shard_id, epoch, part.permits, part.out_count, wanted_count, since_epoch))
        return PermitAsk(limit, tuple(asks), version)

    def _wanted_counts(self, topic: Topic, parts: Mapping[int, ShardTopic | None]) -> dict[int, int]:
        """Return the permits that each shard wants, those with the most urgent items first."""
        short = self._short.get(topic)
        if short is None:
            return {}
        lacking = [
            (part.window.head, shard_id, part)
            for shard_id, part in parts.items()
            if part is not None and part.lacks_permits and self._can_have(shard_id)
        ]
        left_count, wanted = short.count, dict[int, int]()
        for _, shard_id, part in sorted(lacking, key=_head_of):
            if count := min(left_count, part.permits_wanted_count):
                wanted[shard_id] = count
                left_count -= count
        return wanted

    def _can_have(self, shard_id: int) -> bool:
        """True if the shard is healthy, and no book has refused its owner."""
        shard = self._writers[shard_id].shard
        is_refused = shard is not None and self._refused.get(shard_id) == shard.epoch
        return not is_refused and shard_id not in self._queues.sick

    def answered(self, topic: Topic, ask: PermitAsk, answer: PermitAnswer | None) -> TopicQueue | None:
        """Take the answer of a book, or None if it is unknown. Returns the queue, which can have more permits."""
        self._asking.pop(topic, None)
        queue = self._queues.by_topic.get(topic)
        is_current = self._settings.policy(*topic).in_flight_max == ask.limit
        for one in ask.shards:
            writer = self._writers.get(one.shard_id)
            shard = writer.shard if writer is not None else None
            if shard is None or not shard.since_epoch <= one.epoch <= shard.epoch:
                continue
            part = _part(shard, topic)
            if part is None or part.permits is None:
                if answer is None:  # Else the book keeps permits that nobody uses.
                    self._noted.setdefault(topic, set()).add(one.shard_id)
                    self._wanted[topic] = None
                elif part is not None:
                    part.permits_granted = 0
                continue
            if answer is None:
                part.permits_granted = max(part.permits_granted, one.kept_count, one.used_count) + one.wanted_count
                continue
            if one.shard_id not in answer.permits:
                self._refused[one.shard_id] = one.epoch
            permits = part.permits_granted = answer.permits.get(one.shard_id, 0)
            # What is in use above the number that was kept is not used again.
            usable = permits if permits > one.used_count else min(one.kept_count, permits)
            if not is_current:
                usable = min(usable, part.permits)
            if usable > part.permits and queue is not None:
                queue.permits_got_s = self._clock()
            part.permits = usable
        short = self._short.get(topic)
        if short is not None:
            short.again_s = self._clock() + RETRY_MS / 1000
        if not is_current:
            self._want(topic)
        if queue is not None and topic not in self._wanted:
            self._asked(queue)
        return queue

    def _asked(self, queue: TopicQueue) -> None:
        if queue.is_asking_permits:
            queue.is_asking_permits = False
            queue.tenant.asking_permits_count -= 1

    # ---- books in which shards wait ----

    def books_read(self, books: Mapping[Topic, PermitBook], now_ms: int) -> None:
        """Take the books in which shards wait: give permits back that others need, and ask for those that are free."""
        for topic, book in books.items():
            limit = self._settings.policy(*topic).in_flight_max
            mine = [shard_id for shard_id, entry in book.shards.items() if self._owns(shard_id, entry.epoch)]
            if not limit or not mine or topic in self._asking:
                continue
            queue = self._queues.by_topic.get(topic)
            has_turn = queue is not None and self._clock() < queue.permits_got_s + TURN_MS / 1000
            if not has_turn and book.waiting_count(limit, now_ms):
                self._share_out(topic, book, mine, limit, now_ms)
            asked_ms = [book.shards[shard_id].asked_at_ms for shard_id in mine if book.shards[shard_id].wanted_count]
            if asked_ms and (book.free_count(limit) > 0 or now_ms - min(asked_ms) > AGAIN_MS):
                self._want(topic)

    def _owns(self, shard_id: int, epoch: int) -> bool:
        """True if this host owns the shard, and a book that has noted this epoch knows no later owner."""
        writer = self._writers.get(shard_id)
        return writer is not None and writer.shard is not None and writer.shard.epoch >= epoch

    def _share_out(self, topic: Topic, book: PermitBook, mine: list[int], limit: int, now_ms: int) -> None:
        """Use fewer permits, so that others get their shares as soon as leases end, and all permits that are idle."""
        needed_count, waiting_count = book.needy_count(limit, now_ms), book.waiting_count(limit, now_ms)
        share = book.share(limit)
        given_count = 0
        for shard_id in mine:
            entry, shard = book.shards[shard_id], self._writers[shard_id].shard
            assert shard is not None
            part = _part(shard, topic)
            if part is None or part.permits is None:
                self._noted.setdefault(topic, set()).add(shard_id)
                self._want(topic)
                continue
            part.permits_granted = max(part.permits_granted, entry.permits)
            given_count += max(0, entry.permits - part.permits)  # It was given before, and some leases run yet.
            is_idle = topic not in self._short and part.permits > part.out_count
            kept_count, others_count = (part.out_count, waiting_count) if is_idle else (share, needed_count)
            count = max(0, min(part.permits - kept_count, others_count - given_count))
            part.permits -= count
            given_count += count
            if part.permits_granted > max(part.permits, part.out_count):
                self._want(topic)

    def tick(self) -> list[Topic]:
        """Ask again for topics that have waited for long, and end the waits of topics that no call has wanted lately.

        Returns the latter.
        """
        if self._settings.limits_in_flight is not self._is_limiting:
            self._is_limiting = self._settings.limits_in_flight
            self.on_wanted()
        if not self._short:
            return []
        now_s, ended = self._clock(), list[Topic]()
        for topic in list(islice(self._short, limits.SWEEP_QUEUES_MAX)):
            short = self._short.pop(topic)
            if now_s >= short.until_s:
                ended.append(topic)
                self._want(topic)  # It waits no more.
                continue
            self._short[topic] = short
            if now_s >= short.again_s + AGAIN_MS / 1000:
                self._want(topic)
        return ended


def _part(shard: ShardState, topic: Topic) -> ShardTopic | None:
    return shard.index.topics.get(topic)


def _head_of(lacking: tuple[int, int, ShardTopic]) -> tuple[int, int]:
    return lacking[0], lacking[1]
