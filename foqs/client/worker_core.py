"""Parts that the blocking and the asyncio worker share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TypeVar

from foqs.client.addresses import parse_addresses
from foqs.client.checks import check_many, check_text, check_whole
from foqs.client.dequeued import Dequeued
from foqs.client.durations import DEADLINE_MS_MAX
from foqs.client.queue_items import Item
from foqs.client.settling import NackBackoff, log
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError

T = TypeVar("T", bound=Item)

CONCURRENCY_MAX = 1_000
DRAIN_MS = 30 * limits.SECOND_MS
REST_MS = 100
"""Pause after a failed dequeue, in ms; it doubles with each failure up to REST_MS_MAX."""
REST_MS_MAX = 2_000
WHY_AFTER_MS = 60 * limits.SECOND_MS
"""Time without items after which a worker asks why, and between two such questions."""
_REASONS_LOGGED_MAX = 3
REST_LINES_APART = 8
"""Number of failures in a row for each logged one."""
_TOPICS_NAMED_MAX = 5


class CutOffError(RuntimeError):
    """Handlers of a stopped worker were still running at the end of its `drain`.

    item_ids: the items of these handlers. They are released, or redelivered when their leases expire.
    """

    def __init__(self, item_ids: Sequence[str], drain_ms: int) -> None:
        self.item_ids = list(item_ids)
        self.drain_ms = drain_ms
        super().__init__(
            f"{len(self.item_ids)} handlers were cut off {drain_ms} ms after the stop, at items {named(self.item_ids)}"
            ": raise drain, or make the handlers shorter"
        )

    def __reduce__(self) -> tuple[type[CutOffError], tuple[list[str], int]]:
        return CutOffError, (self.item_ids, self.drain_ms)


class Rests:
    """Pauses between dequeues while no host is available. Not safe for threads."""

    def __init__(self) -> None:
        self._failures_count = 0

    def after_success(self) -> None:
        self._failures_count = 0

    def after_failure(self, namespace: str, error: FoqsError) -> int:
        """Return the next pause in ms. Only one of REST_LINES_APART failures in a row is logged."""
        if self._failures_count % REST_LINES_APART == 0:
            log.warning("no items from %s for now: %s", namespace, error)
        rest_ms = min(REST_MS << min(self._failures_count, 16), REST_MS_MAX)
        self._failures_count += 1
        return max(rest_ms, error.retry_after_ms or 0)


class IdleTime:
    """The time for which a worker has got no items. It says when to ask why, and logs it. Not safe for threads."""

    def __init__(self) -> None:
        self._idle_since_ms: int | None = None
        self._ask_from_ms = 0
        self._logged: list[tuple[int, str]] = []
        """The codes and subjects of the reasons that were logged last."""

    def wants_why(self, now_ms: int) -> bool:
        """Return True if the next dequeue should ask for the reasons of an empty response."""
        if self._idle_since_ms is None:
            self._idle_since_ms, self._ask_from_ms = now_ms, now_ms + WHY_AFTER_MS
        return now_ms >= self._ask_from_ms

    def note(self, namespace: str, items: Sequence[Item], now_ms: int) -> None:
        """Note the response of a dequeue. Reasons are logged if they are others than before."""
        if items:
            self._idle_since_ms, self._logged = None, []
            return
        if not isinstance(items, Dequeued) or self._idle_since_ms is None:
            return
        self._ask_from_ms = now_ms + WHY_AFTER_MS
        found = [(int(reason.code), reason.topic) for reason in items.why_empty]
        if found and found != self._logged:
            self._logged = found
            idle_s = (now_ms - self._idle_since_ms) // limits.SECOND_MS
            texts = "; ".join([reason.text for reason in items.why_empty[:_REASONS_LOGGED_MAX]])
            log.info("no items from %s for %d s: %s", namespace, idle_s, texts)


class HandlerKindError(TypeError):
    """The worker needs an `async def` handler and got a plain function, or the reverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker, validated; see `Worker` for their meaning.

    Raises InvalidArgumentError for a value out of bounds.
    """

    concurrency: int
    prefetch_count: int | None
    lease_ms: int
    wait_ms: int
    backoff: NackBackoff
    drain_ms: int

    def __post_init__(self) -> None:
        check_whole("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        if self.prefetch_count is not None:
            check_whole("prefetch_count", self.prefetch_count, 0, CONCURRENCY_MAX)
        check_whole("lease_ms", self.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
        check_whole("wait_ms", self.wait_ms, 0, limits.WAIT_MS_MAX)
        check_whole("drain_ms", self.drain_ms, 0, DEADLINE_MS_MAX)
        if not isinstance(self.backoff, NackBackoff):
            raise InvalidArgumentError(f"backoff {self.backoff!r} is no NackBackoff")

    @property
    def capacity(self) -> int:
        """Most items in hand, queued or running; a fetch takes at least one of each topic."""
        prefetch_count = self.concurrency if self.prefetch_count is None else self.prefetch_count
        return self.concurrency + prefetch_count


def topic_names(topics: str | Sequence[str], topic_prefix: str | None = None, group: str | None = None) -> list[str]:
    """Return the topics as a list. Raises InvalidArgumentError without topics and prefix, and with both."""
    if group is not None:
        check_text("group", group)
    if not isinstance(topics, str):
        check_many("topics", topics, "topics")
    names = [topics] if isinstance(topics, str) else list(topics)
    for name in names:
        check_text("one of topics", name)
    if not names and topic_prefix is None:
        raise InvalidArgumentError("a worker has no topics: give at least one, or topic_prefix")
    if names and topic_prefix is not None:
        raise InvalidArgumentError(f"a worker has topics {named(names)} and topic_prefix: give one of them")
    return names


def named(topics: Sequence[str], topic_prefix: str | None = None) -> str:
    """Name the topics in a log line: the first few, and their number."""
    if topic_prefix is not None:
        return f"{topic_prefix}*"
    shown = ", ".join(topics[:_TOPICS_NAMED_MAX])
    return shown if len(topics) <= _TOPICS_NAMED_MAX else f"{shown}, ... ({len(topics)} in all)"


def description(namespace: str, topics: str, settings: WorkerSettings, addresses: str | Sequence[str]) -> str:
    """Describe a worker in the log line of its start."""
    return (
        f"namespace {namespace}, topics {topics}, concurrency {settings.concurrency}, "
        f"up to {settings.capacity} items in hand, lease {settings.lease_ms} ms, "
        f"hosts {', '.join(map(str, parse_addresses(addresses)))}"
    )


def check_client(client: object) -> None:
    """Raise InvalidArgumentError for an object that is not a blocking client."""
    dequeue = getattr(client, "dequeue", None)
    if not callable(dequeue) or iscoroutinefunction(dequeue):
        raise InvalidArgumentError(f"client is {type(client).__name__}: a Worker needs a foqs.Client")


def check_async_client(client: object) -> None:
    """Raise InvalidArgumentError for an object that is not an asyncio client."""
    if not iscoroutinefunction(getattr(client, "dequeue", None)):
        raise InvalidArgumentError(f"client is {type(client).__name__}: an AsyncWorker needs a foqs.AsyncClient")


def check_handler(handler: object) -> None:
    """Raise InvalidArgumentError for a handler that a blocking worker cannot call, such as an `async def`."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object it may be an `async def` too
    if not callable(handler) or iscoroutinefunction(handler) or iscoroutinefunction(call):
        raise InvalidArgumentError(f"handler {handler!r} is no plain function: an async one needs foqs.AsyncWorker")


def check_async_handler(handler: object) -> None:
    """Raise InvalidArgumentError for an object that is not callable. Only its result shows if it is async."""
    if not callable(handler):
        raise InvalidArgumentError(f"handler {handler!r} is no function: give an async one")


def count_of_each(free_count: int, topics: Sequence[str]) -> int:
    """Return how many items to request of each topic, or of the prefix, to fill about the free capacity."""
    return min(max(1, free_count // max(1, len(topics))), limits.DEQUEUE_ITEMS_MAX)


def may_go_on(error: FoqsError) -> bool:
    """True if the worker retries after a failed dequeue: an outage ends, but an invalid argument stays invalid."""
    return error.retryable


def runs_of(items: Sequence[T]) -> list[list[T]]:
    """Return the items of one answer in their order, those of each ordering key together."""
    runs: dict[object, list[T]] = {}
    for item in items:
        key = item.receipt if item.ordering_key is None else (item.topic, item.group, item.ordering_key)
        runs.setdefault(key, []).append(item)
    return list(runs.values())
