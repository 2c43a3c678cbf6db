"""Shards that are parked while the others serve, whose databases are restored elsewhere, and that serve again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url
from structlog.testing import capture_logs

from foqs.cluster.members import membership
from foqs.cluster.ownership import owner_word
from foqs.dev.free_port import free_port
from foqs.dev.local_access import TcpListener
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.calls import ClusterShard
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.errors import InvalidArgumentError, NotFoundError, OverloadedError, UnavailableError
from foqs.model.reasons import ReasonCode, Verdict
from foqs.shard import mysql_server
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.places import place_of
from foqs.storage.sessions.session import connect
from tests.support.databases import prepared_server
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.database


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    monkeypatch.setattr(mysql_server, "PLACEMENT_RUN_ITEMS", 1)
    monkeypatch.setattr(owner_word, "NUMBERS_MS", 50)


@pytest.fixture
async def host(meta_url: str, shard_urls: dict[int, str], spare_url: str) -> AsyncIterator[RunningHost]:
    """A host of two shards. It ends before the spare database is dropped."""
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-1") as host:
        await until(lambda: host.host.owned_count == 2)
        yield host


@pytest.fixture
def spare_url(shard_urls: dict[int, str]) -> Iterator[str]:
    """A database with the tables of a shard, on the server of the others."""
    url = shard_urls[1].replace(f"/{make_url(shard_urls[1]).database}", f"/spare_{secrets.token_hex(4)}")
    with closing(connect(shard_urls[1])) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {make_url(url).database}")
        apply(url, SchemaKind.SHARD)
        yield url
        cursor.execute(f"DROP DATABASE {make_url(url).database}")


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[LocalServer]:
    server = prepared_server(tmp_path / "other", listener=TcpListener(free_port(), secrets.token_urlsafe()))
    server.start()
    server.create_database("restored")
    yield server
    server.stop()


def back_up(source_url: str, target_url: str) -> None:
    """Copy all rows, as a dump that is loaded does."""
    with closing(connect(source_url)) as source, closing(connect(target_url)) as target:
        with source.cursor() as reads, target.cursor() as writes:
            reads.execute("SHOW TABLES")
            for (table,) in reads.fetchall():
                writes.execute(f"DELETE FROM {table}")
                reads.execute(f"SELECT * FROM {table}")
                if rows := reads.fetchall():
                    marks = ", ".join(["%s"] * len(rows[0]))
                    writes.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        target.commit()


async def shard(host: RunningHost, shard_id: int) -> ClusterShard:
    return next(one for one in await host.admin.list_shards() if one.shard_id == shard_id)


async def park(host: RunningHost, shard_id: int = 1) -> None:
    assert (await host.admin.update_shard(shard_id, state=ShardUse.PARKED)).state is ShardUse.PARKED
    await eventually(lambda: has_left(host, shard_id), bool)


async def has_left(host: RunningHost, shard_id: int) -> bool:
    found = await shard(host, shard_id)
    return not found.kept_by and found.health is ShardHealth.UNSERVED


async def unpark(host: RunningHost, shard_id: int = 1) -> None:
    await host.admin.update_shard(shard_id, state=ShardUse.SERVING)
    await eventually(lambda: is_served(host, shard_id), bool)


async def is_served(host: RunningHost, shard_id: int) -> bool:
    return (await shard(host, shard_id)).health is ShardHealth.SERVED


async def put(host: RunningHost, count: int = 20) -> set[str]:
    return {await host.client.enqueue("jobs", "t", b"x") for _ in range(count)}


async def consume(host: RunningHost, count: int) -> list[str]:
    ids: list[str] = []
    while len(ids) < count:
        items = await host.client.dequeue("jobs", "t", 100, wait_ms=limits.WAIT_MS_MAX)
        assert items, f"{count - len(ids)} items are missing"
        ids += [item.id for item in items]
        await host.client.ack("jobs", items)
    return ids


def on(shard_id: int, ids: set[str]) -> set[str]:
    return {one for one in ids if shard_of(one) == shard_id}


async def test_the_others_serve_while_a_shard_is_parked_and_its_items_are_there_again_afterwards(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    ids = await put(host)
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-2") as other:
        await park(host)
        assert 1 not in host.host.shards_run | other.host.shards_run, "nobody stands by for it either"
        assert on(1, ids)
        for asked in (host, other):
            with pytest.raises(UnavailableError, match="shard 1 is parked, and nobody serves it"):
                await asked.admin.get_item("jobs", min(on(1, ids)), deadline_ms=1_000)
        added = await put(host, 10)
        assert {shard_of(one) for one in added} == {0}
        assert set(await consume(host, len(on(0, ids)) + 10)) == on(0, ids) | added
        for asked in (host, other):
            explained = await asked.admin.explain("jobs", item_id=min(on(1, ids)))
            reason = explained.reasons[0]
            assert (explained.verdict, reason.code, reason.remedy) == (
                Verdict.STOPPED, ReasonCode.PARKED, "foqs shard unpark 1"
            )  # fmt: skip
            assert ReasonCode.PARKED in [one.code for one in (await asked.admin.explain("jobs", "t")).reasons]
        assert (await shard(host, 1)).detail == "it is parked: see foqs shard unpark 1"
        await unpark(other)
        assert set(await consume(other, len(on(1, ids)))) == on(1, ids)


async def test_leases_outlive_the_time_in_which_their_shard_is_parked(host: RunningHost) -> None:
    ids = on(1, await put(host))
    items = await host.client.dequeue("jobs", "t", 100, lease_ms=limits.LEASE_MS_MAX)
    held = [item for item in items if item.id in ids]
    await park(host)
    errors = await host.client.ack("jobs", held[:1], deadline_ms=500, return_errors=True)
    assert [error.nothing_done for error in errors.values()] == [True]
    await unpark(host)
    await host.client.ack("jobs", held)
    assert len(held) == len(ids)


async def test_a_shard_is_served_from_the_database_that_it_was_relocated_to_and_the_configured_url_is_not_used(
    host: RunningHost, shard_urls: dict[int, str], spare_url: str
) -> None:
    ids = await put(host)
    await park(host)
    back_up(shard_urls[1], spare_url)
    with connect(shard_urls[1]) as session, session.cursor() as cursor:
        cursor.execute("DELETE FROM item")
        cursor.execute("DELETE FROM pack")
        session.commit()
    found = await host.admin.update_shard(1, place=place_of(spare_url))
    assert (found.state, found.place) == (ShardUse.PARKED, place_of(spare_url))
    await unpark(host)
    assert set(await consume(host, len(ids))) == ids
    assert host.host._shards.by_id[1].place == place_of(spare_url)


@pytest.mark.deep
async def test_another_host_serves_it_on_another_server_although_the_last_owner_lives(
    meta_url: str, shard_urls: dict[int, str], other_server: LocalServer
) -> None:
    """The lock of a shard belongs to one server, so the last owner has to say that it has left that one."""
    url = other_server.url("restored")
    apply(url, SchemaKind.SHARD)
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-1") as host:
        ids = await put(host)
        await park(host)
        back_up(shard_urls[1], url)
        # Its configuration has the user of the place.
        async with running_host(meta_url, {0: shard_urls[0], 1: url}, name="host-2") as other:
            await other.admin.update_shard(1, place=place_of(url))
            await other.admin.update_shard(1, pinned_to="host-2")
            await unpark(other)
            assert (await shard(other, 1)).owner == "host-2"
            assert set(await consume(other, len(ids))) == ids


async def test_a_database_that_lacks_transactions_is_taken_only_if_the_loss_is_accepted(
    host: RunningHost, shard_urls: dict[int, str], spare_url: str
) -> None:
    kept = await put(host)
    await until(lambda: host.host._shards.writers[1].is_idle)
    back_up(shard_urls[1], spare_url)
    lost = await put(host)
    await park(host)
    with pytest.raises(InvalidArgumentError, match=r"lacks [0-9]+ transactions of shard 1: .* relocate --lose"):
        await host.admin.update_shard(1, place=place_of(spare_url))
    assert (await shard(host, 1)).place == place_of(shard_urls[1])
    await host.admin.update_shard(1, place=place_of(spare_url), allow_older=True)
    with capture_logs() as logs:
        await unpark(host)
    assert set(await consume(host, len(kept | lost) - len(on(1, lost)))) == kept | on(0, lost)
    assert [log for log in logs if log["event"] == "shard_went_back"]


async def test_only_a_parked_shard_is_relocated_and_only_to_a_database_of_its_own(
    host: RunningHost, shard_urls: dict[int, str], spare_url: str
) -> None:
    await put(host)
    with pytest.raises(InvalidArgumentError, match="shard 1 is serving, and only a parked one can be relocated"):
        await host.admin.update_shard(1, place=place_of(spare_url))
    await park(host)
    with pytest.raises(InvalidArgumentError, match=r"shard 0 is at .*: two shards need two databases"):
        await host.admin.update_shard(1, place=place_of(shard_urls[0]))
    with pytest.raises(InvalidArgumentError, match="shard 1 cannot be served at"):
        await host.admin.update_shard(1, place=place_of(spare_url))
    with pytest.raises(InvalidArgumentError, match=r"neither the configuration .* names its server"):
        await host.admin.update_shard(1, place="mysql://nowhere:1/d")
    with pytest.raises(InvalidArgumentError, match="a call relocates a shard and does nothing else"):
        await host.admin.update_shard(1, place=place_of(spare_url), state=ShardUse.SERVING)
    with pytest.raises(InvalidArgumentError):
        await host.admin.update_shard(1, place="")
    with pytest.raises(NotFoundError):
        await host.admin.update_shard(7, place=place_of(spare_url))
    assert (await shard(host, 1)).place == place_of(shard_urls[1])


async def test_the_last_shard_that_takes_items_is_parked_only_on_demand(host: RunningHost) -> None:
    await park(host)
    with pytest.raises(InvalidArgumentError, match="shard 0 is the last one"):
        await host.admin.update_shard(0, state=ShardUse.PARKED)
    await host.admin.update_shard(0, state=ShardUse.PARKED, last=True)
    await eventually(lambda: has_left(host, 0), bool)
    with pytest.raises(OverloadedError):
        await host.client.enqueue("jobs", "t", b"x", deadline_ms=500)


async def test_a_parked_shard_of_a_host_that_died_is_relocated_once_it_is_dead(
    meta_url: str, shard_urls: dict[int, str], spare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(self: membership.Membership, left: object) -> list[int]:
        return []

    monkeypatch.setattr(membership.Membership, "leave_servers", say_nothing)
    async with running_host(meta_url, {0: shard_urls[0]}, name="host-2") as other:
        async with running_host(meta_url, {1: shard_urls[1]}, name="host-1") as host:
            await until(lambda: host.host.owned_count == 1)
            await other.admin.update_shard(1, state=ShardUse.PARKED)
            with pytest.raises(UnavailableError, match="has not left its database yet"):
                await other.admin.update_shard(1, place=place_of(spare_url), deadline_ms=500)
        back_up(shard_urls[1], spare_url)

        async def is_dead() -> bool:
            try:
                await other.admin.update_shard(1, place=place_of(spare_url), deadline_ms=500)
            except UnavailableError:
                return False
            except InvalidArgumentError as error:
                return "has not reported its last transaction" in error.message
            return False

        await eventually(is_dead, bool)
        await other.admin.update_shard(1, place=place_of(spare_url), allow_older=True)
        await unpark(other)
        assert (await shard(other, 1)).owner == "host-2"
