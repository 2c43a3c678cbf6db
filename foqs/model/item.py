"""One item in the memory of its owner, from its enqueue or claim until it leaves, and its life cycle."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from foqs.model import order
from foqs.model.calls import NO_CONTENT, ItemContent

if TYPE_CHECKING:
    from foqs.model.holder import LeaseHolder
    from foqs.model.topic import ShardTopic


class Phase(IntEnum):
    """The state of an item in its life. Only `move` and `move_all` change it."""

    INSERTING = 0
    """Its row is on the way to the database."""
    ARRIVING = 1
    """Its row and a claim of it are on the way to the database in the same transaction."""
    READY = 2
    """It is in the database and claimable; in memory only because its payload is still resident."""
    CLAIMING = 3
    """Its claim is queued or on the way to the database."""
    PREFETCHED = 4
    LEASED = 5
    SETTLING = 6
    """Its ack, nack or expiry is queued or on the way to the database."""
    GONE = 7
    """Its row is deleted, or has become that of a ready, delayed or dead item that is not in memory."""


class ItemEvent(IntEnum):
    """The events in the life of an item that operators count."""

    ENQUEUED = 0
    RATE_LIMITED = 1
    DELIVERED = 2
    ACKED = 3
    NACKED = 4
    EXTENDED = 5
    LEASE_ENDED = 6
    """A lease ended without an ack or nack."""
    EXPIRED = 7
    """An item was past its TTL."""
    DEAD_LETTERED = 8


class Outcome(IntEnum):
    """The end of a delivery or of the life of an item. The event log uses these names in lower case."""

    ACKED = 0
    NACKED = 1
    """A failed attempt; the item will be delivered again."""
    RELEASED = 2
    """The consumer returned the item without a failed attempt."""
    LEASE_ENDED = 3
    """A failed attempt without a response from the consumer; the item will be delivered again."""
    DEAD = 4
    """The last attempt failed, or the consumer asked for it: the item is a dead letter."""
    EXPIRED = 5
    DELETED = 6
    """An operator deleted the item."""
    AT_MOST_ONCE = 7
    """The only delivery of an at-most-once item ended without an ack."""

    @property
    def ends_life(self) -> bool:
        """True if no delivery follows, unless a dead letter is redriven."""
        return self not in (Outcome.NACKED, Outcome.RELEASED, Outcome.LEASE_ENDED)


class Claim:
    """One row of the claim journal, which is deleted once no item needs it."""

    __slots__ = ("due_at", "id", "is_ahead", "is_inherited", "keys", "open_count")

    def __init__(
        self, claim_id: int, due_at: int, keys: Iterable[int], *, is_ahead: bool, is_inherited: bool = False
    ) -> None:
        self.id = claim_id
        self.due_at = due_at
        self.is_ahead = is_ahead
        """True if it was made before the consumer of the items was known, if any."""
        self.is_inherited = is_inherited
        """True if another owner made it."""
        self.keys = array("Q", keys)
        """The row's entries; the entries of items that are settled or ready again have no meaning."""
        self.open_count = len(self.keys)
        """The number of items that need the row."""


class Bundle:
    """The fields that the items of one `ShardItem` have for themselves, if it stands for several."""

    __slots__ = ("item_bytes_max", "metadata", "parts", "payloads", "receipts", "trace_context")

    def __init__(self, payloads: Sequence[bytes], metadata: bytes, trace_context: bytes, item_bytes_max: int) -> None:
        self.payloads = payloads
        """The payloads of its items in the order of their keys; empty once their consumer has them."""
        self.metadata, self.trace_context = metadata, trace_context
        """The rest of the contents, which the items share."""
        self.item_bytes_max = item_bytes_max
        """A bound of the content of each item."""
        self.receipts: list[str] = []
        """The receipts of its items; empty unless they are under lease."""
        self.parts: list[ShardItem] = []
        """The parts into which it was divided, which holders of the whole must use in its place."""


