"""The writer of a shard and a store that takes its time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from foqs.core import limits
from foqs.shard.parts import ShardListener
from foqs.shard.runner import ShardRunner, TransactionMeter
from foqs.storage.transaction import LaneCounts, ShardImage, Transaction, TransactionResult

SLOW_READ_MS = 5_000
"""As long as the take-over of many topics, a slow network or a stopped host takes after the time was asked for."""


class SlowToOpen:
    """A store whose image is old when it is complete, which may take until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.tells_time = threading.Event()
        self.tells_time.set()

    def open(self) -> ShardImage:
        assert self.answers.wait(30)
        return ShardImage(1, 0, 0, 0, wall_ms() - SLOW_READ_MS, [], lambda: LaneCounts([], []), [], {})

    def reopen(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        return

    def interrupt(self) -> None:
        return

    def now_ms(self) -> int:
        assert self.tells_time.wait(30)
        return wall_ms()

    def check(self) -> list[str]:
        return []

    async def run(self, transaction: Transaction) -> TransactionResult:
        return TransactionResult(refilled=[[] for _ in transaction.refills])


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store() -> SlowToOpen:
    return SlowToOpen()


@pytest.fixture
async def runner(store: SlowToOpen) -> AsyncIterator[ShardRunner]:
    runner = ShardRunner(0, store, Mock(spec=ShardListener), Mock(spec=TransactionMeter))
    yield runner
    store.answers.set()
    store.tells_time.set()
    await runner.stop()


async def test_a_take_over_that_takes_long_leaves_no_clock_that_is_late(runner: ShardRunner) -> None:
    before_ms = wall_ms()
    await runner.start()
    assert runner.shard is not None, runner.detail
    late_ms = before_ms - runner.now_ms()
    assert late_ms < SLOW_READ_MS / 5 < limits.CLOCK_PROBE_MS


async def test_a_server_that_hangs_does_not_hold_up_the_start_and_is_served_once_it_answers(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHARD_OPEN_WAIT_MS_MAX", 50)
    store.answers.clear()
    async with asyncio.timeout(10):
        await runner.start()
        assert (runner.shard, runner.detail) == (None, "its server does not answer")
        store.answers.set()
        await runner.counted.wait()
    assert (runner.shard is None, runner.detail) == (False, "owned")


async def test_a_server_that_hangs_when_it_is_asked_for_the_time_opens_the_breaker_like_one_that_hangs_in_a_commit(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runner.start()
    monkeypatch.setattr(limits, "CLOCK_PROBE_MS", 0)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    store.tells_time.clear()
    await until(runner, healthy=False)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 0)
    store.tells_time.set()
    await until(runner, healthy=True)


async def until(runner: ShardRunner, *, healthy: bool) -> None:
    async with asyncio.timeout(10):
        while runner.health.healthy is not healthy:
            runner.wake()
            runner.tick()
            await asyncio.sleep(limits.TICK_MS / 1000)
