"""Buffered acks and nacks, and what a handler's end means for its item. State only, no I/O.

Settlements are coalesced: what comes while a call is in flight goes in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from foqs.client.checks import check_whole
from foqs.client.durations import duration_ms, duration_or
from foqs.client.items import Nack, check_nack
from foqs.client.leases import LOST, BaseLeasedItem
from foqs.model import limits
from foqs.model.calls import PositionErrors

log = logging.getLogger("foqs.client")

PENDING_MAX = 10_000
"""Settlements not sent yet; a consumer that has more takes no new items."""


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


@dataclass(slots=True)
class SettlementBuffer:
    """Acks and nacks that wait to be sent, and the counts of what became of them.

    A settler owns it: it adds what items say, takes a batch for each pair of calls, and enters the outcome. It is
    bounded because a consumer takes nothing new beyond PENDING_MAX. Not safe for threads.
    """

    stats: SettleStats = field(default_factory=SettleStats)
    _acks: list[BaseLeasedItem] = field(default_factory=list)
    _nacks: list[tuple[BaseLeasedItem, Nack]] = field(default_factory=list)
    _in_flight_count: int = 0

    @property
    def pending_count(self) -> int:
        return len(self._acks) + len(self._nacks) + self._in_flight_count

    @property
    def waiting(self) -> bool:
        return bool(self._acks or self._nacks)

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
        batch = SettleBatch(self._acks[:size], self._nacks[:size])
        del self._acks[:size]
        del self._nacks[:size]
        self._in_flight_count = len(batch.acks) + len(batch.nacks)
        return batch

    def settled(self, batch: SettleBatch, acks: PositionErrors | Exception, nacks: PositionErrors | Exception) -> None:
        """Enter the outcomes of the two calls of a batch."""
        self._in_flight_count = 0
        for position, item in enumerate(batch.acks):
            if self._went_well(item, position, acks):
                self.stats.acked += 1
        for position, (item, nack) in enumerate(batch.nacks):
            if self._went_well(item, position, nacks):
                if nack.release:
                    self.stats.released += 1
                elif nack.dead_letter:
                    self.stats.dead_lettered += 1
                else:
                    self.stats.nacked += 1

    def _went_well(self, item: BaseLeasedItem, position: int, outcome: PositionErrors | Exception) -> bool:
        error = outcome.get(position) if isinstance(outcome, dict) else outcome
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
