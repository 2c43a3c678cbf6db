"""The TTL scan next to servers that are away."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest

from foqs.core import limits
from foqs.core.errors import UnavailableError
from foqs.host.inspection import Inspection
from foqs.host.shards import Shards
from foqs.host.waiting import Waiting
from foqs.shard.runner import ShardRunner
from foqs.storage.shard_reader import ShardReader
from tests.support.waiting import until

_TURNS = 100
"""Of the event loop, in each of which a scan that does not pause would read."""


@pytest.fixture
def runner() -> Mock:
    runner = Mock(spec=ShardRunner)
    runner.shard = Mock()
    runner.now_ms.return_value = 0
    return runner


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Of a scan that does not pause."""
    monkeypatch.setattr(limits, "EXPIRY_SCAN_PAUSE_MS", 0)
    monkeypatch.setattr(limits, "EXPIRY_LAP_PAUSE_MS", 0)
    reader = Mock(spec=ShardReader)
    reader.expired_page.return_value = ([], 0)
    return reader


def inspection_of(runner: Mock, reader: Mock) -> Inspection:
    return Inspection(Mock(spec=Shards, runners={0: runner}), {0: reader}, Mock(spec=Waiting), Mock())


async def turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def test_a_shard_whose_items_could_not_be_deleted_is_not_scanned_until_they_can(
    runner: Mock, reader: Mock
) -> None:
    owned, runner.shard = runner.shard, None
    inspection = inspection_of(runner, reader)
    await inspection.start()
    await turns()
    reader.expired_page.assert_not_called()
    runner.shard = owned
    await until(lambda: reader.expired_page.called)
    await inspection.stop()


async def test_a_shard_that_could_not_be_read_is_left_alone_for_a_while_and_then_read_from_there(
    runner: Mock, reader: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [([], 70), UnavailableError("its server is away"), ([], 0)]
    pause_ms = 100
    read_at_s: list[float] = []

    def read(*_: int) -> tuple[list[int], int]:
        read_at_s.append(time.monotonic())
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            monkeypatch.setattr(limits, "EXPIRY_LAP_PAUSE_MS", pause_ms)
            raise answer
        return answer

    reader.expired_page.side_effect = read
    inspection = inspection_of(runner, reader)
    await inspection.start()
    await until(lambda: not answers)
    await inspection.stop()
    assert [call.args[0] for call in reader.expired_page.mock_calls[:3]] == [0, 70, 70]
    assert read_at_s[2] - read_at_s[1] >= pause_ms / 1000
