"""New items and deliveries as callers use them.

The encoder reads `NewItem` and `Nack` directly, without a copy for each item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar

from foqs.client.checks import check_flag, check_many, check_text, check_whole, is_whole
from foqs.client.durations import duration_ms, duration_or
from foqs.model import limits
from foqs.model.calls import DedupUntil, DeliveryPolicy
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError, shown
from foqs.model.failures import REASON_BYTES_MAX, clean_reason
from foqs.model.given_times import time_ms
from foqs.wire import codec as wire

ENQUEUE_BYTES_MAX = limits.FRAME_BYTES_MAX // 2
"""Most bytes of the items of one enqueue call, which keeps the frame far below its own limit."""
ITEM_OVERHEAD_BYTES = 512
"""Size of an item without payload and metadata, in bytes: field headers, and a short topic and dedup id."""
_NAME_CHARS = 48
"""Longest topic or dedup id that fits into ITEM_OVERHEAD_BYTES, in characters of any size."""

_NACK_OVERHEAD_BYTES = 64
"""Size of a nack without receipt, metadata and reason, in bytes."""
T = TypeVar("T")

_TEXTS = (
    ("topic", False),
    ("dedup_id", True),
    ("ordering_key", True),
    ("fairness_key", True),
    ("trace_context", True),
)
"""The fields of a NewItem that are text, each with True if it can be left out."""
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(slots=True, init=False)
class NewItem:
    """One item to enqueue. Limits are those of the namespace; the values below are its defaults.

    topic: 1..255 bytes of UTF-8 without control characters. A topic exists while it has items.
    payload: up to 10 KiB.  metadata: up to 512 bytes; a nack can replace it.
    priority: int32; smaller is more urgent.
    deliver_after (a datetime with a time zone) or deliver_after_ms (milliseconds since the epoch), or else delay or
        delay_ms: earliest delivery, by the host's clock; up to 90 days ahead.
    ttl or ttl_ms: time from the earliest delivery to the deletion; 14 days.
    lease or lease_ms: lease of its deliveries if the dequeue names none; 30 s.
    delivery: at least once, or at most once.
    dedup_id: 1..255 bytes of UTF-8. Within the namespace's dedup_ms, only the first item of the namespace with this id
        is stored. A later enqueue returns the first item's id, even if that item is done or deleted.
    dedup_until: DedupUntil.ACKED for a dedup_id that is taken as long as the item lives, and free once it is acked,
        deleted, expired or dead. None for the window above. Needs a dedup_id.
    ordering_key: 1..128 bytes of UTF-8 without control characters. Items of the topic with the same key are delivered
        one at a time in each group, in the order of priority and commit; a failed one comes again before all later
        ones. Other keys, and items without one, continue. Not with deliver_after or delay. A dedup_id is known in its
        key alone.
    fairness_key: 1..64 bytes of UTF-8 without control characters. Items of the topic with the same priority are
        delivered by turns over the keys that have items, so that a key with many items delays the others by no more
        than its turns. Items without one take turns as one more key. Not with ordering_key.
    trace_context: up to 128 bytes of UTF-8 that every delivery carries, such as a W3C traceparent.

    Raises InvalidArgumentError if an argument and its twin in milliseconds are both given, and for a datetime without a
    time zone. The other values are checked by the enqueue.
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
    dedup_until: DedupUntil | None
    fairness_key: str | None

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
        dedup_until: DedupUntil | None = None,
        fairness_key: str | None = None,
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
        self.dedup_until = dedup_until
        self.fairness_key = fairness_key
        # Skip the conversion if possible, because items are created by the million.
        if deliver_after is not None:
            self.deliver_after_ms = time_ms("deliver_after_ms", deliver_after_ms, deliver_after)
        if delay is not None:
            self.delay_ms = duration_ms("delay_ms", delay_ms, delay)
        if ttl is not None:
            self.ttl_ms = duration_ms("ttl_ms", ttl_ms, ttl)
        if lease is not None:
            self.lease_ms = duration_ms("lease_ms", lease_ms, lease)

    def with_dedup_id(self, dedup_id: str) -> NewItem:
        """Return a copy with this dedup id."""
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
            dedup_until=self.dedup_until,
            fairness_key=self.fairness_key,
        )


