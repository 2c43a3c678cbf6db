"""The parts that the blocking and the asyncio worker have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction

from foqs.client.addresses import parse_addresses
from foqs.client.checks import check_many, check_text, check_whole
from foqs.client.durations import DEADLINE_MS_MAX
from foqs.client.settling import NackBackoff, log
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError

CONCURRENCY_MAX = 1_000
DRAIN_MS = 30 * limits.SECOND_MS
REST_MS = 100
"""The pause after the hosts could not be asked for items; it doubles each time."""
REST_MS_MAX = 2_000
REST_LINES_APART = 8
"""One of so many failures in a row is logged."""
_TOPICS_NAMED_MAX = 5


class CutOffError(RuntimeError):
    """A worker was stopped, and handlers were still at work when its `drain` was over.

    item_ids: of the items that they worked on. They are released, or redelivered when their leases end.
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
    """The pauses of who asks for items again and again while no host can be asked. Not safe for threads."""

    def __init__(self) -> None:
        self._failures_count = 0

    def after_success(self) -> None:
        self._failures_count = 0

    def after_failure(self, namespace: str, error: FoqsError) -> int:
        """Return how long to rest. Some of the failures in a row are logged."""
        if self._failures_count % REST_LINES_APART == 0:
            log.warning("no items from %s for now: %s", namespace, error)
        rest_ms = min(REST_MS << min(self._failures_count, 16), REST_MS_MAX)
        self._failures_count += 1
        return max(rest_ms, error.retry_after_ms or 0)


class HandlerKindError(TypeError):
    """The handler is a plain function where an `async def` is needed, or the other way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker takes and treats its items, checked: see `Worker` for the meaning of each.

    Raises InvalidArgumentError for what is outside of its bounds.
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
        """The most items in hand, waiting or in work; a fetch takes at least one of each topic."""
        prefetch_count = self.concurrency if self.prefetch_count is None else self.prefetch_count
        return self.concurrency + prefetch_count


def topic_names(topics: str | Sequence[str], topic_prefix: str | None = None) -> list[str]:
    """Return the topics as a list. Raises InvalidArgumentError when there is none, and no prefix, or both."""
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
    """Name the topics for a log line: the first of many, and how many there are."""
    if topic_prefix is not None:
        return f"{topic_prefix}*"
    shown = ", ".join(topics[:_TOPICS_NAMED_MAX])
    return shown if len(topics) <= _TOPICS_NAMED_MAX else f"{shown}, ... ({len(topics)} in all)"


def description(namespace: str, topics: str, settings: WorkerSettings, addresses: str | Sequence[str]) -> str:
    """Describe what a worker works on, for the log line of its start."""
    return (
        f"namespace {namespace}, topics {topics}, concurrency {settings.concurrency}, "
        f"up to {settings.capacity} items in hand, lease {settings.lease_ms} ms, "
        f"hosts {', '.join(map(str, parse_addresses(addresses)))}"
    )


def check_client(client: object) -> None:
    """Raise InvalidArgumentError for what is no client that a blocking worker can use."""
    dequeue = getattr(client, "dequeue", None)
    if not callable(dequeue) or iscoroutinefunction(dequeue):
        raise InvalidArgumentError(f"client is {type(client).__name__}: a Worker needs a foqs.Client")


def check_async_client(client: object) -> None:
    """Raise InvalidArgumentError for what is no client that an asyncio worker can use."""
    if not iscoroutinefunction(getattr(client, "dequeue", None)):
        raise InvalidArgumentError(f"client is {type(client).__name__}: an AsyncWorker needs a foqs.AsyncClient")


def check_handler(handler: object) -> None:
    """Raise InvalidArgumentError for what a blocking worker cannot call, such as an `async def`, which nobody runs."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object it may be an `async def` too
    if not callable(handler) or iscoroutinefunction(handler) or iscoroutinefunction(call):
        raise InvalidArgumentError(f"handler {handler!r} is no plain function: an async one needs foqs.AsyncWorker")


def check_async_handler(handler: object) -> None:
    """Raise InvalidArgumentError for what an asyncio worker cannot call. What it returns shows whether it is async."""
    if not callable(handler):
        raise InvalidArgumentError(f"handler {handler!r} is no function: give an async one")


def count_of_each(free_count: int, topics: Sequence[str]) -> int:
    """Return how many items to ask of each topic, or of any, so that there is about as much room for them."""
    return min(max(1, free_count // max(1, len(topics))), limits.DEQUEUE_ITEMS_MAX)


def may_go_on(error: FoqsError) -> bool:
    """Tell whether a worker that could not dequeue tries again: a host comes back, a wrong argument stays wrong."""
    return error.retryable
