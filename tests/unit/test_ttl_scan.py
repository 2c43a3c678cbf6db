"""The TTL scan: when it walks through a shard, and what it does next to servers that are away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from foqs.host.shards import ttl_scan
from foqs.host.shards.shards import OwnedShard
from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.shard.packs.pack_index import ExpiredPage
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.waiting import until

_TURNS = 100
"""Of the event loop, in each of which a scan that does not pause would read."""
Read = Callable[[], ExpiredPage]


def page(last_key: int, expires_first_ms: int) -> Read:
    """Of which nothing has expired."""
    return lambda: ExpiredPage([], last_key, expires_first_ms)


def away() -> ExpiredPage:
    raise UnavailableError("its server is away")


NO_ROWS = page(0, limits.NEVER_MS)


@pytest.fixture
def writer() -> Mock:
    writer = Mock(spec=ShardWriter, shard_id=0)
    writer.shard = Mock(index=Mock(expires_first_ms=0))
    writer.now_ms.return_value = 0
    return writer


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Of a scan that does not pause."""
    monkeypatch.setattr(ttl_scan, "EXPIRY_SCAN_PAUSE_MS", 0)
    monkeypatch.setattr(ttl_scan, "EXPIRY_LAP_PAUSE_MS", 0)
    reader = Mock(spec=ShardReader)
    reader.expired_page.return_value = NO_ROWS
    return reader


def shard_of(writer: Mock, reader: Mock) -> OwnedShard:
    return OwnedShard(writer, Mock(), reader, Mock(), Mock(), Mock())


async def turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def test_a_shard_whose_items_could_not_be_deleted_is_not_scanned_until_they_can(
    writer: Mock, reader: Mock
) -> None:
    owned, writer.shard = writer.shard, None
    shard = shard_of(writer, reader)
    await shard.start()
    await turns()
    reader.expired_page.assert_not_called()
    writer.shard = owned
    await until(lambda: reader.expired_page.called)
    await shard.stop()


async def test_a_shard_that_could_not_be_read_is_left_alone_for_a_while_and_then_read_from_there(
    writer: Mock, reader: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [page(70, limits.NEVER_MS), away, NO_ROWS]
    pause_ms = 100
    monkeypatch.setattr(ttl_scan, "EXPIRY_LAP_PAUSE_MS", pause_ms)
    read_at_s: list[float] = []

    def read(*_: int) -> Read:
        read_at_s.append(time.monotonic())
        return answers.pop(0)

    reader.expired_page.side_effect = read
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: not answers)
    await shard.stop()
    assert [call.args[0] for call in reader.expired_page.mock_calls] == [0, 70, 70]
    assert read_at_s[2] - read_at_s[1] >= pause_ms / 1000


async def test_a_shard_is_walked_through_again_when_the_first_of_its_rows_expires(writer: Mock, reader: Mock) -> None:
    reader.expired_page.side_effect = [page(70, 900), page(90, 500), page(0, limits.NEVER_MS), NO_ROWS]
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: reader.expired_page.call_count == 3)
    writer.now_ms.return_value = 499
    await turns()
    assert reader.expired_page.call_count == 3
    writer.now_ms.return_value = 500
    await until(lambda: reader.expired_page.call_count == 4)
    await turns()
    assert [call.args for call in reader.expired_page.mock_calls] == [(0, 0), (70, 0), (90, 0), (0, 500)]
    await shard.stop()


async def test_a_shard_is_walked_through_again_for_a_row_that_was_written_during_the_walk(
    writer: Mock, reader: Mock
) -> None:
    def read(after_key: int, now_ms: int) -> Read:
        if reader.expired_page.call_count == 1:
            writer.shard.index.expires_first_ms = 100  # As a commit does, at any time.
        return NO_ROWS

    reader.expired_page.side_effect = read
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: reader.expired_page.called)
    await turns()
    assert reader.expired_page.call_count == 1
    writer.now_ms.return_value = 100
    await until(lambda: reader.expired_page.call_count == 2)
    await shard.stop()


async def test_a_shard_is_walked_through_now_and_then_whatever_is_known_of_it(writer: Mock, reader: Mock) -> None:
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: reader.expired_page.called)
    writer.now_ms.return_value = ttl_scan.EXPIRY_LAP_MS_MAX - 1
    await turns()
    assert reader.expired_page.call_count == 1
    writer.now_ms.return_value = ttl_scan.EXPIRY_LAP_MS_MAX
    await until(lambda: reader.expired_page.call_count == 2)
    await shard.stop()


async def test_a_walk_that_could_not_begin_begins_again(writer: Mock, reader: Mock) -> None:
    reader.expired_page.side_effect = [away, NO_ROWS]
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: reader.expired_page.call_count == 2)
    await shard.stop()


async def test_a_shard_that_was_taken_over_during_a_walk_is_walked_through_from_its_begin(
    writer: Mock, reader: Mock
) -> None:
    before = writer.shard

    def read(after_key: int, now_ms: int) -> Read:
        if reader.expired_page.call_count == 1:
            writer.shard = Mock(index=Mock(expires_first_ms=0))
            return lambda: ExpiredPage([5], 70, 0)
        return NO_ROWS

    reader.expired_page.side_effect = read
    shard = shard_of(writer, reader)
    await shard.start()
    await until(lambda: reader.expired_page.call_count == 3)
    await turns()
    assert [call.args[0] for call in reader.expired_page.mock_calls] == [0, 70, 0]
    before.rows.look_up.assert_not_called()
    await shard.stop()
