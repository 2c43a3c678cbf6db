"""What the hosts of a cluster say of themselves, and who serves which shard by that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing import host_rounds
from foqs.cluster.routing.host_rounds import HostRounds
from foqs.contract.requests import ListHostsRequest
from foqs.model.calls import CallContext, ClusterShard, HostStatus, ShardStatus
from foqs.model.cluster import HostRow, ShardHealth, ShardUse
from foqs.model.cluster_calls import HostState
from foqs.model.errors import HostUnreachableError
from foqs.model.principal import EVERYBODY
from tests.support.waiting import PATIENCE_S

ME = "me#1"


class Hosts:
    """The hosts that live, this one and others, and what each says of its shards: None of one that hangs."""

    def __init__(self) -> None:
        self.owners = OwnerMap(me="me")
        self.says: dict[str, list[ShardStatus] | None] = {}
        self.now_s = 0.0
        self.asked_count = 0
        self.hanging = asyncio.Event()
        """It is set when those that hang go on."""
        peers = SimpleNamespace(get=self.peer)
        self.rounds = HostRounds(ME, self.owners, cast(Any, peers), self.mine, lambda: self.now_s)
        self.live(ME, [])

    def live(self, host_id: str, shards: list[ShardStatus] | None, *, address: str = "h:1", tier: str = "") -> None:
        self.owners.living = {**self.owners.living, host_id: HostRow(host_id, address, 1, 1, tier=tier)}
        self.says[host_id] = shards

    def peer(self, host_id: str, address: str) -> Any:
        async def call(context: CallContext, verb: str, request: object) -> HostStatus:
            assert verb == "getHostStatus"
            self.asked_count += 1
            if host_id not in self.says:
                raise HostUnreachableError(f"host {host_id} cannot be reached")
            if (shards := self.says[host_id]) is None:
                await self.hanging.wait()
            return HostStatus(host_id, "1", 1, shards or [], False)

        return SimpleNamespace(host_id=host_id, call=call)

    async def mine(self, context: CallContext, request: object) -> HostStatus:
        return HostStatus("me", "1", 1, self.says[ME] or [], False)

    async def described(self, shard: ClusterShard) -> ClusterShard:
        self.now_s += 60
        (found,) = await self.rounds.described([shard])
        return found


def row(last_owner: str, *, epoch: int = 3, use: ShardUse = ShardUse.SERVING, tier: str = "") -> ClusterShard:
    return ClusterShard(0, "mysql://h/d", use, tier, "", "", "", epoch, "", 1, last_owner=last_owner)


def has(state: str, *, epoch: int = 3, detail: str = "") -> list[ShardStatus]:
    return [ShardStatus(0, state, epoch, 0, 0, detail)]


async def test_the_owner_of_a_shard_is_the_host_that_says_that_it_has_it() -> None:
    hosts = Hosts()
    hosts.live("one#1", has("owned", detail="since then"), address="one:1")
    found = await hosts.described(row("one#1"))
    assert (found.owner, found.owner_address, found.health, found.detail) == ("one", "one:1", ShardHealth.SERVED, "")
    assert found.last_owner == "one#1"
    hosts.live(ME, has("owned", epoch=4), address="")
    found = await hosts.described(row("one#1"))
    assert (found.owner, found.owner_address, found.health) == ("me", "", ShardHealth.SERVED), "it took it just now"


async def test_a_sick_shard_has_an_owner_and_a_reason() -> None:
    hosts = Hosts()
    hosts.live("one#1", has("sick", detail="its server hangs"))
    found = await hosts.described(row("one#1"))
    assert (found.owner, found.health, found.detail) == ("one", ShardHealth.SICK, "its server hangs")


@pytest.mark.parametrize(
    ("last_owner", "says", "detail"),
    [
        ("gone#1", has("owned"), "host gone#1 took it last, and lives no more"),
        ("one#1", has("lost", epoch=0, detail="owned by nobody"), "serves it no more: owned by nobody"),
        ("one#1", [], "host one#1 took it last, and serves it no more"),
        ("", [], "no host has taken it yet"),
    ],
)
async def test_a_shard_that_nobody_serves_has_no_owner(last_owner: str, says: list[ShardStatus], detail: str) -> None:
    hosts = Hosts()
    hosts.live("one#1", says)
    found = await hosts.described(row(last_owner, epoch=4))
    assert (found.owner, found.owner_address, found.health) == ("", "", ShardHealth.UNSERVED)
    assert found.detail.endswith(detail)
    assert "tier" not in found.detail


async def test_each_host_that_tries_a_shard_in_vain_tells_why() -> None:
    hosts = Hosts()
    for number in range(host_rounds.REASONS_MAX + 3):
        hosts.live(f"h{number}#1", has("lost", epoch=0, detail=f"refused {number}"))
    del hosts.says["h1#1"]
    detail = (await hosts.described(row("gone#1"))).detail
    assert detail.startswith("host gone#1 took it last, and lives no more; host h0#1: refused 0; host h1#1: ")
    assert "host h1#1 cannot be reached" in detail
    assert detail.endswith("host h4#1: refused 4; and 3 more hosts")


async def test_a_shard_whose_tier_no_host_has_says_so() -> None:
    hosts = Hosts()
    hosts.live("one#1", [], tier="gold")
    assert "no host of tier 'lead' lives" in (await hosts.described(row("", tier="lead"))).detail
    assert "tier" not in (await hosts.described(row("", tier="gold"))).detail


async def test_what_a_host_that_does_not_answer_serves_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rounds, "ANSWER_MS_MAX", 20)
    hosts = Hosts()
    hosts.live("one#1", None)
    async with asyncio.timeout(PATIENCE_S):
        found = await hosts.described(row("one#1"))
    assert (found.owner, found.health) == ("", ShardHealth.UNKNOWN)
    assert found.detail == "host one#1 has not answered within 20 ms"
    assert (await hosts.described(row(ME))).health is ShardHealth.UNSERVED, "who took it last has answered"
    hosts.says.pop("one#1")
    assert (await hosts.described(row("one#1"))).detail == "host one#1 cannot be reached"
    hosts.live("one#1", has("owned"), address="")
    found = await hosts.described(row("one#1"))
    assert found.detail == "host one#1 reports no address: set its advertise_address"


async def test_a_host_that_is_found_dead_while_it_is_asked_is_gone() -> None:
    hosts = Hosts()
    hosts.live("one#1", None)
    asked = asyncio.create_task(hosts.described(row("one#1")))
    for _ in range(4):
        await asyncio.sleep(0)
    hosts.owners.living = {ME: hosts.owners.living[ME]}
    hosts.says["one#1"] = []
    hosts.hanging.set()
    found = await asked
    assert (found.health, found.detail) == (ShardHealth.UNSERVED, "host one#1 took it last, and lives no more")


async def test_a_removed_shard_has_no_owner_whatever_a_host_says() -> None:
    hosts = Hosts()
    hosts.live(ME, has("owned"))
    found = await hosts.described(row(ME, use=ShardUse.REMOVED))
    assert (found.owner, found.health) == ("", ShardHealth.UNSERVED)


async def test_many_who_ask_at_once_share_a_round_and_who_gives_up_ends_it_for_nobody() -> None:
    hosts = Hosts()
    hosts.live("one#1", None)
    first = asyncio.create_task(hosts.rounds.answers())
    second = asyncio.create_task(hosts.rounds.answers())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert hosts.asked_count <= 1
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    hosts.now_s += 1
    third = asyncio.create_task(hosts.rounds.answers())
    for _ in range(4):
        await asyncio.sleep(0)
    assert hosts.asked_count == 2
    await hosts.rounds.stop()
    assert all(
        isinstance(end, asyncio.CancelledError)
        for end in await asyncio.gather(first, second, third, return_exceptions=True)
    )


async def test_the_list_of_hosts_tells_what_each_of_them_does() -> None:
    hosts = Hosts()
    hosts.live("a#1", [*has("owned"), ShardStatus(1, "sick", 1, 0, 0), ShardStatus(2, "lost", 0, 0, 0)], tier="gold")
    hosts.live("b#1", [])
    hosts.live("c#1", [], address="")
    hosts.owners.living = {
        **hosts.owners.living,
        "d#1": HostRow("d#1", "d:1", 5, 1, is_leaving=True, peer_address="d:2"),
        "e#1": HostRow("e#1", "e:1", 5, 1),
        "f#1": HostRow("f#1", "", 5, 1, is_starting=True),
    }
    hosts.says["d#1"] = has("owned")
    hosts.live(ME, [])
    found = {
        one.name: one
        for one in (await hosts.rounds.list_hosts(CallContext("test", principal=EVERYBODY), ListHostsRequest())).hosts
    }
    assert list(found) == ["a", "b", "c", "d", "e", "f", "me"]
    assert {name: one.state for name, one in found.items()} == {
        "a": HostState.SERVING, "b": HostState.STANDBY, "c": HostState.SILENT, "d": HostState.LEAVING,
        "e": HostState.SILENT, "f": HostState.STARTING, "me": HostState.STANDBY,
    }  # fmt: skip
    one = found["a"]
    assert (one.host_id, one.address, one.tier, one.version) == ("a#1", "h:1", "gold", "1")
    assert (one.shards, one.sick_shards, one.is_leaving) == ([0, 1], [1], False)
    assert (found["d"].shards, found["d"].is_leaving, found["d"].started_at_ms) == ([0], True, 5)
    assert [found[name].peer_address for name in "de"] == ["d:2", ""]
    assert "reports no address" in found["c"].detail
    assert found["e"].detail == "host e#1 cannot be reached"
    assert found["f"].detail == "host f#1 is starting: it has not opened its port yet"


def test_the_age_of_a_heartbeat_begins_when_it_is_seen() -> None:
    now_s = 100.0
    owners = OwnerMap(lambda: now_s)

    def look(number: int) -> None:
        owners.refresh(ClusterView(ME, {ME: HostRow(ME, "h:1", 1, number)}, {}, is_settled=True))

    look(7)
    now_s = 100.5
    look(7)
    assert owners.beat_age_ms(ME) == 500
    look(8)
    now_s = 102.0
    assert owners.beat_age_ms(ME) == 1_500
    assert owners.beat_age_ms("nobody#1") == 0