@dataclass(slots=True, init=False)
class Nack:
    """One delivery to give back as a failed attempt, for `nack` of a client.

    receipt: of the delivery.
    delay or delay_ms: earliest redelivery; up to 90 days.  metadata: replaces the item's metadata, if given.
    release: True to count no attempt, because the item was not tried.  dead_letter: True to make it a dead letter.
    reason: why the attempt failed, for operators; a text of any length, of which one line of 500 bytes is kept.
    Raises InvalidArgumentError for a delay outside 0..90 days, for metadata that is not bytes and for a reason that is
    no text.
    """

    receipt: str
    delay_ms: int
    metadata: bytes | None
    release: bool
    dead_letter: bool
    reason: str | None

    def __init__(
        self,
        receipt: str,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        release: bool = False,
        dead_letter: bool = False,
        reason: str | None = None,
        *,
        delay: timedelta | None = None,
    ) -> None:
        self.receipt = receipt
        self.delay_ms = duration_or("delay_ms", delay_ms, delay, 0)
        self.metadata = metadata
        self.release = release
        self.dead_letter = dead_letter
        self.reason = sent_reason(reason)
        check_nack(self.delay_ms, metadata)

    def check(self) -> None:
        """Raise InvalidArgumentError or TooLargeError for a nack that would fail the whole call."""
        check_nack(self.delay_ms, self.metadata)
        check_text("receipt", self.receipt)
        check_flag("release", self.release)
        check_flag("dead_letter", self.dead_letter)
        self.reason = sent_reason(self.reason)
        receipt_of(self.receipt)
        if (size := nack_bytes(self)) > ENQUEUE_BYTES_MAX:
            raise TooLargeError(
                f"a nack of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes): give less metadata"
            )


@dataclass(slots=True, eq=False)
class Item:
    """One delivery of an item under a lease, as `dequeue` returns it.

    id: of the item, the same for every delivery.  receipt: names this delivery for ack, nack, release and extend.
    metadata: from the enqueue or the last nack that set it; empty by default.
    attempt: 1 for the first delivery, plus 1 for each failed attempt and each expired lease.
    deliver_after_ms, enqueued_at_ms, lease_expires_at_ms: milliseconds since the epoch by the host's clock.
    group: the consumer group whose copy it is; None for the topic's own.
    suspect: True if a lease expired during work on the item, which possibly crashed the program. Known only for
        dequeues that report the beginning of work.
    ordering_key: of the enqueue, if it gave one: items with the same key are delivered one at a time, in order.
    fairness_key: of the enqueue, if it gave one: the keys of the topic take turns.
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
    group: str | None = field(default=None, kw_only=True)
    suspect: bool = field(default=False, kw_only=True)
    ordering_key: str | None = field(default=None, kw_only=True)
    fairness_key: str | None = field(default=None, kw_only=True)


field_values = attrgetter(*[one.name for one in fields(Item) if not one.kw_only])
"""Return the values of an Item's positional fields, for an Item or a decoded delivery."""


def decoded_item(decoded: Any) -> Item:
    """Make an Item from a decoded delivery."""
    item = Item(*field_values(decoded), group=decoded.group, ordering_key=decoded.ordering_key)
    if decoded.fairness_key is not None:
        item.fairness_key = decoded.fairness_key
    if decoded.suspect:
        item.suspect = True
    return item


wire.encode_as(NewItem, wire.structs.NewItem)
wire.encode_as(Nack, wire.structs.Nack)

Receipts = Item | str | Iterable[Item | str]
"""One delivery, whose error is raised, or many, whose errors BatchError has by position."""
Topics = str | Mapping[str, int] | Sequence[str | tuple[str, int]]
"""A topic, or several with their counts; a topic without one gets the call's `count`."""


def receipt_of(entry: object) -> str:
    """Return the receipt of an entry. Raises InvalidArgumentError or TooLargeError for an invalid one."""
    receipt = entry.receipt if isinstance(entry, Item) else entry
    if not isinstance(receipt, str):
        raise InvalidArgumentError(f"{type(entry).__name__} is neither an Item nor a receipt")
    if not (receipt.isascii() or _is_utf8(receipt)):
        raise InvalidArgumentError(f"receipt {shown(receipt)} is not text that UTF-8 can hold")
    if receipt_bytes(receipt) > ENQUEUE_BYTES_MAX:
        raise TooLargeError(f"receipt {shown(receipt)} has {len(receipt)} characters: no call can carry it")
    return receipt


def receipt_bytes(receipt: str) -> int:
    """Return the largest size of a receipt or an id in a frame, in bytes."""
    return 4 * len(receipt) + 4


def nack_bytes(nack: Nack) -> int:
    """Return the largest size of a nack in a frame, in bytes."""
    metadata = nack.metadata
    size = len(metadata) if type(metadata) is bytes else 0 if metadata is None else memoryview(metadata).nbytes
    reason_bytes = REASON_BYTES_MAX if nack.reason else 0
    return size + receipt_bytes(nack.receipt) + _NACK_OVERHEAD_BYTES + reason_bytes


def entries_of(given: Iterable[Any], entry_of: Callable[[Any], T]) -> tuple[list[T | None], dict[int, FoqsError]]:
    """Return the entries as the wire needs them, and the errors of those that cannot be sent, by position."""
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


def topic_demands(topics: Topics, count: int, group: str | None = None) -> list[Any]:
    """Return the demands of a request. Raises InvalidArgumentError for no topics or too many."""
    if isinstance(topics, str):
        return [wire.structs.TopicDemand(topic=topics, count=count, group=group)]
    check_many("topics", topics, "topics, or pairs of topic and count")
    pairs = topics.items() if isinstance(topics, Mapping) else topics
    demands = [_demand(entry, count, group) for entry in pairs]
    if not 1 <= len(demands) <= limits.DEQUEUE_TOPICS_MAX:
        raise InvalidArgumentError(f"{len(demands)} topics: one call takes 1 to {limits.DEQUEUE_TOPICS_MAX}")
    return demands


