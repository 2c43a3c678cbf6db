"""Shards that share a server: so many of them have a transaction there at a time as the host is set to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any
from unittest.mock import patch

import pytest

from foqs.client.queue_items import NewItem
from foqs.shard import mysql_server
from foqs.storage.shard.shard_store import ShardStore
from tests.support.running_host import running_host, shard_of
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.deep]


class Most:
    """How many transactions ran at the same time, at the most."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self._run = ShardStore.run

    async def watched_run(self, store: ShardStore, transaction: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._run(store, transaction)
        finally:
            self.running -= 1


@pytest.fixture
def most() -> Iterator[Most]:
    most = Most()

    async def run(store: ShardStore, transaction: Any) -> Any:
        return await most.watched_run(store, transaction)

    with patch.object(ShardStore, "run", run), patch.object(mysql_server, "SLOT_MS_MAX", 60_000):
        yield most


@pytest.mark.parametrize("count_max", [1, 2, 4])
async def test_a_server_has_so_many_transactions_at_a_time(
    meta_url: str, shard_urls: Mapping[int, str], most: Most, count_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_server, "HEAVY_TRANSACTION_ROWS", 1 << 30)
    async with running_host(meta_url, shard_urls, transactions_per_server_max=count_max) as host:
        async with asyncio.timeout(PATIENCE_S):
            while most.most < count_max:
                await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 100] * 8)
            await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 100] * 40)
    assert most.most == count_max <= len(shard_urls)


async def test_those_of_many_rows_run_beside_the_others_up_to_a_bound(
    meta_url: str, shard_urls: Mapping[int, str], most: Most
) -> None:
    delayed = [NewItem("t", b"x", delay_ms=60_000)] * mysql_server.HEAVY_TRANSACTION_ROWS
    with patch.object(mysql_server, "HEAVY_TRANSACTIONS_MAX", 2):
        async with running_host(meta_url, shard_urls) as host, asyncio.timeout(PATIENCE_S):
            while most.most < 3:
                await host.enqueue_on_all_shards("jobs", [delayed] * 8)
            for _ in range(10):
                await host.enqueue_on_all_shards("jobs", [delayed] * 8)
    assert most.most == 3 < len(shard_urls)


@pytest.mark.parametrize(("count_max", "runs"), [(1, [4, 4]), (2, [2] * 4), (4, [1] * 8)])
async def test_so_many_shards_of_a_server_take_items_at_a_time_as_may_write_them(
    meta_url: str, shard_urls: Mapping[int, str], count_max: int, runs: list[int]
) -> None:
    assert len(shard_urls) == 4
    async with running_host(meta_url, shard_urls, transactions_per_server_max=count_max) as host:
        shards: list[int] = []
        for _ in range(16):
            news = [NewItem("t", b"")] * (mysql_server.PLACEMENT_RUN_ITEMS // 2)
            shards += map(shard_of, (await host.client.enqueue_many("jobs", news)).ids)
    assert [len(list(run)) / mysql_server.PLACEMENT_RUN_ITEMS for _, run in groupby(shards)] == runs
