"""Buffered acks and nacks, and what a handler's end means for its item. State only, no I/O.

Settlements are sent as group commits: what comes while a call is in flight goes in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foqs.client.items import Nack, check_nack
from foqs.client.leases import LOST, HeldItem
from foqs.model import limits
from foqs.model.calls import PositionErrors

log = logging.getLogger("foqs.client")

PENDING_MAX = 10_000
"""Settlements not sent yet; a consumer that has more takes no new items."""


class Retry(Exception):  # noqa: N818 - it is no error
    """Raised by a handler: a failed attempt; deliver again after delay_ms (None: the worker's backoff)."""

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        check_nack(delay_ms or 0, metadata)
        super().__init__(delay_ms, metadata)
        self.delay_ms = delay_ms
        self.metadata = metadata


class DeadLetter(Exception):  # noqa: N818
    """Raised by a handler: this item will never succeed; straight to the dead letters. `reason` is logged."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):  # noqa: N818
    """Raised by a handler: not now, not here; give the item back without counting an attempt."""

    def __init__(self, delay_ms: int = 0) -> None:
        check_nack(delay_ms)
        super().__init__(delay_ms)
        self.delay_ms = delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class NackBackoff:
    """The delay of a failed item: doubled with each attempt, drawn from the upper half of that."""

    delay_ms: int = 1_000
    delay_ms_max: int = 10 * limits.MINUTE_MS

    def next_ms(self, attempt: int, random: Callable[[], float]) -> int:
        full_ms = min(self.delay_ms_max, self.delay_ms << min(max(attempt - 1, 0), 32))
        return int(full_ms * (0.5 + 0.5 * random()))


@dataclass(slots=True)
class SettleStats:
    """What became of the items. acked: the host confirmed it. lease_lost: somebody else has them, or they
    are gone.

    unsettled: the host could not be told; they come back when their lease ends (or are done, if nobody
        knows).
    """

    received: int = 0
    acked: int = 0
    nacked: int = 0
    released: int = 0
    dead_lettered: int = 0
    lease_lost: int = 0
    unsettled: int = 0


def settlement_of(
    item: HeldItem, error: BaseException | None, backoff: NackBackoff, random: Callable[[], float]
) -> Nack | None:
    """What a handler's end means: None for an ack."""
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
    """What goes in the next two calls."""

    acks: list[HeldItem]
    nacks: list[tuple[HeldItem, Nack]]

    def __bool__(self) -> bool:
        return bool(self.acks or self.nacks)


@dataclass(slots=True)
class Settlements:
    """Bounded because a consumer takes nothing new beyond PENDING_MAX."""

    stats: SettleStats = field(default_factory=SettleStats)
    _acks: list[HeldItem] = field(default_factory=list)
    _nacks: list[tuple[HeldItem, Nack]] = field(default_factory=list)
    _in_flight_count: int = 0

    @property
    def pending_count(self) -> int:
        return len(self._acks) + len(self._nacks) + self._in_flight_count

    @property
    def waiting(self) -> bool:
        return bool(self._acks or self._nacks)

    def ack(self, item: HeldItem) -> None:
        self._acks.append(item)

    def nack(self, item: HeldItem, nack: Nack) -> None:
        self._nacks.append((item, nack))

    def lost(self, items: Sequence[HeldItem]) -> None:
        """Leases that were lost before their items were settled."""
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
        """Enter what the two calls of the batch came to."""
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

    def _went_well(self, item: HeldItem, position: int, outcome: PositionErrors | Exception) -> bool:
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
