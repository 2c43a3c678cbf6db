"""What the threaded and the asyncio worker have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foqs.client.settling import NackBackoff
from foqs.core import limits
from foqs.core.errors import FoqsError, InvalidArgumentError

CONCURRENCY_MAX = 1_000
REST_MS = 1_000
"""Pause after the host could not be asked for items even with the client's retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker takes and treats its items.

    concurrency: handlers at once, up to 1,000.
    prefetch_count: items taken beyond those in work, so that no handler waits for the network; None: as
        many as handlers. Use 0 where a handler takes minutes: another worker may have time for the item
        meanwhile.
    lease_ms: of every delivery; extended at half of it while the item waits or is in work.
    wait_ms: how long one call waits for items; stopping can take as long.
    backoff: the delay before an item comes back whose handler failed.
    drain_ms: after a stop, how long handlers may go on, and how long settlements may take.
    """

    concurrency: int = 8
    prefetch_count: int | None = None
    lease_ms: int = limits.LEASE_MS_DEFAULT
    wait_ms: int = 2_000
    backoff: NackBackoff = field(default_factory=NackBackoff)
    drain_ms: int = limits.DRAIN_MS_MAX

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise InvalidArgumentError(f"concurrency {self.concurrency!r} is not within 1..{CONCURRENCY_MAX}")
        if not limits.LEASE_MS_MIN <= self.lease_ms <= limits.LEASE_MS_MAX:
            raise InvalidArgumentError(
                f"lease_ms {self.lease_ms!r} is not within {limits.LEASE_MS_MIN}..{limits.LEASE_MS_MAX}"
            )

    @property
    def capacity(self) -> int:
        """Items in hand at most, rounded up to one for each topic."""
        prefetch_count = self.concurrency if self.prefetch_count is None else self.prefetch_count
        return self.concurrency + max(0, prefetch_count)


def topic_names(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)


def count_of_each(free_count: int, topics: Sequence[str]) -> int:
    """How many items to ask of each topic so that the answer is about what there is room for."""
    return min(max(1, free_count // len(topics)), limits.DEQUEUE_ITEMS_MAX)


def may_go_on(error: FoqsError) -> bool:
    """Whether a worker that could not dequeue tries on: a host comes back, a wrong argument does not."""
    return error.retryable