class ShardItem:
    """An item that its shard has in memory. Its present holder writes its fields, except `phase`.

    It can stand for several items of one call: a bundle. These have consecutive keys, share all but their payloads, and
    have the same life. `divide` ends this before a part of these takes another way, so that
    only an item by itself ever fails, is extended or is looked up.
    """

    __slots__ = (
        "at_most_once",
        "bundle",
        "claim",
        "content",
        "count",
        "delivered_at",
        "deliveries",
        "due_at",
        "enqueued_at",
        "expires_at",
        "failed_attempts",
        "holder",
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
        "was_dead",
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
        size_bytes: int = 0,
    ) -> None:
        self.key = key
        """The key of its first item."""
        self.count = 1
        """The number of items for which it stands."""
        self.bundle: Bundle | None = None
        """None if it stands for one item."""
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
        """None while it is not in memory; NO_CONTENT in place of the contents of a bundle."""
        self.size_bytes = size_bytes if size_bytes or content is None else sum(map(len, content))
        """Size of the content as it was read or enqueued, even after it has left memory; of all contents together."""
        self.deliveries = 0
        """The number of ended deliveries; the present one has the next number."""
        self.failed_attempts = 0
        self.was_dead = False
        """True if it was a dead letter and was redriven."""
        self.delivered_at = 0
        """The start of the present delivery, on the server's clock; 0 if none, or unknown."""
        self.claim: Claim | None = None
        self.prefetched_at = 0
        """When its claim was committed, on the steady clock."""
        self.lease_due_at = 0
        """The end of its lease, on the steady clock; 0 unless it was delivered."""
        self.holder: LeaseHolder | None = None
        """The consumer that has it under lease; None if nobody knows."""
        self.lease_wanted_ms = 0
        """The lease for which its claim is made; 0 if it is claimed ahead."""
        self.receipt = ""

    @property
    def keys(self) -> range:
        return range(self.key, self.key + self.count)

    @property
    def sort_keys(self) -> range:
        return order.sort_keys(self.sort_key, self.count)

    @property
    def receipts(self) -> list[str]:
        """The receipts of its items, which are under lease."""
        return [self.receipt] if self.bundle is None else self.bundle.receipts

    @property
    def first_content(self) -> ItemContent | None:
        """The content of its first item; None while it is not in memory."""
        bundle = self.bundle
        if bundle is None or not bundle.payloads:
            return self.content
        return ItemContent(bundle.payloads[0], bundle.metadata, bundle.trace_context)

    @property
    def item_bytes_max(self) -> int:
        """A bound of the content of each item."""
        return self.size_bytes if self.bundle is None else self.bundle.item_bytes_max

    def forget_content(self) -> None:
        """Drop the contents, because they have left for their consumer, or are needed no more."""
        self.content = None
        if self.bundle is not None:
            self.bundle.payloads = ()

    @property
    def is_claimed_ahead(self) -> bool:
        return self.claim is not None and self.claim.is_ahead

    def is_claimed_for(self, lease_due_at: int) -> bool:
        """Return True if its claim backs a lease until then.

        A claim that was made ahead does not back the lease of an at-most-once item, because a new owner would take the
        item for undelivered.
        """
        claim = self.claim
        return claim is not None and claim.due_at >= lease_due_at and not (claim.is_ahead and self.at_most_once)


# ---- bundles ----


def part_of(item: ShardItem, first: int, count: int) -> ShardItem:
    """Return a part of a bundle as if it had always been by itself; the bundle is unchanged."""
    bundle = item.bundle
    assert bundle is not None
    part = ShardItem(
        item.key + first, item.topic, item.priority, item.due_at, order.sort_keys(item.sort_key, item.count)[first],
        item.phase, item.enqueued_at, item.expires_at, item.lease_ms, item.at_most_once,
    )  # fmt: skip
    part.deliveries, part.failed_attempts, part.was_dead = item.deliveries, item.failed_attempts, item.was_dead
    part.delivered_at, part.claim, part.prefetched_at = item.delivered_at, item.claim, item.prefetched_at
    part.lease_due_at, part.holder, part.lease_wanted_ms = item.lease_due_at, item.holder, item.lease_wanted_ms
    part.count = count
    payloads, receipts = bundle.payloads[first : first + count], bundle.receipts[first : first + count]
    metadata, trace_context = bundle.metadata, bundle.trace_context
    if payloads:
        part.size_bytes = sum(map(len, payloads)) + count * (len(metadata) + len(trace_context))
    else:
        part.size_bytes = item.size_bytes * (first + count) // item.count - item.size_bytes * first // item.count
    if count > 1:
        part.bundle = Bundle(payloads, metadata, trace_context, bundle.item_bytes_max)
        part.bundle.receipts = receipts
        part.content = item.content
    else:
        part.content = ItemContent(payloads[0], metadata, trace_context) if payloads else None
    part.receipt = receipts[0] if receipts else ""
    return part


def bundle_of(first: ShardItem, payloads: Sequence[bytes], content: ItemContent) -> ShardItem:
    """Let a new item stand for an item for each payload, with keys from its own on; the rest of `content` is shared."""
    _, metadata, trace_context = content
    sizes_bytes = list(map(len, payloads))
    shared_bytes = len(metadata) + len(trace_context)
    first.count = len(payloads)
    first.bundle = Bundle(payloads, metadata, trace_context, max(sizes_bytes) + shared_bytes)
    first.content = NO_CONTENT
    first.size_bytes = sum(sizes_bytes) + first.count * shared_bytes
    return first


def singles(item: ShardItem) -> list[ShardItem]:
    """Return the items of a bundle, each by itself; the bundle is unchanged."""
    return [item] if item.bundle is None else [part_of(item, at, 1) for at in range(item.count)]


def divide(item: ShardItem, at: int | None = None) -> list[ShardItem]:
    """Divide a bundle before its item number `at`, or into its single items. Returns the parts.

    They replace it among the leases of their shard. Other holders find them by `undivided`.
    """
    bundle = item.bundle
    assert bundle is not None
    assert not bundle.parts, "it was divided before"
    parts = singles(item) if at is None else [part_of(item, 0, at), part_of(item, at, item.count - at)]
    bundle.parts = parts
    leases = item.topic.leases
    if leases.get(item.key) is item:
        for part in parts:
            leases.update(dict.fromkeys(part.keys, part))
    return parts


