"""A namespace's quota on this host: its account, the calls that wait for tokens or are over it, the state of asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import itemgetter

from foqs.host.admission.account import Account, Charge
from foqs.model import limits
from foqs.model.errors import RateLimitedError
from foqs.model.namespace import Namespace

_MINUTE_S = 60.0


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
        "reported_away_ms",
        "waiting",
    )

    def __init__(self, namespace: Namespace) -> None:
        self.account = Account(namespace.number)
        self.name = namespace.name
        self.limit = namespace.settings.enqueues_per_minute_max
        self.waiting: deque[CallForTokens] = deque()
        self.reported_away_ms = 0
        """The time of the last report of an outage to the book."""
        self.asked_first_ms: int | None = None
        """The time of the first ask since the last answer of the book."""
        self.has_turn = False
        """True if it waits for a turn at its book, which is not asked in other ways meanwhile."""
        self.is_stuck = False
        """True if it waited for a turn in vain, because the user of the book possibly hangs."""
        self.refused_since_ms: int | None = None
        """The time since which the book could not be asked while other books could, or None."""

    def is_refused(self, now_ms: int) -> bool:
        """True if the book was locked for longer than calls wait, so that its calls need no tokens."""
        since_ms = self.refused_since_ms
        return self.is_stuck and since_ms is not None and now_ms - since_ms >= self.account.no_answer_ms_max


def over_limit(hosted: HostedQuota, count: int, wait_ms: int) -> RateLimitedError:
    """Return the error of a call that does not fit, with the time until it will."""
    return RateLimitedError(
        f"namespace {hosted.name!r} is over its limit of {hosted.limit} enqueues per minute: {count} more fit in "
        f"{wait_ms} ms",
        retry_after_ms=wait_ms,
    )


def used_parts(quotas: Iterable[HostedQuota]) -> dict[str, float]:
    """Return the part of its quota that each namespace has used up in the last minute, by name.

    These are the namespaces with the largest parts, up to limits.METRIC_NAMESPACES_MAX.
    """
    parts = {hosted.name: hosted.account.window.admitted_count / hosted.limit for hosted in quotas}
    return dict(nlargest(limits.METRIC_NAMESPACES_MAX, parts.items(), key=itemgetter(1)))


class RepeatLookUps:
    """Bounds the look-ups of dedup ids for namespaces over their quotas. `Enqueues` owns it.

    Repeats need no room in the quota. So a call over the quota costs only its refusal, unless its ids are looked up.
    These look-ups have a bound of their own because they can be in vain: as many per minute as the quota admits items.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._now_s = now_s
        self._minute = -1
        self._counts: dict[int, int] = {}

    def admit(self, namespace: Namespace, count: int) -> bool:
        """Count `count` ids and return True if the bound permits their look-up."""
        minute = int(self._now_s() / _MINUTE_S)
        if minute != self._minute:
            self._minute, self._counts = minute, {}
        total = self._counts.get(namespace.number, 0) + count
        if total > namespace.settings.enqueues_per_minute_max:
            return False
        self._counts[namespace.number] = total
        return True
