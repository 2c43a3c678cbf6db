"""A settler that meets what it does not expect: whoever waits for it is told, and waits no longer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.client.aio import settler as module
from foqs.client.aio.settler import AsyncSettler
from tests.support.waiting import PATIENCE_S


async def test_a_consumer_whose_settlements_are_sent_no_more_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)

    async def fail(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    settler = AsyncSettler(cast(Any, SimpleNamespace(_settle_now=fail, _terms=None)), "ns")
    settler.start()
    await settler.wait_for_room()
    settler.ack(cast(Any, SimpleNamespace(id="1-1", receipt="1-1-1", topic="t")))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="a defect"):
            await settler.wait_for_room()
        with pytest.raises(ValueError, match="a defect"):
            await settler.close(600_000)
