"""The items that go into a queue and the deliveries that come out of it, as the caller has them.

The encoder reads `NewItem` and `Nack` where they are: no copy per item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar

from foqs.client.checks import check_flag, check_many, check_text, check_whole, is_whole
from foqs.client.durations import duration_ms, duration_or, time_ms
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError, shown
from foqs.wire import codec as wire

ENQUEUE_BYTES_MAX = limits.FRAME_BYTES_MAX // 2
"""The most that the items of one enqueue call have, so that the frame stays far from its own limit."""
ITEM_OVERHEAD_BYTES = 512
"""The bytes of an item beside payload and metadata: topic, dedup id and field headers, where these are short."""
_NAME_CHARS = 48
"""Topics and dedup ids of so many characters have room in ITEM_OVERHEAD_BYTES, whatever their characters are."""

_NACK_OVERHEAD_BYTES = 64
"""The bytes of a nack beside receipt and metadata."""
T = TypeVar("T")

PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(slots=True, init=False)
class NewItem:
    """One item to enqueue. Limits are the namespace's; its defaults are given here.

    topic: 1..255 bytes of UTF-8 without control characters; it exists while it holds an item.
    payload: up to 10 KiB.  metadata: up to 512 bytes; a nack may replace it.
    priority: int32, smaller is more urgent.
    deliver_after (a datetime with a time zone) or deliver_after_ms (milliseconds since the epoch), or else delay or
        delay_ms: not delivered before; up to 90 days ahead, by the host's clock.
    ttl or ttl_ms: deleted this long after it may be delivered; 14 days.
    lease or lease_ms: the lease of its deliveries when the dequeue names none; 30 s.
    delivery: at least once, or at most once.
    dedup_id: 1..255 bytes of UTF-8. Of all items of the namespace with this id only the first is stored, as long as the
        namespace's dedup_ms says; an enqueue of another one returns the id of the first, whatever became of that.
    trace_context: up to 128 bytes of UTF-8 that come with every delivery, such as a W3C traceparent.

    Raises InvalidArgumentError when an argument and its twin in milliseconds are both given, and for a datetime without
    a time zone. The other values are checked when the item is enqueued.
    """

    topic: str
    payload: bytes
    priority: int
    deliver_after_ms: int | None
    delay_ms: int | None
    ttl_ms: int | None
    lease_ms: int | None
    metadata: bytes | None
    delivery: DeliveryPolicy | None
    dedup_id: str | None
    ordering_key: str | None
    trace_context: str | None

    def __init__(
        self,
        topic: str,
        payload: bytes,
        priority: int = 0,
        deliver_after_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        lease_ms: int | None = None,
        metadata: bytes | None = None,
        delivery: DeliveryPolicy | None = None,
        dedup_id: str | None = None,
        ordering_key: str | None = None,
        trace_context: str | None = None,
        *,
        deliver_after: datetime | None = None,
        delay: timedelta | None = None,
        ttl: timedelta | None = None,
        lease: timedelta | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.priority = priority
        self.deliver_after_ms = deliver_after_ms
        self.delay_ms = delay_ms
        self.ttl_ms = ttl_ms
        self.lease_ms = lease_ms
        self.metadata = metadata
        self.delivery = delivery
        self.dedup_id = dedup_id
        self.ordering_key = ordering_key
        self.trace_context = trace_context
        # Only where it is needed: items are made by the million.
        if deliver_after is not None:
            self.deliver_after_ms = time_ms("deliver_after_ms", deliver_after_ms, deliver_after)
        if delay is not None:
            self.delay_ms = duration_ms("delay_ms", delay_ms, delay)
        if ttl is not None:
            self.ttl_ms = duration_ms("ttl_ms", ttl_ms, ttl)
        if lease is not None:
            self.lease_ms = duration_ms("lease_ms", lease_ms, lease)

    def with_dedup_id(self, dedup_id: str) -> NewItem:
        """Return a copy that has this dedup id."""
        return NewItem(
            self.topic,
            self.payload,
            self.priority,
            self.deliver_after_ms,
            self.delay_ms,
            self.ttl_ms,
            self.lease_ms,
            self.metadata,
            self.delivery,
            dedup_id,
            self.ordering_key,
            self.trace_context,
        )


@dataclass(slots=True, init=False)
class Nack:
    """One delivery to give back as a failed attempt, for `nack` of a client.

    receipt: of the delivery.
    delay or delay_ms: it is not redelivered before; up to 90 days.  metadata: replaces the item's, when given.
    release: it was not tried, so no attempt is counted.  dead_letter: it becomes a dead letter.
    Raises InvalidArgumentError for a delay outside of 0..90 days and for metadata that is not bytes.
    """

    receipt: str
    delay_ms: int
    metadata: bytes | None
    release: bool
    dead_letter: bool

    def __init__(
        self,
        receipt: str,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        release: bool = False,
        dead_letter: bool = False,
        *,
        delay: timedelta | None = None,
    ) -> None:
        self.receipt = receipt
        self.delay_ms = duration_or("delay_ms", delay_ms, delay, 0)
        self.metadata = metadata
        self.release = release
        self.dead_letter = dead_letter
        check_nack(self.delay_ms, metadata)

    def check(self) -> None:
        """Raise InvalidArgumentError or TooLargeError for what would spoil the call that carries others too."""
        check_nack(self.delay_ms, self.metadata)
        check_text("receipt", self.receipt)
        check_flag("release", self.release)
        check_flag("dead_letter", self.dead_letter)
        receipt_of(self.receipt)
        if (size := nack_bytes(self)) > ENQUEUE_BYTES_MAX:
            raise TooLargeError(
                f"a nack of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes): give less metadata"
            )


@dataclass(slots=True, eq=False)
class Item:
    """One delivery of an item under a lease, as `dequeue` returns it.

    id: of the item, the same on every delivery.  receipt: names this delivery for ack, nack, release and extend.
    metadata: what the enqueue gave, or a nack since; empty when nothing.
    attempt: 1 on the first delivery, one more for each that failed or whose lease ended.
    deliver_after_ms, enqueued_at_ms, lease_expires_at_ms: milliseconds since the epoch by the host's clock.
    suspect: a lease of it has ended while somebody worked on it, maybe because it ended the program. Known only where
        the dequeue says what it begins.
    """

    id: str
    receipt: str
    topic: str
    priority: int
    payload: bytes
    metadata: bytes
    deliver_after_ms: int
    enqueued_at_ms: int
    lease_expires_at_ms: int
    attempt: int
    trace_context: str | None
    suspect: bool = field(default=False, kw_only=True)


field_values = attrgetter(*[one.name for one in fields(Item) if not one.kw_only])
"""The values of an Item's fields but `suspect`, of one or of a delivery as it was decoded."""


