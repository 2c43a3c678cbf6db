"""The verbs on shards: a cluster gets shards, drains them, and loses them, while its host runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from foqs.client.queue_items import NewItem
from foqs.cluster.members import membership
from foqs.model import limits
from foqs.model.calls import ClusterShard
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.cluster_calls import HostState
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from foqs.shard import mysql_server
from foqs.storage.sessions.places import place_of
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.database


@pytest.fixture
async def host(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningHost]:
    """A host of two shards, which have slots."""
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    monkeypatch.setattr(mysql_server, "PLACEMENT_RUN_ITEMS", 1)
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-1") as host:
        yield host


async def shard(host: RunningHost, shard_id: int) -> ClusterShard:
    return next(one for one in await host.admin.list_shards() if one.shard_id == shard_id)


async def placed(host: RunningHost, count: int = 30) -> set[int]:
    return {shard_of(await host.client.enqueue("jobs", "t", b"x")) for _ in range(count)}


async def empty(host: RunningHost) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await host.stats("jobs"):
            items = await host.client.dequeue("jobs", "t", 100, wait_ms=300)
            await host.client.ack("jobs", items)


async def test_the_list_tells_places_without_passwords_and_who_owns_what(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    await until(lambda: host.host.owned_count == 2)
    found = await host.admin.list_shards()
    assert [one.shard_id for one in found] == [0, 1]
    assert [one.place for one in found] == [place_of(shard_urls[0]), place_of(shard_urls[1])]
    assert "@" not in found[0].place
    assert {(one.owner, one.state, one.tier, one.pinned_to, one.moving_to) for one in found} == {
        ("host-1", ShardUse.SERVING, "", "", "")
    }
    assert {one.epoch for one in found} == {1}
    await eventually(lambda: shard(host, 0), lambda one: one.owner_address == host.address)


async def test_a_shard_that_is_added_takes_items_soon(host: RunningHost, shard_urls: dict[int, str]) -> None:
    added = await host.admin.add_shard(2, place_of(shard_urls[2]))
    assert (added.shard_id, added.owner, added.state) == (2, "", ShardUse.SERVING)
    await until(lambda: host.host.owned_count == 3)
    assert await placed(host) == {0, 1, 2}


async def test_a_place_where_no_shard_can_be_served_is_not_added(host: RunningHost) -> None:
    for shard_id, place in (
        (7, "nonsense"),
        (7, "postgresql://h/d"),
        (7, "mysql://user:secret@h/d"),
        (7, "mysql://127.0.0.1:1/d"),
        (70_000, "mysql://h/d"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            await host.admin.add_shard(shard_id, place)
        assert "secret" not in str(raised.value)
        assert len(await host.admin.list_shards()) == 2, place


async def test_two_shards_need_two_databases_and_two_ids(host: RunningHost, shard_urls: dict[int, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="that of shard 0, and two shards need two databases"):
        await host.admin.add_shard(2, place_of(shard_urls[0]))
    with pytest.raises(AlreadyExistsError):
        await host.admin.add_shard(1, place_of(shard_urls[2]))
    for last in (False, True):
        with pytest.raises(NotFoundError, match="there is no shard 9"):
            await host.admin.update_shard(9, state=ShardUse.DRAINING, last=last)
    with pytest.raises(NotFoundError, match="there is no shard 9"):
        await host.admin.remove_shard(9)
    with pytest.raises(InvalidArgumentError):
        await host.admin.update_shard(1, state=ShardUse.REMOVED)
    with pytest.raises(InvalidArgumentError):
        await host.admin.update_shard(1, pinned_to="a host")


def slots_have_left(host: RunningHost, shard_id: int) -> bool:
    slots = host.host._slots
    return shard_id not in slots.table.shards and shard_id not in slots.arrivals and host.host._slot_moves.move is None


async def test_a_draining_shard_takes_nothing_new_and_gives_what_it_has(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]))
    await until(lambda: host.host.owned_count == 3)
    assert await placed(host) == {0, 1, 2}
    await host.admin.update_shard(2, state=ShardUse.DRAINING)
    await until(lambda: 2 in host.host._shards.draining)
    assert await placed(host) == {0, 1}
    await empty(host)
    assert await host.stats("jobs") == {}
    await host.admin.update_shard(2, state=ShardUse.SERVING)
    await until(lambda: not host.host._shards.draining)
    assert 2 in await placed(host)


async def test_where_all_shards_drain_nothing_is_taken_and_producers_hear_why(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    await host.admin.update_shard(0, state=ShardUse.DRAINING)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=r"shard 1 is the last one of tier '' .*--last"):
            await host.admin.update_shard(1, state=ShardUse.DRAINING)
    await host.admin.update_shard(0, state=ShardUse.DRAINING), "it drains already"
    assert (await host.admin.update_shard(1, state=ShardUse.DRAINING, last=True)).state is ShardUse.DRAINING
    await host.admin.update_shard(1, state=ShardUse.DRAINING)
    with pytest.raises(InvalidArgumentError, match=r"shard 2 is the last one of tier 'gold'"):
        await host.admin.update_shard(2, state=ShardUse.DRAINING)
    await until(lambda: len(host.host._shards.draining) == 2)
    with pytest.raises(OverloadedError, match=r"all shards of tier '' drain \(2\).*foqs shard serve 0"):
        await host.client.enqueue("jobs", "t", b"x")
    await host.admin.update_shard(1, state=ShardUse.SERVING)
    await until(lambda: len(host.host._shards.draining) == 1)
    assert await placed(host, 3) == {1}


async def test_a_host_without_a_shard_of_a_tier_says_as_well_that_all_of_them_drain(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    await host.admin.update_shard(2, state=ShardUse.DRAINING, last=True)
    await until(lambda: 2 in host.host._shards.draining)
    await set_tier([host], "gold")
    with pytest.raises(OverloadedError, match=r"all shards of tier 'gold' drain \(1\)"):
        await host.client.enqueue("jobs", "t", b"x")


async def test_a_shard_is_removed_once_it_is_drained_and_empty(host: RunningHost, shard_urls: dict[int, str]) -> None:
    place = place_of(shard_urls[2])
    await host.admin.add_shard(2, place)
    await until(lambda: host.host.owned_count == 3)
    assert 2 in await placed(host)
    with pytest.raises(InvalidArgumentError, match="drain it first"):
        await host.admin.remove_shard(2)
    await until(lambda: 2 in host.host._slots.table.shards)
    await host.admin.update_shard(2, state=ShardUse.DRAINING)
    await until(lambda: 2 in host.host._shards.draining)
    assert "slots" in (await shard(host, 2)).kept_by
    await until(lambda: slots_have_left(host, 2))
    kept = await shard(host, 2)
    assert kept.slots_count == 0
    assert re.fullmatch(r"[1-9]\d* items", kept.kept_by)
    with pytest.raises(InvalidArgumentError, match="still holds"):
        await host.admin.remove_shard(2)
    await empty(host)
    assert (await shard(host, 2)).kept_by == ""
    await host.admin.remove_shard(2)
    await until(lambda: host.host.shards_run == {0, 1})
    assert (await shard(host, 2)).state is ShardUse.REMOVED
    with pytest.raises(NotFoundError, match=f"shard 2 was removed: foqs shard add 2 {re.escape(place)}"):
        await host.admin.remove_shard(2)
    for change in ({"state": ShardUse.SERVING}, {"tier": "gold"}, {"pinned_to": "host-1"}):
        with pytest.raises(NotFoundError, match="shard 2 was removed"):
            await host.admin.update_shard(2, **change)
    # Nobody is asked for it any more, and it may come back where it was.
    await host.admin.create_namespace("n")
    assert await host.admin.delete_namespace("n") is None
    with pytest.raises(AlreadyExistsError):
        await host.admin.add_shard(2, place_of(shard_urls[3]))
    await host.admin.add_shard(2, place)
    await until(lambda: host.host.owned_count == 3)


async def test_a_shard_that_slots_lead_to_is_not_removed(host: RunningHost) -> None:
    await host.admin.update_shard(1, state=ShardUse.DRAINING)
    await until(lambda: 1 in host.host._shards.draining)
    with pytest.raises(InvalidArgumentError, match="slots of dedup ids lead to shard 1"):
        await host.admin.remove_shard(1)


async def test_a_shard_moves_to_the_host_that_it_is_pinned_to(host: RunningHost, meta_url: str) -> None:
    async with running_host(meta_url, {}, name="host-2") as other:
        await until(lambda: (host.host.owned_count, other.host.owned_count) == (1, 1))
        for shard_id in (0, 1):
            await host.admin.update_shard(shard_id, pinned_to="host-2")
        await until(lambda: (host.host.owned_count, other.host.owned_count) == (0, 2))
        assert {one.owner for one in await other.admin.list_shards()} == {"host-2"}


async def test_a_shard_is_removed_by_its_owner_whichever_host_is_asked(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    with pytest.raises(UnavailableError, match="shard 2 is not served by this host, and no host has taken it yet"):
        await host.admin.remove_shard(2)
    async with running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as other:
        await until(lambda: other.host.owned_count == 1 and knows_owner(host, 2))
        with pytest.raises(InvalidArgumentError, match="shard 2 takes items: drain it first"):
            await host.admin.remove_shard(2)
        await host.admin.update_shard(2, state=ShardUse.DRAINING, last=True)
        await until(lambda: 2 in other.host._shards.draining and slots_have_left(other, 2))
        await host.admin.remove_shard(2)
        await until(lambda: other.host.owned_count == 0)
        for one in (host, other):
            with pytest.raises(NotFoundError, match="shard 2 was removed"):
                await one.admin.remove_shard(2)
    assert (await shard(host, 2)).state is ShardUse.REMOVED


async def test_every_host_counts_a_shard_that_nobody_serves_until_it_is_removed(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    """The alert on a shard without an owner needs a sample of it, and a host of another tier is all that there is."""

    def owned(shard_id: int) -> float | None:
        return host.host.metrics.registry.get_sample_value("foqs_shard_owned", {"shard": str(shard_id)})

    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    await until(lambda: owned(2) == 0)
    assert host.host.metrics.registry.get_sample_value("foqs_shard_healthy", {"shard": "2"}) is None
    async with running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as other:
        await until(lambda: other.host.owned_count == 1 and knows_owner(host, 2))
        await host.admin.update_shard(2, state=ShardUse.DRAINING, last=True)
        await until(lambda: 2 in other.host._shards.draining and slots_have_left(other, 2))
        await host.admin.remove_shard(2)
        await until(lambda: owned(2) is None)
    assert (owned(0), owned(1)) == (1, 1)


async def test_a_shard_is_pinned_to_no_host_of_another_tier(host: RunningHost, meta_url: str) -> None:
    async with running_host(meta_url, {}, name="host-2", tier="gold") as other:
        await until(lambda: host.host._sharing.tiers_of("host-2") == {"gold"})
        update = host.admin.update_shard
        with pytest.raises(InvalidArgumentError, match=r"host 'host-2', which serves tier 'gold' "):
            await update(0, pinned_to="host-2")
        assert {one.pinned_to for one in await host.admin.list_shards()} == {""}
        await update(0, pinned_to="host-2", tier="gold")
        await until(lambda: (host.host.shards_run, other.host.shards_run) == ({1}, {0}))
        with pytest.raises(InvalidArgumentError, match="would never get it"):
            await update(0, tier="")
        await update(0, tier="", pinned_to="")
        await update(1, pinned_to="a-host-to-come")


def owner_of(found: ClusterShard) -> tuple[str, str, ShardHealth]:
    return found.owner, found.owner_address, found.health


async def test_a_shard_has_an_owner_only_while_a_host_that_lives_serves_it(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    found = await shard(host, 2)
    assert (found.owner, found.health, found.last_owner) == ("", ShardHealth.UNSERVED, "")
    assert found.detail == "no host has taken it yet; no host of tier 'gold' lives, which it needs"
    async with running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as other:
        await until(lambda: other.host.owned_count == 1 and other.host.id in host.host.owners.living)
        served = ShardHealth.SERVED
        owners = [("host-1", host.address, served)] * 2 + [("host-2", other.address, served)]
        for one in (host, other):
            await eventually(one.admin.list_shards, lambda found: [owner_of(at) for at in found] == owners)
        last_owner = other.host.id
        hosts = [
            ("host-1", host.host.id, [0, 1], HostState.SERVING),
            ("host-2", last_owner, [2], HostState.SERVING),
        ]
        await eventually(
            host.admin.list_hosts, lambda found: [(at.name, at.host_id, at.shards, at.state) for at in found] == hosts
        )
    await until(lambda: last_owner not in host.host.owners.living)
    found = await eventually(lambda: shard(host, 2), lambda one: one.health is ShardHealth.UNSERVED)
    assert (found.owner, found.owner_address, found.last_owner) == ("", "", last_owner)
    assert (found.state, found.health) == (ShardUse.SERVING, ShardHealth.UNSERVED)
    assert f"host {last_owner} took it last, and lives no more" in found.detail


async def test_a_shard_of_a_tier_that_no_host_has_stays_unserved(host: RunningHost, shard_urls: dict[int, str]) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    await until(lambda: 2 in host.host._shards.uses)
    assert host.host.shards_run == {0, 1}
    await host.admin.update_shard(2, tier="")
    await until(lambda: host.host.owned_count == 3)


def knows_owner(host: RunningHost, shard_id: int) -> bool:
    """Whether it can hand calls on to whoever serves the shard."""
    owner = host.host.owners.get(shard_id)
    return owner is not None and bool(owner.address) and not owner.is_moving


async def set_tier(hosts: list[RunningHost], tier: str) -> None:
    """Of the namespace `jobs`, as all of them know it then."""
    await hosts[0].admin.update_namespace("jobs", tier=tier)
    for host in hosts:
        await until(lambda host=host: host.host._namespaces.get("jobs").settings.tier == tier)


@pytest.mark.deep
async def test_items_of_a_namespace_go_to_the_shards_of_its_tier_whichever_host_is_asked(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    async with running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as other:
        hosts = [host, other]
        await until(lambda: (host.host.owned_count, other.host.owned_count) == (2, 1))
        for one in hosts:
            await until(lambda one=one: all(knows_owner(one, shard_id) for shard_id in range(3)))
        for tier, shards in (("", {0, 1}), ("gold", {2}), ("", {0, 1})):
            await set_tier(hosts, tier)
            for one in hosts:
                assert await placed(one, 10) == shards
                bulk = [await one.client.enqueue_many("jobs", [NewItem("t", b"x")], bulk=True) for _ in range(10)]
                assert {shard_of(item_id) for result in bulk for item_id in result.ids} == shards
        await set_tier(hosts, "lead")
        for one in hosts:
            with pytest.raises(UnavailableError, match="no shard of tier 'lead', which items of namespace 'jobs'"):
                await one.client.enqueue("jobs", "t", b"x")
        found = await taken(other, 120)
        assert {shard_of(item_id) for item_id in found} == {0, 1, 2}, "they stay where they are, and come"


@pytest.mark.deep
async def test_no_call_is_handed_on_to_a_host_whose_shards_drain(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    await host.admin.update_shard(1, tier="gold")
    async with (
        running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as two,
        running_host(meta_url, {}, name="host-3", tier="gold", namespace=None) as three,
    ):
        await until(lambda: [at.host.owned_count for at in (host, two, three)] == [1, 1, 1])
        await until(lambda: all(knows_owner(host, shard_id) for shard_id in range(3)))
        await set_tier([host, two, three], "gold")
        for drained, other in ((1, 2), (2, 1)):
            await host.admin.update_shard(drained, state=ShardUse.DRAINING)
            await until(lambda drained=drained: host.host._shards.draining == {drained})
            assert await placed(host, 10) == {other}
            await host.admin.update_shard(drained, state=ShardUse.SERVING)
            await until(lambda: all(not at.host._shards.draining for at in (host, two, three)))


async def test_ids_are_known_again_whatever_the_tier_of_their_namespace(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    await host.admin.add_shard(2, place_of(shard_urls[2]), tier="gold")
    news = [NewItem("t", b"x", dedup_id=f"id-{number}") for number in range(20)]
    async with running_host(meta_url, {}, name="host-2", tier="gold", namespace=None) as other:
        await until(lambda: (host.host.owned_count, other.host.owned_count) == (2, 1))
        first = await host.client.enqueue_many("jobs", news)
        assert not first.errors
        await set_tier([host, other], "gold")
        again = await host.client.enqueue_many("jobs", news)
        assert (again.ids, list(again.duplicates)) == (first.ids, list(range(20)))


async def taken(host: RunningHost, count: int) -> set[str]:
    """So many items of the topic `t`, acked."""
    found: set[str] = set()
    while len(found) < count:
        items = await host.client.dequeue("jobs", "t", 100, wait_ms=20_000)
        assert items, f"{len(found)} of {count} items came"
        await host.client.ack("jobs", items)
        found |= {item.id for item in items}
    return found
