"""Claims and extensions: the storage step that leases items, committed before anybody sees them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.item import Claim, ItemEvent, Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.callers import Completion
from foqs.shard.state.demand import Demand
from foqs.shard.state.events import ClaimsStarted
from foqs.shard.state.index import ShardIndex, fill
from foqs.shard.state.journal import Journal
from foqs.shard.state.settlements import Settlements


class Extension:
    """One lease that shall end `lease_ms` after now: a new claim of the same delivery."""

    __slots__ = ("claim", "completion", "item", "lease_ms", "position")

    def __init__(self, item: ShardItem, lease_ms: int, completion: Completion, position: int) -> None:
        self.item = item
        self.lease_ms = lease_ms
        self.completion = completion
        self.position = position
        self.claim: Claim | None = None


class Claims:
    """Leases items that are ready, at the word of the dispatcher, with what is inserted, by demand, and for longer."""

    def __init__(self, index: ShardIndex, journal: Journal, settlements: Settlements) -> None:
        self._index = index
        self._journal = journal
        self._settlements = settlements
        self._waiting: OrderedDict[int, ShardItem] = OrderedDict()
        """By key, in the order in which they are claimed."""
        self._sort_keys: dict[ShardTopic, set[int]] = {}
        """By topic, of the claims that wait or are on the way; what is inserted with its claim has none here."""
        self._extensions: deque[Extension] = deque()
        self.demand: Mapping[ShardTopic, Demand] = {}
        """Of the transaction that is being planned, for what it inserts."""
        self._in_flight: list[ShardItem] = []
        self._in_flight_fresh: set[int] = set()
        self._in_flight_claims: list[tuple[Claim, list[ShardItem]]] = []
        self._in_flight_extensions: list[Extension] = []

    def claim(self, topic: ShardTopic, sort_keys: list[int]) -> None:
        """Lease items that were just taken from the head of the topic's window, ahead of who will get them."""
        index = self._index
        for sort_key in sort_keys:
            key = order.key_of(sort_key)
            item = index.resident.get(key)
            if item is None:
                item = ShardItem(key, topic, order.urgency_of(sort_key), order.due_at_of(sort_key), sort_key)
            else:
                index.drop_resident(item)
            item.phase = Phase.CLAIMING
            item.lease_wanted_ms = 0
            index.leases[key] = item
            self._waiting[key] = item
        self._sort_keys.setdefault(topic, set()).update(sort_keys)
        topic.claim_head = min(topic.claim_head, sort_keys[0])
        topic.claiming_count += len(sort_keys)

    def claim_for_call(self, topic: ShardTopic, items: list[ShardItem]) -> None:
        """Claim prefetched items of one topic anew, in order, each for its `lease_wanted_ms`.

        They go before all that waits, and cannot hold it up for long: each is in memory. Until that is committed the
        claims stand that they have: a new owner would take what was claimed for a call before for delivered.
        """
        for item in items:
            item.phase = Phase.CLAIMING
        self._wait_first(items)
        self._sort_keys.setdefault(topic, set()).update([item.sort_key for item in items])
        topic.claim_head = min(topic.claim_head, items[0].sort_key)
        topic.claiming_count += len(items)

    def claim_fresh(self, topic: ShardTopic, items: list[ShardItem]) -> None:
        """Flow-through: of the items that the next transaction inserts, claim those that consumers wait for with it.

        Called while that transaction is put together, before `take`.
        """
        demand = self.demand.get(topic)
        if demand is None:
            return
        items.sort(key=_sort_key)
        wanted = demand.count_of([item.sort_key for item in items])
        # Half of a transaction is for claims that wait already: of other topics, maybe of other namespaces.
        kept = min(len(self._waiting), limits.TRANSACTION_CLAIMS_MAX // 2)
        count = min(wanted, topic.room, limits.TRANSACTION_CLAIMS_MAX - kept - len(self._in_flight), len(items))
        if count <= 0:
            return
        for item in items[:count]:
            item.phase = Phase.CLAIMING
            self._index.leases[item.key] = item
            self._in_flight.append(item)
            self._in_flight_fresh.add(item.key)
        topic.claiming_count += count
        self._index.events.claims_started.append(ClaimsStarted(topic, count, items[count - 1].sort_key))

    def withdraw(self, item: ShardItem) -> None:
        """Do not claim the item after all, unless its claim is under way already."""
        if self._waiting.pop(item.key, None) is not None:
            self._end([item], {})

    def extend(self, item: ShardItem, lease_ms: int, completion: Completion, position: int) -> None:
        """Let the lease end `lease_ms` after its commit. Raises OverloadedError when too many wait for that."""
        if len(self._extensions) >= limits.EXTENSIONS_WAITING_MAX:
            raise self._index.overloaded(f"{len(self._extensions)} extensions of leases wait for it")
        completion.open_count += 1
        self._extensions.append(Extension(item, lease_ms, completion, position))

    # ---- part of a transaction ----

    def take(self, transaction: Transaction, now: Now) -> None:
        by_lease: dict[int, list[ShardItem]] = {}
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        fetches_max = self._index.read_budget.rows_max
        put_off: list[ShardItem] = []
        while self._waiting and len(self._in_flight) + len(put_off) < limits.TRANSACTION_CLAIMS_MAX and bytes_left > 0:
            _, item = self._waiting.popitem(last=False)
            if item.content is None:
                if len(transaction.fetches) >= fetches_max:
                    # What is in memory need not wait for it; the order is kept where items are handed out.
                    put_off.append(item)
                    continue
                transaction.fetches.append(item)
                bytes_left -= self._index.settings.item_bytes_max(item.topic.namespace)
            self._in_flight.append(item)
        self._wait_first(put_off)
        for item in self._in_flight:
            lease_ms = item.lease_wanted_ms
            if lease_ms in by_lease:
                by_lease[lease_ms].append(item)
            else:
                by_lease[lease_ms] = [item]
        for lease_ms, items in by_lease.items():
            due_at = now.steady_ms + (lease_ms or limits.AHEAD_LEASE_MS)
            claim = self._journal.add(transaction, due_at, items, is_ahead=not lease_ms)
            self._in_flight_claims.append((claim, items))
        while self._extensions and len(self._in_flight_extensions) < limits.TRANSACTION_EXTENSIONS_MAX:
            self._take_extension(self._extensions.popleft(), transaction, now)

    def _take_extension(self, extension: Extension, transaction: Transaction, now: Now) -> None:
        item = extension.item
        if item.phase is not Phase.LEASED:
            stale = StaleLeaseError("the lease of this receipt ended before its extension")
            self._index.events.fail(extension.completion, [extension.position], stale)
            return
        self._settlements.pause_lease(item)
        extension.claim = self._journal.add(transaction, now.steady_ms + extension.lease_ms, [item], is_ahead=False)
        self._in_flight_extensions.append(extension)

    def _wait_first(self, items: list[ShardItem]) -> None:
        for item in reversed(items):
            self._waiting[item.key] = item
            self._waiting.move_to_end(item.key, last=False)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        in_flight, claims, extensions = self._in_flight, self._in_flight_claims, self._in_flight_extensions
        self._in_flight, self._in_flight_fresh, self._in_flight_claims, self._in_flight_extensions = [], set(), [], []
        for claim, items in claims:
            if not claim.is_ahead:  # A ready item has no claim that it could leave.
                self._journal.leave(items)
            for item in items:
                item.claim = claim
        for extension in extensions:
            self._apply_extension(extension, now)
        prefetched: dict[ShardTopic, list[ShardItem]] = {}
        expired: list[ShardItem] = []
        fetched = result.fetched
        for item in in_flight:
            topic = item.topic
            if topic not in prefetched:
                prefetched[topic] = []
            if item.content is None and item.key in fetched:
                if item.key in result.unread:
                    if item.phase is Phase.CLAIMING:
                        self._settlements.unclaim(item)
                    continue
                fill(item, fetched[item.key])
            if item.phase is not Phase.CLAIMING:
                continue  # Deleted while its claim was on the way.
            if item.expires_at <= now.server_ms:
                topic.count_leased(1)
                item.phase = Phase.SETTLING
                expired.append(item)
                self._index.events.count(topic.namespace, ItemEvent.EXPIRED, 1)
            else:
                item.phase = Phase.PREFETCHED
                item.prefetched_at = now.steady_ms
                prefetched[topic].append(item)
        if expired:
            self._settlements.settle(expired)
        self._end(in_flight, prefetched)

    def _apply_extension(self, extension: Extension, now: Now) -> None:
        item, claim = extension.item, extension.claim
        assert claim is not None
        if item.phase not in (Phase.LEASED, Phase.SETTLING):
            self._journal.close(claim)  # Given back meanwhile.
        elif claim.due_at < now.steady_ms + extension.lease_ms:
            # It took so long that the claim does not cover the lease: claimed anew before anybody is told, and until
            # then the one before backs what was promised before.
            self._journal.close(claim)
            self._extensions.append(extension)
            return
        else:
            self._journal.leave([item])
            item.claim = claim
            self._settlements.resume_lease(item, min(now.steady_ms + extension.lease_ms, claim.due_at))
        self._index.events.done(extension.completion)

    def failed(self, error: FoqsError) -> None:
        in_flight, fresh, extensions = self._in_flight, self._in_flight_fresh, self._in_flight_extensions
        self._in_flight, self._in_flight_fresh, self._in_flight_claims, self._in_flight_extensions = [], set(), [], []
        for extension in extensions:
            self._settlements.resume_lease(extension.item, extension.item.lease_due_at)
            self._index.events.fail(extension.completion, [extension.position], error)
        for item in in_flight:
            if item.phase is not Phase.CLAIMING:
                continue
            if item.key in fresh:
                del self._index.leases[item.key]
                item.phase = Phase.INSERTING
            else:
                self._settlements.unclaim(item)
        self._end(in_flight, {})

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        for extension in [*self._extensions, *self._in_flight_extensions]:
            # One that waits may have been written before, for a time that was over too soon.
            error = undone if extension.claim is None else unknown
            self._index.events.fail(extension.completion, [extension.position], error)

    def _end(self, in_flight: list[ShardItem], prefetched: dict[ShardTopic, list[ShardItem]]) -> None:
        """The claims of `in_flight` have ended, and those of `prefetched` well."""
        events = self._index.events
        ended: dict[ShardTopic, list[int]] = {}
        for item in in_flight:
            if item.topic in ended:
                ended[item.topic].append(item.sort_key)
            else:
                ended[item.topic] = [item.sort_key]
        for topic, gone in ended.items():
            sort_keys = self._sort_keys.get(topic)
            if sort_keys is not None:
                sort_keys.difference_update(gone)
                if not sort_keys:
                    del self._sort_keys[topic]
            topic.claim_head = min(sort_keys) if sort_keys else order.LAST
            topic.claiming_count -= len(gone)
            events.end_claims(topic, len(gone), prefetched.get(topic, []))
            events.topics_changed[topic] = None


def _sort_key(item: ShardItem) -> int:
    return item.sort_key
