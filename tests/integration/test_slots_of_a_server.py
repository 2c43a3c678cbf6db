"""Shards that share a server: so many of them have a transaction there at a time as the host is set to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import groupby
from typing import Any
from unittest.mock import patch

import pytest

from foqs.client.items import NewItem
from foqs.core import limits
from foqs.storage.shard_store import ShardStore
from tests.support.running_host import running_host, shard_of

pytestmark = pytest.mark.database


@pytest.mark.parametrize("count_max", [1, 2, 4])
async def test_a_server_has_so_many_transactions_at_a_time(
    meta_url: str, shard_urls: Mapping[int, str], count_max: int
) -> None:
    running, most, run = 0, 0, ShardStore.run

    async def watched_run(store: ShardStore, transaction: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await run(store, transaction)
        finally:
            running -= 1

    with patch.object(ShardStore, "run", watched_run), patch.object(limits, "SLOT_MS_MAX", 60_000):
        async with running_host(meta_url, shard_urls, transactions_per_server_max=count_max) as host:
            async with asyncio.timeout(30):
                while most < count_max:
                    await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 100] * 8)
                await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 100] * 40)
    assert most == count_max <= len(shard_urls)


@pytest.mark.parametrize(("count_max", "runs"), [(1, [4, 4]), (2, [2] * 4), (4, [1] * 8)])
async def test_so_many_shards_of_a_server_take_items_at_a_time_as_may_write_them(
    meta_url: str, shard_urls: Mapping[int, str], count_max: int, runs: list[int]
) -> None:
    assert len(shard_urls) == 4
    async with running_host(meta_url, shard_urls, transactions_per_server_max=count_max) as host:
        shards: list[int] = []
        for _ in range(16):
            news = [NewItem("t", b"")] * (limits.PLACEMENT_RUN_ITEMS // 2)
            shards += map(shard_of, (await host.client.enqueue_many("jobs", news)).ids)
    assert [len(list(run)) / limits.PLACEMENT_RUN_ITEMS for _, run in groupby(shards)] == runs
