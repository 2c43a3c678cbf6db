from __future__ import annotations

from datetime import timedelta

import pytest

from foqs import Nack
from foqs.testing.items import RecordingSettler, async_leased_item, leased_item


def test_a_made_item_remembers_what_a_handler_does_with_it() -> None:
    item = leased_item(b"payload", topic="emails", metadata=b"m", attempt=3, lease_ms=60_000)
    assert (item.payload, item.topic, item.metadata, item.attempt) == (b"payload", "emails", b"m", 3)
    assert item.lease_expires_at_ms - item.enqueued_at_ms == 60_000
    item.extend()
    item.extend(lease=timedelta(seconds=5))
    item.nack(delay_ms=7)
    assert isinstance(item.settler, RecordingSettler)
    assert (item.settler.acked, item.settler.nacked) == (False, Nack(item.receipt, 7))
    assert item.settler.extended_ms == [60_000, 5_000]
    with pytest.raises(RuntimeError, match="settled already"):
        item.ack()


async def test_a_made_item_of_asyncio_is_extended_with_await() -> None:
    item = async_leased_item(b"payload")
    await item.extend(5_000)
    item.ack()
    assert isinstance(item.settler, RecordingSettler)
    assert (item.settler.acked, item.settler.extended_ms) == (True, [5_000])
