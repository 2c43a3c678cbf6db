"""Which host does which part of a call that is for all shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_claims import CLAIM_MS
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.routing import routes as routes_module
from foqs.cluster.routing.by_all import MergedCalls
from foqs.cluster.routing.routes import RETRY_MS_MAX, Routes, retry_pauses_s
from foqs.contract.requests import ShardMapRequest
from foqs.model.calls import CallContext, PositionErrors, ShardMap
from foqs.model.cluster import HostRow, OpenedShard, ShardRow, ShardUse
from foqs.model.errors import UnavailableError
from foqs.model.principal import EVERYBODY
from tests.support.waiting import PATIENCE_S


async def test_a_shard_that_was_opened_a_moment_ago_is_asked_before_the_hosts_know_who_has_it() -> None:
    owners = OwnerMap()
    owners.note([ShardOwner(0, 1, "other", "127.0.0.1:1"), ShardOwner(1, 4, "gone", "127.0.0.1:2")])
    served = {1, 3}
    local = SimpleNamespace(served=lambda: served, serves=served.__contains__, know=None, number_of=None, can_take=None)
    peers = SimpleNamespace(get=lambda host_id, address: SimpleNamespace(host_id=host_id))
    routes = Routes("me", owners, cast(Any, peers), cast(Any, local))

    async def here(context: CallContext) -> tuple[str, frozenset[int] | None]:
        return "me", context.shards

    async def there(remote: Any, context: CallContext) -> tuple[str, frozenset[int] | None]:
        return remote.host_id, context.shards

    asked = await routes.by_all(CallContext("127.0.0.1", principal=EVERYBODY), here, there)
    assert sorted(asked) == [("me", frozenset({1, 3})), ("other", frozenset({0}))]


async def message_of(owners: OwnerMap, says: str = "") -> str:
    """What is said of a call for all shards, which other hosts refuse with these words."""
    local = SimpleNamespace(served=set[int], serves=lambda shard_id: False, know=None, number_of=None, can_take=None)
    peers = SimpleNamespace(get=lambda host_id, address: SimpleNamespace(host_id=host_id))
    routes = Routes("me#1", owners, cast(Any, peers), cast(Any, local))

    async def ask(*_: Any) -> None:
        raise UnavailableError(says, nothing_done=True)

    missing: list[str] = []
    await routes.by_all(CallContext("127.0.0.1", principal=EVERYBODY), ask, ask, missing)
    (message,) = missing
    with pytest.raises(UnavailableError) as raised:
        await routes.by_all(CallContext("127.0.0.1", principal=EVERYBODY), ask, ask)
    assert raised.value.message == message
    return message


async def test_all_shards_that_nobody_serves_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "RETRY_MS", 1)
    owners = OwnerMap()
    owners.note([ShardOwner(3, 1, "gone#1", "")])
    assert await message_of(owners) == "shard 3 is served by no host now: nothing was done, try again"
    owners.note([ShardOwner(shard_id, 1, "gone#1", "") for shard_id in (5, 1)])
    assert (await message_of(owners)).startswith("shards 1, 3, 5 are served by no host now")
    owners.note([ShardOwner(shard_id, 1, "me#1", "me:1") for shard_id in range(10, 30)])
    assert (await message_of(owners)).startswith("shards 1, 3, 5, 10, 11, 12, 13, 14, 15, 16, ... (23 in all) are")


async def test_a_host_that_tells_no_address_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "RETRY_MS", 1)
    owners = OwnerMap()
    owners.living = {"w1#1": HostRow("w1#1", "", 1, 1)}
    owners.note([ShardOwner(3, 1, "w1#1", "")])
    hidden = "shard 3 is served by host w1#1, which reports no address: set its advertise_address"
    assert await message_of(owners) == f"{hidden}: nothing was done, try again"
    owners.living = {"w1#1": HostRow("w1#1", "", 1, 1, is_starting=True)}
    assert "host w1#1, which is starting, and has not opened its port yet" in await message_of(owners)
    owners.living = {"w1#1": HostRow("w1#1", "", 1, 1)}
    owners.note([ShardOwner(4, 1, "gone#1", "")])
    assert await message_of(owners) == f"shard 4 is served by no host now; {hidden}: nothing was done, try again"


async def test_a_host_that_refuses_is_named_with_the_shards_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "RETRY_MS", 1)
    owners = OwnerMap()
    owners.note([ShardOwner(shard_id, 1, "w1#1", "w1:1") for shard_id in (2, 0)])
    assert await message_of(owners, "it is away") == (
        "host w1#1 is needed for a whole answer, as the owner of shards 0, 2: it is away"
    )


async def test_where_no_host_is_known_to_have_a_shard_any_more_the_map_is_that_of_this_host() -> None:
    """All that was known was what another host has said, and that is believed for a while."""
    mine, now_s = ShardMap(7, [0, 1], []), [100.0]

    async def get_shard_map(context: CallContext, request: ShardMapRequest) -> ShardMap:
        assert context.shards is None
        return mine

    owners = OwnerMap(lambda: now_s[0], "me#1")
    owners.refresh(ClusterView("me#1", {}, {3: ShardRow(3, 0, "", 0, "", ShardUse.SERVING, "", "", "", 0)}, True))
    local = SimpleNamespace(served=set[int], serves=lambda shard_id: False, know=None, number_of=None, can_take=None)
    routes = Routes("me#1", owners, cast(Any, None), cast(Any, local))
    owners.claim("w1#1", "w1:1", [OpenedShard(3, 1)])
    assert not owners.is_alone
    merged = MergedCalls({"getShardMap": get_shard_map}, routes, owners, cast(Any, None))
    now_s[0] += 10 * CLAIM_MS / 1000
    assert await merged.call("getShardMap", CallContext("127.0.0.1", principal=EVERYBODY), ShardMapRequest()) is mine


class Acks:
    """This host, which has no shard, and how often it was asked for positions."""

    def __init__(self) -> None:
        self.owners, self.served = OwnerMap(me="me"), set[int]()
        local = SimpleNamespace(serves=self.served.__contains__, served=None, know=None, number_of=None, can_take=None)
        peers = SimpleNamespace(get=lambda host_id, address: SimpleNamespace(host_id=host_id))
        self.routes = Routes("me", self.owners, cast(Any, peers), cast(Any, local))
        self.calls_count = 0

    async def here(self, some: Sequence[int] | None) -> PositionErrors:
        self.calls_count += 1
        return {} if self.served else {0: UnavailableError("this host has no such shard", nothing_done=True)}

    async def there(self, remote: Any, some: Sequence[int]) -> PositionErrors:
        raise AssertionError("there is nobody else")

    async def ack(self, receipt: str) -> PositionErrors:
        return await self.routes.by_shard([receipt], self.here, self.there)


async def test_the_receipt_of_a_shard_that_does_not_exist_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module.limits, "ROUTE_WAIT_MS_MAX", 3_600_000)
    acks = Acks()
    acks.owners.note([ShardOwner(1, 1, "other", "other:1")])
    async with asyncio.timeout(PATIENCE_S):
        assert list(await acks.ack("ffff-1:1")) == [0]
    assert acks.calls_count == 1


async def test_a_batch_is_not_done_again_before_somebody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module.limits, "ROUTE_WAIT_MS_MAX", 3_600_000)
    acks = Acks()
    acks.owners.note([ShardOwner(1, 1, "gone", "")])
    async with asyncio.timeout(PATIENCE_S):
        held = asyncio.create_task(acks.ack("1-1:1"))
        for epoch in range(2, 20):
            await asyncio.sleep(0)
            acks.owners.note([ShardOwner(1, epoch, "gone", "")])
        assert acks.calls_count == 1
        acks.served.add(1)
        acks.owners.note([ShardOwner(1, 20, "me", "me:1")])
        assert await held == {}
    assert acks.calls_count == 2


def test_who_waits_for_a_shard_looks_less_and_less_often_and_every_half_second_in_the_end() -> None:
    pauses = retry_pauses_s()
    assert [next(pauses) for _ in range(5)] == [0.1, 0.2, 0.4, RETRY_MS_MAX / 1000, RETRY_MS_MAX / 1000]
