"""Two real hosts whose secret is replaced: what stops in the middle, starts in the middle, or is away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from sqlalchemy import make_url
from structlog.testing import capture_logs

from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.dev.local_server import LocalServer
from foqs.model.cluster_secret import ClusterSecret
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import HOST_ROW_READ_MS
from foqs.model.secret import Secret
from foqs.storage.meta.meta_store import MetaStore
from tests.support.faults.programs import HostProgram, free_port
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import PATIENCE_S, eventually, until

pytestmark = [pytest.mark.database, pytest.mark.deep]
NEW, THIRD = Secret(b"n" * 32), Secret(b"t" * 32)


@pytest.fixture
def meta(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        yield meta


@asynccontextmanager
async def two_hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[tuple[RunningHost, RunningHost]]:
    async with (
        asyncio.timeout(2 * PATIENCE_S),
        running_host(meta_url, shard_urls, name="one") as one,
        running_host(meta_url, shard_urls, name="two", namespace=None) as two,
    ):
        await until(lambda: one.host.owned_count == two.host.owned_count == len(shard_urls) // 2)
        yield one, two


def secrets_of(host: RunningHost) -> ClusterSecrets:
    return host.host._secrets


def links_of(host: RunningHost) -> dict[str, Any]:
    """The connections of a host to others, by their ids."""
    peers: Any = host.host._routing._peers
    return {host_id: link for host_id, link in peers._links.items() if link.connection is not None}


async def until_called_by(new_id: str, *hosts: RunningHost) -> None:
    """Ask hosts for what is on others until each uses the secret for all of its connections.

    A shard that moves meanwhile is served by nobody for a moment, and the question is refused.
    """

    async def ask() -> bool:
        try:
            for host in hosts:
                await host.admin.host_status()
                assert [topic async for topic in host.client.topics("jobs")] == []
        except UnavailableError:
            return False
        links = [link for host in hosts for link in links_of(host).values()]
        return bool(links) and all(link.secret_id == new_id for link in links)

    await eventually(ask, bool)


async def finished(meta: MetaStore) -> ClusterSecret:
    """Finish as soon as all hosts know the new secret."""

    async def finish() -> ClusterSecret | UnavailableError:
        try:
            return await asyncio.to_thread(meta.secrets.finish)
        except UnavailableError as error:
            return error

    found = await eventually(finish, lambda one: isinstance(one, ClusterSecret))
    assert isinstance(found, ClusterSecret)
    return found


def execute(server: LocalServer, url: str, statement: str) -> None:
    with closing(server.connect(make_url(url).database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()


async def test_hosts_move_to_the_new_secret_and_then_know_it_alone(
    meta_url: str, shard_urls: dict[int, str], meta: MetaStore
) -> None:
    async with two_hosts(meta_url, shard_urls) as (one, two):
        (old_id,) = secrets_of(one).ids
        await until_called_by(old_id, one)
        began = meta.secrets.begin(NEW)
        await until(lambda: secrets_of(one).ids == secrets_of(two).ids == began.ids)
        await until_called_by(began.ids[1], one)
        assert (await finished(meta)).ids == (began.ids[1],)
        await until(lambda: secrets_of(one).ids == secrets_of(two).ids == (began.ids[1],))
        await until_called_by(began.ids[1], one)
        second = meta.secrets.begin(THIRD)
        await finished(meta)
        await until_called_by(second.ids[1], one)
        assert secrets_of(one).has_ended("never known")
        assert not secrets_of(one).has_ended(old_id), "calls over its connections have time to end"


async def test_a_host_that_starts_in_the_middle_knows_both(
    meta_url: str, shard_urls: dict[int, str], meta: MetaStore
) -> None:
    async with two_hosts(meta_url, shard_urls) as (one, two):
        began = meta.secrets.begin(NEW)
        async with running_host(meta_url, shard_urls, name="three", namespace=None) as three:
            assert secrets_of(three).ids == began.ids
            await until(lambda: three.host.owned_count > 0)
            await until_called_by(began.ids[1], one, three)
            await finished(meta)
            await until(lambda: secrets_of(three).ids == secrets_of(two).ids == (began.ids[1],))
            await until_called_by(began.ids[1], one, three)


async def test_a_cancelled_rotation_takes_the_calls_back(
    meta_url: str, shard_urls: dict[int, str], meta: MetaStore
) -> None:
    async with two_hosts(meta_url, shard_urls) as (one, _):
        began = meta.secrets.begin(NEW)
        await until_called_by(began.ids[1], one)
        assert meta.secrets.cancel().ids == began.ids[:1]
        await until_called_by(began.ids[0], one)


@pytest.mark.parametrize(
    ("tables", "event"), [(("cluster_secret",), "shards_not_read"), (("host", "cluster_secret"), "heartbeat_missed")]
)
async def test_a_meta_database_that_is_away_in_the_middle_stops_the_rotation_and_no_call(
    mysql_server: LocalServer,
    meta_url: str,
    shard_urls: dict[int, str],
    meta: MetaStore,
    tables: tuple[str, ...],
    event: str,
) -> None:
    async with two_hosts(meta_url, shard_urls) as (one, two):
        began = meta.secrets.begin(NEW)
        await until(lambda: secrets_of(one).ids == began.ids)
        renamed = ", ".join(f"{name} TO {name}_away" for name in tables)
        execute(mysql_server, meta_url, f"RENAME TABLE {renamed}")
        try:
            with capture_logs() as logs:
                await until(lambda: any(log["event"] == event for log in logs))
            for host in (one, two):
                assert [topic async for topic in host.client.topics("jobs")] == []
            with pytest.raises(UnavailableError, match="lacks a table"):
                meta.secrets.finish()
            assert secrets_of(one).ids == began.ids
        finally:
            execute(mysql_server, meta_url, "RENAME TABLE " + ", ".join(f"{name}_away TO {name}" for name in tables))
        await finished(meta)
        await until_called_by(began.ids[1], one)


async def test_a_meta_database_from_a_backup_brings_its_older_secret_back(
    meta_url: str, shard_urls: dict[int, str], meta: MetaStore
) -> None:
    async with two_hosts(meta_url, shard_urls) as (one, two):
        found = meta.secrets.read()
        assert found is not None
        began = meta.secrets.begin(NEW)
        await finished(meta)
        await until_called_by(began.ids[1], one)
        # No host says that it knows it, and yet no call between them fails.
        with meta.secrets._sessions.transaction() as connection:
            connection.exec_driver_sql("UPDATE cluster_secret SET secret = %s", (found.current.reveal(),))
        await until(lambda: secrets_of(one).ids == secrets_of(two).ids == found.ids)
        await until_called_by(found.ids[0], one)


async def test_a_host_killed_in_the_middle_is_waited_for_until_it_is_certainly_gone(
    mysql_server: LocalServer, meta_url: str, shard_urls: dict[int, str], meta: MetaStore
) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), running_host(meta_url, shard_urls, name="one") as one:
        other = await asyncio.to_thread(HostProgram, "other", free_port(), meta_url, shard_urls)
        try:
            await until(lambda: len(one.host.owners.living) == 2)
            await asyncio.to_thread(other.kill)
            began = meta.secrets.begin(NEW)
            await until(lambda: secrets_of(one).ids == began.ids)
            with pytest.raises(UnavailableError, match=r"other#\w+ \(not yet"):
                meta.secrets.finish()
            other.close()
            other = await asyncio.to_thread(HostProgram, "other", free_port(), meta_url, shard_urls)
            with pytest.raises(UnavailableError, match=r"other#\w+ \(not yet"):
                meta.secrets.finish()
            execute(
                mysql_server,
                meta_url,
                f"UPDATE host SET heartbeat_at = heartbeat_at - {HOST_ROW_READ_MS} WHERE secret_ids NOT LIKE '% %'",
            )
            await finished(meta)
            await until(lambda: one.host.owned_count == len(shard_urls) // 2)
            await until_called_by(began.ids[1], one)
        finally:
            await asyncio.to_thread(other.close)
