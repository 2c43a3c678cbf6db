"""What one transaction of a shard does, as data, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from foqs.core.item import Claim, Item
from foqs.core.topic import ShardTopic

TIMER_LANE = 0


@dataclass(slots=True)
class Refill:
    """Read the next rows of a lane after `edge`, in order."""

    lane: int
    edge: int
    limit: int


@dataclass(slots=True)
class Rewrite:
    """Give a row a new place and new counts; `metadata` and `death_reason` None leave what is there."""

    key: int
    lane: int
    urgency: int
    due_at: int
    deliveries: int
    failed_attempts: int
    metadata: bytes | None = None
    death_reason: bytes | None = None


@dataclass(slots=True)
class Transaction:
    """The parts run in the order of the fields; refills first, so that they see no row of this transaction."""

    number: int
    delay_checkpoint: int = 0
    claim_checkpoint: int = 0
    topic_number_last: int = 0
    refills: list[Refill] = field(default_factory=list)
    topics_gone: list[int] = field(default_factory=list)
    topics_new: list[ShardTopic] = field(default_factory=list)
    inserts: list[Item] = field(default_factory=list)
    fetches: list[Item] = field(default_factory=list)
    """Claimed items whose rows are not in memory."""
    claims: list[Claim] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)
    wakes: list[int] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    claims_gone: list[int] = field(default_factory=list)
    look_ups: list[int] = field(default_factory=list)
    """Read last, so that the rows are as this transaction leaves them."""


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item row without its place."""

    key: int
    lane: int
    urgency: int
    due_at: int
    topic: int
    priority: int
    enqueued_at: int
    expires_at: int
    lease_ms: int
    at_most_once: int
    deliveries: int
    failed_attempts: int
    death_reason: bytes | None
    metadata: bytes
    payload: bytes


@dataclass(slots=True)
class TransactionResult:
    refilled: list[list[tuple[int, int, int, int, int]]] = field(default_factory=list)
    """By refill: (urgency, due_at, key, topic, priority); topic and priority are 0 outside the timer lane."""
    fetched: dict[int, ItemRow] = field(default_factory=dict)
    looked_up: dict[int, ItemRow] = field(default_factory=dict)


@dataclass(slots=True)
class ShardImage:
    """What a new owner reads before it serves."""

    epoch: int
    transaction_number: int
    delay_checkpoint: int
    topic_number_last: int
    now_ms: int
    """The shard server's clock."""
    topics: list[tuple[int, int, bytes]]
    """(number, namespace, name)."""
    lanes: list[tuple[int, int]]
    """(lane, rows)."""
    delayed: list[tuple[int, int]]
    """(topic, rows in the timer lane)."""
    claims: list[tuple[int, int, list[tuple[int, int]]]]
    """(id, due_at, [(key, delivery)])."""
    claimed_rows: dict[int, ItemRow]


class TransactionFailedError(Exception):
    """Certainly nothing of the transaction happened; the session still works."""


class SessionLostError(Exception):
    """The session is gone. Whether the transaction happened shows after reopening."""


class OwnershipLostError(Exception):
    """Another owner has the shard, or this host cannot have it now."""
