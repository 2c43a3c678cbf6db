"""The facts from which `foqs.model.judging` derives why items are not delivered. Each host gathers its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

from foqs.model.topic_name import bucket_of, fairness_key_of, ordering_key_of, parts


class ItemStage(IntEnum):
    """Where an item is, in more steps than `ItemState`."""

    READY = 0
    DELAYED = 1
    LEASED = 2
    DEAD = 3
    CLAIMING = 4
    """Its claim is being written."""
    PREFETCHED = 5
    """It is held for a consumer."""
    SETTLING = 6
    INHERITED = 7
    """A former owner had claimed it ahead; it is possibly with a consumer."""


DELIVERABLE = frozenset({ItemStage.READY, ItemStage.CLAIMING, ItemStage.PREFETCHED})
"""The stages in which an item waits for a consumer like others of its topic."""


@dataclass(slots=True)
class HostTopic:
    """A topic with its keys, as one host has it.

    Its ready items are divided by the cause of their wait: those that are `claimed`, of which `prefetched` ones are
    held and the others wait for a transaction; those on `sick` shards; those with `no_room` for leases, or `no_permit`;
    those behind a delivery of a serial topic (`busy`), behind its next attempt (`retrying`), or `held` by a dead
    letter; those of a slot that is `moving`; those on a shard that is `uncounted`; the `unread` ones, which are in the
    database alone; those for which the host has `no_memory`; and all others, which are `free`.
    """

    name: str = ""
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    waiting_calls: int = 0
    """Dequeues that wait for it on this host, also those for any topic."""
    waited_ms: int = 0
    """The wait of the oldest of these."""
    has_consumers: bool = False
    """True if the host has delivered items of it a moment ago."""
    waits_for_token: bool = False
    """True if it waits for a token of its cap."""
    waits_for_namespace: bool = False
    """True if it waits for a token of its namespace's cap."""
    cap_until_ms: int = 0
    """The time of the next token; 0 if the topic waits for none, or nobody knows."""
    is_cap_lost: bool = False
    """True if the host that has the tokens does not answer."""
    claimed: int = 0
    prefetched: int = 0
    sick: int = 0
    no_room: int = 0
    no_permit: int = 0
    busy: int = 0
    retrying: int = 0
    held: int = 0
    moving: int = 0
    uncounted: int = 0
    unread: int = 0
    no_memory: int = 0
    free: int = 0
    free_ms: int = 0
    """The age of the oldest free item, which is at least as long as it has been ready."""
    busy_until_ms: int = 0
    """The end of the lease for which the busy ones wait; the earliest of several."""
    busy_by: str = ""
    """The consumer that has this lease; empty if unknown."""
    due_at_ms: int = 0
    """The time of the first next attempt for which items wait; 0 if unknown."""
    before: int = 0
    """The items before the place that was asked for."""
    before_is_exact: bool = True
    """False if the database has others before it."""
    ordering_keys: int = 0
    """The ordering keys whose items wait for a delivery of the same key."""
    unread_idle: int = 0
    """The unread items that nobody reads now."""
    cap_late_ms: int = 0
    """The time for which a date has passed that a topic waits for to get a token."""
    delivered_per_1000s: int = 0
    """Deliveries in 1,000 seconds, at the speed of the last minute, as the two below; 0 if it is unknown."""
    ended_per_1000s: int = 0
    failed_per_1000s: int = 0
    astray: int = 0
    """Items in a state that nothing ends: claimed with no transaction to come, behind a delivery that is not out, or
    ready and in no window.
    """


@dataclass(slots=True)
class ShardFacts:
    """A shard as a host has it. `state` is owned, sick, leaving, counting or lost."""

    shard_id: int
    state: str
    epoch: int = 0
    detail: str = ""


@dataclass(slots=True)
class ItemFacts:
    """An item as the owner of its shard has it.

    state: an ItemStage.  until_ms: the end of its lease, or the time at which it is due.  since_ms: the start of the
    lease, or its death.  detail: the reason of its death.  error: of its last failure.
    """

    id: str
    topic: str
    state: int
    urgency: int = 0
    due_at_ms: int = 0
    key: int = 0
    shard_id: int = 0
    expires_at_ms: int = 0
    until_ms: int = 0
    since_ms: int = 0
    holder: str = ""
    detail: str = ""
    error: str = ""
    failed_attempts: int = 0


@dataclass(slots=True)
class HostFacts:
    """The answer of one host. topics_count: of those with the prefix.  all_topics: the sums of these.
    item_problem: why an item of a shard of this host could not be looked up.
    """

    now_ms: int
    shards: Sequence[ShardFacts] = ()
    topics: Sequence[HostTopic] = ()
    topics_count: int = 0
    all_topics: HostTopic | None = None
    item: ItemFacts | None = None
    item_problem: str = ""


def read_host_facts(decoded: Any) -> HostFacts:
    """Return the facts of another host from its decoded response, in which fields of older hosts are None."""
    all_topics, item = decoded.all_topics, decoded.item
    return HostFacts(
        decoded.now_ms or 0,
        [_SHARD(one) for one in decoded.shards or ()],
        [_TOPIC(one) for one in decoded.topics or ()],
        decoded.topics_count or 0,
        None if all_topics is None else _TOPIC(all_topics),
        None if item is None else _ITEM(item),
        decoded.item_problem or "",
    )


