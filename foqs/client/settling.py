"""Buffered acks and nacks, and the settlement that follows from the end of a handler. State only, no I/O.

Settlements that arrive during a call are sent together in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush

from foqs.client.checks import check_whole
from foqs.client.durations import duration_ms, duration_or
from foqs.client.flows import Attempts, Terms
from foqs.client.leases import LOST, BaseLeasedItem
from foqs.client.queue_items import Nack, check_nack, sent_reason
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError

log = logging.getLogger("foqs.client")

PENDING_MAX = 10_000
"""Most unsent settlements; a consumer with more takes no new items."""
TOGETHER_MS = 20
"""Repeated settlements that are due within this time are sent together."""


class Retry(Exception):  # noqa: N818 - it is no error of a program
    """Raised by a handler for a failed attempt, to redeliver the item after `delay` instead of the worker's backoff.

    delay or delay_ms: up to 90 days; by default the worker's backoff.
    metadata: replaces the item's metadata, if given.
    reason: why the attempt failed, for operators; by default the exception that was being handled, if any.
    Raises InvalidArgumentError for a delay outside 0..90 days, for metadata that is not bytes and for a reason that is
    no text.
    """

    def __init__(
        self,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        *,
        delay: timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        self.delay_ms = duration_ms("delay_ms", delay_ms, delay)
        self.metadata = metadata
        self.reason = sent_reason(reason)
        check_nack(0 if self.delay_ms is None else self.delay_ms, metadata)
        super().__init__(self.delay_ms, metadata)


class DeadLetter(Exception):  # noqa: N818
    """Raised by a handler for an item that cannot succeed, to make it a dead letter.

    The reason is logged, and the dead letter shows it; by default the exception that was being handled, if any.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):  # noqa: N818
    """Raised by a handler to return the item without counting an attempt. It is ready again after `delay`.

    delay or delay_ms: up to 90 days; by default none.  reason: why it was not tried, for operators.
    Raises InvalidArgumentError for a delay outside 0..90 days and for a reason that is no text.
    """

    def __init__(
        self, delay_ms: int | None = None, *, delay: timedelta | None = None, reason: str | None = None
    ) -> None:
        self.delay_ms = duration_or("delay_ms", delay_ms, delay, 0)
        self.reason = sent_reason(reason)
        check_nack(self.delay_ms)
        super().__init__(self.delay_ms)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class NackBackoff:
    """Delay of an item whose handler failed. It doubles with each attempt and is drawn from its upper half.

    delay or delay_ms (1 s): after the first attempt.  delay_max or delay_ms_max (10 minutes): the longest delay.
    Raises InvalidArgumentError for a value outside 0..90 days.
    """

    delay_ms: int
    delay_ms_max: int

    def __init__(
        self,
        *,
        delay_ms: int | None = None,
        delay_ms_max: int | None = None,
        delay: timedelta | None = None,
        delay_max: timedelta | None = None,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "delay_ms", duration_or("delay_ms", delay_ms, delay, 1_000))
        set_field(self, "delay_ms_max", duration_or("delay_ms_max", delay_ms_max, delay_max, 10 * limits.MINUTE_MS))
        for name in ("delay_ms", "delay_ms_max"):
            check_whole(name, getattr(self, name), 0, limits.DELAY_MS_MAX)

    def next_ms(self, attempt: int, random: Callable[[], float]) -> int:
        full_ms = min(self.delay_ms_max, self.delay_ms << min(max(attempt - 1, 0), 32))
        return int(full_ms * (0.5 + 0.5 * random()))


@dataclass(slots=True)
class SettleStats:
    """Number of items of a consumer or a worker, by outcome.

    received: taken from the host under a lease.
    acked, nacked, released, dead_lettered: confirmed by the host.
    lease_lost: delivered to another consumer, or no longer stored.
    unsettled: the host could not be reached; they are redelivered when their leases expire, unless the call was done.
    """

    received: int = 0
    acked: int = 0
    nacked: int = 0
    released: int = 0
    dead_lettered: int = 0
    lease_lost: int = 0
    unsettled: int = 0


def settlement_of(
    item: BaseLeasedItem,
    error: BaseException | None,
    reason: str | None,
    backoff: NackBackoff,
    random: Callable[[], float],
) -> Nack | None:
    """Return the settlement of an item by the end of its handler: a nack with the reason, or None for an ack."""
    if error is None:
        return None
    if isinstance(error, Retry):
        delay_ms = backoff.next_ms(item.attempt, random) if error.delay_ms is None else error.delay_ms
        return Nack(item.receipt, delay_ms, error.metadata, reason=reason)
    if isinstance(error, Release):
        return Nack(item.receipt, error.delay_ms, release=True, reason=reason)
    if isinstance(error, DeadLetter):
        log.warning("item %s of topic %s to the dead letters: %s", item.id, item.topic, error.reason)
        return Nack(item.receipt, dead_letter=True, reason=reason)
    log.warning("the handler failed with item %s of topic %s", item.id, item.topic, exc_info=error)
    return Nack(item.receipt, backoff.next_ms(item.attempt, random), reason=reason)