def item_told(told: Any) -> Item:
    """Make an item of a delivery as it was decoded."""
    item = Item(*field_values(told))
    if told.suspect:
        item.suspect = True
    return item


wire.encode_as(NewItem, wire.structs.NewItem)
wire.encode_as(Nack, wire.structs.Nack)

Receipts = Item | str | Iterable[Item | str]
"""One delivery (its own error is raised) or many (BatchError has their errors by position)."""
Topics = str | Mapping[str, int] | Sequence[str | tuple[str, int]]
"""A topic, or topics with the count wanted of each; a name alone wants the call's `count`."""


def receipt_of(entry: object) -> str:
    """Return the receipt as the wire wants it. Raises InvalidArgumentError or TooLargeError for what is none."""
    receipt = entry.receipt if isinstance(entry, Item) else entry
    if not isinstance(receipt, str):
        raise InvalidArgumentError(f"{type(entry).__name__} is neither an Item nor a receipt")
    if not (receipt.isascii() or _is_utf8(receipt)):
        raise InvalidArgumentError(f"receipt {shown(receipt)} is not text that UTF-8 can hold")
    if receipt_bytes(receipt) > ENQUEUE_BYTES_MAX:
        raise TooLargeError(f"receipt {shown(receipt)} has {len(receipt)} characters: no call can carry it")
    return receipt


