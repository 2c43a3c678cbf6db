"""One of two servers hangs: the other serves on, what was buffered moves, and the breaker closes after recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.shard import mysql_server
from foqs.shard.writer import keeper
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.databases import prepared_server
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.database


@pytest.fixture
def second_server(tmp_path: Path) -> Iterator[LocalServer]:
    with prepared_server(tmp_path / "second") as server:
        apply(server.url("shard"), SchemaKind.SHARD)
        yield server


async def enqueue_one(running: RunningHost, payload: bytes) -> str:
    """In a call of its own: the client would gather single ones."""
    result = await running.client.enqueue_many("jobs", [NewItem("t", payload)])
    assert not result.errors
    return result.ids[0]


def results(calls: list[asyncio.Task[str]]) -> list[str]:
    return [call.result() for call in calls if call.done() and call.exception() is None]


def is_healthy(running: RunningHost, shard_id: int) -> bool:
    return running.host._shards.writers[shard_id].health.healthy


async def test_a_frozen_server_is_skipped_and_comes_back(
    meta_url: str, shard_urls: dict[int, str], second_server: LocalServer
) -> None:
    shards = {0: shard_urls[0], 1: second_server.url("shard")}
    async with running_host(meta_url, shards) as running:
        ids = await running.enqueue_on_all_shards("jobs", [[NewItem("t", b"before")] for _ in range(4)])
        second_server.pause()
        try:
            # Some of these land on the frozen shard; they move once its breaker is open.
            with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
                calls = [asyncio.create_task(enqueue_one(running, b"during")) for _ in range(40)]
                await until(lambda: not is_healthy(running, 1))
            await until(lambda: len(results(calls)) >= 20)
            moved = results(calls)
            status = (await running.admin.host_status()).shards[1]
            assert (status.state, status.detail) == ("sick", "it has not answered for 700 ms")
            assert {shard_of(item_id) for item_id in moved} == {0}
            late = [await enqueue_one(running, b"late") for _ in range(10)]
            assert {shard_of(item_id) for item_id in late} == {0}
            items = await running.client.dequeue("jobs", "t", 50, wait_ms=20_000)
            assert items
            assert await running.client.ack("jobs", [item.receipt for item in items if shard_of(item.id) == 0]) == {}
        finally:
            second_server.resume()
        await until(lambda: is_healthy(running, 1))
        await asyncio.gather(*calls, return_exceptions=True)
        got = {item.id for item in items}

        async def left() -> set[str]:
            got.update(item.id for item in await running.client.dequeue("jobs", "t", 100, wait_ms=300))
            return {*ids, *moved, *late} - got

        assert not await eventually(left, lambda ids: not ids), "an item that was answered is lost"


async def test_a_server_that_freezes_while_it_is_asked_for_nothing_is_noticed(
    meta_url: str, shard_urls: dict[int, str], second_server: LocalServer
) -> None:
    shards = {0: shard_urls[0], 1: second_server.url("shard")}
    with patch.object(keeper, "CLOCK_PROBE_MS", 60 * keeper.CLOCK_PROBE_MS):
        await frozen_and_noticed(meta_url, shards, second_server)


async def frozen_and_noticed(meta_url: str, shards: dict[int, str], second_server: LocalServer) -> None:
    async with running_host(meta_url, shards) as running:
        second_server.pause()
        try:
            await until(lambda: not is_healthy(running, 1))
            assert is_healthy(running, 0)
        finally:
            second_server.resume()
        await until(lambda: is_healthy(running, 1))
