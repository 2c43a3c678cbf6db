"""Enqueue: admission by quota, placement on a shard, and the wait for its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.host import arguments
from foqs.host.dispatch import Dispatcher
from foqs.host.shards import Shards
from foqs.host.waiting import Answer, Waiting
from foqs.model import ids, limits, order
from foqs.model.calls import DeliveryPolicy, EnqueueResult, NewItemFields, PositionErrors
from foqs.model.errors import FoqsError, NotWrittenError, OverloadedError, PausedError, RateLimitedError, TooLargeError
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace
from foqs.model.rate import MinuteWindow
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState


class Enqueues:
    """`clock` is monotonic, in seconds."""

    def __init__(
        self,
        shards: Shards,
        dispatcher: Dispatcher,
        waiting: Waiting,
        clock: Callable[[], float],
        check_open: Callable[[int], None],
    ) -> None:
        """`check_open` raises for a namespace, by number, that lets no items in."""
        self._shards = shards
        self._dispatcher = dispatcher
        self._waiting = waiting
        self._clock = clock
        self._check_open = check_open
        self._rates: dict[int, MinuteWindow] = {}
        self._current: ShardState | None = None
        self._left_count = 0
        """Items that the current shard still gets before the next one has its turn."""

    async def enqueue(self, namespace: Namespace, news: Sequence[NewItemFields]) -> EnqueueResult:
        """Write what is valid, in one shard; `errors` has the rest. Raises FoqsError when nothing was written."""
        if namespace.settings.enqueue_paused:
            raise PausedError(f"enqueues of namespace {namespace.name!r} are paused by an operator")
        self._check_open(namespace.number)
        arguments.check_batch("items", len(news), namespace.settings.batch_items_max)
        rate, now_ms = self._admit(namespace, len(news))
        item_ids = [""] * len(news)
        errors: PositionErrors = {}
        avoided: set[int] = set()
        shard = self._place(avoided, len(news))
        topics: dict[str, ShardTopic] = {}
        made = self._make_items(shard, namespace, news, topics, errors)
        if not made:
            return EnqueueResult(item_ids, errors)
        shard.index.name_namespace(namespace)
        rate.add(len(made), now_ms)
        for topic in topics.values():
            shard.index.add_topic(topic)
        items = list(made.values())
        while True:
            try:
                await self._write(shard, items)
                break
            except NotWrittenError:
                # Certainly not there, so it may go elsewhere without being there twice.
                avoided.add(shard.shard_id)
                # It may have been closed, and counted there as empty.
                self._check_open(namespace.number)
                shard = self._place(avoided, len(news))
                shard.index.name_namespace(namespace)
                now_ms = self._shards.now_ms(shard.shard_id)
                for position, item in made.items():
                    _move(item, news[position], shard, now_ms)
        for position, item in made.items():
            item_ids[position] = ids.item_id(shard.shard_id, item.key)
        return EnqueueResult(item_ids, errors)

    def forget(self, namespaces: set[int]) -> None:
        """Drop what is remembered of namespaces that are not in the set."""
        for number in self._rates.keys() - namespaces:
            del self._rates[number]

    def _place(self, avoided: set[int], count: int) -> ShardState:
        """The shard of the last call while it has room, else the healthy one with the shortest buffer.

        Items that come together so go into one transaction, and leave together (docs/performance.md, Runs).
        """
        best = self._current
        if (
            best is not None
            and self._left_count > 0
            and self._has_room(best)
            and self._shards.state(best.shard_id) is best
            and not self._dispatcher.is_sick(best.shard_id)
            and best.shard_id not in avoided
        ):
            self._left_count -= count
            return best
        healthy = [
            shard
            for _, shard in self._shards.owned()
            if shard.shard_id not in avoided and not self._dispatcher.is_sick(shard.shard_id)
        ]
        last_id = best.shard_id if best is not None else -1
        # Among equals the next one after the last, so that each has its turn.
        best = min(healthy, key=lambda s: (s.buffered_count, s.shard_id <= last_id, s.shard_id), default=None)
        if best is None:
            raise OverloadedError(
                "no shard of this host takes items now: nothing was enqueued",
                retry_after_ms=limits.NO_SHARD_RETRY_MS,
            )
        self._current, self._left_count = best, self._shards.placement_run_items(best.shard_id) - count
        return best

    def _has_room(self, shard: ShardState) -> bool:
        """Less waits there than a run, and than fills its next two transactions."""
        run_items = self._shards.placement_run_items(shard.shard_id)
        return (
            shard.buffered_count < min(run_items, 2 * limits.TRANSACTION_INSERTS_MAX)
            and shard.buffered_bytes < 2 * limits.TRANSACTION_INSERT_BYTES_MAX
        )

    def _make_items(
        self,
        shard: ShardState,
        namespace: Namespace,
        news: Sequence[NewItemFields],
        new_topics: dict[str, ShardTopic],
        errors: PositionErrors,
    ) -> dict[int, ShardItem]:
        """The items by position; what is not valid goes to `errors`, topics that are not there yet to `new_topics`."""
        index, shard_id, number, settings = shard.index, shard.shard_id, namespace.number, namespace.settings
        topics = index.topics
        now_ms = self._shards.now_ms(shard_id)
        made: dict[int, ShardItem] = {}
        found: dict[str, ShardTopic | FoqsError | None] = {}
        """By name: the topic, None where there is none yet, or what is wrong with the name, once for all its items."""
        for position, new in enumerate(news):
            name = new.topic or ""
            if name not in found:
                found[name] = topics.get((number, name)) or arguments.topic_fault(name)
            topic = found[name]
            if isinstance(topic, FoqsError):
                errors[position] = topic
                continue
            try:
                content = arguments.checked_content(new, settings)
                due_at = arguments.deliver_after(new, settings, now_ms)
                if topic is None:
                    topic = found[name] = new_topics[name] = index.new_topic(number, name, len(new_topics))
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
                continue
            key = index.next_key()
            priority = new.priority
            assert priority is not None, "it was checked"
            made[position] = ShardItem(
                key,
                topic,
                priority,
                due_at,
                order.sort_key(priority, due_at, key, shard_id),
                Phase.INSERTING,
                now_ms,
                due_at + (new.ttl_ms or settings.ttl_ms_default),
                new.lease_ms or 0,
                new.delivery == DeliveryPolicy.AT_MOST_ONCE,
                content,
            )
        return made

    def _admit(self, namespace: Namespace, count: int) -> tuple[MinuteWindow, int]:
        """Before anything is done for the items: a namespace over its quota must not cost the others.

        Returns where those that are valid have to be counted, and the time.
        """
        limit = namespace.settings.enqueues_per_minute_max
        if count > limit:
            raise TooLargeError(
                f"{count} items in one call can never fit into the {limit} enqueues per minute of namespace "
                f"{namespace.name!r}: send calls of {limit} items at most"
            )
        rate = self._rates.setdefault(namespace.number, MinuteWindow())
        now_ms = int(self._clock() * 1000)
        wait_ms = rate.wait_ms(count, limit, now_ms)
        if wait_ms:
            raise RateLimitedError(
                f"namespace {namespace.name!r} is over its limit of {limit} enqueues per minute: "
                f"{count} more fit in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )
        return rate, now_ms

    async def _write(self, shard: ShardState, items: list[ShardItem]) -> None:
        answer = Answer(self._waiting)
        size_bytes = sum([item.size_bytes for item in items])
        shard.insert(items, size_bytes, answer.completion)
        self._shards.wake(shard.shard_id)
        await answer.wait()


def _move(item: ShardItem, new: NewItemFields, shard: ShardState, now_ms: int) -> None:
    """To a shard that did not have it; `now_ms` is the clock that it goes by from now on."""
    ttl_ms = item.expires_at - item.due_at
    item.enqueued_at = now_ms
    item.due_at = arguments.due_at_of(new, now_ms)
    item.expires_at = item.due_at + ttl_ms
    item.key = shard.index.next_key()
    item.topic = shard.index.topic(item.topic.namespace, item.topic.name)
    item.sort_key = order.sort_key(item.priority, item.due_at, item.key, shard.shard_id)