def receipt_bytes(receipt: str) -> int:
    """Return how many bytes a receipt or an id has in a frame at most."""
    return 4 * len(receipt) + 4


def nack_bytes(nack: Nack) -> int:
    """Return how many bytes a nack has in a frame at most."""
    metadata = nack.metadata
    size = len(metadata) if type(metadata) is bytes else 0 if metadata is None else memoryview(metadata).nbytes
    return size + receipt_bytes(nack.receipt) + _NACK_OVERHEAD_BYTES


def entries_of(given: Iterable[Any], entry_of: Callable[[Any], T]) -> tuple[list[T | None], dict[int, FoqsError]]:
    """Return the entries as the wire wants them, and the errors of those that cannot be sent, by position."""
    entries: list[T | None] = []
    faults: dict[int, FoqsError] = {}
    for one in given:
        try:
            entries.append(entry_of(one))
        except (InvalidArgumentError, TooLargeError) as fault:
            faults[len(entries)] = fault.with_traceback(None)
            entries.append(None)
    return entries, faults


def is_single(receipts: object) -> bool:
    return isinstance(receipts, str | Item | Nack)


def topic_demands(topics: Topics, count: int) -> list[Any]:
    """Return the wire's demands. Raises InvalidArgumentError when there are none or too many."""
    if isinstance(topics, str):
        return [wire.structs.TopicDemand(topic=topics, count=count)]
    check_many("topics", topics, "topics, or pairs of topic and count")
    pairs = topics.items() if isinstance(topics, Mapping) else topics
    demands = [_demand(entry, count) for entry in pairs]
    if not 1 <= len(demands) <= limits.DEQUEUE_TOPICS_MAX:
        raise InvalidArgumentError(f"{len(demands)} topics: one call takes 1 to {limits.DEQUEUE_TOPICS_MAX}")
    return demands


def _demand(entry: str | tuple[str, int], count: int) -> Any:
    if isinstance(entry, str):
        return wire.structs.TopicDemand(topic=entry, count=count)
    if not (isinstance(entry, tuple | list) and len(entry) == 2):
        raise InvalidArgumentError(f"one of topics is {shown(entry)}: give a topic, or a pair of topic and count")
    return wire.structs.TopicDemand(topic=entry[0], count=entry[1])


def item_bytes(item: NewItem) -> int:
    """Return how many bytes an item has in a frame at most. What is no item has some, too: it is refused later."""
    try:
        payload, metadata, topic = item.payload, item.metadata, item.topic
        size = ITEM_OVERHEAD_BYTES + (len(payload) if type(payload) is bytes else memoryview(payload).nbytes)
        if metadata:
            size += len(metadata) if type(metadata) is bytes else memoryview(metadata).nbytes
        if item.trace_context:
            size += 4 * len(item.trace_context)
        # The overhead has room for as much as a host takes; beyond that the host says what is wrong.
        if len(topic) > _NAME_CHARS:
            size += 4 * len(topic)
        if (dedup_id := item.dedup_id) is not None and len(dedup_id) > _NAME_CHARS:
            size += 4 * len(dedup_id)
        return size + (4 * len(item.ordering_key) if item.ordering_key else 0)
    except (TypeError, AttributeError, ValueError):
        return ITEM_OVERHEAD_BYTES


def check_item_fits(item: NewItem) -> None:
    """Raise TooLargeError for an item that no call can carry."""
    size = item_bytes(item)
    if size > ENQUEUE_BYTES_MAX:
        raise TooLargeError(
            f"an item of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes): keep the content "
            "elsewhere, and enqueue where it is"
        )


