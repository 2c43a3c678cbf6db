"""One transaction of a shard as data, its result, and the store that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from foqs.model.calls import ItemContent
from foqs.model.cluster import ShardRow
from foqs.model.item import ShardItem
from foqs.model.seen_image import ImageKey
from foqs.model.shard_place import FOUND_NOTHING, EpochGiven, FoundShard
from foqs.model.slots import SlotMove, SlotTable
from foqs.model.topic import ShardTopic

TIMER_LANE = 0


@dataclass(slots=True)
class Refill:
    """Read the next rows of a lane after `edge`, in order."""

    lane: int
    edge: int
    limit: int
    with_payload: bool = False
    """Whether to read what a claim needs of the rows, too, so that it needs no fetch."""


@dataclass(slots=True)
class Rewrite:
    """Give a row a new sort key and new counts; what is None of metadata, death_reason and expires_at stays."""

    key: int
    lane: int
    urgency: int
    due_at: int
    deliveries: int
    failed_attempts: int
    metadata: bytes | None = None
    death_reason: bytes | None = None
    is_in_place: bool = False
    """The row stands there already, as that of an item under lease does: only its counts are others."""
    expires_at: int | None = None


@dataclass(slots=True)
class ClaimEntries:
    """A row of the claim journal: the present deliveries of `items` are claimed until `due_at`."""

    id: int
    due_at: int
    items: list[ShardItem]
    is_ahead: bool = False
    """Nobody may have seen these deliveries."""


class SeenIds(NamedTuple):
    """Dedup ids for one row of a namespace's log of them, in the order in which they came, each with its item."""

    namespace: int
    first: int
    """The number of the first of them in the log."""
    at_ms: int
    """When they came, on the shard's steady clock."""
    digests: list[bytes]
    keys: list[int]
    shard_ids: list[int] | None = None
    """The shards of the items; None where all are on this one. Ids that came with a slot have items elsewhere."""


class SeenRow(NamedTuple):
    """A row of the log, as it is stored: each id has its digest, and the shard and key of its item."""

    namespace: int
    first: int
    at_ms: int
    digests: list[bytes]
    items: list[tuple[int, int]]


class SeenExtent(NamedTuple):
    """The rows that the log of a namespace has."""

    namespace: int
    first: int
    """The number of the first id of the first row."""
    last_first: int
    """The number of the first id of the last row."""
    end: int
    """The number that the next id will have."""
    last_ms: int
    """When the last id came, on the shard's steady clock."""
    moved_end: int = 0
    """The number behind the last id that came with a slot from another shard."""


class SeenName(NamedTuple):
    """A log of dedup ids as another shard finds it."""

    namespace: int
    name: bytes
    """The name of the namespace, as the shard knows it."""
    first: int
    end: int
    moved_slots: frozenset[int] = frozenset()
    """Slots that were elsewhere and came back, or came: their ids before `moved_first` stand behind it once more."""
    moved_first: int = 0


class SeenDigests(NamedTuple):
    """A row of the log as a new owner reads it: only what its memory is to have."""

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
    """The parts of an image that are there: those from one on and before another one."""

    key: ImageKey
    parts_first: int
    parts_end: int
    is_whole: bool


class SlotArrival(NamedTuple):
    """Slots that are on their way to this shard, which takes no ids of them before it knows all that are known."""

    move: SlotMove
    read_to: dict[int, int]
    """Numbers up to which the logs of the shard that had the slots are read, by namespace."""


class SlotIds(NamedTuple):
    """The ids of a namespace that came with slots last."""

    namespace: int
    version: int
    """The version of the table of the move."""
    slots: tuple[int, ...]
    """All that moved."""
    read_to: int
    """The number up to which the log of the other shard is read."""
    first: int
    """The number of the first of them in this shard's own log."""
    moved_end: int
    """The number behind the last one."""


class SlotChanges(NamedTuple):
    """The changes of a transaction to the slots that the shard has."""

    kept: SlotTable | None = None
    """The table that its copy is to be, from now on."""
    arriving: SlotMove | None = None
    """A move to this shard begins."""
    learned: SlotIds | None = None
    """Ids of the slots come with it."""
    has_arrived: bool = False
    """The move to this shard has ended."""


