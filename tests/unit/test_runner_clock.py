"""A host's idea of its shard server's clock."""

from __future__ import annotations

import time
from unittest.mock import Mock

from foqs.core import limits
from foqs.shard.parts import ShardListener
from foqs.shard.runner import ShardRunner, TransactionMeter
from foqs.storage.transaction import LaneCounts, ShardImage, Transaction, TransactionResult

SLOW_READ_MS = 5_000
"""As long as the take-over of many topics, a slow network or a stopped host takes after the time was asked for."""


class SlowToOpen:
    """A store whose image is old when it is complete."""

    def open(self) -> ShardImage:
        return ShardImage(1, 0, 0, 0, wall_ms() - SLOW_READ_MS, [], lambda: LaneCounts([], []), [], {})

    def reopen(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        return

    def interrupt(self) -> None:
        return

    def now_ms(self) -> int:
        return wall_ms()

    def check(self) -> list[str]:
        return []

    async def run(self, transaction: Transaction) -> TransactionResult:
        return TransactionResult()


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_a_take_over_that_takes_long_leaves_no_clock_that_is_late() -> None:
    runner = ShardRunner(0, SlowToOpen(), Mock(spec=ShardListener), Mock(spec=TransactionMeter))
    before_ms = wall_ms()
    await runner.start()
    try:
        assert runner.shard is not None, runner.detail
        late_ms = before_ms - runner.now_ms()
    finally:
        await runner.stop()
    assert late_ms < SLOW_READ_MS / 5 < limits.CLOCK_PROBE_MS
