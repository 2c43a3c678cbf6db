# Generated from foqs/client/aio/settler.py by scripts/generate_sync.py: edit that one.
"""The background work of a consumer or a worker: one thread sends settlements, one keeps leases alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from foqs.client import queue_verbs
from foqs.client.amending import NOTHING_ALLOWED, amended, merged, refused_places
from foqs.client.beginning import SAY_AFTER_MS, SAY_MS_MAX, Beginning, Beginnings, answer_all
from foqs.client.client_errors import ClientClosedError
from foqs.client.durations import duration_or
from foqs.client.leases import BaseLeasedItem, LeaseSchedule
from foqs.client.queue_items import Item, Nack, field_values
from foqs.client.settling import PENDING_MAX, SettleBatch, SettlementBuffer, SettleStats
from foqs.client.sync.concurrency import Background, Monitor, Queue, guarded, is_ending
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.sync.client import Client

Outcome = PositionErrors | Exception
OnExtended = Callable[[BaseLeasedItem, int, int], None]
"""Called with the item, the length of its new lease, and the time of the request, in ms."""


class LeasedItem(BaseLeasedItem):
    """A delivery that an `Consumer` yields or an `Worker` passes to its handler.

    It has the fields of `Item`. The caller's code settles it once with ack, nack or release, which return at once
    because they are sent in batches. A worker's handler can return or raise instead.
    lease_lost: True if the host delivered the item again or the item no longer exists; another handler might repeat its
    work.
    settled: True after ack, nack or release.
    """

    __slots__ = ()

    def extend(self, lease_ms: int | None = None, *, lease: timedelta | None = None) -> None:
        """Set the lease to end `lease` or lease_ms from now; by default after the length first requested.

        Raises StaleLeaseError if the lease was lost.
        """
        self.settler.extend(self, duration_or("lease_ms", lease_ms, lease, self.lease_ms))


class Settler:
    """Sends acks and nacks in the background, in batches.

    Its owner, a consumer or a worker, starts it, passes it the received items, and closes it at the end. The leased
    items call `ack` and `nack`.
    """

    def __init__(self, client: Client, namespace: str, on_extended: OnExtended | None = None) -> None:
        """`on_extended` is called after an item has extended its own lease."""
        self._client = client
        self._namespace = namespace
        self._on_extended = on_extended
        self._settlements = SettlementBuffer(terms=client._terms)
        self._changed = Monitor()
        self._closing = False
        self._given_up = False
        self._has_ended = False
        """True if no more settlements are sent, after `close` or an unexpected error."""
        self._background: Background | None = None

    @property
    def stats(self) -> SettleStats:
        """Items so far, counted by outcome."""
        return self._settlements.stats

    def start(self) -> None:
        """Start sending. Safe to repeat."""
        if self._background is None:
            self._background = Background(self._run, f"foqs-settle-{self._namespace}")

    def lease(self, items: Sequence[Item], lease_ms: int) -> list[LeasedItem]:
        """Make leased items from the result of a dequeue."""
        with self._changed:
            self.stats.received += len(items)
        return [
            LeasedItem(
                *(*field_values(item), self, lease_ms),
                group=item.group,
                suspect=item.suspect,
                ordering_key=item.ordering_key,
                fairness_key=item.fairness_key,
            )
            for item in items
        ]

    @guarded
    def ack(self, item: BaseLeasedItem) -> None:
        """Ack an item with the next batch."""
        self._settlements.ack(item)
        self._changed.notify_all()

    @guarded
    def nack(self, item: BaseLeasedItem, nack: Nack) -> None:
        """Nack or release an item with the next batch."""
        self._settlements.nack(item, nack)
        self._changed.notify_all()

    def extend(self, item: BaseLeasedItem, lease_ms: int) -> None:
        """Extend the lease of one item at once. Raises StaleLeaseError."""
        asked_at_ms = self._client.options.clock_ms()
        self._client.extend(self._namespace, item, lease_ms)
        if self._on_extended is not None:
            self._on_extended(item, lease_ms, asked_at_ms)

    @guarded
    def lost(self, items: Sequence[BaseLeasedItem]) -> None:
        """Count leases that were lost before their items were settled."""
        self._settlements.lost(items)

    def wait_for_room(self) -> None:
        """Wait until fewer than PENDING_MAX settlements are pending. Each of the calls before has a time limit.

        Raises the error that ended the sending of settlements, if any.
        """
        self._until_room()
        if self._has_ended and self._background is not None:
            self._background.join()

    @guarded
    def _until_room(self) -> None:
        self._changed.wait_for(lambda: self._settlements.pending_count < PENDING_MAX or self._has_ended)

    def close(self, timeout_ms: int) -> None:
        """Send the pending settlements. After timeout_ms the rest counts as unsettled.

        Raises the error that ended the sending of settlements before.
        """
        if self._background is None:
            return
        if is_ending():
            return  # Threads have ended with the interpreter, so the items are redelivered after their leases.
        try:
            self._flush(timeout_ms)
        finally:
            self._given_up = True
        self._background.join()

    @guarded
    def _flush(self, timeout_ms: int) -> None:
        self._closing = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._settlements.pending_count or self._has_ended, timeout_ms / 1000)
        self._given_up = True
        self._settlements.hurry()
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._send_all()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_to_go_on, self._settlements.wait_s())
                batch = self._settlements.take()
                if not batch and self._closing and not self._settlements.pending_count:
                    return
            if not batch:
                continue
            acks = self._try_ack([item.receipt for item in batch.acks])
            nacks = self._try_nack([nack for _, nack in batch.nacks])
            if places := refused_places(nacks, len(batch.nacks)):
                nacks = self._amend(batch, nacks, places)
            self._enter(batch, acks, nacks)

    def _is_to_go_on(self) -> bool:
        return self._settlements.waiting or (self._closing and not self._settlements.pending_count)

    def _amend(self, batch: SettleBatch, outcome: Outcome, places: Sequence[int]) -> Outcome:
        """Repeat the refused nacks without the refused parts."""
        allowed = self._client._nack_limits(self._namespace)
        for limits_now in (allowed, NOTHING_ALLOWED):
            some = [batch.nacks[place] for place in places]
            errors = [outcome.get(place) if isinstance(outcome, dict) else outcome for place in places]
            for place, (item, nack), error in zip(places, some, errors, strict=True):
                batch.nacks[place] = item, amended(item, nack, limits_now, error)
            again = self._try_nack([batch.nacks[place][1] for place in places])
            outcome = merged(outcome, places, again)
            refused = set(refused_places(outcome, len(batch.nacks)))
            places = [place for place in places if place in refused]
            if not places:
                break
        return outcome

    def _enter(self, batch: SettleBatch, acks: Outcome, nacks: Outcome) -> None:
        with self._changed:
            self._settlements.settled(batch, acks, nacks)
            self._changed.notify_all()

    def _try_ack(self, receipts: Sequence[str]) -> Outcome:
        if self._given_up:
            return ClientClosedError("there was no time left")
        try:
            return self._client._settle_now(queue_verbs.ack, self._namespace, receipts)
        except (FoqsError, ClientClosedError) as error:
            return error

    def _try_nack(self, nacks: Sequence[Nack]) -> Outcome:
        if self._given_up:
            return ClientClosedError("there was no time left")
        try:
            return self._client._settle_now(queue_verbs.nack, self._namespace, nacks, Nack)
        except (FoqsError, ClientClosedError) as error:
            return error


class LeaseKeeper:
    """Extends the leases of a worker's items at half of each lease, and reports the beginning of work.

    A worker or a consumer owns it. Extensions and reports share their calls.
    """

    def __init__(self, client: Client, namespace: str, lease_ms: int, consumer: str) -> None:
        """`consumer` is the name of the worker or the consumer for operators."""
        self._client = client
        self._consumer = consumer
        self._namespace = namespace
        self._lease_ms = lease_ms
        self._clock_ms = client.options.clock_ms
        self._schedule = LeaseSchedule(lease_ms)
        self._beginnings = Beginnings()
        self._changed = Monitor()
        self._closing = False
        self._background: Background | None = None

    def start(self) -> None:
        """Start extending. Safe to repeat."""
        if self._background is None:
            self._background = Background(self._run, f"foqs-leases-{self._namespace}")

    def hold(self, items: Iterable[BaseLeasedItem], received_at_ms: int) -> None:
        """Keep the leases of these items from now on."""
        with self._changed:
            self._schedule.hold(items, received_at_ms)
            self._changed.notify_all()

    def drop(self, item: BaseLeasedItem) -> None:
        """Stop extending the lease of a settled item."""
        with self._changed:
            self._schedule.drop(item)

    def begin(self, item: BaseLeasedItem) -> None:
        """Return once the report of the item's beginning has reached the host or has failed.

        Sets item.lease_lost if the host reports a lost lease.
        """
        answer: Queue[None] = Queue()
        with self._changed:
            if self._closing:
                return
            self._beginnings.add(Beginning(item, 0, answer))
            self._changed.notify_all()
        answer.get()

    def begin_later(self, item: BaseLeasedItem) -> None:
        """Report the beginning of work after a moment, unless the item is settled by then."""
        with self._changed:
            if self._beginnings.add(Beginning(item, self._clock_ms() + SAY_AFTER_MS)):
                self._changed.notify_all()

    def extended(self, item: BaseLeasedItem, lease_ms: int, asked_at_ms: int) -> None:
        """Record that a handler extended the lease itself, so that the next extension here does not shorten it."""
        with self._changed:
            self._schedule.extended_by(item, lease_ms, asked_at_ms)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop after the extension in flight. Raises the error that ended it before."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._background is not None:
            self._background.join()

    def _run(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                self._extend(*due)
        except ClientClosedError:
            return
        finally:
            with self._changed:
                self._closing = True
                self._beginnings.end()

    def _extend(self, due: list[BaseLeasedItem], begun: list[Beginning]) -> None:
        asked_at_ms = self._clock_ms()
        # Other leases are due soon, so one call must not take long.
        deadline_ms = SAY_MS_MAX if begun else max(limits.SECOND_MS, self._lease_ms // 10)
        outcome: PositionErrors | FoqsError
        try:
            outcome = self._client.extend(
                self._namespace,
                due,
                self._lease_ms,
                begun=[beginning.item for beginning in begun],
                consumer=self._consumer,
                return_errors=True,
                deadline_ms=deadline_ms,
            )
        except FoqsError as error:
            outcome = error
        except BaseException:
            answer_all(begun)
            raise
        with self._changed:
            self._schedule.extended(due, outcome, asked_at_ms, self._clock_ms())
            if isinstance(outcome, dict):
                outcome = {place - len(due): error for place, error in outcome.items() if place >= len(due)}
            self._beginnings.said(begun, outcome, self._clock_ms())

    def _wait_for_due(self) -> tuple[list[BaseLeasedItem], list[Beginning]] | None:
        with self._changed:
            while not self._closing:
                now_ms = self._clock_ms()
                due = self._schedule.due(now_ms)
                begun = self._beginnings.due(now_ms, limits.BATCH_ITEMS_MAX - len(due))
                if due or begun:
                    return due, begun
                self._wait_until(self._next_due_ms())
            return None

    def _next_due_ms(self) -> int | None:
        if self._beginnings.next_due_ms() == 0:
            return 0
        times = (self._schedule.next_due_ms(), self._beginnings.next_due_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _wait_until(self, due_ms: int | None) -> None:
        """Wait until `due_ms`, or until an earlier item is due."""
        wait_s = None if due_ms is None else max(1, due_ms - self._clock_ms()) / 1000
        self._changed.wait_for(lambda: self._closing or self._next_due_ms() != due_ms, wait_s)
