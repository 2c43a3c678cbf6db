"""Reads beyond the edges of topics' windows."""

from __future__ import annotations

from collections import OrderedDict, deque

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import FetchedRow, Refill, Transaction, TransactionResult
from foqs.shard.state import index as shard_index
from foqs.shard.state.index import ShardIndex, fill
from foqs.shard.state.ops.operation import Operation

WARM_UPS_PER_TICK = 4
"""Topics without consumers whose first items a new owner reads in one tick."""


class Refills:
    """The topics whose windows need further reads.

    The dispatcher asks for topics that consumers wait for, and `warm_up` for topics without any request.
    """

    def __init__(self, index: ShardIndex) -> None:
        self.wanted: OrderedDict[ShardTopic, bool] = OrderedDict()
        """The topics to read, in order of request, each with True if the rows' contents are wanted."""
        self._index = index
        self.cold: deque[ShardTopic] = deque(index.topics.values())
        """Topics without a request since the take-over."""
        self._has_failed = False
        """True if the last transaction failed. The next one then skips refills, because one might have caused that, and
        would again.
        """

    def want(self, topic: ShardTopic, *, with_payload: bool) -> None:
        """Read on in the next transaction; `with_payload` is True if consumers will get the rows."""
        if topic.window.edge != order.LAST and not topic.window.refilling:
            self.wanted[topic] = with_payload

    def warm_up(self) -> None:
        """Read the heads of topics without a request, a few at a time, for calls that discover topics."""
        for _ in range(min(len(self.cold), WARM_UPS_PER_TICK)):
            topic = self.cold.popleft()
            if topic.window.wants_refill and not topic.window.sort_keys and not self.is_gone(topic):
                self.want(topic, with_payload=topic.is_serial)  # Only a row tells since when its items wait.

    def is_gone(self, topic: ShardTopic) -> bool:
        return self._index.by_number.get(topic.number) is not topic

    def forget(self, topic: ShardTopic) -> None:
        self.wanted.pop(topic, None)

    def begin(self, transaction: Transaction, now: Now) -> list[Refilling]:
        """Take the first topics, up to the read budget in rows."""
        if self._has_failed:
            self._has_failed = False
            return []
        index = self._index
        taken: list[tuple[ShardTopic, Refill]] = []
        bytes_left = limits.TRANSACTION_FETCH_BYTES_MAX
        rows_left = index.read_budget.rows_max
        part = rows_left // self._part_count()
        while self.wanted and rows_left > 0 and len(taken) < limits.TRANSACTION_REFILLS_MAX:
            topic, with_payload = self.wanted.popitem(last=False)
            window = topic.window
            window.refilling = True
            wanted = window.budget.refill_items
            if topic.leased > wanted:
                # Most of the next rows are probably under lease, so pass them in fewer steps. The ready ones among them
                # fit into the window, of which a refill is a quarter.
                wanted, with_payload = 3 * wanted, False
            limit = min(wanted, max(shard_index.READ_ROWS_MIN, min(part, rows_left)))
            refill = Refill(topic.number, window.edge, limit)
            rows_left -= min(limit, max(topic.rows, 1)) if index.counted else limit
            if with_payload:
                bytes_max = refill.limit * index.settings.item_bytes_max(topic.namespace)
                refill.with_payload = bytes_max <= bytes_left
                bytes_left -= bytes_max if refill.with_payload else 0
            taken.append((topic, refill))
        if not taken:
            return []
        operation = Refilling(self, index, taken)
        operation.write(transaction, now)
        return [operation]

    def _part_count(self) -> int:
        """Return the number of equal parts of the budget; one, for the first topic, once rows are counted."""
        return 1 if self._index.counted else min(max(1, len(self.wanted)), limits.TRANSACTION_REFILLS_MAX)

    def put_back(self, topic: ShardTopic, *, with_payload: bool) -> None:
        """Let the topic wait for another transaction, and skip refills in the next one."""
        self._has_failed = True
        topic.window.refilling = False
        if not self.is_gone(topic):
            self.wanted.setdefault(topic, with_payload)
            self._index.events.topics_changed[topic] = None


class Refilling(Operation):
    """Reads beyond the edges of windows, in one transaction, of which they see no row."""

    __slots__ = ("_index", "_refills", "_source")

    def __init__(self, source: Refills, index: ShardIndex, refills: list[tuple[ShardTopic, Refill]]) -> None:
        self._source = source
        self._index = index
        self._refills = refills

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.refills += [refill for _, refill in self._refills]

    def committed(self, result: TransactionResult, now: Now) -> None:
        leases, shard_id = self._index.leases, self._index.shard_id
        for (topic, refill), found in zip(self._refills, result.refilled, strict=False):
            window = topic.window
            window.refilling = False
            if self._source.is_gone(topic):
                continue
            if window.edge != refill.edge:
                continue  # A trim has moved the edge back, so these rows lie beyond it and are read again.
            edge = order.LAST
            if len(found) == refill.limit:
                edge = order.sort_key(found[-1][0], found[-1][1], found[-1][2], shard_id)
            rows = [row for row in found if row[2] not in leases]
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
        if topic.is_serial and read and not topic.first_enqueued_at:
            topic.first_enqueued_at = read[0].enqueued_at
        index.keep_resident(read)

    def rolled_back(self, error: FoqsError) -> None:
        for topic, refill in self._refills:
            self._source.put_back(topic, with_payload=refill.with_payload)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing, because no caller waits for it."""
