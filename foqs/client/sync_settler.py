"""The threads behind a blocking consumer: one sends settlements, one keeps leases alive."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from foqs.client.errors import ClientClosedError
from foqs.client.items import Item, Nack, field_values
from foqs.client.leases import HeldItem, LeaseBook
from foqs.client.settling import PENDING_MAX, SettleBatch, Settlements, SettleStats
from foqs.client.sync import Client
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError


class LeasedItem(HeldItem):
    """A delivery in the hands of a `Consumer` or a `Worker`'s handler."""

    __slots__ = ()

    def extend(self, lease_ms: int | None = None) -> None:
        """Let the lease end lease_ms from now (None: as long as it was asked for). Raises StaleLeaseError."""
        assert isinstance(self.settling, ThreadSettler)
        self.settling.extend(self, self.lease_ms if lease_ms is None else lease_ms)


class ThreadSettler:
    """Sends acks and nacks in the background. `close` flushes and ends the thread."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._settlements = Settlements()
        self._changed = threading.Condition()
        self._closing = False
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name=f"foqs-settle-{namespace}", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> SettleStats:
        return self._settlements.stats

    def lease(self, items: Sequence[Item], lease_ms: int) -> list[LeasedItem]:
        with self._changed:
            self.stats.received += len(items)
        return [LeasedItem(*(*field_values(item), self, lease_ms)) for item in items]

    def ack(self, item: HeldItem) -> None:
        with self._changed:
            self._settlements.ack(item)
            self._changed.notify_all()

    def nack(self, item: HeldItem, nack: Nack) -> None:
        with self._changed:
            self._settlements.nack(item, nack)
            self._changed.notify_all()

    def extend(self, item: HeldItem, lease_ms: int) -> None:
        self._client.extend(self._namespace, item, lease_ms)

    def lost(self, items: Sequence[HeldItem]) -> None:
        """Count leases that were lost before their items were settled."""
        with self._changed:
            self._settlements.lost(items)

    def wait_for_room(self) -> None:
        """Return when less than PENDING_MAX settlements wait; each call that stands before is bounded."""
        with self._changed:
            self._changed.wait_for(lambda: self._settlements.pending_count < PENDING_MAX)

    def close(self, timeout_ms: int) -> None:
        """Send what waits. After timeout_ms the rest is given up and counted as unsettled."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._settlements.pending_count, timeout_ms / 1000)
            self._given_up = True
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._settlements.waiting or self._closing)
                batch = self._settlements.take()
            if not batch:
                return
            acks, nacks = self._send(batch)
            with self._changed:
                self._settlements.settled(batch, acks, nacks)
                self._changed.notify_all()

    def _send(self, batch: SettleBatch) -> tuple[PositionErrors | Exception, PositionErrors | Exception]:
        return (
            self._try_ack([item.receipt for item in batch.acks]),
            self._try_nack([nack for _, nack in batch.nacks]),
        )

    def _try_ack(self, receipts: Sequence[str]) -> PositionErrors | Exception:
        if self._given_up:
            return ClientClosedError("there was no time left")
        try:
            return self._client.ack(self._namespace, receipts)
        except (FoqsError, ClientClosedError) as error:
            return error

    def _try_nack(self, nacks: Sequence[Nack]) -> PositionErrors | Exception:
        if self._given_up:
            return ClientClosedError("there was no time left")
        try:
            return self._client.nack(self._namespace, nacks)
        except (FoqsError, ClientClosedError) as error:
            return error


class ThreadLeaseKeeper:
    """Extends the leases of what a worker holds, at half of each lease."""

    def __init__(self, client: Client, namespace: str, lease_ms: int) -> None:
        self._client = client
        self._namespace = namespace
        self._lease_ms = lease_ms
        self._clock_ms = client.options.clock_ms
        self._book = LeaseBook(lease_ms)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"foqs-leases-{namespace}", daemon=True)
        self._thread.start()

    def hold(self, items: Iterable[HeldItem], received_at_ms: int) -> None:
        with self._changed:
            self._book.hold(items, received_at_ms)
            self._changed.notify_all()

    def drop(self, item: HeldItem) -> None:
        with self._changed:
            self._book.drop(item)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (due := self._wait_for_due()) is not None:
            asked_at_ms = self._clock_ms()
            outcome: PositionErrors | FoqsError
            try:
                outcome = self._client.extend(self._namespace, due, self._lease_ms)
            except FoqsError as error:
                outcome = error
            except ClientClosedError:
                return
            with self._changed:
                self._book.extended(due, outcome, asked_at_ms, self._clock_ms())

    def _wait_for_due(self) -> list[HeldItem] | None:
        with self._changed:
            while not self._closing:
                due = self._book.due(self._clock_ms())
                if due:
                    return due
                next_ms = self._book.next_due_ms()
                wait_s = None if next_ms is None else max(1, next_ms - self._clock_ms()) / 1000
                self._changed.wait(wait_s)
            return None
