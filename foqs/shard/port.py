"""One transaction of a shard as data, its result, and the store that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from foqs.model import limits
from foqs.model.calls import ItemContent
from foqs.model.cluster import ShardRow
from foqs.model.copy_steps import CopyKey, CopyStep
from foqs.model.held import HeldChanges, Holder, NamespaceDigest
from foqs.model.item import ShardItem
from foqs.model.seen_image import ImageKey
from foqs.model.shard_place import FOUND_NOTHING, EpochGiven, FoundShard, Tenure
from foqs.model.slot_changes import SlotChanges
from foqs.model.slots import SlotMove
from foqs.model.topic import ShardTopic

TIMER_LANE = 0


@dataclass(slots=True)
class Refill:
    """Read the next rows of a lane after `edge`, in order."""

    lane: int
    edge: int
    limit: int
    with_payload: bool = False
    """True if rows are read with all that a claim needs, so that it needs no fetch."""


@dataclass(slots=True)
class Rewrite:
    """Give a row a new sort key and new counts. If metadata, death_reason or expires_at is None, it stays.

    `error` is an entry of `foqs.model.failures` for the attempt that ends; the row keeps the last ones, of
    `errors_bytes_max` together.
    """

    key: int
    lane: int
    urgency: int
    due_at: int
    deliveries: int
    failed_attempts: int
    metadata: bytes | None = None
    death_reason: bytes | None = None
    is_in_place: bool = False
    """True if the row already has this sort key, as that of an item under lease has; only its counts change."""
    expires_at: int | None = None
    place: int | None = None
    """The new place of an item that ages, or has aged; None if it stays."""
    error: bytes | None = None
    errors_bytes_max: int = limits.ERRORS_BYTES_DEFAULT


@dataclass(slots=True)
class ClaimEntries:
    """A row of the claim journal: the present deliveries of `items` are claimed until `due_at`."""

    id: int
    due_at: int
    items: list[ShardItem]
    is_ahead: bool = False
    """True if certainly no consumer has seen these deliveries, unless a call has them."""


class SeenIds(NamedTuple):
    """Dedup ids for one row of a namespace's log, in their order of arrival, each with its item."""

    namespace: int
    first: int
    """The number of the first id in the log."""
    at_ms: int
    """Their time of arrival, on the shard's steady clock."""
    digests: list[bytes]
    keys: list[int]
    shard_ids: list[int] | None = None
    """The shards of the items; None if all are on this one. Ids that arrived with a slot have items elsewhere."""
    copies_counts: Sequence[int] = ()
    """The number of copies behind each item; empty if no item has any."""


class SeenRow(NamedTuple):
    """A stored row of the log: the digest of each id, the shard and key of its item, and the copies behind it."""

    namespace: int
    first: int
    at_ms: int
    digests: list[bytes]
    items: list[tuple[int, int]]
    copies_counts: Sequence[int] = ()
    """The number of copies behind each item; empty if no item has any."""

    def copies_of(self, at: int) -> int:
        """Return the number of copies behind the item at this place of the row."""
        return self.copies_counts[at] if self.copies_counts else 0


class SeenExtent(NamedTuple):
    """The extent of a namespace's log."""

    namespace: int
    first: int
    """The number of the first id of the first row."""
    last_first: int
    """The number of the first id of the last row."""
    end: int
    """The number that the next id will have."""
    last_ms: int
    """The time of the last id, on the shard's steady clock."""
    moved_end: int = 0
    """The number after the last id that arrived with a slot from another shard."""


class SeenName(NamedTuple):
    """A log of dedup ids as another shard finds it."""

    namespace: int
    name: bytes
    """The name of the namespace, as the shard knows it."""
    first: int
    end: int
    moved_slots: frozenset[int] = frozenset()
    """Slots that arrived, or returned after a move. Their ids before `moved_first` stand after it once more."""
    moved_first: int = 0