class SeenLog(Protocol):
    """The logs of dedup ids as a new owner reads them: beside transactions, on another thread, one call at a time.

    Raises SessionLostError, after which a call may be tried again.
    """

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        """Read up to so many rows of a namespace's log, from the one that begins at `first` or is the next."""

    def read_parts(self, key: ImageKey, first: int, limit: int) -> list[SeenPart]:
        """Read up to so many parts of an image, from the one with this number or the next."""

    def interrupt(self) -> None:
        """Make the call that is under way fail, and those that come; any thread may call it."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Transaction:
    """All reads but the look-ups come first, so that they see no row of this transaction.

    The order of the writes is that of `foqs.storage.script.write_script`.
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
    inserts_short_lived: list[ShardItem] = field(default_factory=list)
    """More of them, which are likely to be deleted within seconds; the store may keep them in another way."""
    seen_new: list[SeenIds] = field(default_factory=list)
    """The dedup ids of inserted items."""
    seen_gone: list[tuple[int, int, int]] = field(default_factory=list)
    """Namespace, and the numbers from which on and before which its log of dedup ids goes."""
    seen_over: list[int] = field(default_factory=list)
    """Namespaces whose logs go with these: what came to them with slots is forgotten, too."""
    seen_parts_new: list[SeenPart] = field(default_factory=list)
    seen_parts_gone: list[tuple[ImageKey, int, int]] = field(default_factory=list)
    """The parts of images of dedup ids that go: those from one number on and before another one."""
    slot_changes: SlotChanges | None = None
    seen_reads: list[tuple[int, int]] = field(default_factory=list)
    """Namespace and number of each block of a log of dedup ids that is read."""
    fetches: list[ShardItem] = field(default_factory=list)
    """Claimed items whose rows are not in memory."""
    claims: list[ClaimEntries] = field(default_factory=list)
    claims_rewritten: list[ClaimEntries] = field(default_factory=list)
    """Rows of the journal that keep only these entries."""
    rewrites: list[Rewrite] = field(default_factory=list)
    wakes: list[int] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    claims_gone: list[int] = field(default_factory=list)
    look_ups: list[int] = field(default_factory=list)
    """Read last, so that the rows are as this transaction leaves them."""
    look_ups_with_payload: bool = False
    """Whether to read content and reason of death, which are empty otherwise."""


class ItemRow(NamedTuple):
    """All that is stored of an item: `foqs.storage.columns.ITEM_COLUMNS`, of which the last ones are its content."""

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
    content: ItemContent

    @property
    def was_dead(self) -> bool:
        """Whether the item is a dead letter, or was one and was redriven: a redrive leaves an empty reason."""
        return self.death_reason is not None


