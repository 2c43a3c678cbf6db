"""The results of calls and their contexts, without Thrift. Requests are the decoded structs: foqs.contract.requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from foqs.model.access import AccessGrant
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.errors import FoqsError
from foqs.model.groups import TopicGroup
from foqs.model.namespace import Namespace
from foqs.model.peer_proof import PeerLink
from foqs.model.principal import Principal
from foqs.model.topic_rates import TopicRates


class DeliveryPolicy(IntEnum):
    """The promise of delivery of an item. An at-most-once item is never redelivered."""

    AT_LEAST_ONCE = 0
    AT_MOST_ONCE = 1


class DedupUntil(IntEnum):
    """How long the dedup id of an item is taken: as long as the namespace's dedup window, or until the item ends.

    An item ends when it is acked, deleted, expired or dead.
    """

    WINDOW = 0
    ACKED = 1


class ItemState(IntEnum):
    """Where an item is in its life: ready to be delivered, delayed, leased to a consumer, or a dead letter."""

    READY = 0
    DELAYED = 1
    LEASED = 2
    DEAD = 3


class ItemContent(NamedTuple):
    """The content of an item from its producer to its consumers, as it is stored: empty is what nobody gave.

    The last columns of `foqs.storage.schema.item_columns.ITEM_COLUMNS` have the same names and the same order.
    """

    payload: bytes
    metadata: bytes
    trace_context: bytes = b""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self))

    def fields(self) -> tuple[bytes, bytes, str | None]:
        """The fields of a Delivery or StoredItem that have the same names, in the same order."""
        return self[0], self[1], self[2].decode(errors="replace") if self[2] else None


NO_CONTENT = ItemContent(b"", b"")


PositionErrors = dict[int, FoqsError]
"""The errors of a batch, by position; empty when all was done.

