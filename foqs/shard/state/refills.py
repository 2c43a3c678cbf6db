"""Reading on beyond the edge of a topic's window."""

from __future__ import annotations

from collections import OrderedDict, deque

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import FetchedRow, Refill, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex, fill


class Refills:
    """Reads on beyond the edges of topics' windows, with the transactions.

    The dispatcher asks for topics that consumers wait for, and `warm_up` for those that nobody has asked for yet. It
    owns the list of both.
    """

    def __init__(self, index: ShardIndex) -> None:
        self._index = index
        self._wanted: OrderedDict[ShardTopic, bool] = OrderedDict()
        """Whether with the rows' contents; the first one asked for is the first to be read."""
        self._in_flight: list[tuple[ShardTopic, Refill]] = []
        self._cold: deque[ShardTopic] = deque(index.topics.values())
        """Topics that nobody has asked for since the take-over."""
        self._has_failed = False
        """The last transaction: the next one does without, since a refill may be what failed, and will again."""

    def want(self, topic: ShardTopic, *, with_payload: bool) -> None:
        """Read on in the next transaction; `with_payload`: consumers will have what is read next."""
        if topic.window.edge != order.LAST and not topic.window.refilling:
            self._wanted[topic] = with_payload

    def warm_up(self) -> bool:
        """Learn the heads of topics that nobody asks for, a few at a time, for whoever discovers topics."""
        for _ in range(min(len(self._cold), limits.WARM_UPS_PER_TICK)):
            topic = self._cold.popleft()
            if topic.window.wants_refill and not topic.window.sort_keys and not self._is_gone(topic):
                self.want(topic, with_payload=False)
        return bool(self._wanted)

    def _is_gone(self, topic: ShardTopic) -> bool:
        return self._index.by_number.get(topic.number) is not topic

    def forget(self, topic: ShardTopic) -> None:
        self._wanted.pop(topic, None)

    def take(self, transaction: Transaction, now: Now) -> None:
        if self._has_failed:
            self._has_failed = False
            return
        index = self._index
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        rows_left = index.read_budget.rows_max
        part = rows_left // self._part_count()
        while self._wanted and rows_left > 0 and len(self._in_flight) < limits.TRANSACTION_REFILLS_MAX:
            topic, with_payload = self._wanted.popitem(last=False)
            window = topic.window
            window.refilling = True
            wanted = window.budget.refill_items
            if topic.leased > wanted:
                # Most of what comes next is under lease, maybe, and not to be had: get past it in fewer steps. What is
                # none the less ready fits into the window, of which a refill is a quarter.
                wanted, with_payload = 3 * wanted, False
            limit = min(wanted, max(limits.READ_ROWS_MIN, min(part, rows_left)))
            refill = Refill(topic.number, window.edge, limit)
            rows_left -= min(limit, max(topic.rows, 1)) if index.counted else limit
            if with_payload:
                bytes_max = refill.limit * index.settings.item_bytes_max(topic.namespace)
                refill.with_payload = bytes_max <= bytes_left
                bytes_left -= bytes_max if refill.with_payload else 0
            self._in_flight.append((topic, refill))
            transaction.refills.append(refill)

    def _part_count(self) -> int:
        """In how many equal parts topics share the budget; in one, for whoever comes first, once rows are counted."""
        return 1 if self._index.counted else min(max(1, len(self._wanted)), limits.TRANSACTION_REFILLS_MAX)

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        in_flight, self._in_flight = self._in_flight, []
        leases, shard_id = self._index.leases, self._index.shard_id
        rows_of = dict(zip(map(id, transaction.refills), result.refilled, strict=True))
        for topic, refill in in_flight:
            window = topic.window
            window.refilling = False
            if self._is_gone(topic):
                continue
            if window.edge != refill.edge:
                continue  # A trim has moved the edge back meanwhile: what was read lies beyond it, is read again.
            rows = rows_of[id(refill)]
            edge = order.LAST
            if len(rows) == refill.limit:
                edge = order.sort_key(rows[-1][0], rows[-1][1], rows[-1][2], shard_id)
            rows = [row for row in rows if row[2] not in leases]
            window.extend([order.sort_key(row[0], row[1], row[2], shard_id) for row in rows], edge)
            self._index.events.topics_changed[topic] = None
            if refill.with_payload:
                self._keep(topic, rows, result.read_ahead, result.unread)

    def _keep(
        self,
        topic: ShardTopic,
        rows: list[tuple[int, int, int, int, int]],
        contents: dict[int, FetchedRow],
        unread: set[int],
    ) -> None:
        index = self._index
        read: list[ShardItem] = []
        for urgency, due_at, key, _, _ in rows:
            if key not in index.resident and key not in unread:
                item = ShardItem(key, topic, urgency, due_at, order.sort_key(urgency, due_at, key, index.shard_id))
                fill(item, contents[key])
                read.append(item)
        index.keep_resident(read)

    def failed(self, error: FoqsError) -> None:
        in_flight, self._in_flight = self._in_flight, []
        self._has_failed = bool(in_flight)
        for topic, refill in in_flight:
            topic.window.refilling = False
            if self._is_gone(topic):
                continue
            self._wanted.setdefault(topic, refill.with_payload)
            self._index.events.topics_changed[topic] = None

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        return None
