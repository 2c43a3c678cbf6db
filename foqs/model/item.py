"""One item in the memory of its owner, from its enqueue or claim until it is gone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

from foqs.model.calls import ItemContent

if TYPE_CHECKING:
    from foqs.model.topic import ShardTopic


class Phase(IntEnum):
    INSERTING = 0
    READY = 1
    """In the database and claimable; in memory only because its payload is still resident."""
    CLAIMING = 2
    PREFETCHED = 3
    """Claimed, in the prefetch buffer."""
    LEASED = 4
    """Handed out."""
    SETTLING = 5
    """Its ack, nack or expiry is on the way to the database."""
    GONE = 6


class ItemEvent(IntEnum):
    """What becomes of items, as operators count it."""

    ENQUEUED = 0
    RATE_LIMITED = 1
    DELIVERED = 2
    ACKED = 3
    NACKED = 4
    EXTENDED = 5
    LEASE_ENDED = 6
    """Without an ack or nack."""
    EXPIRED = 7
    """Past its TTL."""
    DEAD_LETTERED = 8


class Claim:
    """One row of the claim journal; it goes when `open_count` of its items is 0."""

    __slots__ = ("due_at", "id", "is_ahead", "is_inherited", "keys", "open_count")

    def __init__(
        self, claim_id: int, due_at: int, keys: Iterable[int], *, is_ahead: bool, is_inherited: bool = False
    ) -> None:
        self.id = claim_id
        self.due_at = due_at
        self.is_ahead = is_ahead
        """Made before it was known who would get the items, or whether anybody would."""
        self.is_inherited = is_inherited
        """Another owner made it."""
        self.keys = array("Q", keys)
        """Of the row's entries; those whose item is settled or ready again say nothing any more."""
        self.open_count = len(self.keys)


class ShardItem:
    __slots__ = (
        "at_most_once",
        "claim",
        "content",
        "deliveries",
        "due_at",
        "enqueued_at",
        "expires_at",
        "failed_attempts",
        "key",
        "lease_due_at",
        "lease_ms",
        "lease_wanted_ms",
        "phase",
        "prefetched_at",
        "priority",
        "receipt",
        "size_bytes",
        "sort_key",
        "topic",
    )

    def __init__(
        self,
        key: int,
        topic: ShardTopic,
        priority: int,
        due_at: int,
        sort_key: int,
        phase: Phase = Phase.READY,
        enqueued_at: int = 0,
        expires_at: int = 0,
        lease_ms: int = 0,
        at_most_once: bool = False,
        content: ItemContent | None = None,
    ) -> None:
        self.key = key
        self.topic = topic
        self.priority = priority
        self.due_at = due_at
        self.sort_key = sort_key
        self.phase = phase
        self.enqueued_at = enqueued_at
        self.expires_at = expires_at
        self.lease_ms = lease_ms
        self.at_most_once = at_most_once
        self.content = content
        """None while it is not in memory."""
        self.size_bytes = 0 if content is None else sum(map(len, content))
        """Of the content as it was read or enqueued, also once it is not in memory any more."""
        self.deliveries = 0
        """Ended ones; the present delivery has the number deliveries + 1."""
        self.failed_attempts = 0
        self.claim: Claim | None = None
        self.prefetched_at = 0
        """When its claim was committed, on the steady clock."""
        self.lease_due_at = 0
        """On the steady clock; 0 unless it was handed out."""
        self.lease_wanted_ms = 0
        """The lease for which its claim is made; 0 when it is claimed ahead."""
        self.receipt = ""
        """Of the delivery that was handed out last."""

    @property
    def is_claimed_ahead(self) -> bool:
        return self.claim is not None and self.claim.is_ahead

    def is_claimed_for(self, lease_due_at: int) -> bool:
        """Whether its claim backs a lease until then. Of an item that is delivered at most once only a call's does:
        a new owner takes it for the delivery.
        """
        claim = self.claim
        return claim is not None and claim.due_at >= lease_due_at and not (claim.is_ahead and self.at_most_once)