def check_new_item(item: NewItem) -> None:
    """Raise InvalidArgumentError for a value that cannot be encoded.

    An item that would spoil the frame of its batch is refused alone; the host judges the rest.
    """
    if not isinstance(item, NewItem):
        raise InvalidArgumentError(f"{type(item).__name__} is not a NewItem")
    problems = []
    for name, value in (("payload", item.payload), ("metadata", item.metadata)):
        if not (isinstance(value, bytes | bytearray | memoryview) or (name == "metadata" and value is None)):
            problems.append(f"{name} is {type(value).__name__}, not bytes")
        elif isinstance(value, memoryview) and (problem := _view_problem(name, value)):
            problems.append(problem)
    for name, optional in (("topic", False), ("dedup_id", True), ("ordering_key", True), ("trace_context", True)):
        value = getattr(item, name)
        if not (isinstance(value, str) or (optional and value is None)):
            problems.append(f"{name} is {type(value).__name__}, not str")
        elif value and not (value.isascii() or _is_utf8(value)):
            problems.append(f"{name} {shown(value)} is not text that UTF-8 can hold")
    if not (is_whole(item.priority) and PRIORITY_MIN <= item.priority <= PRIORITY_MAX):
        problems.append(f"priority {shown(item.priority)} is not within {PRIORITY_MIN}..{PRIORITY_MAX}")
    for name in ("delay_ms", "ttl_ms", "lease_ms"):
        value = getattr(item, name)
        if value is not None and not (is_whole(value) and 0 <= value <= _INT64_MAX):
            problems.append(f"{name} {shown(value)} is not a whole number of milliseconds, 0 or more")
    at_ms = item.deliver_after_ms
    if at_ms is not None and not (is_whole(at_ms) and _INT64_MIN <= at_ms <= _INT64_MAX):
        problems.append(f"deliver_after_ms {shown(at_ms)} is not a whole number of milliseconds since 1970")
    if item.delivery is not None and not (is_whole(item.delivery) and item.delivery in tuple(DeliveryPolicy)):
        problems.append(f"delivery {item.delivery!r} is not a DeliveryPolicy")
    if problems:
        raise InvalidArgumentError("new item: " + "; ".join(problems))


def check_new_items(items: Iterable[NewItem]) -> None:
    """Do the same for many items. What is plainly right, as nearly all are, costs a tenth of a microsecond."""
    for item in items:
        if not (
            type(item) is NewItem
            and type(item.topic) is str
            and type(item.payload) is bytes
            and type(item.priority) is int
            and (item.delay_ms is None or type(item.delay_ms) is int)
            and (item.deliver_after_ms is None or type(item.deliver_after_ms) is int)
            and (item.ttl_ms is None or type(item.ttl_ms) is int)
            and (item.lease_ms is None or type(item.lease_ms) is int)
            and (item.metadata is None or type(item.metadata) is bytes)
            and (item.delivery is None or type(item.delivery) is DeliveryPolicy)
            and (item.dedup_id is None or type(item.dedup_id) is str)
            and (item.trace_context is None or type(item.trace_context) is str)
        ):
            check_new_item(item)


def likely_faults_of(items: Sequence[NewItem]) -> dict[int, FoqsError]:
    """Return why items cannot be sent, by position, as far as that is seen at a glance: it costs next to nothing."""
    try:
        check_new_items(items)
        if sum(map(item_bytes, items)) <= ENQUEUE_BYTES_MAX:
            return {}
    except InvalidArgumentError:
        pass  # It does not say which ones.
    return faults_of(items)


def faults_of(items: Sequence[NewItem]) -> dict[int, FoqsError]:
    """Return why items cannot be sent, by position: each of them would spoil the call that carries the others."""
    return entries_of(items, _check)[1]


def _check(item: NewItem) -> None:
    check_new_item(item)
    check_item_fits(item)


def check_nack(delay_ms: object, metadata: object = None) -> None:
    """Raise InvalidArgumentError for what would spoil the call that carries other deliveries too."""
    check_whole("delay_ms", delay_ms, 0, limits.DELAY_MS_MAX)
    if not isinstance(metadata, bytes | bytearray | memoryview | None):
        raise InvalidArgumentError(f"metadata is {type(metadata).__name__}, not bytes")
    if isinstance(metadata, memoryview) and (problem := _view_problem("metadata", metadata)):
        raise InvalidArgumentError(problem)


def _view_problem(name: str, view: memoryview) -> str | None:
    try:
        return None if view.c_contiguous else f"{name} is a memoryview of bytes that lie apart: give bytes(...) of it"
    except ValueError:
        return f"{name} is a memoryview that was released"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
