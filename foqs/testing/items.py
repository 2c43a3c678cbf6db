"""Deliveries for tests of handlers. They come from no host, and record their outcome.

This module needs no host, and no more than `pip install foqs`.
"""

from __future__ import annotations

import time
from typing import TypeVar

from foqs.client.aio.settler import AsyncLeasedItem
from foqs.client.leases import BaseLeasedItem
from foqs.client.queue_items import Nack
from foqs.client.sync.settler import LeasedItem
from foqs.model import limits

L = TypeVar("L", bound=BaseLeasedItem)


class RecordingSettler:
    """Records the actions of a handler on its item: `item.settler` of an item made here.

    acked: True if the item was acked. nacked: the nack or release of the item, or None. extended_ms: the lease of each
    extension, in milliseconds.
    """

    def __init__(self) -> None:
        self.acked = False
        self.nacked: Nack | None = None
        self.extended_ms: list[int] = []

    def ack(self, item: BaseLeasedItem) -> None:
        """Record the ack."""
        self.acked = True

    def nack(self, item: BaseLeasedItem, nack: Nack) -> None:
        """Record the nack or release."""
        self.nacked = nack

    def extend(self, item: BaseLeasedItem, lease_ms: int) -> None:
        """Record an extension."""
        self.extended_ms.append(lease_ms)


class AsyncRecordingSettler(RecordingSettler):
    """The same for an item of asyncio, whose extension is awaited."""

    async def extend(self, item: BaseLeasedItem, lease_ms: int) -> None:  # type: ignore[override]
        """Record an extension."""
        self.extended_ms.append(lease_ms)


def leased_item(
    payload: bytes = b"",
    *,
    topic: str = "test",
    priority: int = 0,
    metadata: bytes = b"",
    attempt: int = 1,
    lease_ms: int = limits.LEASE_MS_DEFAULT,
) -> LeasedItem:
    """Make a delivery for the handler of a `Worker`. `item.settler` records the handler's actions."""
    return _made(LeasedItem, RecordingSettler(), payload, topic, priority, metadata, attempt, lease_ms)


def async_leased_item(
    payload: bytes = b"",
    *,
    topic: str = "test",
    priority: int = 0,
    metadata: bytes = b"",
    attempt: int = 1,
    lease_ms: int = limits.LEASE_MS_DEFAULT,
) -> AsyncLeasedItem:
    """Make a delivery for the handler of an `AsyncWorker`. `item.settler` records the handler's actions."""
    return _made(AsyncLeasedItem, AsyncRecordingSettler(), payload, topic, priority, metadata, attempt, lease_ms)


def _made(
    kind: type[L],
    settler: RecordingSettler,
    payload: bytes,
    topic: str,
    priority: int,
    metadata: bytes,
    attempt: int,
    lease_ms: int,
) -> L:
    now_ms = time.time_ns() // 1_000_000
    return kind(
        id="0-1",
        receipt="0-1:1",
        topic=topic,
        priority=priority,
        payload=payload,
        metadata=metadata,
        deliver_after_ms=now_ms,
        enqueued_at_ms=now_ms,
        lease_expires_at_ms=now_ms + lease_ms,
        attempt=attempt,
        trace_context=None,
        settler=settler,
        lease_ms=lease_ms,
    )