Without tracebacks: each would hold the frame that holds the errors, a cycle for the garbage collector.
"""


@dataclass(slots=True)
class EnqueueResult:
    """The result of an enqueue of many items.

    ids: the id of each position, "" where the item was not stored.  errors: why, by position.
    duplicates: the positions that got the id of an item with the same dedup id which was enqueued before, in order.
    """

    ids: list[str]
    errors: PositionErrors = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Delivery:
    """One item delivered under a lease.

    suspect: set only for consumers that report the items that they begin. group: the consumer group whose copy it is;
    None for the topic's own. ordering_key: the key whose items are delivered one at a time, in order; None without one.
    fairness_key: the key that shares the turns of its topic; None without one.
    """

    id: str
    receipt: str
    topic: str
    priority: int
    deliver_after_ms: int
    enqueued_at_ms: int
    lease_expires_at_ms: int
    attempt: int
    payload: bytes
    metadata: bytes
    trace_context: str | None = None
    suspect: bool | None = None
    group: str | None = None
    ordering_key: str | None = None
    fairness_key: str | None = None


@dataclass(slots=True)
class TopicStats:
    """How many items a topic holds in each state.

    most_urgent_priority: of its ready items; 0 without ready items; of a topic that ages, the priority of the item that
    comes next. oldest_ready_at_ms: the smallest deliver_after of the ready items of the 16 most urgent priorities (of a
    topic that ages, of the first 256 items of each shard), in milliseconds since the epoch; 0 without ready items.
    group: the consumer group whose copies are counted; None for the topic's own items. serial: True if the topic
    delivers one item at a time. in_flight_max: the limit of `leased`; None without a limit. ordering_keys: the number
    of keys that have items, which are in all counts; None without any. rates: its rates, if they were asked for and it
    has moved in the last 15 minutes.
    """

    topic: str
    ready: int
    delayed: int
    leased: int
    dead: int
    most_urgent_priority: int
    oldest_ready_at_ms: int
    group: str | None = None
    serial: bool = False
    in_flight_max: int | None = None
    ordering_keys: int | None = None
    fairness_keys: int | None = None
    rates: TopicRates | None = None


@dataclass(slots=True)
class GroupPage:
    """A page of consumer groups. `next_page_token` asks for the one behind it; it is "" on the last page."""

    groups: list[TopicGroup]
    next_page_token: str


@dataclass(slots=True)
class TopicPage:
    """A page of topics. missing: the shards and hosts whose items are not counted, in words, if that was allowed."""

    topics: list[TopicStats]
    next_page_token: str
    missing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ItemFailure:
    """A failed or released attempt of an item whose reason is known.

    at_ms: the end of the attempt, in milliseconds since the epoch.  attempt: its number, 1 for the first.
    reason: as the consumer gave it, cut to 500 bytes; "lease ended" if the lease ended before the consumer settled it.
    """

    at_ms: int
    attempt: int
    reason: str


@dataclass(slots=True)
class StoredItem:
    """An item as it lies in the queue, seen without a lease. Times are milliseconds since the epoch.

    expires_at_ms: when its TTL ends.  failed_attempts: deliveries that were nacked or whose lease ended.
    lease_ms: the lease that the enqueue asked for; None when it asked for none.
    lease_expires_at_ms: while it is leased.  died_at_ms, death_reason: of a dead letter.
    group: the consumer group whose copy it is; None for the topic's own. ordering_key: of the enqueue, if it gave one.
    key_bucket: the bucket of its key, which it does not show then, if its topic has key_buckets: "17/64" of 64 buckets.
    fairness_key: of the enqueue, if it gave one.
    urgency: the place of a ready or leased item of a topic that ages, in units of 100 ms; None for the priority.
    leased_by, leased_since_ms: while it is leased, the consumer that has it, by its name or its address, and the start
    of the delivery; None if unknown.
    errors: its last failures whose reasons are known, the newest first: up to 16 in the answer to getItem, the newest
    one in pages and exports.
    """

    id: str
    topic: str
    state: ItemState
    priority: int
    deliver_after_ms: int
    enqueued_at_ms: int
    expires_at_ms: int
    failed_attempts: int
    delivery: DeliveryPolicy
    payload: bytes
    metadata: bytes
    trace_context: str | None = None
    lease_ms: int | None = None
    lease_expires_at_ms: int | None = None
    died_at_ms: int | None = None
    death_reason: str | None = None
    group: str | None = None
    ordering_key: str | None = None
    key_bucket: str | None = None
    fairness_key: str | None = None
    urgency: int | None = None
    errors: Sequence[ItemFailure] = ()
    leased_by: str | None = None
    leased_since_ms: int | None = None


@dataclass(slots=True)
class StoredItemPage:
    """A page of items. `next_page_token` asks for the one behind it; it is "" on the last page."""

    items: list[StoredItem]
    next_page_token: str


@dataclass(slots=True)
class ExportSplit:
    """Some of the stored items of one shard: those with keys after `from_key`, up to `to_key`.

    items_estimate: about how many items of the namespace it has.
    """

    shard_id: int
    from_key: int
    to_key: int
    items_estimate: int = 0


@dataclass(slots=True)
class ExportPlan:
    """Splits that hold every item of a namespace that was stored at `as_of_ms`, and none that is enqueued later."""

    splits: list[ExportSplit]
    as_of_ms: int
    missing: list[str] = field(default_factory=list)
    """Shards and hosts that do not respond, in words; the plan is without them."""


@dataclass(slots=True)
class ExportPage:
    """A page of a split; it can be empty. `next_after_key` asks for the one behind it; it is 0 on the last page."""

    items: list[StoredItem]
    next_after_key: int


@dataclass(slots=True)
class NamespacePage:
    namespaces: list[Namespace]
    next_page_token: str


@dataclass(slots=True)
class DeadLettersResult:
    """How many dead letters were redriven or purged, and the errors of ids that were not, by position.

    `ids` are those that the service chose, where the call named none, and `next_page_token` continues behind them.
    """

    count: int
    errors: PositionErrors = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    next_page_token: str = ""


@dataclass(slots=True)
class ClusterShard:
    """A shard of the cluster, on any host.

    `place` is the URL of its database without user and password; `owner` is the name of the host that lives and serves
    it, also while it is sick, and `owner_address` where that one listens; both are empty while nobody is known to.
    `last_owner` is the process that took it last, dead or alive. `health` says how it is served, and `detail` why it is
    not well. `pinned_to` is the host that is to serve it while it is there, and `moving_to` the one that is about to
    take it; both are empty for none. `slots_count` is how many slots of dedup ids lead to it. `kept_by` is the reason
    why a draining shard cannot be removed yet, as far as the asked host knows, because only the owner counts its items.
    """

    shard_id: int
    place: str
    state: ShardUse
    tier: str
    pinned_to: str
    owner: str
    owner_address: str
    epoch: int
    moving_to: str
    changed_at_ms: int
    slots_count: int = 0
    kept_by: str = ""
    last_owner: str = ""
    health: ShardHealth = ShardHealth.UNKNOWN
    detail: str = ""


@dataclass(slots=True)
class ClusterShards:
    """All shards of the cluster, by id."""

    shards: list[ClusterShard]


@dataclass(slots=True)
class ShardStatus:
    """The status of a shard by its host: its owner, and the numbers of its items and open leases."""

    shard_id: int
    state: str
    epoch: int
    items: int
    open_leases: int
    detail: str = ""


@dataclass(slots=True)
class HostStatus:
    """The status of a host and of its shards. `draining`: it is about to end and takes no new items.

    `peer_address` is where other hosts call it; empty if they use the port for clients.
    """

    host: str
    version: str
    started_at_ms: int
    shards: list[ShardStatus]
    draining: bool
    peer_address: str = ""


@dataclass(slots=True)
class ShardAddress:
    """Where the owner of a shard listens."""

    shard_id: int
    address: str


@dataclass(slots=True)
class ShardMap:
    """Which shard takes an item with a dedup id: the shards of all slots, and where their owners listen.

    key_spread, dedup_window_ms: of the namespace that was asked for; None if none was. The window is the age of the
    oldest dedup id that is surely still known there, None while none was forgotten.
    """

    version: int
    shard_by_slot: Sequence[int]
    addresses: list[ShardAddress]
    key_spread: int | None = None
    dedup_window_ms: int | None = None


@dataclass(slots=True)
class Identity:
    """The principal that a host takes its caller for. `expires_at_ms` is 0 if its credential does not end by itself."""

    principal: str
    expires_at_ms: int
    grants: Sequence[AccessGrant]


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a call in all layers. The receiver of the call makes it, and nobody changes it."""

    caller: str
    """The address that the call came from."""
    deadline_s: float | None = None
    """The time of the event loop until which a response is of use to the caller; None if it is not known."""
    peer: str = ""
    """The id of the host that has handed the call on, which this one must do by itself or refuse; empty for clients."""
    shards: frozenset[int] | None = None
    """The shards that a page is wanted of, all of which must be here; None for all that are."""
    away: frozenset[int] = frozenset()
    """Shards whose owners cannot be reached, but possibly live."""
    link: PeerLink | None = None
    """The proof of the host that calls over the connection, for the calls that make such proofs."""
    principal: Principal = field(kw_only=True)
    """The principal of the caller, which determines the permissions of the call. There is no default, so that no
    context of a client's call is made without it.
    """
    is_permissive: bool = False
    """True if the call is done although its caller lacks permissions, and that is only noted."""
    credential: str = ""
    """The id of the caller's token, or the name in its certificate; empty without either."""