@dataclass(slots=True)
class SettleBatch:
    """Settlements of the next two calls, one with acks and one with nacks."""

    acks: list[BaseLeasedItem]
    nacks: list[tuple[BaseLeasedItem, Nack]]

    def __bool__(self) -> bool:
        return bool(self.acks or self.nacks)


@dataclass(slots=True, eq=False)
class _Deferred:
    """A settlement that waits for its own repetition, because the host did not do it."""

    item: BaseLeasedItem
    nack: Nack | None
    """None for an ack."""


@dataclass(slots=True)
class SettlementBuffer:
    """Acks and nacks to send, and the counts of their outcomes.

    Its owner, a settler, adds the settlements of items, takes a batch for each pair of calls and records the outcome.
    It is bounded, because a consumer stops taking items at PENDING_MAX. Not safe for threads.
    """

    stats: SettleStats = field(default_factory=SettleStats)
    terms: Terms | None = None
    """Terms of the client; without them no settlement is repeated."""
    _acks: list[BaseLeasedItem] = field(default_factory=list)
    _nacks: list[tuple[BaseLeasedItem, Nack]] = field(default_factory=list)
    _later: list[tuple[int, int, _Deferred]] = field(default_factory=list)
    _attempts: dict[BaseLeasedItem, Attempts] = field(default_factory=dict)
    """State of the failed settlements' attempts."""
    _deferred_total: int = 0
    _in_flight_count: int = 0

    @property
    def pending_count(self) -> int:
        return len(self._acks) + len(self._nacks) + len(self._later) + self._in_flight_count

    @property
    def waiting(self) -> bool:
        """True if a settlement can be sent now."""
        return bool(self._acks or self._nacks) or self.wait_s() == 0

    def wait_s(self) -> float | None:
        """Return the seconds until the first repetition is due, or None if none is pending."""
        if not self._later or self.terms is None:
            return None
        return max(0, self._later[0][0] - self.terms.clock_ms()) / 1000

    def hurry(self) -> None:
        """Repeat all deferred settlements at once, because no time is left."""
        self._later = [(0, number, deferred) for _, number, deferred in self._later]

    def ack(self, item: BaseLeasedItem) -> None:
        self._acks.append(item)

    def nack(self, item: BaseLeasedItem, nack: Nack) -> None:
        self._nacks.append((item, nack))

    def lost(self, items: Sequence[BaseLeasedItem]) -> None:
        """Count leases that were lost before their items were settled."""
        self.stats.lease_lost += len(items)
        for item in items:
            log.warning("the lease of item %s of topic %s was lost", item.id, item.topic)

    def take(self) -> SettleBatch:
        size = limits.BATCH_ITEMS_MAX
        while self.wait_s() == 0:
            deferred = heappop(self._later)[2]
            if deferred.nack is None:
                self._acks.append(deferred.item)
            else:
                self._nacks.append((deferred.item, deferred.nack))
        batch = SettleBatch(self._acks[:size], self._nacks[:size])
        del self._acks[:size]
        del self._nacks[:size]
        self._in_flight_count = len(batch.acks) + len(batch.nacks)
        return batch

    def settled(self, batch: SettleBatch, acks: PositionErrors | Exception, nacks: PositionErrors | Exception) -> None:
        """Record the outcomes of the two calls of a batch."""
        self._in_flight_count = 0
        for position, item in enumerate(batch.acks):
            if self._went_well(item, None, position, acks):
                self.stats.acked += 1
        for position, (item, nack) in enumerate(batch.nacks):
            if self._went_well(item, nack, position, nacks):
                if nack.release:
                    self.stats.released += 1
                elif nack.dead_letter:
                    self.stats.dead_lettered += 1
                else:
                    self.stats.nacked += 1

    def _went_well(
        self, item: BaseLeasedItem, nack: Nack | None, position: int, outcome: PositionErrors | Exception
    ) -> bool:
        error = outcome.get(position) if isinstance(outcome, dict) else outcome
        if isinstance(outcome, dict) and isinstance(error, FoqsError) and self._defers(item, nack, error):
            return False
        self._attempts.pop(item, None)
        if error is None:
            return True
        if isinstance(error, LOST):
            item.lease_lost = True
            self.stats.lease_lost += 1
            log.warning("item %s of topic %s was no longer ours to settle: %s", item.id, item.topic, error)
        else:
            self.stats.unsettled += 1
            log.warning("item %s of topic %s could not be settled: %s", item.id, item.topic, error)
        return False

    def _defers(self, item: BaseLeasedItem, nack: Nack | None, error: FoqsError) -> bool:
        """Schedule the repetition of a settlement that was certainly not done; False if its time is used up."""
        if self.terms is None or not (error.retryable and error.nothing_done):
            return False
        attempts = self._attempts.get(item)
        if attempts is None:
            attempts = self._attempts[item] = Attempts(self.terms)
        pause_ms = attempts.after(error, None, elsewhere=False)
        if pause_ms is None:
            return False
        self._deferred_total += 1
        due_at_ms = -(-(self.terms.clock_ms() + pause_ms) // TOGETHER_MS) * TOGETHER_MS
        heappush(self._later, (due_at_ms, self._deferred_total, _Deferred(item, nack)))
        return True