class SeenDigests(NamedTuple):
    """A row of the log as a new owner reads it, with the parts that its memory needs."""

    first: int
    at_ms: int
    digests: bytes
    """The digests of the row, side by side."""


class SeenPart(NamedTuple):
    """A part of an image of a table of dedup ids."""

    key: ImageKey
    number: int
    body: bytes


class StoredImage(NamedTuple):
    """The stored parts of an image: those from `parts_first` on and before `parts_end`."""

    key: ImageKey
    parts_first: int
    parts_end: int
    is_whole: bool


class SlotArrival(NamedTuple):
    """Slots under way to this shard, which takes their ids once it knows all their earlier ids."""

    move: SlotMove
    read_to: dict[int, int]
    """The numbers up to which the logs of the former shard are read, by namespace."""


class SeenLog(Protocol):
    """The logs of dedup ids for a new owner, which reads them on another thread during transactions, one call at a
    time.

    Raises SessionLostError, after which a call can be repeated.
    """

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        """Read up to `limit` rows of a namespace's log, from the one that begins at `first` or is the next."""

    def read_parts(self, key: ImageKey, first: int, limit: int) -> list[SeenPart]:
        """Read up to `limit` parts of an image, from the one with this number or the next."""

    def interrupt(self) -> None:
        """Make the call under way and all later ones fail. Any thread can call it."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Transaction:
    """One transaction. All reads but the look-ups come first, so that they see no row of this transaction.

    The order of the writes is that of `foqs.storage.shard.script.write_script`.
    """

    number: int
    delay_checkpoint: int = 0
    claim_checkpoint: int = 0
    topic_number_last: int = 0
    steady_ms: int = 0
    refills: list[Refill] = field(default_factory=list)
    topics_gone: list[int] = field(default_factory=list)
    topics_new: list[ShardTopic] = field(default_factory=list)
    namespaces_new: list[tuple[int, bytes]] = field(default_factory=list)
    """Number and name of each namespace that has its first topic here."""
    inserts: list[ShardItem] = field(default_factory=list)
    inserts_placed: list[ShardItem] = field(default_factory=list)
    """Inserts of items of topics that age, whose places are not their priorities."""
    inserts_short_lived: list[ShardItem] = field(default_factory=list)
    """Inserts of items that are likely to be deleted within seconds; the store can keep them in another form."""
    copies_ended: list[CopyKey] = field(default_factory=list)
    copies_begun: list[tuple[CopyKey, int]] = field(default_factory=list)
    """Copies for new consumer groups, each with the last key of an item that is copied. Known ones stay as they are."""
    copy_steps: list[CopyStep] = field(default_factory=list)
    """Copies among `inserts`."""
    seen_new: list[SeenIds] = field(default_factory=list)
    """The dedup ids of inserted items."""
    seen_gone: list[tuple[int, int, int]] = field(default_factory=list)
    """Namespace, first number and end number of each range to delete from a log of dedup ids."""
    seen_over: list[int] = field(default_factory=list)
    """Namespaces whose whole logs are deleted by these ranges; the ids that arrived with slots are forgotten, too."""
    seen_parts_new: list[SeenPart] = field(default_factory=list)
    seen_parts_gone: list[tuple[ImageKey, int, int]] = field(default_factory=list)
    """Image, first number and end number of the parts of images of dedup ids to delete."""
    slot_changes: SlotChanges | None = None
    seen_reads: list[tuple[int, int]] = field(default_factory=list)
    """Namespace and number of each block of a log of dedup ids that is read."""
    held: HeldChanges | None = None
    fetches: list[ShardItem] = field(default_factory=list)
    """Claimed items whose rows are not in memory."""
    claims: list[ClaimEntries] = field(default_factory=list)
    claims_rewritten: list[ClaimEntries] = field(default_factory=list)
    """Rows of the journal that keep only these entries."""
    rewrites: list[Rewrite] = field(default_factory=list)
    wakes: list[int] = field(default_factory=list)
    wakes_in_place: list[int] = field(default_factory=list)
    """Delayed items of serial topics that become ready with the due time of such topics."""
    deletes: list[int] = field(default_factory=list)
    claims_gone: list[int] = field(default_factory=list)
    look_ups: list[int] = field(default_factory=list)
    """Keys to look up. They are read last, so that the rows are as this transaction leaves them."""
    look_ups_with_payload: bool = False
    """True if content and reason of death are read; otherwise they are empty."""


class ItemRow(NamedTuple):
    """A stored item: `foqs.storage.schema.item_columns.ITEM_COLUMNS`, with the columns of its content as one object."""

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
    place: int | None
    """The urgency of an item that ages, while it is ready; None for the priority."""
    content: ItemContent
    errors: bytes = b""

    @property
    def size_bytes(self) -> int:
        """The bytes of all that has no fixed size, but for the short reason of death."""
        return self.content.size_bytes + len(self.errors)

    @property
    def was_dead(self) -> bool:
        """True if the item is a dead letter, or was redriven from one: a redrive leaves an empty reason."""
        return self.death_reason is not None

    @property
    def ready_urgency(self) -> int:
        """The urgency that the row has while the item is ready."""
        return self.priority if self.place is None else self.place


class ClaimedRow(NamedTuple):
    """An item under a claim, with the columns that a new owner needs before delivery; a shard can have many."""

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
    was_dead: int


class FetchedRow(NamedTuple):
    """The rest of an item that is known by its sort key alone, with the columns that a claim needs."""

    key: int
    priority: int
    enqueued_at: int
    expires_at: int
    lease_ms: int
    at_most_once: int
    deliveries: int
    failed_attempts: int
    was_dead: int
    content: ItemContent


@dataclass(slots=True)
class TransactionResult:
    read_us: int = 0
    """Time of the refills and fetches on the server, in microseconds."""
    read_count: int = 0
    """Rows read by the refills and fetches."""
    refilled: list[list[tuple[int, int, int, int, int]]] = field(default_factory=list)
    """The rows of each refill: (urgency, due_at, key, topic, place), the last two being 0 outside the timer lane."""
    read_ahead: dict[int, FetchedRow] = field(default_factory=dict)
    """Rows by key, of the refills that are with_payload."""
    fetched: Mapping[int, ItemRow | FetchedRow] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    """Keys in `read_ahead` or `fetched` whose contents were left out, because the size limit was reached before."""
    seen: dict[tuple[int, int], list[SeenRow]] = field(default_factory=dict)
    """The rows of each non-empty block of `seen_reads`."""
    held: dict[NamespaceDigest, Holder] = field(default_factory=dict)
    """The holders of the ids that `held` reads."""
    packed_count: int = 0
    """Inserted items that the store keeps without rows of their own."""
    promoted_count: int = 0
    """Items without rows of their own that have got rows."""
    looked_up: dict[int, ItemRow] | None = None
    """The looked up rows; None until they are read, as after a committed transaction whose answer was lost."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    lanes: list[tuple[int, int]]
    """Each lane with its number of rows."""
    delayed: list[tuple[int, int]]
    """Each topic with its number of rows in the timer lane."""


