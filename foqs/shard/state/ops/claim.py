"""Claims: the step that leases items in the database, committed before any consumer sees them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from operator import attrgetter

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import (
    Claim,
    Phase,
    ShardItem,
    by_topic,
    count_of,
    move_all,
    sort_keys_of,
    undivided,
)
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import ClaimsStarted, Demand
from foqs.shard.state.index import ShardIndex, fill
from foqs.shard.state.journal import Journal
from foqs.shard.state.ops.operation import Operation
from foqs.shard.state.ops.settle import Settlements

_sort_key = attrgetter("sort_key")


class Claims:
    """The claims that wait for a transaction, of ready items at the dispatcher's request, and of arriving items.

    The dispatcher claims items before their consumer is known, and anew for a call whose lease the first claim does not
    back. Items that a transaction inserts are claimed with it up to the consumers' demand.
    """

    def __init__(self, index: ShardIndex, journal: Journal, settlements: Settlements) -> None:
        self.waiting: OrderedDict[int, ShardItem] = OrderedDict()
        """Items by key, in the order in which they are claimed."""
        self.waiting_for_calls: OrderedDict[int, ShardItem] = OrderedDict()
        """The waiting items that are claimed anew for a call, before all others."""
        self.waiting_count = 0
        """The items in both."""
        self.fresh: list[ShardItem] = []
        """Items that the transaction being planned inserts and claims."""
        self.demand: Mapping[ShardTopic, Demand] = {}
        """The consumers' demand for the topics of which the transaction being planned inserts items."""
        self.in_flight: list[ShardItem] = []
        self._index = index
        self._journal = journal
        self._settlements = settlements
        self._sort_keys: dict[ShardTopic, set[int]] = {}
        """Sort keys of claims that wait or are under way, by topic, without those of fresh items; of a bundle the first
        one.
        """
        index.on_divided.append(self._divided)

    def claim(self, topic: ShardTopic, sort_keys: list[int]) -> None:
        """Lease items just taken from the head of the topic's window, before their consumer is known."""
        index = self._index
        items = index.take_resident(topic, sort_keys)
        for item in items:
            item.lease_wanted_ms = 0
            self.waiting[item.key] = item
        index.add_leases(items)
        move_all(topic, items, Phase.READY, Phase.CLAIMING)
        self._started(topic, items)

    def claim_for_call(self, topic: ShardTopic, items: list[ShardItem]) -> None:
        """Claim prefetched items of one topic anew, in order, each for its `lease_wanted_ms`.

        They are taken before all other claims, and cannot delay these for long, because each is in memory. Until the
        commit their present claims stay, because a new owner would take an item that was claimed for a call before for
        delivered.
        """
        move_all(topic, items, Phase.PREFETCHED, Phase.CLAIMING)
        for item in items:
            self.waiting_for_calls[item.key] = item
        self._started(topic, items)

    def _started(self, topic: ShardTopic, items: list[ShardItem]) -> None:
        self._sort_keys.setdefault(topic, set()).update([item.sort_key for item in items])
        topic.claim_head = min(topic.claim_head, items[0].sort_key)
        count = count_of(items)
        topic.claiming_count += count
        self.waiting_count += count

    def _divided(self, item: ShardItem, parts: list[ShardItem]) -> None:
        """Let the parts of a bundle wait in its place."""
        sort_keys = self._sort_keys.get(item.topic)
        if sort_keys is None or item.sort_key not in sort_keys or item.phase is not Phase.CLAIMING:
            return
        sort_keys.update([part.sort_key for part in parts])
        for waiting in (self.waiting, self.waiting_for_calls):
            if waiting.get(item.key) is item:
                behind = list(waiting.values())
                waiting.clear()
                waiting.update([(one.key, one) for other in behind for one in (parts if other is item else [other])])

    def claim_fresh(self, topic: ShardTopic, items: list[ShardItem]) -> None:
        """Flow-through: claim, with the next transaction, those of its inserted items that consumers wait for."""
        items.sort(key=_sort_key)
        if topic.is_serial and items[0].sort_key > topic.window.head:
            return  # With the claim of a later item, the topic would have no room for the earlier one.
        wanted = self.demand[topic].count_of(sort_keys_of(items))
        # Half of a transaction is for claims that wait already, of other topics, perhaps of other namespaces.
        kept = min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX // 2)
        count = min(wanted, topic.room, limits.TRANSACTION_CLAIMS_MAX - kept - count_of(self.fresh), count_of(items))
        if count <= 0:
            return
        claimed: list[ShardItem] = []
        left_count = count
        for item in items:
            if not left_count:
                break
            one = item if item.count <= left_count else self._index.divide(item, left_count)[0]
            claimed.append(one)
            left_count -= one.count
        move_all(topic, claimed, Phase.INSERTING, Phase.ARRIVING)
        self._index.add_leases(claimed)
        self.fresh += claimed
        topic.claiming_count += count
        self._index.events.claims_started.append(ClaimsStarted(topic, count, claimed[-1].sort_keys[-1]))

    def unclaim(self, item: ShardItem) -> None:
        """Undo the claim of the item, unless it is under way already."""
        if self.waiting.pop(item.key, None) or self.waiting_for_calls.pop(item.key, None):
            self.waiting_count -= item.count
            self.end(item.topic, [item], [])

    def unclaim_for_calls(self, topic: ShardTopic) -> bool:
        """Unclaim the items still to be claimed for a call, because no call waits for the topic any more.

        A new owner would take the items for delivered if they were claimed for a call that is over. Returns True if the
        next transaction has work from this.
        """
        of_topic = [self.waiting_for_calls.pop(order.key_of(at), None) for at in self._sort_keys.get(topic, ())]
        unclaimed = [item for item in of_topic if item is not None]
        self.waiting_count -= count_of(unclaimed)
        for item in unclaimed:
            self._settlements.unclaim(item)
        if unclaimed:
            self.end(topic, unclaimed, [])
        return bool(unclaimed)

    def begin(self, transaction: Transaction, now: Now) -> list[Claiming]:
        """Take the fresh claims, then the first waiting ones, within the bounds on reads."""
        fresh, self.fresh = self.fresh, []
        taken: list[ShardItem] = []
        taken_count = 0
        put_off: list[ShardItem] = []
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        fetches_max = self._index.read_budget.rows_max
        room = limits.TRANSACTION_CLAIMS_MAX - count_of(fresh)
        while taken_count + len(put_off) < room and bytes_left > 0:
            waiting = self.waiting_for_calls or self.waiting
            if not waiting:
                break
            _, item = waiting.popitem(last=False)
            if item.count > room - taken_count - len(put_off):
                item, rest = self._index.divide(item, room - taken_count - len(put_off))
                waiting[rest.key] = rest
                waiting.move_to_end(rest.key, last=False)
            if item.content is None:
                if len(transaction.fetches) >= fetches_max:
                    # Items in memory need not wait for it; delivery keeps the order.
                    put_off.append(item)
                    continue
                transaction.fetches.append(item)
                bytes_left -= self._index.settings.item_bytes_max(item.topic.namespace)
            taken.append(item)
            taken_count += item.count
        for item in reversed(put_off):
            self.waiting[item.key] = item
            self.waiting.move_to_end(item.key, last=False)
        self.waiting_count -= taken_count
        self.in_flight = fresh + taken
        if not self.in_flight:
            return []
        operation = Claiming(self, self._index, self._journal, self._settlements, fresh, taken)
        operation.write(transaction, now)
        return [operation]

    def end(self, topic: ShardTopic, items: list[ShardItem], prefetched: list[ShardItem]) -> None:
        """End the claims of these items of a topic; those of `prefetched` are made."""
        sort_keys = self._sort_keys.get(topic)
        if sort_keys is not None:
            sort_keys.difference_update([item.sort_key for item in undivided(items)])
            if not sort_keys:
                del self._sort_keys[topic]
        topic.claim_head = min(sort_keys) if sort_keys else order.LAST
        count = count_of(items)
        topic.claiming_count -= count
        self._index.events.end_claims(topic, count, prefetched)
        self._index.events.topics_changed[topic] = None


