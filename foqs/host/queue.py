"""The six verbs of the contract on the shards of this host, without Thrift types."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from foqs.core import ids, limits, order
from foqs.core.calls import (
    Delivery,
    EnqueueResult,
    Nack,
    NewItem,
    PositionErrors,
    TopicDemand,
    TopicPage,
    TopicStats,
)
from foqs.core.errors import (
    FoqsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    PausedError,
    RateLimitedError,
    UnavailableError,
)
from foqs.core.item import Item, Phase
from foqs.core.namespace import Namespace
from foqs.core.rate import MinuteWindow
from foqs.host import arguments
from foqs.host.dispatch import DequeueCall, Dispatcher, TopicQueue
from foqs.shard.flight import Ticket
from foqs.shard.runner import ShardRunner
from foqs.shard.state import ShardState

NamespaceOf = Callable[[str], Awaitable[Namespace]]


class Queue:
    """Implements foqs.core.calls.QueueCalls."""

    def __init__(self, runners: Mapping[int, ShardRunner], dispatcher: Dispatcher, namespace_of: NamespaceOf) -> None:
        self._runners = runners
        self._dispatcher = dispatcher
        self._namespace_of = namespace_of
        self._rates: dict[int, MinuteWindow] = {}

    async def enqueue(self, namespace_name: str, items: Sequence[NewItem], bulk: bool) -> EnqueueResult:
        namespace = await self._namespace_of(namespace_name)
        settings = namespace.settings
        if settings.enqueue_paused:
            raise PausedError(f"enqueues of namespace {namespace_name!r} are paused by an operator")
        arguments.check_batch("items", len(items), settings.batch_items_max)
        errors: PositionErrors = {}
        accepted: list[int] = []
        for position, new in enumerate(items):
            try:
                arguments.check_new_item(new, settings)
                accepted.append(position)
            except FoqsError as error:
                errors[position] = error
        ids_by_position = [""] * len(items)
        if accepted:
            runner, shard = self._least_loaded()
            now_ms = runner.now_ms()
            made = self._make_items(shard, namespace, items, accepted, errors, now_ms)
            if made:
                self._admit(namespace, len(made))
                await self._write(runner, shard, [item for _, item in made])
            for position, item in made:
                ids_by_position[position] = ids.item_id(shard.shard_id, item.key)
        return EnqueueResult(ids_by_position, errors)

    async def dequeue(
        self, namespace_name: str, topics: Sequence[TopicDemand], lease_ms: int | None, wait_ms: int
    ) -> list[Delivery]:
        namespace = await self._namespace_of(namespace_name)
        settings = namespace.settings
        if settings.dequeue_paused:
            raise PausedError(f"dequeues of namespace {namespace_name!r} are paused by an operator")
        arguments.check_batch("topics", len(topics), limits.DEQUEUE_TOPICS_MAX)
        if lease_ms is not None:
            arguments.check_range("lease_ms", lease_ms, limits.LEASE_MS_MIN, settings.lease_ms_max)
        arguments.check_range("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)
        wants: dict[str, int] = {}
        for demand in topics:
            name = arguments.check_topic(demand.topic)
            if demand.group is not None:
                raise InvalidArgumentError("group is not supported yet: leave it out")
            count = arguments.check_range("count", demand.count, 1, limits.BATCH_ITEMS_MAX)
            wants[name] = min(wants.get(name, 0) + count, limits.BATCH_ITEMS_MAX)
        if not wants:
            raise InvalidArgumentError("topics is empty: name at least one")
        if self._dispatcher.waiting_count >= limits.DEQUEUES_WAITING_MAX:
            raise OverloadedError("too many dequeue calls are waiting", retry_after_ms=1_000)
        items = await self._wait_for_items(namespace, wants, lease_ms, wait_ms)
        return [self._delivery(item) for item in items]

    async def ack(self, namespace_name: str, receipts: Sequence[str]) -> PositionErrors:
        namespace = await self._namespace_of(namespace_name)
        arguments.check_batch("receipts", len(receipts), limits.BATCH_ITEMS_MAX)

        def settle(position: int, shard: ShardState, item: Item, ticket: Ticket) -> None:
            shard.settle(item, None, ticket, position)

        return await self._on_leases(namespace, receipts, settle)

    async def nack(self, namespace_name: str, nacks: Sequence[Nack]) -> PositionErrors:
        namespace = await self._namespace_of(namespace_name)
        settings = namespace.settings
        arguments.check_batch("nacks", len(nacks), limits.BATCH_ITEMS_MAX)

        def settle(position: int, shard: ShardState, item: Item, ticket: Ticket) -> None:
            nack = nacks[position]
            arguments.check_range("delay_ms", nack.delay_ms, 0, settings.delay_ms_max)
            if nack.metadata is not None:
                arguments.check_metadata(nack.metadata, settings)
            rewrite = shard.failed_attempt(
                item,
                self._runners[shard.shard_id].now_ms(),
                delay_ms=nack.delay_ms,
                reason="dead-lettered by its consumer" if nack.dead_letter else "nacked",
                dead=bool(nack.dead_letter),
                release=bool(nack.release),
                metadata=nack.metadata,
            )
            shard.settle(item, rewrite, ticket, position)

        return await self._on_leases(namespace, [nack.receipt for nack in nacks], settle)

    async def extend_lease(self, namespace_name: str, receipts: Sequence[str], lease_ms: int) -> PositionErrors:
        namespace = await self._namespace_of(namespace_name)
        arguments.check_batch("receipts", len(receipts), limits.BATCH_ITEMS_MAX)
        arguments.check_range("lease_ms", lease_ms, limits.LEASE_MS_MIN, namespace.settings.lease_ms_max)

        def extend(position: int, shard: ShardState, item: Item, ticket: Ticket) -> None:
            shard.extend(item, lease_ms, ticket, position)

        return await self._on_leases(namespace, receipts, extend)

    async def get_active_topics(self, namespace_name: str, prefix: str, limit: int, page_token: str) -> TopicPage:
        namespace = await self._namespace_of(namespace_name)
        arguments.check_range("limit", limit, 1, limits.PAGE_ITEMS_MAX)
        queues = sorted(
            (
                queue
                for queue in self._dispatcher.queues_of(namespace.number)
                if queue.name.startswith(prefix)
                and queue.name > page_token
                and any(not part.empty for part in queue.parts.values())
            ),
            key=lambda queue: queue.name,
        )
        page = queues[:limit]
        token = page[-1].name if len(queues) > limit else ""
        return TopicPage([_stats(queue) for queue in page], token)

    # ---- parts of the verbs ----

    def _least_loaded(self) -> tuple[ShardRunner, ShardState]:
        owned = [(runner, runner.shard) for runner in self._runners.values() if runner.shard is not None]
        if not owned:
            raise OverloadedError("no shard of this host takes items now", retry_after_ms=500)
        return min(owned, key=lambda pair: pair[1].buffered_count)

    def _make_items(
        self,
        shard: ShardState,
        namespace: Namespace,
        news: Sequence[NewItem],
        accepted: list[int],
        errors: PositionErrors,
        now_ms: int,
    ) -> list[tuple[int, Item]]:
        made: list[tuple[int, Item]] = []
        for position in accepted:
            new = news[position]
            try:
                due_at = arguments.deliver_after(new, namespace.settings, now_ms)
                topic = shard.topic(namespace.number, new.topic)
            except FoqsError as error:
                errors[position] = error
                continue
            key = shard.next_key()
            item = Item(key, topic, new.priority, due_at, order.place(new.priority, due_at, key, shard.shard_id))
            item.phase = Phase.INSERTING
            item.enqueued_at = now_ms
            item.expires_at = due_at + (new.ttl_ms or namespace.settings.ttl_ms_default)
            item.lease_ms = new.lease_ms or 0
            item.at_most_once = new.delivery == 1
            item.metadata = new.metadata or b""
            item.payload = new.payload
            made.append((position, item))
        return made

    def _admit(self, namespace: Namespace, count: int) -> None:
        limit = namespace.settings.enqueues_per_minute_max
        rate = self._rates.setdefault(namespace.number, MinuteWindow())
        wait_ms = rate.take(count, limit, int(time.monotonic() * 1000))
        if wait_ms:
            raise RateLimitedError(
                f"namespace {namespace.name!r} is over its limit of {limit} enqueues per minute; wait {wait_ms} ms",
                retry_after_ms=wait_ms,
            )

    async def _write(self, runner: ShardRunner, shard: ShardState, items: list[Item]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(ticket: Ticket) -> None:
            if not done.done():
                if ticket.failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(ticket.failure)

        size_bytes = sum([len(item.payload or b"") + len(item.metadata) for item in items])
        shard.enqueue(items, size_bytes, Ticket(on_done))
        runner.wake()
        await done

    async def _wait_for_items(
        self, namespace: Namespace, wants: dict[str, int], lease_ms: int | None, wait_ms: int
    ) -> list[Item]:
        answered: asyncio.Future[list[Item]] = asyncio.get_running_loop().create_future()
        call = DequeueCall(wants, lease_ms, namespace.settings.lease_ms_default, answered.set_result)
        self._dispatcher.start(namespace.number, call)
        try:
            deadline_s = time.monotonic() + wait_ms / 1000
            bound_s = deadline_s + limits.CLAIM_WAIT_MS_MAX / 1000
            while not answered.done():
                now_s = time.monotonic()
                if now_s >= deadline_s and (
                    now_s >= bound_s or not self._dispatcher.is_hopeful(namespace.number, call)
                ):
                    return []
                # Ready items are worth their commit even when the caller does not wait for new ones.
                until_s = deadline_s if now_s < deadline_s else now_s + limits.TICK_MS / 1000
                await asyncio.wait([answered], timeout=until_s - now_s)
            return answered.result()
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled():
                self._release(answered.result())
            raise
        finally:
            self._dispatcher.end(call)

    def _release(self, items: list[Item]) -> None:
        """Their caller is gone: they are ready again, not counted as an attempt."""
        for item in items:
            runner = self._runners[item.topic.shard_id]
            if runner.shard is not None and item.phase is Phase.LEASED:
                rewrite = runner.shard.failed_attempt(item, runner.now_ms(), release=True)
                runner.shard.settle(item, rewrite, None)
                runner.wake()

    def _delivery(self, item: Item) -> Delivery:
        shard_id = item.topic.shard_id
        payload, item.payload = item.payload, None
        return Delivery(
            id=ids.item_id(shard_id, item.key),
            receipt=ids.receipt(shard_id, item.key, item.deliveries + 1),
            topic=item.topic.name,
            priority=item.priority,
            payload=payload or b"",
            metadata=item.metadata,
            deliver_after_ms=item.due_at,
            enqueued_at_ms=item.enqueued_at,
            lease_expires_at_ms=item.lease_due_at,
            attempt=item.failed_attempts + 1,
        )

    async def _on_leases(
        self,
        namespace: Namespace,
        receipts: Sequence[str],
        act: Callable[[int, ShardState, Item, Ticket], None],
    ) -> PositionErrors:
        """Do `act` on every receipt's leased item; return when all of it is durable or has failed."""
        errors: PositionErrors = {}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(_: Ticket) -> None:
            if not done.done():
                done.set_result(None)

        ticket = Ticket(on_done)
        ticket.open_count = 1
        for position, receipt in enumerate(receipts):
            try:
                shard_id, key, delivery = ids.parse(receipt)
                runner = self._runners.get(shard_id)
                if runner is None:
                    raise NotFoundError(f"there is no shard {shard_id} for {receipt!r}")
                if runner.shard is None:
                    raise UnavailableError(f"shard {shard_id} is not served now: {runner.detail}")
                item = runner.shard.lease_of(key, delivery)
                if item.topic.namespace != namespace.number:
                    raise NotFoundError(f"there is no item {receipt!r} in namespace {namespace.name!r}")
                act(position, runner.shard, item, ticket)
                runner.wake()
            except FoqsError as error:
                errors[position] = error
        ticket.settle()
        await done
        errors.update(ticket.errors)
        return errors


def _stats(queue: TopicQueue) -> TopicStats:
    parts = list(queue.parts.values())
    ready = sum([part.ready for part in parts])
    heads = [part.first_place for part in parts if part.ready] + [item.place for item in queue.buffer]
    heads = [place for place in heads if order.FIRST < place < order.LAST]
    places = [place for part in parts for place in part.window.places] + [item.place for item in queue.buffer]
    return TopicStats(
        topic=queue.name,
        ready=ready,
        delayed=sum([part.delayed for part in parts]),
        leased=sum([part.leased for part in parts]),
        dead=sum([part.dead for part in parts]),
        most_urgent_priority=order.urgency_of(min(heads)) if ready and heads else 0,
        oldest_ready_at_ms=min([order.due_at_of(place) for place in places], default=0) if ready else 0,
    )
