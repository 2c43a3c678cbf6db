"""The tasks behind an asyncio consumer: one sends settlements, one keeps leases alive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from foqs.client.aio import AsyncClient
from foqs.client.errors import ClientClosedError
from foqs.client.items import Item, Nack, field_values
from foqs.client.leases import HeldItem, LeaseBook
from foqs.client.settling import PENDING_MAX, SettleBatch, Settlements, SettleStats
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError

Outcome = PositionErrors | Exception


class AsyncLeasedItem(HeldItem):
    """A delivery in the hands of an `AsyncConsumer` or of a handler. Only `extend` is awaited."""

    __slots__ = ()

    async def extend(self, lease_ms: int | None = None) -> None:
        """Let the lease end lease_ms from now (None: as long as it was asked for). Raises StaleLeaseError."""
        assert isinstance(self.settling, TaskSettler)
        await self.settling.extend(self, self.lease_ms if lease_ms is None else lease_ms)


class TaskSettler:
    """Sends acks and nacks in the background. `start` it in the loop; `close` flushes and ends the task."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._settlements = Settlements()
        self._wakeup = asyncio.Event()
        self._settled = asyncio.Event()
        self._closing = False
        self._given_up = False
        self._task: asyncio.Task[None] | None = None

    @property
    def stats(self) -> SettleStats:
        return self._settlements.stats

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"foqs-settle-{self._namespace}")

    def lease(self, items: Sequence[Item], lease_ms: int) -> list[AsyncLeasedItem]:
        self.stats.received += len(items)
        return [AsyncLeasedItem(*(*field_values(item), self, lease_ms)) for item in items]

    def ack(self, item: HeldItem) -> None:
        self._settlements.ack(item)
        self._wakeup.set()

    def nack(self, item: HeldItem, nack: Nack) -> None:
        self._settlements.nack(item, nack)
        self._wakeup.set()

    async def extend(self, item: HeldItem, lease_ms: int) -> None:
        await self._client.extend(self._namespace, item, lease_ms)

    def lost(self, items: Sequence[HeldItem]) -> None:
        """Count leases that were lost before their items were settled."""
        self._settlements.lost(items)

    async def wait_for_room(self) -> None:
        """Return when less than PENDING_MAX settlements wait; each call that stands before is bounded."""
        while self._settlements.pending_count >= PENDING_MAX:
            self._settled.clear()
            await self._settled.wait()

    async def close(self, timeout_ms: int) -> None:
        """Send what waits. After timeout_ms the rest is given up and counted as unsettled."""
        self._closing = True
        self._wakeup.set()
        if self._task is None:
            return
        _, running = await asyncio.wait([self._task], timeout=timeout_ms / 1000)
        self._given_up = True
        if running:
            await self._task

    async def _run(self) -> None:
        while True:
            if not self._settlements.waiting and not self._closing:
                await self._wakeup.wait()
            self._wakeup.clear()
            batch = self._settlements.take()
            if batch:
                acks, nacks = await self._send(batch)
                self._settlements.settled(batch, acks, nacks)
                self._settled.set()
            elif self._closing:
                return

    async def _send(self, batch: SettleBatch) -> tuple[Outcome, Outcome]:
        if self._given_up:
            too_late = ClientClosedError("there was no time left")
            return too_late, too_late
        acks: Outcome
        nacks: Outcome
        try:
            acks = await self._client.ack(self._namespace, [item.receipt for item in batch.acks])
        except (FoqsError, ClientClosedError) as error:
            acks = error
        try:
            nacks = await self._client.nack(self._namespace, [nack for _, nack in batch.nacks])
        except (FoqsError, ClientClosedError) as error:
            nacks = error
        return acks, nacks


class TaskLeaseKeeper:
    """Extends the leases of what a worker holds, at half of each lease."""

    def __init__(self, client: AsyncClient, namespace: str, lease_ms: int) -> None:
        self._client = client
        self._namespace = namespace
        self._lease_ms = lease_ms
        self._clock_ms = client.options.clock_ms
        self._book = LeaseBook(lease_ms)
        self._wakeup = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"foqs-leases-{namespace}")

    def hold(self, items: Iterable[HeldItem], received_at_ms: int) -> None:
        self._book.hold(items, received_at_ms)
        self._wakeup.set()

    def drop(self, item: HeldItem) -> None:
        self._book.drop(item)

    async def close(self) -> None:
        """End the task. Raises what ended it before."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    async def _run(self) -> None:
        while True:
            due = await self._wait_for_due()
            asked_at_ms = self._clock_ms()
            outcome: PositionErrors | FoqsError
            try:
                outcome = await self._client.extend(self._namespace, due, self._lease_ms)
            except FoqsError as error:
                outcome = error
            except ClientClosedError:
                return
            self._book.extended(due, outcome, asked_at_ms, self._clock_ms())

    async def _wait_for_due(self) -> list[HeldItem]:
        while not (due := self._book.due(self._clock_ms())):
            self._wakeup.clear()
            next_ms = self._book.next_due_ms()
            wait_s = None if next_ms is None else max(1, next_ms - self._clock_ms()) / 1000
            try:
                await asyncio.wait_for(self._wakeup.wait(), wait_s)
            except TimeoutError:
                continue
        return due
