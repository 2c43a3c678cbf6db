"""The leased items of a consumer or a worker, and the schedule of their lease extensions.

State only: no clock and no I/O. `now_ms` is the client's monotonic clock. A lease counts from the receipt of its items,
so the schedule lags by the latency of the response; to allow for that, leases are extended at half their length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from foqs.client.queue_items import Item, Nack
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, NotFoundError, StaleLeaseError

LOST = (StaleLeaseError, NotFoundError)
TAKEN_MAX = 10_000
"""Most unsettled items that a consumer remembers for release; the leases of older items expire."""


class ItemSettler(Protocol):
    """Receiver of an item's acks, nacks and extensions. On asyncio the result of `extend` must be awaited."""

    def ack(self, item: BaseLeasedItem) -> None: ...
    def nack(self, item: BaseLeasedItem, nack: Nack) -> None: ...
    def extend(self, item: BaseLeasedItem, lease_ms: int) -> Any: ...


@dataclass(slots=True, eq=False)
class BaseLeasedItem(Item):
    """A delivery with its own ack, nack and release; `LeasedItem` and `AsyncLeasedItem` add `extend`.

    A consumer or a worker passes it to the caller's code, which settles it once. Settlements are buffered and sent in
    batches; `stats` of the consumer or worker counts their outcomes.

    lease_ms: the lease as requested.
    lease_lost: True if the host delivered the item again or the item no longer exists; another handler can repeat its
    work.
    settled: True after ack, nack or release.  given_back: True after nack or release.
    """

    settler: ItemSettler
    lease_ms: int
    lease_lost: bool = False
    settled: bool = False
    given_back: bool = False

    def ack(self) -> None:
        """Report the item as done; the host then deletes it. Raises RuntimeError if it is settled already."""
        self._settle()
        self.settler.ack(self)

    def nack(
        self,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        metadata: bytes | None = None,
        dead_letter: bool = False,
        reason: str | None = None,
    ) -> None:
        """Give the item back as a failed attempt. It is ready again after the delay, with the new metadata if any.

        dead_letter: make it a dead letter instead.  reason: why it failed, see Nack.
        Raises RuntimeError if the item is settled already, InvalidArgumentError for an invalid argument.
        """
        nack = Nack(self.receipt, delay_ms, metadata, dead_letter=dead_letter, reason=reason, delay=delay)
        self._settle()
        self.given_back = True
        self.settler.nack(self, nack)

    def release(
        self, *, delay_ms: int | None = None, delay: timedelta | None = None, reason: str | None = None
    ) -> None:
        """Give the item back unused. It is ready again after the delay, and no attempt is counted.

        reason: why it was not tried, see Nack.
        Raises RuntimeError if the item is settled already, InvalidArgumentError for an invalid argument.
        """
        nack = Nack(self.receipt, delay_ms, release=True, reason=reason, delay=delay)
        self._settle()
        self.given_back = True
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
    """The leases that a worker's lease keeper extends, and their due times.

    Its size is bounded by the capacity of the worker. Not safe for threads.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._leases: dict[str, _Lease] = {}

    def hold(self, items: Iterable[BaseLeasedItem], now_ms: int) -> None:
        extend_at_ms, expires_at_ms = now_ms + self._lease_ms // 2, now_ms + self._lease_ms
        self._leases.update((item.receipt, _Lease(item, extend_at_ms, expires_at_ms)) for item in items)

    def drop(self, item: BaseLeasedItem) -> None:
        """Remove the lease of a settled item."""
        self._leases.pop(item.receipt, None)

    def due(self, now_ms: int) -> list[BaseLeasedItem]:
        """Return the items whose leases to extend now, up to one call's worth."""
        due = [lease.item for lease in self._leases.values() if lease.extend_at_ms <= now_ms]
        return due[: limits.BATCH_ITEMS_MAX]

    def next_due_ms(self) -> int | None:
        return min((lease.extend_at_ms for lease in self._leases.values()), default=None)

    def extended_by(self, item: BaseLeasedItem, lease_ms: int, asked_at_ms: int) -> None:
        """Record that a handler extended the lease of its item to `lease_ms` from `asked_at_ms`.

        The next extension here sets the usual lease, so it waits until that does not shorten the remaining one.
        """
        lease = self._leases.get(item.receipt)
        if lease is not None:
            lease.expires_at_ms = asked_at_ms + lease_ms
            lease.extend_at_ms = asked_at_ms + max(lease_ms // 2, lease_ms - self._lease_ms // 2)

    def extended(
        self, items: Sequence[BaseLeasedItem], outcome: PositionErrors | FoqsError, asked_at_ms: int, now_ms: int
    ) -> list[BaseLeasedItem]:
        """Record the outcome of an extension requested at `asked_at_ms`. Flags and returns the lost items.

        An error that does not settle the fate of the lease leads to another extension, until the lease must have
        expired.
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
    """The items of an iterating consumer: the rest of the batch to yield, and the unsettled items.

    The consumer asks it for the next item, for the leases to extend first, and finally for the items to release.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._to_yield: deque[H] = deque()
        self._extend_at_ms = 0
        self._taken: dict[H, int] = {}

    def take(self, items: Sequence[H], now_ms: int) -> None:
        """Add the batch that follows the last one. Drops settled items and items whose leases must have expired."""
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
        """Return the items to extend before the next item is yielded: the rest of the batch, or an empty list."""
        return list(self._to_yield) if self._to_yield and now_ms >= self._extend_at_ms else []

    def extended(self, items: Sequence[H], errors: PositionErrors, asked_at_ms: int) -> list[H]:
        """Record the extension of the items from `due`. Returns the failed items, which are never yielded."""
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
        """Return the items to release at the end of the consumer."""
        self._to_yield.clear()
        return [item for item in self._taken if not (item.settled or item.lease_lost)]