def _reader(cls: type[Any]) -> Callable[[Any], Any]:
    """Return a function that makes an object of this class from one with the same attributes."""
    values_of = attrgetter(*[one.name for one in fields(cls)])
    empty = {"str": "", "bool": False, "int": 0}
    absent = [empty[str(one.type)] if one.default is MISSING else one.default for one in fields(cls)]

    def read(decoded: Any) -> Any:
        return cls(
            *[other if value is None else value for value, other in zip(values_of(decoded), absent, strict=True)]
        )

    return read


_TOPIC, _SHARD, _ITEM = _reader(HostTopic), _reader(ShardFacts), _reader(ItemFacts)


@dataclass(slots=True)
class TopicFacts:
    """The facts about a topic: the operators' settings, and the topic on each host that answers."""

    name: str
    """The hidden name."""
    is_paused: bool = False
    pause_reason: str = ""
    cap: float = 0.0
    """Deliveries a second; 0 for none."""
    in_flight_max: int = 0
    depth_max: int = 0
    is_enqueue_paused: bool = False
    has_group: bool = True
    """False if its consumer group does not exist."""
    by_host: list[tuple[str, HostTopic]] = field(default_factory=list)

    def sum(self, count: str) -> int:
        """Return the sum of a count over all hosts."""
        return sum([getattr(topic, count) for _, topic in self.by_host])

    def has(self, flag: str) -> bool:
        return any(getattr(topic, flag) for _, topic in self.by_host)

    def first(self, time: str) -> int:
        """Return the earliest of the known times of all hosts, or 0."""
        return min([at for _, topic in self.by_host if (at := getattr(topic, time))], default=0)

    @property
    def is_empty(self) -> bool:
        return not (self.sum("ready") or self.sum("delayed") or self.sum("leased") or self.sum("dead"))

    @property
    def topic(self) -> str:
        return parts(self.name)[0]

    @property
    def group(self) -> str:
        return parts(self.name)[1]

    @property
    def key(self) -> str:
        """The key that all its items have in common, in words; empty without one."""
        if (ordering_key := ordering_key_of(self.name)) is not None:
            return f"ordering key {ordering_key!r}"
        if (bucket := bucket_of(self.name)) is not None:
            return f"bucket {bucket} of ordering keys"
        fairness_key = fairness_key_of(self.name)
        return "" if fairness_key is None else f"fairness key {fairness_key!r}"

    @property
    def label(self) -> str:
        """The topic in words."""
        label = f"topic {self.topic!r}, group {self.group!r}" if self.group else f"topic {self.topic!r}"
        return f"{label}, {self.key}" if self.key else label


class ShardFact(NamedTuple):
    """A shard that was not asked for ready items, or not with certainty."""

    shard_id: int
    host: str
    detail: str
    state: str = ""


@dataclass(slots=True)
class Facts:
    """The facts about all that a dequeue asked for, or that is to be explained."""

    namespace: str
    topics: Sequence[TopicFacts] = ()
    is_paused: bool = False
    pause_reason: str = ""
    cap: float = 0.0
    is_enqueue_paused: bool = False
    is_closing: bool = False
    sick: Sequence[ShardFact] = ()
    unserved: Sequence[ShardFact] = ()
    unsettled: Sequence[ShardFact] = ()
    """Shards that move, count their rows, or have other owners by the word of other hosts."""
    silent: Sequence[tuple[str, str]] = ()
    """Hosts that do not answer, with the reason."""
    unjudged_count: int = 0
    """Topics that were not checked."""
    prefix: str | None = None
    group: str = ""
    """The consumer group, with a prefix."""
    is_dequeue: bool = False
    """True if a dequeue has got nothing, and is itself a consumer that waits."""
    now_ms: int = 0
    item_id: str = ""
    """The item that is to be explained; empty for topics and namespaces."""
    item: ItemFacts | None = None
    item_problem: str = ""
    item_shard_id: int = -1
    all_topics: HostTopic | None = None
    """The sums of all topics of a namespace that is to be explained."""
    topics_count: int = 0
    quota: int = 0
    """Enqueued items a minute."""
    quota_left_ms: int = 0
    """The time until the quota has room; 0 if it has."""
    tier: str = ""
    takes_items: bool = True
    """False if no shard of the tier takes new items."""
    is_item_shard_asked: bool = False
    """True if a host that answers has the shard of the item."""

    def leave_out_hosts(self) -> None:
        """Forget the names of hosts and the texts of their errors, which are for those who operate the cluster."""
        self.sick = [one._replace(host="", detail="") for one in self.sick]
        self.unserved = [one._replace(host="", detail="") for one in self.unserved]
        self.unsettled = [one._replace(host="", detail="") for one in self.unsettled]
        self.silent = [("", "") for _ in self.silent]
        self.item_problem = ""
        for topic in self.topics:
            topic.by_host = [("", found) for _, found in topic.by_host]

    def leave_out_contents(self) -> None:
        """Forget texts that consumers have written about the item, which are for those who can read payloads."""
        if self.item is not None:
            self.item.detail = self.item.error = ""

    @property
    def is_partial(self) -> bool:
        """True if ready items can exist that are not in the facts."""
        return bool(self.sick or self.unserved or self.silent or self.unsettled)
