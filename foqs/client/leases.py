"""Items under a lease that a consumer or a worker has taken, and which of their leases to extend when.

No clock and no I/O: `now_ms` is the client's monotonic clock. A lease is counted from the moment when its items were
received, so the schedule runs late by the time that the response took; it asks for an extension at half of the lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from foqs.client.items import Item, Nack
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, NotFoundError, StaleLeaseError

LOST = (StaleLeaseError, NotFoundError)
TAKEN_MAX = 10_000
"""Unsettled items that a consumer remembers to release; older ones wait for their lease to end."""


class ItemSettler(Protocol):
    """Where a leased item sends its ack, nack or extension. The last one is to be awaited on asyncio."""

    def ack(self, item: BaseLeasedItem) -> None: ...
    def nack(self, item: BaseLeasedItem, nack: Nack) -> None: ...
    def extend(self, item: BaseLeasedItem, lease_ms: int) -> Any: ...


@dataclass(slots=True, eq=False)
class BaseLeasedItem(Item):
    """A delivery that knows how to settle itself; `LeasedItem` and `AsyncLeasedItem` add `extend`.

    Consumers and workers make it and hand it to the caller's code, which calls one of ack, nack and release, once.
    These only buffer: settlements are sent in batches, and how that ended stands in the `stats` of the consumer or
    worker.

    lease_ms: as long as the lease was asked for.
    lease_lost: the host gave the item to somebody else, or it is gone; what was done here may be done again.
    settled: one of ack, nack and release was called.
    """

    settler: ItemSettler
    lease_ms: int
    lease_lost: bool = False
    settled: bool = False

    def ack(self) -> None:
        """Say that the item is done: it will be deleted. Raises RuntimeError when it is settled already."""
        self._settle()
        self.settler.ack(self)

    def nack(
        self,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        metadata: bytes | None = None,
        dead_letter: bool = False,
    ) -> None:
        """Give the item back as a failed attempt: it is ready again after the delay, with new metadata when given.

        dead_letter: it becomes a dead letter instead.
        Raises RuntimeError when the item is settled already, InvalidArgumentError for a wrong argument.
        """
        nack = Nack(self.receipt, delay_ms, metadata, dead_letter=dead_letter, delay=delay)
        self._settle()
        self.settler.nack(self, nack)

    def release(self, *, delay_ms: int | None = None, delay: timedelta | None = None) -> None:
        """Give the item back unused: it is ready again after the delay, and no attempt is counted.

        Raises RuntimeError when the item is settled already, InvalidArgumentError for a wrong argument.
        """
        nack = Nack(self.receipt, delay_ms, release=True, delay=delay)
        self._settle()
        self.settler.nack(self, nack)

    def _settle(self) -> None:
        if self.settled:
            raise RuntimeError(f"item {self.id} is settled already")
        self.settled = True


H = TypeVar("H", bound=BaseLeasedItem)


@dataclass(slots=True)
class _Lease:
    item: BaseLeasedItem
    extend_at_ms: int
    expires_at_ms: int


class LeaseSchedule:
    """The leases that a worker's lease keeper extends, and when each of them is due.

    It holds at most as many as the worker takes, which is bounded. Not safe for threads.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._leases: dict[str, _Lease] = {}

    def hold(self, items: Iterable[BaseLeasedItem], now_ms: int) -> None:
        extend_at_ms, expires_at_ms = now_ms + self._lease_ms // 2, now_ms + self._lease_ms
        self._leases.update((item.receipt, _Lease(item, extend_at_ms, expires_at_ms)) for item in items)

    def drop(self, item: BaseLeasedItem) -> None:
        """Forget a lease, because its item is settled."""
        self._leases.pop(item.receipt, None)

    def due(self, now_ms: int) -> list[BaseLeasedItem]:
        """Return what to extend now, at most as much as one call takes."""
        due = [lease.item for lease in self._leases.values() if lease.extend_at_ms <= now_ms]
        return due[: limits.BATCH_ITEMS_MAX]

    def next_due_ms(self) -> int | None:
        return min((lease.extend_at_ms for lease in self._leases.values()), default=None)

    def extended_by(self, item: BaseLeasedItem, lease_ms: int, asked_at_ms: int) -> None:
        """Enter that the item's handler extended the lease to `lease_ms` from a time on.

        An extension here makes the lease as long as all others, so it waits until that is no less than what is left.
        """
        lease = self._leases.get(item.receipt)
        if lease is not None:
            lease.expires_at_ms = asked_at_ms + lease_ms
            lease.extend_at_ms = asked_at_ms + max(lease_ms // 2, lease_ms - self._lease_ms // 2)

    def extended(
        self, items: Sequence[BaseLeasedItem], outcome: PositionErrors | FoqsError, asked_at_ms: int, now_ms: int
    ) -> list[BaseLeasedItem]:
        """Enter the outcome of an extension asked for at `asked_at_ms`; flag and return the items that are lost.

        After an outcome that says nothing of the lease it is asked for again, until the lease must have ended.
        """
        errors: Mapping[int, FoqsError]
        errors = outcome if isinstance(outcome, dict) else dict.fromkeys(range(len(items)), outcome)
        lost = []
        for position, item in enumerate(items):
            lease = self._leases.get(item.receipt)
            if lease is None:
                continue
            error = errors.get(position)
            if error is None:
                lease.extend_at_ms = asked_at_ms + self._lease_ms // 2
                lease.expires_at_ms = asked_at_ms + self._lease_ms
            elif isinstance(error, LOST) or now_ms >= lease.expires_at_ms:
                item.lease_lost = True
                lost.append(item)
                del self._leases[item.receipt]
            else:
                lease.extend_at_ms = min(now_ms + self._lease_ms // 10, lease.expires_at_ms)
        return lost


class TakenItems(Generic[H]):
    """Items taken by an iterating consumer: the part of the batch still to yield, and the items not settled yet.

    The consumer asks it for the next item, for what to extend before that, and at the end for what to release.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._to_yield: deque[H] = deque()
        self._extend_at_ms = 0
        self._taken: dict[H, int] = {}

    def take(self, items: Sequence[H], now_ms: int) -> None:
        """Take a new batch, after the last one. Forgets items that are settled, and leases that must have ended."""
        taken = {
            item: expires_at_ms
            for item, expires_at_ms in self._taken.items()
            if not item.settled and expires_at_ms > now_ms
        }
        taken.update(dict.fromkeys(items, now_ms + self._lease_ms))
        self._taken = dict(islice(taken.items(), max(0, len(taken) - TAKEN_MAX), None))
        self._to_yield = deque(items)
        self._extend_at_ms = now_ms + self._lease_ms // 2

    def due(self, now_ms: int) -> list[H]:
        """Return what to extend before the next item is yielded: nothing, or all that is left of the batch."""
        return list(self._to_yield) if self._to_yield and now_ms >= self._extend_at_ms else []

    def extended(self, items: Sequence[H], errors: PositionErrors, asked_at_ms: int) -> list[H]:
        """Enter the extension of what `due` gave. What failed is not yielded any more, and returned."""
        lost = [items[position] for position in errors]
        for item in lost:
            item.lease_lost = True
            del self._taken[item]
        self._to_yield = deque(item for item in items if not item.lease_lost)
        self._taken.update(dict.fromkeys(self._to_yield, asked_at_ms + self._lease_ms))
        self._extend_at_ms = asked_at_ms + self._lease_ms // 2
        return lost

    def next(self) -> H | None:
        return self._to_yield.popleft() if self._to_yield else None

    def unsettled(self) -> list[H]:
        """Return what to release when the consumer ends."""
        self._to_yield.clear()
        return [item for item in self._taken if not (item.settled or item.lease_lost)]
