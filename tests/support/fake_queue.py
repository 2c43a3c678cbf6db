"""A queue in a few dictionaries, to test the transport alone: it keeps the shape of the calls, no promise."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any

from foqs.contract import requests as of
from foqs.contract.verbs import VERBS, Whole
from foqs.host.arguments import check_topic
from foqs.host.verbs.exports import checked_query
from foqs.host.verbs.table import method_name
from foqs.model.calls import (
    CallContext,
    DeadLettersResult,
    Delivery,
    DeliveryPolicy,
    EnqueueResult,
    ExportPage,
    ExportPlan,
    ExportSplit,
    GroupPage,
    HostStatus,
    ItemState,
    NamespacePage,
    PositionErrors,
    ShardMap,
    ShardStatus,
    StoredItem,
    StoredItemPage,
    TopicPage,
    TopicStats,
)
from foqs.model.errors import (
    AlreadyExistsError,
    FoqsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    StaleLeaseError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.event_history import History, HistoryRow
from foqs.model.groups import TopicGroup
from foqs.model.holder import ConsumerPage, ConsumerRow, ReleaseResult
from foqs.model.limits import PAYLOAD_BYTES_DEFAULT
from foqs.model.namespace import Namespace, NamespaceSettings, check_namespace_name, updated, with_changes
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage
from foqs.model.policy_book import NamedChange, PolicyBook, PolicyCounts
from foqs.model.reasons import Explanation, Reason, ReasonCode, Verdict, WhyNone
from foqs.model.slots import SLOTS_COUNT
from foqs.model.topic_rates import RatesPage, TopicRates
from tests.support.fake_access_calls import FakeAccessCalls
from tests.support.fake_job_calls import FakeJobCalls
from tests.support.fake_shard_calls import FakeShardCalls
from tests.support.waiting import PATIENCE_S

NOW_MS = 1_700_000_000_000


class FakeQueue(FakeJobCalls, FakeShardCalls, FakeAccessCalls):
    """Serves the namespaces `ns` and those created. Time stands still at NOW_MS."""

    def __init__(self) -> None:
        FakeJobCalls.__init__(self)
        FakeShardCalls.__init__(self)
        FakeAccessCalls.__init__(self)
        self.seen: dict[tuple[str, str], str] = {}
        """The ids of items by namespace and dedup id."""
        self.namespaces: dict[str, Namespace] = {}
        self.policies: dict[str, PolicyBook] = {}
        self.groups: dict[tuple[str, str], TopicGroup] = {}
        self.ready: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        self.leased: dict[str, tuple[str, Delivery]] = {}
        self.calls_running = 0
        self._running_changed = asyncio.Event()
        self.long_polls: set[asyncio.Future[None]] = set()
        self.long_poll_began = asyncio.Event()
        self.long_poll_cancelled = asyncio.Event()
        self.gate: asyncio.Event | None = None
        """While set and not open, enqueue calls stand still in front of it."""
        self.dequeue_gate: asyncio.Event | None = None
        """While set and not open, dequeue calls stand still in front of it."""
        self.nacks_count = 0
        self.contexts: list[CallContext] = []
        """Of the enqueue and dequeue calls, in their order."""
        self.why: list[Reason] = []
        """The reasons that an empty dequeue tells."""
        self.failure: BaseException | None = None
        """Raised by getActiveTopics."""
        self.missing: list[str] = []
        """What getActiveTopics says is missing, on each page."""
        self._last_id = 0
        self._add_namespace("ns", NamespaceSettings())

    @property
    def number_by_name(self) -> dict[bytes, int]:
        """As the host's Namespaces tell the scheduler."""
        return {name.encode(): namespace.number for name, namespace in self.namespaces.items()}

    async def until_running(self, count: int) -> None:
        """Return when so many enqueue calls stand in front of the gate."""
        async with asyncio.timeout(PATIENCE_S):
            while self.calls_running < count:
                self._running_changed.clear()
                await self._running_changed.wait()

    def call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        """Do the verb by the method of its name. Other hosts have no business here."""
        if VERBS[verb].route is Whole.OF_PEERS:
            raise PermissionDeniedError("this host has no peers: only hosts of its own cluster may call this")
        done: Awaitable[Any] = getattr(self, method_name(verb))(context, request)
        return done

    # --- users ---

    async def enqueue(self, context: CallContext, request: of.EnqueueRequest) -> EnqueueResult:
        namespace_name, items = request.namespace_name, request.items
        self.contexts.append(context)
        self.job_ids.append(request.job_id)
        self._check(namespace_name)
        limit = self.namespaces[namespace_name].settings.enqueues_per_minute_max
        if len(items) > limit:
            raise TooLargeError(f"{len(items)} items in one call can never fit into {limit}")
        self.calls_running += 1
        self._running_changed.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.calls_running -= 1
        ids: list[str] = []
        errors: PositionErrors = {}
        duplicates: list[int] = []
        for position, item in enumerate(items):
            seen = self.seen.get((namespace_name, item.dedup_id or ""))
            if seen is not None:
                ids.append(seen)
                duplicates.append(position)
                continue
            try:
                ids.append(self._put(namespace_name, item))
                if item.dedup_id is not None:
                    self.seen[namespace_name, item.dedup_id] = ids[-1]
            except FoqsError as error:
                ids.append("")
                errors[position] = error
        for waiting in self.long_polls:
            if not waiting.done():
                waiting.set_result(None)
        return EnqueueResult(ids, errors, duplicates)

    async def dequeue(self, context: CallContext, request: of.DequeueRequest) -> list[Delivery] | WhyNone:
        namespace_name, topics, wait_ms = request.namespace_name, request.topics, request.wait_ms
        self.contexts.append(context)
        self._check(namespace_name)
        if request.topic_prefix is not None:
            return []  # It has no items for prefixes.
        if self.dequeue_gate is not None:
            await self.dequeue_gate.wait()
        taken = self._take(namespace_name, topics)
        if not taken and wait_ms > 0:
            await self._wait_for_items(wait_ms)
            taken = self._take(namespace_name, topics)
        return taken if taken or not request.want_why else WhyNone(self.why)

    async def ack(self, context: CallContext, request: of.AckRequest) -> PositionErrors:
        self._check(request.namespace_name)
        receipts = request.receipts
        stale = [n for n, r in enumerate(receipts) if self.leased.pop(r, None) is None]
        return {} if request.repeated else {n: StaleLeaseError(receipts[n]) for n in stale}

    async def nack(self, context: CallContext, request: of.NackRequest) -> PositionErrors:
        self._check(request.namespace_name)
        nacks = request.nacks
        errors: PositionErrors = {}
        self.nacks_count += len(nacks)
        for position, nack in enumerate(nacks):
            held = self.leased.pop(nack.receipt, None)
            if held is None:
                errors[position] = StaleLeaseError(f"{nack.receipt} holds no lease")
            else:
                self.ready[held[0], held[1].topic].append(held[1])
        return errors

    async def extend_lease(self, context: CallContext, request: of.ExtendRequest) -> PositionErrors:
        self._check(request.namespace_name)
        return {n: StaleLeaseError(r) for n, r in enumerate(request.receipts) if r not in self.leased}

    async def get_active_topics(self, context: CallContext, request: of.ActiveTopicsRequest) -> TopicPage:
        if self.failure is not None:
            raise self.failure
        self._check(request.namespace_name)
        topics = [
            TopicStats(topic, len(items), 0, 0, 0, items[0].priority, items[0].deliver_after_ms)
            for (name, topic), items in sorted(self.ready.items())
            if name == request.namespace_name
            and topic.startswith(request.prefix)
            and topic > request.page_token
            and items
        ]
        limit = max(request.limit, 1)
        return TopicPage(topics[:limit], topics[limit - 1].topic if len(topics) > limit else "", self.missing)

    async def get_rates(self, context: CallContext, request: of.GetRatesRequest) -> RatesPage:
        self._check(request.namespace_name)
        return RatesPage([TopicRates(topic, 1.5) for topic in request.topics or ()], NOW_MS)

    async def get_history(self, context: CallContext, request: of.GetHistoryRequest) -> History:
        self._check(request.namespace_name)
        return History([HistoryRow("", request.from_ms, enqueued=7)], 1, request.from_ms)

    # --- operators ---

    async def get_shard_map(self, context: CallContext, request: of.ShardMapRequest) -> ShardMap:
        namespace_name = request.namespace_name
        if namespace_name is not None:
            self._check(namespace_name)
        key_spread = None if namespace_name is None else self.namespaces[namespace_name].settings.key_spread
        return ShardMap(1, [slot % 2 for slot in range(SLOTS_COUNT)], [], key_spread)

    async def create_namespace(self, context: CallContext, request: of.CreateNamespaceRequest) -> Namespace:
        name = request.name
        check_namespace_name(name)
        if name in self.namespaces:
            raise AlreadyExistsError(f"namespace {name} exists")
        return self._add_namespace(name, with_changes(NamespaceSettings(), request.settings))

    async def update_namespace(self, context: CallContext, request: of.UpdateNamespaceRequest) -> Namespace:
        name = request.name
        self._check(name)
        old = self.namespaces[name]
        self.namespaces[name] = Namespace(old.number, name, updated(old.settings, request.settings), NOW_MS)
        return self.namespaces[name]

    async def get_namespace(self, context: CallContext, request: of.GetNamespaceRequest) -> Namespace:
        self._check(request.name)
        return self.namespaces[request.name]

    async def recover_namespace(self, context: CallContext, request: of.RecoverNamespaceRequest) -> Namespace:
        raise NotFoundError(f"no shard knows the namespace of number {request.number}")

    async def list_namespaces(self, context: CallContext, request: of.ListNamespacesRequest) -> NamespacePage:
        found = [ns for name, ns in sorted(self.namespaces.items()) if name.startswith(request.prefix)]
        return NamespacePage(found[: request.limit], "")

    async def set_topic_policy(self, context: CallContext, request: of.SetTopicPolicyRequest) -> TopicPolicyEntry:
        self._check(request.namespace_name)
        change = NamedChange(request.topic, request.is_prefix or False, request)
        return self._book(request.namespace_name).change(change)

    async def set_topic_policies(self, context: CallContext, request: of.SetTopicPoliciesRequest) -> PositionErrors:
        namespace_name: str = request.namespace_name
        self._check(namespace_name)
        errors: PositionErrors = {}
        for position, change in enumerate(request.changes):
            try:
                check_topic(change.topic)
                self._book(namespace_name).change(NamedChange(change.topic, bool(change.is_prefix), change))
            except FoqsError as error:
                errors[position] = error
        return errors

    def _book(self, namespace_name: str) -> PolicyBook:
        return self.policies.setdefault(namespace_name, PolicyBook(namespace_name, {}, {}, PolicyCounts()))

    async def get_topic_policy(self, context: CallContext, request: of.GetTopicPolicyRequest) -> TopicPolicyEntry:
        self._check(request.namespace_name)
        change = NamedChange(request.topic, request.is_prefix or False, None)
        return self._book(request.namespace_name).change(change)

    async def list_topic_policies(self, context: CallContext, request: of.ListTopicPoliciesRequest) -> TopicPolicyPage:
        self._check(request.namespace_name)
        book = self._book(request.namespace_name)
        names = [(True, name) for name in book.prefixes_changed if request.with_prefixes]
        names += [(False, name) for name in book.topics_changed]
        return TopicPolicyPage([book.change(NamedChange(name, is_prefix, None)) for is_prefix, name in names], "")

    async def create_group(self, context: CallContext, request: of.CreateGroupRequest) -> TopicGroup:
        self._check(request.namespace_name)
        created = TopicGroup(request.topic, request.group, ttl_ms=request.ttl_ms, delay_ms=request.delay_ms)
        return self.groups.setdefault((request.namespace_name, created.hidden_name), created)

    async def delete_group(self, context: CallContext, request: of.DeleteGroupRequest) -> None:
        self._check(request.namespace_name)
        self.groups.pop((request.namespace_name, TopicGroup(request.topic, request.group).hidden_name), None)

    async def list_groups(self, context: CallContext, request: of.ListGroupsRequest) -> GroupPage:
        self._check(request.namespace_name)
        found = [one for (name, _), one in sorted(self.groups.items()) if name == request.namespace_name]
        return GroupPage(found[: request.limit], "")

    async def delete_namespace(self, context: CallContext, request: of.DeleteNamespaceRequest) -> None:
        self._check(request.name)
        del self.namespaces[request.name]

    async def peek_items(self, context: CallContext, request: of.PeekItemsRequest) -> StoredItemPage:
        self._check(request.namespace_name)
        found = self.ready[request.namespace_name, request.topic][: request.limit]
        return StoredItemPage([_stored(delivery) for delivery in found], "")

    async def get_item(self, context: CallContext, request: of.GetItemRequest) -> StoredItem:
        for (name, _), items in self.ready.items():
            for delivery in items:
                if name == request.namespace_name and delivery.id == request.id:
                    return _stored(delivery)
        raise NotFoundError(f"there is no item {request.id}")

    async def delete_items(self, context: CallContext, request: of.DeleteItemsRequest) -> PositionErrors:
        item_ids = request.ids
        known = {delivery.id for items in self.ready.values() for delivery in items}
        for (name, topic), items in self.ready.items():
            if name == request.namespace_name:
                self.ready[name, topic] = [delivery for delivery in items if delivery.id not in item_ids]
        return {n: NotFoundError(f"there is no item {one}") for n, one in enumerate(item_ids) if one not in known}

    async def forget_dedup_ids(self, context: CallContext, request: of.ForgetDedupIdsRequest) -> PositionErrors:
        name = request.namespace_name
        gone = [self.seen.pop((name, one), None) for one in request.dedup_ids]
        return {n: NotFoundError("it was free already") for n, item_id in enumerate(gone) if item_id is None}

    async def list_consumers(self, context: CallContext, request: of.ListConsumersRequest) -> ConsumerPage:
        self._check(request.namespace_name)
        held = Counter([delivery.topic for name, delivery in self.leased.values() if name == request.namespace_name])
        return ConsumerPage([ConsumerRow("worker", "", topic, 0, count, 5, 7, []) for topic, count in held.items()], "")

    async def release_leases(self, context: CallContext, request: of.ReleaseLeasesRequest) -> ReleaseResult:
        self._check(request.namespace_name)
        return ReleaseResult(len(self.leased), 0)

    async def explain(self, context: CallContext, request: of.ExplainRequest) -> Explanation:
        self._check(request.namespace_name)
        reason = Reason(ReasonCode.NOTHING_THERE, f"topic {request.topic!r} holds no item", topic=request.topic)
        return Explanation(Verdict.EMPTY, "nothing is there", [reason], 5)

    async def list_dead_letters(self, context: CallContext, request: of.ListDeadLettersRequest) -> StoredItemPage:
        return StoredItemPage([], "")

    async def redrive_dead_letters(
        self, context: CallContext, request: of.RedriveDeadLettersRequest
    ) -> DeadLettersResult:
        """Without ids, a hundred dead letters by tens, of which each tenth is being settled."""
        if request.ids is not None:
            return DeadLettersResult(0, {n: NotFoundError(i) for n, i in enumerate(request.ids)})
        first = int(request.page_token or "0")
        chosen = [f"1-{n:x}" for n in range(first, min(first + 10, first + request.limit, 100))]
        settled = UnavailableError("being settled", nothing_done=True)
        errors: PositionErrors = {at: settled for at in range(len(chosen)) if not (first + at) % 10}
        after = first + len(chosen)
        return DeadLettersResult(len(chosen) - len(errors), errors, chosen, str(after) if after < 100 else "")

    async def purge_dead_letters(
        self, context: CallContext, request: of.RedriveDeadLettersRequest
    ) -> DeadLettersResult:
        return await self.redrive_dead_letters(context, request)

    async def plan_export(self, context: CallContext, request: of.PlanExportRequest) -> ExportPlan:
        self._check(request.namespace_name)
        return ExportPlan([ExportSplit(1, 0, self._last_id, self._last_id)], NOW_MS)

    async def export_items(self, context: CallContext, request: of.ExportItemsRequest) -> ExportPage:
        """All items that are ready, by their ids, up to the limit."""
        namespace_name = request.namespace_name
        self._check(namespace_name)
        wanted = checked_query(request)
        by_key = {
            int(delivery.id.partition("-")[2], 16): delivery
            for (name, topic), deliveries in self.ready.items()
            for delivery in deliveries
            if name == namespace_name and topic in (wanted.topics or [topic])
        }
        keys = [key for key in sorted(by_key) if key > wanted.after_key]
        some = keys[: wanted.limit]
        items = [_stored(by_key[key]) for key in some]
        return ExportPage(
            [item for item in items if item.state in wanted.states],
            some[-1] if len(some) < len(keys) else 0,
        )

    async def get_host_status(self, context: CallContext, request: of.HostStatusRequest) -> HostStatus:
        return HostStatus("fake", "0", NOW_MS, [ShardStatus(1, "owned", 3, 5, 2)], False)

    # --- inside ---

    def _add_namespace(self, name: str, settings: NamespaceSettings) -> Namespace:
        self.namespaces[name] = Namespace(len(self.namespaces) + 1, name, settings, NOW_MS)
        return self.namespaces[name]

    def _check(self, namespace_name: str) -> None:
        check_namespace_name(namespace_name)
        if namespace_name not in self.namespaces:
            raise UnknownNamespaceError(f"namespace {namespace_name} does not exist")

    def _put(self, namespace_name: str, item: of.NewItem) -> str:
        if not item.topic or item.payload is None:
            raise InvalidArgumentError("an item needs a topic and a payload")
        if len(item.payload) > PAYLOAD_BYTES_DEFAULT:
            raise TooLargeError(f"payload of {len(item.payload)} bytes is over {PAYLOAD_BYTES_DEFAULT}")
        self._last_id += 1
        item_id = f"1-{self._last_id:x}"
        self.ready[namespace_name, item.topic].append(
            Delivery(
                id=item_id,
                receipt=f"{item_id}.1",
                topic=item.topic,
                priority=item.priority,
                payload=item.payload,
                metadata=item.metadata or b"",
                trace_context=item.trace_context,
                deliver_after_ms=NOW_MS,
                enqueued_at_ms=NOW_MS,
                lease_expires_at_ms=NOW_MS + 30_000,
                attempt=1,
            )
        )
        return item_id

    def _take(self, namespace_name: str, topics: Sequence[of.TopicDemand]) -> list[Delivery]:
        taken: list[Delivery] = []
        for demand in topics:
            items = self.ready.get((namespace_name, demand.topic), [])
            count = max(demand.count or 0, 0)
            taken += items[:count]
            del items[:count]
        self.leased.update((delivery.receipt, (namespace_name, delivery)) for delivery in taken)
        return taken

    async def _wait_for_items(self, wait_ms: int) -> None:
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.long_polls.add(came)
        self.long_poll_began.set()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await came
        except TimeoutError:
            return
        except asyncio.CancelledError:
            self.long_poll_cancelled.set()
            raise
        finally:
            self.long_polls.discard(came)


def _stored(delivery: Delivery) -> StoredItem:
    return StoredItem(
        id=delivery.id,
        topic=delivery.topic,
        state=ItemState.READY,
        priority=delivery.priority,
        payload=delivery.payload,
        metadata=delivery.metadata,
        trace_context=delivery.trace_context,
        deliver_after_ms=delivery.deliver_after_ms,
        enqueued_at_ms=delivery.enqueued_at_ms,
        expires_at_ms=NOW_MS + 1,
        failed_attempts=0,
        delivery=DeliveryPolicy.AT_LEAST_ONCE,
    )
