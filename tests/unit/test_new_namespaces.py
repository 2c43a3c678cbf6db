"""A host that is asked for a namespace it does not know reads the meta database: another host may have made it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from foqs.background.tasks import Tasks
from foqs.host.dispatch.consumers import Consumers
from foqs.host.verbs import host_stocks as stocks_module
from foqs.host.verbs.host_stocks import Stocks
from foqs.model.errors import UnavailableError
from tests.support.waiting import PATIENCE_S


class Meta:
    """The namespaces of the cluster, and what this host has read of them."""

    def __init__(self) -> None:
        self.made: set[bytes] = set()
        self.number_by_name: dict[bytes, int] = {}
        self.reads_count = self.running_max = self._running_count = 0
        self.gate: asyncio.Event | None = None
        self.now_s = 100.0
        self.tasks = Tasks("test")
        self.stocks = Stocks(
            cast(Any, None),
            cast(Any, SimpleNamespace(serves=None)),
            cast(Any, self),
            lambda: self.now_s,
            self.tasks,
            cast(Any, None),
            Consumers(lambda: self.now_s),
        )

    def number_of(self, name: str) -> int | None:
        return self.number_by_name.get(name.encode())

    async def refresh(self) -> None:
        self.reads_count += 1
        self._running_count += 1
        self.running_max = max(self.running_max, self._running_count)
        made = set(self.made)
        if self.gate is not None:
            await self.gate.wait()
        self.number_by_name = dict.fromkeys(made, 1)
        self._running_count -= 1


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> Meta:
    found = Meta()
    sleep = asyncio.sleep

    async def pass_time(delay_s: float) -> None:
        found.now_s += delay_s
        await sleep(0)

    monkeypatch.setattr(stocks_module.asyncio, "sleep", pass_time)
    return found


async def test_a_namespace_that_was_made_a_moment_after_the_last_reading_is_found(meta: Meta) -> None:
    await meta.stocks.know("unknown")
    meta.made.add(b"new")
    meta.now_s += 0.01
    await meta.stocks.know("new")
    assert meta.stocks.number_of("new") == 1
    assert meta.now_s >= 100.0 + stocks_module.READ_MS_MIN / 1000, "names that nobody has cost no more than that"


async def test_calls_that_name_what_nobody_has_share_their_readings(meta: Meta) -> None:
    await asyncio.gather(*[meta.stocks.know(f"unknown-{number}") for number in range(1_000)])
    assert meta.reads_count == 2, "those that came after the first reading had begun need another one"


async def test_a_meta_database_that_hangs_is_asked_once_however_many_callers_come_and_go(meta: Meta) -> None:
    meta.gate = asyncio.Event()
    for _ in range(50):
        meta.now_s += 1.0
        call = asyncio.create_task(meta.stocks.know("unknown"))
        for _ in range(5):
            await asyncio.wait([call], timeout=0)
        call.cancel()
        await asyncio.wait([call])
    assert meta.reads_count == 1
    meta.gate.set()
    meta.made.add(b"new")
    async with asyncio.timeout(PATIENCE_S):
        await meta.stocks.know("new")
    assert meta.stocks.number_of("new") == 1
    assert meta.running_max == 1


async def test_a_call_that_waits_while_its_host_ends_is_not_told_that_there_is_no_such_namespace(meta: Meta) -> None:
    meta.gate = asyncio.Event()
    call = asyncio.create_task(meta.stocks.know("new"))
    for _ in range(5):
        await asyncio.wait([call], timeout=0)
    await meta.tasks.stop()
    with pytest.raises(UnavailableError) as raised:
        await call
    assert raised.value.nothing_done


async def test_a_reading_that_fails_by_a_defect_is_the_last_one_for_nobody(meta: Meta) -> None:
    refresh = meta.refresh
    meta.refresh = AsyncMock(side_effect=RuntimeError("no such table"))  # type: ignore[method-assign]
    await meta.stocks.know("unknown")
    meta.refresh = refresh  # type: ignore[method-assign]
    meta.made.add(b"new")
    await meta.stocks.know("new")
    assert meta.stocks.number_of("new") == 1
