"""Claims and extensions: the storage step that leases items, committed before anybody sees them."""

from __future__ import annotations

from collections import OrderedDict, deque

from foqs.core import limits, order
from foqs.core.clock import Now
from foqs.core.errors import FoqsError, StaleLeaseError
from foqs.core.item import Claim, Item, ItemEvent, Phase
from foqs.core.topic import ShardTopic
from foqs.shard.book import Book, fill
from foqs.shard.journal import Journal
from foqs.shard.packs import Packs
from foqs.shard.parts import Ticket
from foqs.shard.settlements import Settlements
from foqs.storage.transaction import Transaction, TransactionResult


class Extension:
    """One lease that shall end `lease_ms` after now: a new claim of the same delivery."""

    __slots__ = ("claim", "item", "lease_ms", "position", "ticket")

    def __init__(self, item: Item, lease_ms: int, ticket: Ticket, position: int) -> None:
        self.item = item
        self.lease_ms = lease_ms
        self.ticket = ticket
        self.position = position
        self.claim: Claim | None = None


class Claims:
    def __init__(self, book: Book, packs: Packs, journal: Journal, settlements: Settlements) -> None:
        self._book = book
        self._packs = packs
        self._journal = journal
        self._settlements = settlements
        self._waiting: OrderedDict[int, Item] = OrderedDict()
        """By key, in the order in which they are claimed."""
        self._places: dict[ShardTopic, set[int]] = {}
        """By topic, of the claims that wait or are on the way; what is inserted with its claim has none here."""
        self._extensions: deque[Extension] = deque()
        self._flying: list[Item] = []
        self._flying_fresh: set[int] = set()
        self._flying_claims: list[tuple[Claim, list[Item]]] = []
        self._flying_extensions: list[Extension] = []

    def claim(self, topic: ShardTopic, places: list[int]) -> None:
        """Lease items that were just taken from the head of the topic's window, ahead of who will get them."""
        book = self._book
        for place in places:
            key = order.key_of(place)
            item = book.resident.get(key)
            if item is None:
                item = Item(key, topic, order.urgency_of(place), order.due_at_of(place), place)
            else:
                book.drop_resident(item)
            item.phase = Phase.CLAIMING
            item.lease_wanted_ms = 0
            book.leases[key] = item
            self._waiting[key] = item
        self._places.setdefault(topic, set()).update(places)
        topic.claim_head = min(topic.claim_head, places[0])
        book.listener.claims_started(topic, len(places), places[-1])

    def claim_for_call(self, topic: ShardTopic, items: list[Item]) -> None:
        """Claim held items of one topic anew, in order, each for its `lease_wanted_ms`.

        They go before all that waits, and cannot hold it up for long: each is in memory. Until that is committed the
        claims stand that they have: a new owner would take what was claimed for a call before for delivered.
        """
        for item in items:
            item.phase = Phase.CLAIMING
        self._wait_first(items)
        self._places.setdefault(topic, set()).update([item.place for item in items])
        topic.claim_head = min(topic.claim_head, items[0].place)
        self._book.listener.claims_started(topic, len(items), items[-1].place)

    def claim_fresh(self, topic: ShardTopic, items: list[Item]) -> None:
        """Flow-through: of the items that the next transaction inserts, claim those that consumers wait for with it.

        Called while that transaction is put together, before `take`.
        """
        items.sort(key=_place)
        wanted = self._book.listener.fresh_demand(topic.namespace, topic.name, [item.place for item in items])
        # Half of a transaction is for claims that wait already: of other topics, maybe of other namespaces.
        kept = min(len(self._waiting), limits.TRANSACTION_CLAIMS_MAX // 2)
        count = min(wanted, topic.room, limits.TRANSACTION_CLAIMS_MAX - kept - len(self._flying), len(items))
        if count <= 0:
            return
        for item in items[:count]:
            item.phase = Phase.CLAIMING
            self._book.leases[item.key] = item
            self._flying.append(item)
            self._flying_fresh.add(item.key)
        self._book.listener.claims_started(topic, count, items[count - 1].place)

    def withdraw(self, item: Item) -> None:
        """Do not claim the item after all, unless its claim is under way already."""
        if self._waiting.pop(item.key, None) is not None:
            self._tell([item], {})

    def extend(self, item: Item, lease_ms: int, ticket: Ticket, position: int) -> None:
        ticket.open_count += 1
        if len(self._extensions) >= limits.EXTENSIONS_WAITING_MAX:
            ticket.fail([position], self._book.overloaded(f"{len(self._extensions)} extensions of leases wait for it"))
            return
        self._extensions.append(Extension(item, lease_ms, ticket, position))

    # ---- part of a transaction ----

    def take(self, transaction: Transaction, now: Now) -> None:
        by_lease: dict[int, list[Item]] = {}
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        fetches_max = self._book.read_budget.rows_max
        put_off: list[Item] = []
        self._packs.begin_share()
        while (
            self._waiting
            and len(self._flying) + len(put_off) < limits.TRANSACTION_CLAIMS_MAX
            and bytes_left > 0
            and not self._packs.reads_enough()
        ):
            _, item = self._waiting.popitem(last=False)
            if item.payload is None:
                if not self._packs.read(item.key):
                    if len(transaction.fetches) >= fetches_max:
                        # What is in memory need not wait for it; the order is kept where items are handed out.
                        put_off.append(item)
                        continue
                    transaction.fetches.append(item)
                bytes_left -= self._book.listener.item_bytes_max(item.topic.namespace)
            self._flying.append(item)
        self._wait_first(put_off)
        for item in self._flying:
            lease_ms = item.lease_wanted_ms
            if lease_ms in by_lease:
                by_lease[lease_ms].append(item)
            else:
                by_lease[lease_ms] = [item]
        for lease_ms, items in by_lease.items():
            due_at = now.steady_ms + (lease_ms or limits.AHEAD_LEASE_MS)
            claim = self._journal.add(transaction, due_at, items, is_ahead=not lease_ms)
            self._flying_claims.append((claim, items))
        while self._extensions and len(self._flying_extensions) < limits.TRANSACTION_EXTENSIONS_MAX:
            self._take_extension(self._extensions.popleft(), transaction, now)

    def _take_extension(self, extension: Extension, transaction: Transaction, now: Now) -> None:
        item = extension.item
        if item.phase is not Phase.LEASED:
            stale = StaleLeaseError("the lease of this receipt ended before its extension")
            extension.ticket.fail([extension.position], stale)
            return
        self._settlements.pause_lease(item)
        extension.claim = self._journal.add(transaction, now.steady_ms + extension.lease_ms, [item], is_ahead=False)
        self._flying_extensions.append(extension)

    def _wait_first(self, items: list[Item]) -> None:
        for item in reversed(items):
            self._waiting[item.key] = item
            self._waiting.move_to_end(item.key, last=False)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        flying, claims, extensions = self._flying, self._flying_claims, self._flying_extensions
        self._flying, self._flying_fresh, self._flying_claims, self._flying_extensions = [], set(), [], []
        for claim, items in claims:
            self._journal.leave(items)
            for item in items:
                item.claim = claim
        for extension in extensions:
            self._apply_extension(extension, now)
        held: dict[ShardTopic, list[Item]] = {}
        expired: list[Item] = []
        fetched = result.fetched
        for item in flying:
            topic = item.topic
            if topic not in held:
                held[topic] = []
            if item.payload is None and item.key in fetched:
                if item.key in result.unread:
                    if item.phase is Phase.CLAIMING:
                        self._settlements.give_back(item)
                    continue
                fill(item, fetched[item.key])
            if item.phase is not Phase.CLAIMING:
                continue  # Deleted while its claim was on the way.
            if item.expires_at <= now.server_ms:
                topic.count_leased(1)
                item.phase = Phase.SETTLING
                expired.append(item)
                self._book.listener.happened(topic.namespace, ItemEvent.EXPIRED, 1)
            else:
                item.phase = Phase.HELD
                item.held_at = now.steady_ms
                held[topic].append(item)
        if expired:
            self._settlements.settle(expired)
        self._tell(flying, held)

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
        extension.ticket.settle()

    def failed(self, error: FoqsError) -> None:
        flying, fresh, extensions = self._flying, self._flying_fresh, self._flying_extensions
        self._flying, self._flying_fresh, self._flying_claims, self._flying_extensions = [], set(), [], []
        for extension in extensions:
            self._settlements.resume_lease(extension.item, extension.item.lease_due_at)
            extension.ticket.fail([extension.position], error)
        for item in flying:
            if item.phase is not Phase.CLAIMING:
                continue
            if item.key in fresh:
                del self._book.leases[item.key]
                item.phase = Phase.INSERTING
            else:
                self._settlements.give_back(item)
        self._tell(flying, {item.topic: [] for item in flying})

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        for extension in [*self._extensions, *self._flying_extensions]:
            # One that waits may have been written before, for a time that was over too soon.
            error = undone if extension.claim is None else unknown
            extension.ticket.fail([extension.position], error)

    def _tell(self, flying: list[Item], held: dict[ShardTopic, list[Item]]) -> None:
        """The claims of `flying` have ended, those of `held` well."""
        ended: dict[ShardTopic, list[int]] = {}
        for item in flying:
            if item.topic in ended:
                ended[item.topic].append(item.place)
            else:
                ended[item.topic] = [item.place]
        for topic, gone in ended.items():
            places = self._places.get(topic)
            if places is not None:
                places.difference_update(gone)
                if not places:
                    del self._places[topic]
            topic.claim_head = min(places) if places else order.LAST
        for topic, gone in ended.items():
            self._book.listener.claims_ended(topic, len(gone), held.get(topic, []))
            self._book.touched[topic] = None


def _place(item: Item) -> int:
    return item.place
