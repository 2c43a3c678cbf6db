"""What a host has for one shard, once it has handed the shard on."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from foqs.host.shards.shards import OwnedShard, Shards
from foqs.model.errors import UnavailableError
from foqs.storage.shard.packs.budget import PackBudget
from tests.support.packed_shard import PackedShard


def shard_with(packs: Any) -> OwnedShard:
    writer = Mock(shard_id=3, shard=None, start=AsyncMock(), drain=AsyncMock(), stop=AsyncMock())
    store, reader, exporter = (Mock() for _ in range(3))
    return OwnedShard(cast(Any, writer), store, reader, exporter, packs, on_events=lambda events: None)


@pytest.fixture
async def owned() -> OwnedShard:
    shard = shard_with(Mock())
    await shard.start()
    return shard


@pytest.mark.parametrize("verb", ["read", "export"])
async def test_whoever_waited_to_read_a_shard_that_was_handed_on_is_to_ask_again(owned: OwnedShard, verb: str) -> None:
    """It is no defect, and the next owner has the shard."""
    assert await getattr(owned, verb)(lambda: "read") == "read"
    await owned.stop()
    with pytest.raises(UnavailableError, match="shard 3 was handed on") as raised:
        await getattr(owned, verb)(lambda: "read")
    assert raised.value.nothing_done
    assert raised.value.retry_after_ms


async def test_what_is_read_when_a_shard_is_handed_on_is_read_to_its_end(owned: OwnedShard) -> None:
    reading = asyncio.create_task(owned.read(lambda: "read"))
    await asyncio.sleep(0)
    await owned.stop()
    assert await reading == "read"


async def test_a_shard_that_was_handed_on_leaves_its_memory_for_packs_to_the_others() -> None:
    """Else a host that shards come to and go from would pack nothing more after a while."""
    budget = PackBudget(1_000)
    gone, other = PackedShard(budget), PackedShard(budget)
    gone.run(gone.items(100))
    assert not budget.has_room
    shard = shard_with(gone.index)
    await shard.start()
    await shard.stop()
    assert budget.used_bytes == 0
    other.run(other.items(100))
    assert budget.used_bytes == other.index.stored_bytes > 0


def test_an_id_of_a_shard_that_the_cluster_does_not_have_is_not_sent_to_another_host() -> None:
    """The text of an id has the shard in hexadecimal digits, and the list of shards in decimal ones."""
    shards = Shards([0, 1])
    assert "this host has no shard 1: ask the one that has" in str(shards.not_served(1))
    told = str(shards.not_served(0x77))
    assert "the cluster has no shard 119 (77 in ids of items)" in told
    assert "foqs shard list" in told
