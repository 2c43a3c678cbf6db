"""Reading on beyond the edge of a topic's window."""

from __future__ import annotations

from collections import OrderedDict, deque

from foqs.core import limits, order
from foqs.core.clock import Now
from foqs.core.errors import FoqsError
from foqs.core.item import Item
from foqs.core.topic import ShardTopic
from foqs.shard.book import Book, fill
from foqs.shard.packs import Packs
from foqs.storage.transaction import FetchedRow, Refill, Transaction, TransactionResult


class Refills:
    def __init__(self, book: Book, packs: Packs) -> None:
        self._book = book
        self._packs = packs
        self._wanted: OrderedDict[ShardTopic, bool] = OrderedDict()
        """Whether with the rows' contents; the first one asked for is the first to be read."""
        self._flying: list[tuple[ShardTopic, Refill]] = []
        self._cold: deque[ShardTopic] = deque(book.topics.values())
        """Topics that nobody has asked for since the take-over."""
        self._has_failed = False
        """The last transaction: the next one does without, since a refill may be what failed, and will again."""

    def want(self, topic: ShardTopic, *, whole: bool) -> None:
        """Read on in the next transaction; `whole` with the rows' contents, for consumers who will have them next."""
        if topic.window.edge != order.LAST and not topic.window.refilling:
            self._wanted[topic] = whole

    def warm_up(self) -> bool:
        """Learn the heads of topics that nobody asks for, a few at a time, for whoever discovers topics."""
        for _ in range(min(len(self._cold), limits.WARM_UPS_PER_TICK)):
            topic = self._cold.popleft()
            if topic.window.wants_refill and not topic.window.places and not self._is_gone(topic):
                self.want(topic, whole=False)
        return bool(self._wanted)

    def _is_gone(self, topic: ShardTopic) -> bool:
        return self._book.by_number.get(topic.number) is not topic

    def forget(self, topic: ShardTopic) -> None:
        self._wanted.pop(topic, None)

    def take(self, transaction: Transaction, now: Now) -> None:
        if self._has_failed:
            self._has_failed = False
            return
        book = self._book
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        rows_left = book.read_budget.rows_max
        part = rows_left // self._part_count()
        put_off: dict[ShardTopic, bool] = {}
        while self._wanted and rows_left > 0 and len(self._flying) + len(put_off) < limits.TRANSACTION_REFILLS_MAX:
            topic, whole = self._wanted.popitem(last=False)
            if topic.pack_count:
                # A trim may have left packed items behind the edge: read on when all of them have rows.
                self._packs.unpack_topic(topic, book.last_key)
                put_off[topic] = whole
                continue
            window = topic.window
            window.refilling = True
            wanted = window.budget.refill_items
            if topic.leased > wanted:
                # Most of what comes next is under lease, maybe, and not to be had: get past it in fewer steps. What is
                # none the less ready fits into the window, of which a refill is a quarter.
                wanted, whole = 3 * wanted, False
            limit = min(wanted, max(limits.READ_ROWS_MIN, min(part, rows_left)))
            refill = Refill(topic.number, window.edge, limit)
            rows_left -= min(limit, max(topic.rows, 1)) if book.counted else limit
            if whole:
                bytes_max = refill.limit * book.listener.item_bytes_max(topic.namespace)
                refill.whole = bytes_max <= bytes_left
                bytes_left -= bytes_max if refill.whole else 0
            self._flying.append((topic, refill))
            transaction.refills.append(refill)
        self._wanted |= put_off

    def _part_count(self) -> int:
        """In how many equal parts topics share the budget; in one, for whoever comes first, once rows are counted."""
        return 1 if self._book.counted else min(max(1, len(self._wanted)), limits.TRANSACTION_REFILLS_MAX)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        flying, self._flying = self._flying, []
        leases, shard_id = self._book.leases, self._book.shard_id
        rows_of = dict(zip(map(id, transaction.refills), result.refilled, strict=True))
        for topic, refill in flying:
            window = topic.window
            window.refilling = False
            if self._is_gone(topic):
                continue
            if window.edge != refill.edge:
                continue  # A trim has moved the edge back meanwhile: what was read lies beyond it, is read again.
            rows = rows_of[id(refill)]
            edge = order.LAST
            if len(rows) == refill.limit:
                edge = order.place(rows[-1][0], rows[-1][1], rows[-1][2], shard_id)
            rows = [row for row in rows if row[2] not in leases]
            window.extend([order.place(row[0], row[1], row[2], shard_id) for row in rows], edge)
            self._book.touched[topic] = None
            if refill.whole:
                self._keep(topic, rows, result.read_ahead, result.unread)

    def _keep(
        self,
        topic: ShardTopic,
        rows: list[tuple[int, int, int, int, int]],
        contents: dict[int, FetchedRow],
        unread: set[int],
    ) -> None:
        book = self._book
        read: list[Item] = []
        for urgency, due_at, key, _, _ in rows:
            if key not in book.resident and key not in unread:
                item = Item(key, topic, urgency, due_at, order.place(urgency, due_at, key, book.shard_id))
                fill(item, contents[key])
                read.append(item)
        book.keep_resident(read)

    def failed(self, error: FoqsError) -> None:
        flying, self._flying = self._flying, []
        self._has_failed = bool(flying)
        for topic, refill in flying:
            topic.window.refilling = False
            if self._is_gone(topic):
                continue
            self._wanted.setdefault(topic, refill.whole)
            self._book.touched[topic] = None

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        return None