class ClaimedRow(NamedTuple):
    """An item under a claim, as a new owner needs it before it is delivered; of these there may be many."""

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
    """The rest of an item that is known by its sort key alone, as a claim needs it."""

    key: int
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
    """How long the refills and fetches took the server."""
    read_count: int = 0
    """Rows that they read."""
    refilled: list[list[tuple[int, int, int, int, int]]] = field(default_factory=list)
    """The rows of each refill: (urgency, due_at, key, topic, priority), the last two being 0 outside the timer lane."""
    read_ahead: dict[int, FetchedRow] = field(default_factory=dict)
    """Rows by key, of the refills that are with_payload."""
    fetched: Mapping[int, ItemRow | FetchedRow] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    """Keys of both whose contents were left out, because with those before them they would have been too many bytes."""
    seen: dict[tuple[int, int], list[SeenRow]] = field(default_factory=dict)
    """The rows of each block of `seen_reads` that has any."""
    packed_count: int = 0
    """Inserted items that the store keeps without rows of their own."""
    promoted_count: int = 0
    """Items that it kept so and that have got rows."""
    looked_up: dict[int, ItemRow] | None = None
    """None until they are read: a transaction whose answer was lost has happened without."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    lanes: list[tuple[int, int]]
    """Each lane with its number of rows."""
    delayed: list[tuple[int, int]]
    """Each topic with its number of rows in the timer lane."""


class Tenure(NamedTuple):
    """The last ownership of a shard, as a process remembers it; with it the shard may be opened again as it was left.

    The meta database is not needed for that, since no new epoch is.
    """

    epoch: int
    transaction_number: int
    """The number of the last transaction that the process saw committed."""
    last_key: int
    """No key of the epoch beyond it was ever assigned."""
    server: str = ""
    """The server on which the process had it."""

    def goes_on(self, found: FoundShard) -> bool:
        """Whether a shard of which this is found is the one that was left.

        With a smaller number it is not, whoever's the epoch is: a replica that was behind was promoted, or a backup
        restored, and what is missing there was acknowledged. Nor is it on another server: others may have the shard on
        the one where it was left.
        """
        is_there = found.epoch == self.epoch and found.server == self.server
        return is_there and found.transaction_number >= self.transaction_number


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
    """The first key that may be assigned is the one after it."""
    transaction_number: int
    delay_checkpoint: int
    topic_number_last: int
    now_ms: int
    """The shard server's clock."""
    steady_ms: int
    """The shard's steady clock, as the last transaction wrote it."""
    topics: list[tuple[int, int, bytes]]
    """Number, namespace and name of each topic."""
    namespaces: list[tuple[int, bytes]]
    """Number and name of each namespace that has topics, and of the one with the greatest number."""
    count: Callable[[], LaneCounts]
    """Counts the rows as they were at the take-over; slow, and safe beside transactions on another thread."""
    claims: list[StoredClaim]
    claimed_rows: dict[int, ClaimedRow]
    seen: list[SeenExtent] = field(default_factory=list)
    """The logs of dedup ids that there are; their rows are read while the shard is served."""
    seen_images: list[StoredImage] = field(default_factory=list)
    """The images of them that are there, whole or in parts."""
    seen_log: SeenLog | None = None
    """Reads both; None where there are no logs."""
    found: FoundShard = FOUND_NOTHING
    """What was there before."""
    given: EpochGiven | None = None
    """The epoch, if it is a new one; None if the tenure of this process goes on."""


class TransactionFailedError(Exception):
    """Certainly nothing of the transaction happened; the session still works."""


class DeadlockError(TransactionFailedError):
    """The server rolled the transaction back to resolve a deadlock: the same one may well succeed now."""


class NoWritesError(TransactionFailedError):
    """The server takes no writes now, or none of some kind: the next ones would fail as well."""


class DiskFullError(NoWritesError):
    """It has no room for a row."""


class NewSessionError(NoWritesError):
    """It takes none on this session, and may take them on a new one."""


class ReadOnlyError(NewSessionError):
    """Like a primary that is none any more: another session may find the one that is."""


class PrivilegeMissingError(NewSessionError):
    """The user may not do it. A session keeps the privileges that it began with, whatever is granted meanwhile."""


class SessionLostError(Exception):
    """The session is gone, or of no more use. Whether the transaction happened shows after reopening.

    Unless `nothing_done`: certainly it has not, for its COMMIT was not sent.
    """

    def __init__(self, message: str, *, nothing_done: bool = False) -> None:
        super().__init__(message)
        self.nothing_done = nothing_done


class OwnershipLostError(Exception):
    """Another owner has the shard, or this host cannot have it now. Nothing of a transaction that meets it happened."""


class OwnedError(OwnershipLostError):
    """A living owner has it."""


class BeingTakenError(OwnershipLostError):
    """Another process has its lock, and has not said yet that it is the owner."""


class ElsewhereError(OwnershipLostError):
    """A living owner may have it on another server: what is here is a copy of its database, and nothing was done."""

    def __init__(self, message: str, row: ShardRow | None = None) -> None:
        """`row` is what the meta database has of the shard."""
        super().__init__(message)
        self.row = row


class Store(Protocol):
    """A shard's storage, as its writer uses it; foqs.storage.shard_store.ShardStore is the real one.

    One call is under way at a time. What is not async blocks, and runs on a thread.
    """

    @property
    def server(self) -> str:
        """The server that its last session led to, as that calls itself."""

    def open(self, tenure: Tenure | None = None) -> ShardImage: ...
    def wait_for_owner(self, *, stay: bool = False) -> bool: ...
    def look_again(self) -> None: ...
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
        """The result of a transaction whose session was lost, or None when it certainly has not happened.

        To be asked once, on the event loop, after `reopen`.
        """

    def rows_count(self, transaction: Transaction) -> int:
        """Rows of items that the transaction would write, and may read before."""

    def wants_transaction(self, steady_ms: int) -> bool:
        """Whether the store has work of its own that goes with any transaction, an empty one too."""
