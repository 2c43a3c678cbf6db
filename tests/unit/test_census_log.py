"""What a host logs while a census waits for a shard that is sick."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from foqs.host.registry.censuses import Censuses
from foqs.model.census import Census
from foqs.model.errors import UnavailableError

TRIES = 200
"""So many tries, twice a second, take more than one minute and less than two."""


class SickShards:
    """The censuses of a host with two shards, neither of which can be asked."""

    def __init__(self) -> None:
        self.ask = AsyncMock(side_effect=UnavailableError("the server is away"))
        owned = [(None, SimpleNamespace(shard_id=shard_id, epoch=1)) for shard_id in (3, 4)]
        shards, slots = SimpleNamespace(owned=lambda: owned), SimpleNamespace(ask=self.ask)
        self.censuses = Censuses(cast(Any, shards), cast(Any, slots), cast(Any, None))

    async def answer(self) -> None:
        census = Census(1, 0)
        self.censuses.answer([census], cast(Any, None))
        await self.censuses.answered(census)


async def test_it_is_told_once_a_minute_for_each_shard_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, host, ahead_s = asyncio.get_running_loop(), SickShards(), 0.0
    real_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_s() + ahead_s)
    with capture_logs() as told:
        for _ in range(TRIES):
            await host.answer()
            ahead_s += 0.5
        assert [one["shard"] for one in told if one["event"] == "census_not_answered"] == [3, 4, 3, 4]
        host.ask.side_effect = UnavailableError("the shard was lost")
        await host.answer()
    assert [(one["shard"], one["error"]) for one in told[4:]] == [(3, "the shard was lost"), (4, "the shard was lost")]
    await host.censuses.stop()
