"""Pages of several hosts that are merged, and the memory that they take meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.routing.by_all import MergedCalls
from foqs.cluster.routing.routes import Routes
from foqs.contract.requests import PeekItemsRequest
from foqs.model import limits
from foqs.model.calls import CallContext, StoredItemPage
from foqs.model.principal import EVERYBODY
from tests.support.waiting import PATIENCE_S


class Pages:
    """Another host, which reads pages as long as `gate` is closed."""

    def __init__(self) -> None:
        self.host_id = "other"
        self.gate = asyncio.Event()
        self.running_count = self.running_max = self.calls_count = 0

    async def call(self, *call: Any) -> StoredItemPage:
        self.calls_count += 1
        self.running_count += 1
        self.running_max = max(self.running_max, self.running_count)
        await self.gate.wait()
        self.running_count -= 1
        return StoredItemPage([], "")


@pytest.mark.parametrize("verb", ["peekItems", "listDeadLetters"])
async def test_the_pages_that_are_here_until_they_are_merged_have_a_bound(verb: str) -> None:
    owners, other = OwnerMap(), Pages()
    owners.note([ShardOwner(0, 1, "other", "other:1")])
    serving = SimpleNamespace(
        serves=lambda shard_id: False, served=lambda: (), know=None, number_of=lambda name: 1, can_take=None
    )
    routes = Routes("me", owners, cast(Any, SimpleNamespace(get=lambda host_id, address: other)), cast(Any, serving))
    merged = MergedCalls({verb: other.call}, routes, owners)
    request = PeekItemsRequest("ns", "t", 10)
    calls = [asyncio.create_task(merged.call(verb, CallContext("", principal=EVERYBODY), request)) for _ in range(100)]
    for _ in range(10):
        await asyncio.sleep(0)
    at_a_time = limits.PAGES_BYTES_MAX // (2 * limits.PAGE_BYTES_MAX)
    assert other.running_count == at_a_time
    other.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)
    assert (other.running_max, other.calls_count) == (at_a_time, 100)