class StoredClaim(NamedTuple):
    """A row of the claim journal, with (key, delivery number) of its entries."""

    id: int
    due_at: int
    is_ahead: bool
    entries: list[tuple[int, int]]


@dataclass(slots=True)
class ShardImage:
    """The state of a shard that a new owner reads before it serves."""

    epoch: int
    last_key: int
    """The key before the first one that can be assigned."""
    transaction_number: int
    delay_checkpoint: int
    topic_number_last: int
    now_ms: int
    """The time of the shard server's clock."""
    steady_ms: int
    """The shard's steady clock, as the last transaction wrote it."""
    topics: list[tuple[int, int, bytes]]
    """Number, namespace and name of each topic."""
    namespaces: list[tuple[int, bytes]]
    """Number and name of each namespace that has topics, and of the one with the greatest number."""
    count: Callable[[], LaneCounts]
    """Counts the rows as of the take-over. It is slow, and safe on another thread during transactions."""
    claims: list[StoredClaim]
    claimed_rows: dict[int, ClaimedRow]
    seen: list[SeenExtent] = field(default_factory=list)
    """The existing logs of dedup ids, whose rows are read while the shard is served."""
    seen_images: list[StoredImage] = field(default_factory=list)
    """The existing images of dedup ids, whole or in parts."""
    seen_log: SeenLog | None = None
    """Reads logs and images; None without logs."""
    holding: list[int] = field(default_factory=list)
    """The namespaces with items that hold their dedup ids."""
    found: FoundShard = FOUND_NOTHING
    """The state of the database before this opening."""
    given: EpochGiven | None = None
    """The new epoch; None if the tenure of this process continues."""