class Claiming(Operation):
    """Claims that are made by one transaction."""

    __slots__ = ("_claims", "_fresh", "_index", "_items", "_journal", "_settlements", "_source")

    def __init__(
        self,
        source: Claims,
        index: ShardIndex,
        journal: Journal,
        settlements: Settlements,
        fresh: list[ShardItem],
        items: list[ShardItem],
    ) -> None:
        self._source = source
        self._index = index
        self._journal = journal
        self._settlements = settlements
        self._fresh = fresh
        """The items that are inserted by the same transaction."""
        self._items = items
        self._claims: list[tuple[Claim, list[ShardItem]]] = []

    def write(self, transaction: Transaction, now: Now) -> None:
        by_lease: dict[int, list[ShardItem]] = {}
        if self._fresh:
            by_lease[0] = self._fresh.copy()
        for item in self._items:
            lease_ms = item.lease_wanted_ms
            if lease_ms in by_lease:
                by_lease[lease_ms].append(item)
            else:
                by_lease[lease_ms] = [item]
        for lease_ms, items in by_lease.items():
            due_at = now.steady_ms + (lease_ms or limits.AHEAD_LEASE_MS)
            self._claims.append((self._journal.add(transaction, due_at, items, is_ahead=not lease_ms), items))

    def committed(self, result: TransactionResult, now: Now) -> None:
        for claim, whole in self._claims:
            items = undivided(whole)
            if not claim.is_ahead:  # A ready item has no claim that it could leave.
                self._journal.leave(items)
            for item in items:
                item.claim = claim
        for topic, items in by_topic(undivided(self._fresh)).items():
            self._end(topic, items, items, Phase.ARRIVING, now)
        for topic, items in by_topic(undivided(self._items)).items():
            self._end(topic, items, self._read(items, result), Phase.CLAIMING, now)
        self._source.in_flight = []

    def _read(self, items: list[ShardItem], result: TransactionResult) -> list[ShardItem]:
        """Fill the fetched items. Returns the items that are still claimed, with their contents."""
        claimed: list[ShardItem] = []
        for item in items:
            if item.content is None and item.phase is Phase.CLAIMING:
                # A missing row does not mean a missing item.
                if item.key in result.unread or item.key not in result.fetched:
                    self._settlements.unclaim(item)
                    continue
                fill(item, result.fetched[item.key])
            if item.phase is Phase.CLAIMING:  # Else it was deleted during its claim.
                claimed.append(item)
        return claimed

    def _end(self, topic: ShardTopic, items: list[ShardItem], claimed: list[ShardItem], old: Phase, now: Now) -> None:
        """Give the dispatcher the claimed items of a topic that have not expired."""
        expired = [item for item in claimed if item.expires_at <= now.server_ms]
        prefetched = [item for item in claimed if item.expires_at > now.server_ms] if expired else claimed
        for item in prefetched:
            item.prefetched_at = now.steady_ms
        if prefetched:
            move_all(topic, prefetched, old, Phase.PREFETCHED)
        if topic.is_serial and claimed:
            topic.first_enqueued_at = claimed[0].enqueued_at
        if expired:
            self._settlements.expire(self._index.ones(expired), now.server_ms)
        self._source.end(topic, items, prefetched)

    def rolled_back(self, error: FoqsError) -> None:
        self._source.in_flight = []
        for topic, items in by_topic(undivided(self._fresh)).items():
            move_all(topic, items, Phase.ARRIVING, Phase.INSERTING)
            self._index.end_leases(items)
            self._source.end(topic, items, [])
        for topic, items in by_topic(undivided(self._items)).items():
            for item in items:
                if item.phase is Phase.CLAIMING:
                    self._settlements.unclaim(item)
            self._source.end(topic, items, [])

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing: only the dispatcher waits for a claim, and it forgets the shard's items."""
