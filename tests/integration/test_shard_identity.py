"""Running hosts and databases that are not those of their shards: each is left alone, and all else is served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.cluster.members import membership
from foqs.model import limits
from foqs.model.cluster import ShardIdentity, ShardUse
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError
from foqs.shard import mysql_server
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from foqs.storage.sessions.session import connect
from foqs.storage.shard.identity import identity_at, keep_identity_at
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    monkeypatch.setattr(mysql_server, "PLACEMENT_RUN_ITEMS", 1)


@pytest.fixture
async def host(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[RunningHost]:
    """A host of two shards."""
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-1") as host:
        await until(lambda: host.host.owned_count == 2)
        yield host


@contextmanager
def meta_of(url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(url)) as meta:
        yield meta


def in_other_words(url: str) -> str:
    """A URL that leads to the same database by another text."""
    other = url.replace("unix_socket=/", "unix_socket=//")
    assert place_of(other) != place_of(url)
    return other


def run(url: str, *statements: str) -> None:
    with closing(connect(url)) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        session.commit()


def lose(meta_url: str) -> None:
    """All of the meta database but who lives, as one that was made anew has it."""
    run(
        meta_url, "DELETE FROM shard", "DELETE FROM cluster_id", "DELETE FROM namespace", "DELETE FROM slot",
        "UPDATE namespace_number SET last = 0",
    )  # fmt: skip


async def details(host: RunningHost) -> dict[int, tuple[str, str]]:
    return {one.shard_id: (one.state, one.detail) for one in (await host.admin.host_status()).shards}


async def epochs(host: RunningHost) -> dict[int, int]:
    return {one.shard_id: one.epoch for one in await host.admin.list_shards()}


@pytest.mark.parametrize("say", [str, in_other_words])
async def test_a_configuration_that_calls_a_shards_database_another_shard_is_not_adopted(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str], say: Any
) -> None:
    before = await epochs(host)
    with capture_logs() as logs:
        async with running_host(
            meta_url, {5: say(shard_urls[0]), 2: shard_urls[2]}, name="host-2", namespace=None
        ) as two:
            await until(lambda: two.host.owned_count == 1)
            state, detail = (await details(two))[5]
            assert state == "lost"
            assert "shard 0" in detail
            assert "two shards need two databases" in detail
            assert (await epochs(host)).keys() == {0, 1, 2}
            # It stands in nobody's way: all shards are asked by these.
            await two.admin.create_namespace("later")
    assert {key: epoch for key, epoch in before.items() if key == 0} == {0: (await epochs(host))[0]}
    (refused,) = [log for log in logs if log["event"] == "shard_refused"]
    assert (refused["shard"], refused["log_level"]) == (5, "error")
    assert identity_at(0, shard_urls[0]) == (host.host._factory.cluster.known, 0)


async def test_a_shard_is_not_added_at_the_database_of_another_one_in_other_words(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"that of shard 0, and two shards need two databases"):
        await host.admin.add_shard(9, place_of(in_other_words(shard_urls[0])))
    assert (await epochs(host)).keys() == {0, 1}


async def test_a_shard_is_not_added_at_the_database_of_another_cluster(
    host: RunningHost, shard_urls: dict[int, str]
) -> None:
    run(shard_urls[2], "INSERT INTO identity VALUES (1, 'another one', 2)")
    with pytest.raises(InvalidArgumentError, match="of another cluster"):
        await host.admin.add_shard(2, place_of(shard_urls[2]))


@pytest.mark.deep
async def test_a_host_with_the_wrong_url_of_a_shard_leaves_it_to_others_and_serves_the_rest(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="host-1") as one:
        await until(lambda: one.host.owned_count == 2)
        known = await epochs(one)
    wrong = {0: shard_urls[1], 2: shard_urls[2]}
    async with running_host(meta_url, wrong, name="host-2", namespace=None) as two:
        await until(lambda: two.host.shards_owned == {1, 2})
        await until(lambda: "that of shard 1" in two.host._shards.writers[0].detail)
        assert (await details(two))[0][0] == "lost"
        assert (await epochs(two))[0] == known[0], "it has asked for no epoch"
        async with running_host(meta_url, {}, name="host-3", namespace=None) as three:
            await until(lambda: 0 in three.host.shards_owned)


async def test_of_two_shards_in_one_new_database_one_is_served(meta_url: str, shard_urls: dict[int, str]) -> None:
    urls = {0: shard_urls[0], 1: in_other_words(shard_urls[0])}
    async with running_host(meta_url, urls, namespace=None) as host:
        await until(lambda: host.host.owned_count == 1)
        (served,) = host.host.shards_owned
        await until(lambda: f"that of shard {served}" in host.host._shards.writers[1 - served].detail)


async def test_a_removed_shard_comes_back_under_its_own_id_alone(host: RunningHost, shard_urls: dict[int, str]) -> None:
    place = place_of(shard_urls[2])
    await host.admin.add_shard(2, place)
    await until(lambda: host.host.owned_count == 3)
    await host.admin.update_shard(2, state=ShardUse.DRAINING)
    await until(lambda: 2 in host.host._shards.draining and 2 not in host.host._slots.table.shards)
    await until(lambda: host.host._slot_moves.move is None and 2 not in host.host._slots.arrivals)
    await host.admin.remove_shard(2)
    await until(lambda: host.host.shards_run == {0, 1})
    with pytest.raises(InvalidArgumentError, match="if shard 2 was removed, add that one again, or drop the database"):
        await host.admin.add_shard(3, place)
    await host.admin.add_shard(2, place)
    await until(lambda: host.host.owned_count == 3)


async def test_a_meta_database_that_was_lost_gets_the_id_back_from_a_host(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    cluster = identity_at(0, shard_urls[0]).cluster
    lose(meta_url)
    with meta_of(meta_url) as meta:
        await until(lambda: meta.cluster.id(b"") == cluster)
    async with running_host(meta_url, {2: shard_urls[2]}, name="host-2", namespace=None) as two:
        await until(lambda: host.host.owned_count + two.host.owned_count == 3)
        await until(lambda: identity_at(2, shard_urls[2]) == ShardIdentity(cluster, 2))


async def test_a_meta_database_that_was_lost_gets_the_id_back_from_a_shard(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, {3: shard_urls[3]}) as host:
        await host.client.enqueue("jobs", "t", b"x")
    cluster = identity_at(3, shard_urls[3]).cluster
    lose(meta_url)
    # The others are new, and opened at the same time: no other id must be made for them.
    async with running_host(meta_url, shard_urls, namespace=None) as host:
        await until(lambda: host.host.owned_count == 4)
        assert {identity_at(n, url).cluster for n, url in shard_urls.items()} == {cluster}
        with meta_of(meta_url) as meta:
            assert meta.cluster.id(b"") == cluster


async def test_a_host_with_another_id_than_the_meta_database_says_so_and_serves_on(
    host: RunningHost, meta_url: str
) -> None:
    run(meta_url, "UPDATE cluster_id SET id = 'another one'", "UPDATE shard SET epoch = 0")
    with capture_logs() as logs:
        await until(lambda: any(log["event"] == "cluster_ids_differ" for log in logs))
    await host.client.enqueue("jobs", "t", b"x")


async def test_a_served_shard_whose_database_was_emptied_is_refused_until_it_is_restored_or_given_up(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    """A restore that brought nothing but the tables: hosts say what to do, and do not make it a new shard."""
    async with running_host(meta_url, {0: shard_urls[0]}) as first:
        await first.client.enqueue("jobs", "t", b"x")
    run(
        shard_urls[0], "DELETE FROM item", "DELETE FROM pack", "DELETE FROM identity",
        "UPDATE writer SET epoch = 0, owner = '', transaction_number = 0, session_id = 0",
    )  # fmt: skip
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}, name="second", namespace=None) as second:
        await until(lambda: "restore the database" in second.host._shards.writers[0].detail)
        assert "--new-shard 0" in second.host._shards.writers[0].detail
        assert identity_at(0, shard_urls[0]) is None
        with meta_of(meta_url) as meta:
            keep_identity_at(shard_urls[0], ShardIdentity(meta.cluster.make_id(), 0))
        await until(lambda: second.host._shards.writers[0].shard is not None)


async def test_no_shard_is_added_again_with_a_new_database(
    host: RunningHost, meta_url: str, shard_urls: dict[int, str]
) -> None:
    with meta_of(meta_url) as meta:
        meta.shards.take_epoch(2, "somebody", 1, 0)
    with pytest.raises(AlreadyExistsError, match="shard 2 exists already"):
        await host.admin.add_shard(2, place_of(shard_urls[2]))
    # One that was removed may come back where it was.
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        cursor.execute(f"UPDATE shard SET state = {int(ShardUse.REMOVED)} WHERE shard_id = 2")
        session.commit()
    with pytest.raises(InvalidArgumentError, match="hosts have served it, in epoch 1 last"):
        await host.admin.add_shard(2, place_of(shard_urls[2]))