def _demand(entry: str | tuple[str, int], count: int, group: str | None) -> Any:
    if isinstance(entry, str):
        return wire.structs.TopicDemand(topic=entry, count=count, group=group)
    if not (isinstance(entry, tuple | list) and len(entry) == 2):
        raise InvalidArgumentError(f"one of topics is {shown(entry)}: give a topic, or a pair of topic and count")
    return wire.structs.TopicDemand(topic=entry[0], count=entry[1], group=group)


def item_bytes(item: NewItem) -> int:
    """Return the largest size of an item in a frame, in bytes. Other objects get a default and are refused later."""
    try:
        payload, metadata, topic = item.payload, item.metadata, item.topic
        size = ITEM_OVERHEAD_BYTES + (len(payload) if type(payload) is bytes else memoryview(payload).nbytes)
        if metadata:
            size += len(metadata) if type(metadata) is bytes else memoryview(metadata).nbytes
        if item.trace_context:
            size += 4 * len(item.trace_context)
        # The overhead covers names of up to _NAME_CHARS characters.
        if len(topic) > _NAME_CHARS:
            size += 4 * len(topic)
        if (dedup_id := item.dedup_id) is not None and len(dedup_id) > _NAME_CHARS:
            size += 4 * len(dedup_id)
        if item.fairness_key:
            size += 4 * len(item.fairness_key)
        return size + (4 * len(item.ordering_key) if item.ordering_key else 0)
    except (TypeError, AttributeError, ValueError):
        return ITEM_OVERHEAD_BYTES


def check_item_fits(item: NewItem) -> None:
    """Raise TooLargeError for an item that exceeds the limit of a call."""
    size = item_bytes(item)
    if size > ENQUEUE_BYTES_MAX:
        raise TooLargeError(
            f"an item of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes): keep the content "
            "elsewhere, and enqueue where it is"
        )


def check_new_item(item: NewItem) -> None:
    """Raise InvalidArgumentError for a value that cannot be encoded.

    The check keeps one bad item from failing its whole batch; the host checks everything else.
    """
    if not isinstance(item, NewItem):
        raise InvalidArgumentError(f"{type(item).__name__} is not a NewItem")
    problems = []
    for name, value in (("payload", item.payload), ("metadata", item.metadata)):
        if not (isinstance(value, bytes | bytearray | memoryview) or (name == "metadata" and value is None)):
            problems.append(f"{name} is {type(value).__name__}, not bytes")
        elif isinstance(value, memoryview) and (problem := _view_problem(name, value)):
            problems.append(problem)
    for name, optional in _TEXTS:
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
    until = item.dedup_until
    if until is not None and not (is_whole(until) and until in tuple(DedupUntil)):
        problems.append(f"dedup_until is {shown(until)}, not a DedupUntil")
    if problems:
        raise InvalidArgumentError("new item: " + "; ".join(problems))


def check_new_items(items: Iterable[NewItem]) -> None:
    """Do the same for many items. A check of a plainly valid item, the usual case, takes a tenth of a microsecond."""
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
            and (item.dedup_until is None or type(item.dedup_until) is DedupUntil)
        ):
            check_new_item(item)


def likely_faults_of(items: Sequence[NewItem]) -> dict[int, FoqsError]:
    """Return the errors of unsendable items by position, after a check that is nearly free if all are valid."""
    try:
        check_new_items(items)
        if sum(map(item_bytes, items)) <= ENQUEUE_BYTES_MAX:
            return {}
    except InvalidArgumentError:
        pass  # The error does not name the items.
    return faults_of(items)


def faults_of(items: Sequence[NewItem]) -> dict[int, FoqsError]:
    """Return the errors of unsendable items by position; each one would fail the call of the others."""
    return entries_of(items, _check)[1]


def _check(item: NewItem) -> None:
    check_new_item(item)
    check_item_fits(item)


def check_nack(delay_ms: object, metadata: object = None) -> None:
    """Raise InvalidArgumentError for a value that would fail the call of other deliveries too."""
    check_whole("delay_ms", delay_ms, 0, limits.DELAY_MS_MAX)
    if not isinstance(metadata, bytes | bytearray | memoryview | None):
        raise InvalidArgumentError(f"metadata is {type(metadata).__name__}, not bytes")
    if isinstance(metadata, memoryview) and (problem := _view_problem("metadata", metadata)):
        raise InvalidArgumentError(problem)


def sent_reason(reason: object) -> str | None:
    """Return a reason as it is sent, None for an empty one. Raises InvalidArgumentError for a value that is no text."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise InvalidArgumentError(f"reason is {type(reason).__name__}, not str")
    return clean_reason(reason) or None


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
