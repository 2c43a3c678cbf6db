"""What the blocking and the asyncio worker have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction

from foqs.client.checks import check_whole
from foqs.client.settling import NackBackoff
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError

CONCURRENCY_MAX = 1_000
REST_MS = 1_000
"""Pause after the host could not be asked for items even with the client's retries."""


class HandlerKindError(TypeError):
    """The handler is a plain function where an `async def` is needed, or the other way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker takes and treats its items.

    concurrency: handlers at once, 1 to 1,000.
    prefetch_count: items taken beyond those in work, so that no handler waits for the network, up to 1,000;
        None: as many as handlers. Use 0 where a handler takes minutes: another worker may have time for the item
        meanwhile.
    lease_ms: of every delivery, 1 s to 12 h; extended at half of it while the item waits or is in work.
    wait_ms: how long one call waits for items, up to 30 s; stopping can take as long.
    backoff: the delay before an item comes back whose handler failed.
    drain_ms: after a stop, how long handlers may go on, and how long settlements may take.

    Raises InvalidArgumentError for what is outside of these.
    """

    concurrency: int = 8
    prefetch_count: int | None = None
    lease_ms: int = limits.LEASE_MS_DEFAULT
    wait_ms: int = 2_000
    backoff: NackBackoff = field(default_factory=NackBackoff)
    drain_ms: int = limits.DRAIN_MS_MAX

    def __post_init__(self) -> None:
        check_whole("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        if self.prefetch_count is not None:
            check_whole("prefetch_count", self.prefetch_count, 0, CONCURRENCY_MAX)
        check_whole("lease_ms", self.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
        check_whole("wait_ms", self.wait_ms, 0, limits.WAIT_MS_MAX)
        check_whole("drain_ms", self.drain_ms, 0)

    @property
    def capacity(self) -> int:
        """Items in hand at most, rounded up to one for each topic."""
        prefetch_count = self.concurrency if self.prefetch_count is None else self.prefetch_count
        return self.concurrency + prefetch_count


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """The topics as a list. Raises InvalidArgumentError when there is none."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidArgumentError("a worker has no topics: give at least one")
    return names


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
    """How many items to ask of each topic so that the answer is about what there is room for."""
    return min(max(1, free_count // len(topics)), limits.DEQUEUE_ITEMS_MAX)


def may_go_on(error: FoqsError) -> bool:
    """Whether a worker that could not dequeue tries on: a host comes back, a wrong argument does not."""
    return error.retryable
