"""Buffered acks and nacks, and what a handler's end means for its item. State only, no I/O.

Settlements are coalesced: what comes while a call is in flight goes in the next one.
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
from foqs.client.items import Nack, check_nack
from foqs.client.leases import LOST, BaseLeasedItem
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError

log = logging.getLogger("foqs.client")

PENDING_MAX = 10_000
"""Settlements not sent yet; a consumer that has more takes no new items."""
TOGETHER_MS = 20
"""Settlements that are repeated within this time go together."""


class Retry(Exception):  # noqa: N818 - it is no error of a program
    """A handler raises it for a failed attempt: the item is redelivered after `delay`, not after the worker's backoff.

    delay or delay_ms: up to 90 days; the worker's backoff when neither is given.
    metadata: replaces the item's, when given.
    Raises InvalidArgumentError for a delay outside of 0..90 days and for metadata that is not bytes.
    """

    def __init__(
        self, delay_ms: int | None = None, metadata: bytes | None = None, *, delay: timedelta | None = None
    ) -> None:
        self.delay_ms = duration_ms("delay_ms", delay_ms, delay)
        self.metadata = metadata
        check_nack(0 if self.delay_ms is None else self.delay_ms, metadata)
        super().__init__(self.delay_ms, metadata)


class DeadLetter(Exception):  # noqa: N818
    """A handler raises it when the item will never succeed: it becomes a dead letter. The reason is logged."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):  # noqa: N818
    """A handler raises it to give the item back without counting an attempt: it is ready again after `delay`.

    delay or delay_ms: up to 90 days; none by default. Raises InvalidArgumentError for another one.
    """

    def __init__(self, delay_ms: int | None = None, *, delay: timedelta | None = None) -> None:
        self.delay_ms = duration_or("delay_ms", delay_ms, delay, 0)
        check_nack(self.delay_ms)
        super().__init__(self.delay_ms)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class NackBackoff:
    """How long a worker delays an item whose handler failed: doubled with each attempt, drawn from the upper half.

    delay or delay_ms (1 s): after the first attempt.  delay_max or delay_ms_max (10 minutes): at most.
    Raises InvalidArgumentError for what is outside of 0..90 days.
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
        set_field = object.__setattr__  # It is frozen.
        set_field(self, "delay_ms", duration_or("delay_ms", delay_ms, delay, 1_000))
        set_field(self, "delay_ms_max", duration_or("delay_ms_max", delay_ms_max, delay_max, 10 * limits.MINUTE_MS))
        for name in ("delay_ms", "delay_ms_max"):
            check_whole(name, getattr(self, name), 0, limits.DELAY_MS_MAX)

    def next_ms(self, attempt: int, random: Callable[[], float]) -> int:
        full_ms = min(self.delay_ms_max, self.delay_ms << min(max(attempt - 1, 0), 32))
        return int(full_ms * (0.5 + 0.5 * random()))


@dataclass(slots=True)
class SettleStats:
    """The items of a consumer or a worker, counted by how they ended.

    received: taken from the host under a lease.
    acked, nacked, released, dead_lettered: the host has confirmed it.
    lease_lost: somebody else has them by now, or they are gone.
    unsettled: the host could not be told; they are redelivered when their lease ends, unless it was done after all.
    """

    received: int = 0
    acked: int = 0
    nacked: int = 0
    released: int = 0
    dead_lettered: int = 0
    lease_lost: int = 0
    unsettled: int = 0


def settlement_of(
    item: BaseLeasedItem, error: BaseException | None, backoff: NackBackoff, random: Callable[[], float]
) -> Nack | None:
    """Return what the end of a handler means for its item: a nack, or None for an ack."""
    if error is None:
        return None
    if isinstance(error, Retry):
        delay_ms = backoff.next_ms(item.attempt, random) if error.delay_ms is None else error.delay_ms
        return Nack(item.receipt, delay_ms, error.metadata)
    if isinstance(error, Release):
        return Nack(item.receipt, error.delay_ms, release=True)
    if isinstance(error, DeadLetter):
        log.warning("item %s of topic %s to the dead letters: %s", item.id, item.topic, error.reason)
        return Nack(item.receipt, dead_letter=True)
    log.warning("the handler failed with item %s of topic %s", item.id, item.topic, exc_info=error)
    return Nack(item.receipt, backoff.next_ms(item.attempt, random))


@dataclass(slots=True)
class SettleBatch:
    """The settlements of the next two calls: one of acks, one of nacks."""

    acks: list[BaseLeasedItem]
    nacks: list[tuple[BaseLeasedItem, Nack]]

    def __bool__(self) -> bool:
        return bool(self.acks or self.nacks)


@dataclass(slots=True, eq=False)
class _Deferred:
    """A settlement that waits to be repeated, by itself: the host has said that it was not done."""

    item: BaseLeasedItem
    nack: Nack | None
    """None for an ack."""


@dataclass(slots=True)
class SettlementBuffer:
    """Acks and nacks that wait to be sent, and the counts of what became of them.

    A settler owns it: it adds what items say, takes a batch for each pair of calls, and enters the outcome. It is
    bounded because a consumer takes nothing new beyond PENDING_MAX. Not safe for threads.
    """

    stats: SettleStats = field(default_factory=SettleStats)
    terms: Terms | None = None
    """Those of the client; without them nothing is repeated."""
    _acks: list[BaseLeasedItem] = field(default_factory=list)
    _nacks: list[tuple[BaseLeasedItem, Nack]] = field(default_factory=list)
    _later: list[tuple[int, int, _Deferred]] = field(default_factory=list)
    _attempts: dict[BaseLeasedItem, Attempts] = field(default_factory=dict)
    """What has come so far of those that have failed."""
    _deferred_total: int = 0
    _in_flight_count: int = 0

    @property
    def pending_count(self) -> int:
        return len(self._acks) + len(self._nacks) + len(self._later) + self._in_flight_count

    @property
    def waiting(self) -> bool:
        """Whether anything can be sent now."""
        return bool(self._acks or self._nacks) or self.wait_s() == 0

    def wait_s(self) -> float | None:
        """Return how long it is until the first is repeated of those that wait for that; None if there are none."""
        if not self._later or self.terms is None:
            return None
        return max(0, self._later[0][0] - self.terms.clock_ms()) / 1000

    def hurry(self) -> None:
        """Have those repeated at once that wait for that: there is no time left."""
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
        """Enter the outcomes of the two calls of a batch."""
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
        """Have a settlement repeated that was certainly not done, unless it has been for long enough."""
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
