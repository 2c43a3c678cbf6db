"""A namespace's quota on this host: its account, the calls that wait for tokens, and how its book is asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from foqs.host.admission.account import Account, Charge
from foqs.model.errors import RateLimitedError, UnavailableError
from foqs.model.grants import Ask, Grant
from foqs.model.namespace import Namespace


class QuotaBooks(Protocol):
    """Where the books are; foqs.storage.meta.meta_store.MetaStore is the real one."""

    def ask_quotas(
        self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False
    ) -> Mapping[int, Grant | UnavailableError]:
        """Ask the books of namespaces, which are created where there are none; a namespace that is gone has none.

        The answer of a book that cannot be asked now is an error: certainly nothing was done to it. With `waits` it
        waits for its turn at the books that others are at. Blocks. Raises UnavailableError.
        """


class CallForTokens:
    """A call that found no tokens."""

    __slots__ = ("answer", "count", "since_ms", "timer")

    def __init__(self, count: int, since_ms: int, answer: asyncio.Future[Charge], timer: asyncio.TimerHandle) -> None:
        self.count = count
        self.since_ms = since_ms
        self.answer = answer
        self.timer = timer


class HostedQuota:
    """An account with the calls that wait for its tokens, in their order."""

    __slots__ = (
        "account",
        "asked_first_ms",
        "has_turn",
        "is_stuck",
        "limit",
        "name",
        "refused_since_ms",
        "told_away_ms",
        "waiting",
    )

    def __init__(self, namespace: Namespace) -> None:
        self.account = Account(namespace.number)
        self.name = namespace.name
        self.limit = namespace.settings.enqueues_per_minute_max
        self.waiting: deque[CallForTokens] = deque()
        self.told_away_ms = 0
        """When the book was told last that the meta database had been away."""
        self.asked_first_ms: int | None = None
        """When the book was asked first since its last answer."""
        self.has_turn = False
        """It waits for its turn at the book, and is not asked otherwise meanwhile."""
        self.is_stuck = False
        """It waited in vain: whoever is at the book may hang."""
        self.refused_since_ms: int | None = None
        """The time since which the book could not be asked, while others could."""

    def is_refused(self, now_ms: int) -> bool:
        """Whether the book could not be asked for so long that calls do without."""
        since_ms = self.refused_since_ms
        return self.is_stuck and since_ms is not None and now_ms - since_ms >= self.account.no_answer_ms_max


def over_limit(hosted: HostedQuota, count: int, wait_ms: int) -> RateLimitedError:
    """The error of a call that does not fit, which tells when it will."""
    return RateLimitedError(
        f"namespace {hosted.name!r} is over its limit of {hosted.limit} enqueues per minute: {count} more fit in "
        f"{wait_ms} ms",
        retry_after_ms=wait_ms,
    )
