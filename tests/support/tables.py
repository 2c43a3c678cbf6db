"""A shard's tables as dictionaries: what a transaction does to them, and what a new owner reads from them."""

from __future__ import annotations

from foqs.model import ids, order
from foqs.shard.port import (
    TIMER_LANE,
    ItemRow,
    LaneCounts,
    Refill,
    Rewrite,
    ShardImage,
    StoredClaim,
    Transaction,
    TransactionResult,
)
from foqs.testing.fake_server import claimed_row, leave_unread, new_row, without_content


class Tables:
    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.epoch = 0
        self.items: dict[int, ItemRow] = {}
        self.claims: dict[int, StoredClaim] = {}
        self.topics: dict[int, tuple[int, bytes]] = {}
        self.transaction_number = 0
        self.delay_checkpoint = 0
        self.claim_checkpoint = 0
        self.topic_number_last = 0
        self.steady_ms = 1_000_000
        """Where the clocks of the tests begin."""

    def open(self, now_ms: int) -> ShardImage:
        self.epoch += 1
        claims = [claim for claim_id, claim in sorted(self.claims.items()) if claim_id >= self.claim_checkpoint]
        keys = {key for claim in claims for key, _ in claim.entries}
        counts = self.counts()
        return ShardImage(
            epoch=self.epoch,
            last_key=self.epoch << ids.SEQUENCE_BITS,
            transaction_number=self.transaction_number,
            delay_checkpoint=self.delay_checkpoint,
            topic_number_last=self.topic_number_last,
            now_ms=now_ms,
            steady_ms=self.steady_ms,
            topics=[(number, namespace, name) for number, (namespace, name) in self.topics.items()],
            namespaces=[(number, b"n") for number in range(1, 10)],
            count=lambda: counts,
            claims=claims,
            claimed_rows={key: claimed_row(self.items[key]) for key in keys if key in self.items},
        )

    def counts(self) -> LaneCounts:
        lanes: dict[int, int] = {}
        delayed: dict[int, int] = {}
        for row in self.items.values():
            lanes[row.lane] = lanes.get(row.lane, 0) + 1
            if row.lane == TIMER_LANE:
                delayed[row.topic] = delayed.get(row.topic, 0) + 1
        return LaneCounts(list(lanes.items()), list(delayed.items()))

    def sort_key(self, row: ItemRow) -> int:
        return order.sort_key(row.urgency, row.due_at, row.key, self.shard_id)

    def apply(self, transaction: Transaction) -> TransactionResult:
        """Commit it, in the order of its parts."""
        result = TransactionResult()
        result.refilled = [self._refill(refill) for refill in transaction.refills]
        fetched = [item.key for item in transaction.fetches if item.key in self.items]
        result.fetched = {key: self.items[key] for key in fetched}
        result.read_count = sum(map(len, result.refilled)) + len(fetched)
        leave_unread(transaction, result, self.items)
        for number in transaction.topics_gone:
            del self.topics[number]
        for topic in transaction.topics_new:
            assert (topic.namespace, topic.name.encode()) not in self.topics.values(), "a topic is stored twice"
            self.topics[topic.number] = (topic.namespace, topic.name.encode())
        for item in [*transaction.inserts, *transaction.inserts_short_lived]:
            assert item.topic.number in self.topics, "an item of a topic that is not stored"
            assert item.key not in self.items, "a key is used twice"
            self.items[item.key] = new_row(item)
        for claim in transaction.claims:
            rows = [self.items[item.key] for item in claim.items]
            entries = [(row.key, row.deliveries + 1) for row in rows]
            self.claims[claim.id] = StoredClaim(claim.id, claim.due_at, claim.is_ahead, entries)
        for claim in transaction.claims_rewritten:
            assert claim.id in self.claims
            entries = [(item.key, item.deliveries + 1) for item in claim.items]
            self.claims[claim.id] = self.claims[claim.id]._replace(entries=entries)
        for rewrite in transaction.rewrites:
            row = self.items[rewrite.key]
            if rewrite.is_in_place:
                assert (row.lane, row.urgency, row.due_at) == (rewrite.lane, rewrite.urgency, rewrite.due_at)
            self.items[rewrite.key] = _rewritten(row, rewrite)
        for key in transaction.wakes:
            row = self.items[key]
            assert row.lane == TIMER_LANE, "only delayed rows are woken"
            self.items[key] = row._replace(lane=row.topic, urgency=row.priority)
        for key in transaction.deletes:
            del self.items[key]
        for claim_id in transaction.claims_gone:
            del self.claims[claim_id]
        result.looked_up = {
            key: self.items[key] if transaction.look_ups_with_payload else without_content(self.items[key])
            for key in transaction.look_ups
            if key in self.items
        }
        self.transaction_number = transaction.number
        self.delay_checkpoint = transaction.delay_checkpoint
        self.claim_checkpoint = transaction.claim_checkpoint
        self.topic_number_last = transaction.topic_number_last
        self.steady_ms = transaction.steady_ms
        return result

    def _refill(self, refill: Refill) -> list[tuple[int, int, int, int, int]]:
        in_lane = [row for key, row in self.items.items() if row.lane == refill.lane]
        rows = [row for row in in_lane if self.sort_key(row) > refill.edge]
        rows.sort(key=self.sort_key)
        timers = refill.lane == TIMER_LANE
        return [
            (row.urgency, row.due_at, row.key, row.topic if timers else 0, row.priority if timers else 0)
            for row in rows[: refill.limit]
        ]


def _rewritten(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    sort_key = (row.lane, row.urgency, row.due_at)
    lane, urgency, due_at = sort_key if rewrite.is_in_place else (rewrite.lane, rewrite.urgency, rewrite.due_at)
    content = row.content
    return row._replace(
        lane=lane,
        urgency=urgency,
        due_at=due_at,
        deliveries=rewrite.deliveries,
        failed_attempts=rewrite.failed_attempts,
        content=content if rewrite.metadata is None else content._replace(metadata=rewrite.metadata),
        death_reason=row.death_reason if rewrite.death_reason is None else rewrite.death_reason,
        expires_at=row.expires_at if rewrite.expires_at is None else rewrite.expires_at,
    )