def undivided(items: Iterable[ShardItem]) -> list[ShardItem]:
    """Return the items with the parts of those that were divided meanwhile, in their order."""
    found: list[ShardItem] = []
    for item in items:
        if item.bundle is None or not item.bundle.parts:
            found.append(item)
        else:
            found += undivided(item.bundle.parts)
    return found


def count_of(items: Iterable[ShardItem]) -> int:
    """Return the number of items, those of bundles included."""
    return sum([item.count for item in items])


def keys_of(items: Iterable[ShardItem]) -> list[int]:
    """Return the keys of all items, those of bundles included, in their order."""
    keys: list[int] = []
    for item in items:
        if item.bundle is None:
            keys.append(item.key)
        else:
            keys += item.keys
    return keys


def sort_keys_of(items: Iterable[ShardItem]) -> list[int]:
    """Return the sort keys of all items, those of bundles included, in their order."""
    sort_keys: list[int] = []
    for item in items:
        if item.bundle is None:
            sort_keys.append(item.sort_key)
        else:
            sort_keys += item.sort_keys
    return sort_keys


# ---- the life cycle ----

_MOVES: Final = {
    #                         to                 rows, leased, out: changes of the topic's counts
    Phase.INSERTING: {
        Phase.ARRIVING: (0, 0, 1),
        Phase.READY: (1, 0, 0),
    },
    Phase.ARRIVING: {
        Phase.INSERTING: (0, 0, -1),
        Phase.PREFETCHED: (1, 0, 0),
        Phase.SETTLING: (1, 1, 0),
    },
    Phase.READY: {
        Phase.CLAIMING: (0, 0, 1),
        Phase.LEASED: (0, 1, 1),
        Phase.SETTLING: (0, 1, 1),
    },
    Phase.CLAIMING: {
        Phase.READY: (0, 0, -1),
        Phase.PREFETCHED: (0, 0, 0),
        Phase.SETTLING: (0, 1, 0),
    },
    Phase.PREFETCHED: {
        Phase.READY: (0, 0, -1),
        Phase.CLAIMING: (0, 0, 0),
        Phase.LEASED: (0, 1, 0),
        Phase.SETTLING: (0, 1, 0),
    },
    Phase.LEASED: {
        Phase.READY: (0, -1, -1),
        Phase.SETTLING: (0, 0, 0),
    },
    Phase.SETTLING: {
        Phase.PREFETCHED: (0, -1, 0),
        Phase.LEASED: (0, 0, 0),
        Phase.GONE: (-1, -1, -1),
    },
    Phase.GONE: {},
}  # fmt: skip
"""The life cycle of an item, as docs/concepts.md draws it: the phases that can follow each phase.

SETTLING does not follow itself: an item is settled once.
"""

_COUNTS: Final = [[_MOVES[old].get(new) for new in Phase] for old in Phase]
"""The same table by number, because hashing an enumeration member costs more than the rest of a move."""


def move(item: ShardItem, new: Phase) -> None:
    """Move the item to its next phase, and keep its topic's counts in step."""
    counts = _COUNTS[item.phase][new]
    assert counts is not None, f"an item that is {item.phase.name} cannot become {new.name}"
    _count_moves(item.topic, counts, item.count)
    item.phase = new


def move_all(topic: ShardTopic, items: Collection[ShardItem], old: Phase, new: Phase) -> None:
    """Move items of one topic that are all in the phase `old`."""
    counts = _COUNTS[old][new]
    assert counts is not None, f"items that are {old.name} cannot become {new.name}"
    count = 0
    for item in items:
        assert item.phase is old, f"the item is {item.phase.name}, not {old.name}"
        item.phase = new
        count += item.count
    _count_moves(topic, counts, count)


def _count_moves(topic: ShardTopic, counts: tuple[int, int, int], count: int) -> None:
    """Keep the counts of a topic in step with the moves of `count` items."""
    rows, leased, out = counts
    if out:
        topic.out_count += out * count
        if topic.base is not None:
            topic.base.out_count += out * count
    if rows:
        topic.count(rows=rows * count, leased=leased * count)
    elif leased:
        topic.count_leased(leased * count)


def rows_came(topic: ShardTopic, lane: int, count: int) -> None:
    """Count more or fewer rows of ready, delayed or dead items that are not in memory.

    A lane above 0 means ready items of the topic, 0 delayed ones, and a lane below 0 dead letters.
    """
    if lane > 0:
        topic.count(rows=count)
    elif lane == 0:
        topic.count(delayed=count)
    else:
        topic.count(dead=count)


def by_topic(items: Iterable[ShardItem]) -> dict[ShardTopic, list[ShardItem]]:
    """Return the items of each topic, in their given order."""
    found: dict[ShardTopic, list[ShardItem]] = {}
    for item in items:
        if item.topic in found:
            found[item.topic].append(item)
        else:
            found[item.topic] = [item]
    return found