class TransactionFailedError(Exception):
    """The transaction certainly did not happen; the session still works."""


class DeadlockError(TransactionFailedError):
    """The server rolled the transaction back to resolve a deadlock; a retry is likely to succeed."""


class NoWritesError(TransactionFailedError):
    """The server takes no writes, or not all kinds, so the next ones would fail as well."""


class DiskFullError(NoWritesError):
    """The server has no room for a row."""


class NewSessionError(NoWritesError):
    """The server takes no writes on this session, but might on a new one."""


class ReadOnlyError(NewSessionError):
    """The server is read-only, like a former primary. Another session can find the present one."""


class PrivilegeMissingError(NewSessionError):
    """The user lacks a privilege. A session keeps the privileges that it began with, regardless of later grants."""


class SessionLostError(Exception):
    """The session is lost. The outcome shows after reopening; with `nothing_done` no COMMIT was sent."""

    def __init__(self, message: str, *, nothing_done: bool = False) -> None:
        super().__init__(message)
        self.nothing_done = nothing_done


class OwnershipLostError(Exception):
    """Another owner has the shard, or this host cannot have it now. The failed transaction did not happen."""


class OwnedError(OwnershipLostError):
    """A living owner has the shard."""


class BeingTakenError(OwnershipLostError):
    """Another process holds the shard's lock, and has not yet reported that it is the owner."""


class ElsewhereError(OwnershipLostError):
    """A living owner might serve the shard on another server. This is a copy of its database; nothing was done."""

    def __init__(self, message: str, row: ShardRow | None = None) -> None:
        """`row` is the meta database's row of the shard."""
        super().__init__(message)
        self.row = row


class Store(Protocol):
    """A shard's storage, as its writer uses it; foqs.storage.shard.shard_store.ShardStore is the real one.

    One call is under way at a time. Methods that are not async block, and run on a thread.
    """

    @property
    def server(self) -> str:
        """The server of its last session, by its own name."""

    def open(self, tenure: Tenure | None = None) -> ShardImage: ...
    def wait_for_owner(self, *, stay: bool = False) -> bool: ...
    def retry_now(self) -> None: ...
    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None: ...
    def reopen(self) -> int: ...
    def renew_epoch(self) -> int: ...
    def close(self) -> None: ...
    def interrupt(self) -> None: ...
    def is_session_lost(self) -> bool: ...
    def check(self) -> list[str]: ...
    async def now_ms(self) -> int: ...
    async def run(self, transaction: Transaction) -> TransactionResult: ...

    def outcome(self, transaction: Transaction) -> TransactionResult | None:
        """Return the result of a transaction whose session was lost, or None if it certainly has not happened.

        Call it once, on the event loop, after `reopen`.
        """

    def rows_count(self, transaction: Transaction) -> int:
        """Return the rows of items that the transaction would write, and might read before."""

    def wants_transaction(self, steady_ms: int) -> bool:
        """True if the store has work of its own that any transaction can carry, even an empty one."""
