"""Two hosts, or two clusters, that were given one name."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.dev.local_server import LocalServer
from foqs.host.membership import Membership
from foqs.model import limits
from foqs.storage.meta import HostRow, MetaStore
from foqs.storage.migrations import SchemaKind, apply
from tests.support.running_host import running_host

pytestmark = pytest.mark.database

PATIENCE_S = 20


class WatchedMeta(MetaStore):
    """Sets `beaten` after every heartbeat."""

    loop: asyncio.AbstractEventLoop
    beaten: asyncio.Event

    def beat(self, name: str, address: str, started_at_ms: int) -> list[HostRow]:
        rows = super().beat(name, address, started_at_ms)
        self.loop.call_soon_threadsafe(self.beaten.set)
        return rows


async def test_both_of_two_hosts_with_one_name_say_so_and_a_restarted_one_does_not(meta_url: str) -> None:
    with patch.object(limits, "HEARTBEAT_MS", 10):
        first, second = [await _started(meta_url, number) for number in (1, 2)]
        with capture_logs() as logs:
            for _ in range(3):
                await _beat(first)
                await _beat(second)
        told = {(log["event"], log["other_address"]) for log in logs}
        await first.stop()
        with capture_logs() as logs_alone:
            await _beat(second)  # This one may still meet the other's last.
            logs_alone.clear()
            await _beat(second)
        await second.stop()
    assert told == {("host_name_shared", "10.0.0.1:7600"), ("host_name_shared", "10.0.0.2:7600")}
    assert logs_alone == []


async def _started(meta_url: str, number: int) -> Membership:
    meta = WatchedMeta(meta_url)
    meta.loop, meta.beaten = asyncio.get_running_loop(), asyncio.Event()
    membership = Membership(meta, "host-1", f"10.0.0.{number}:7600", number, time.monotonic)
    await membership.start()
    return membership


async def _beat(membership: Membership) -> None:
    """Return after one more whole round."""
    meta = membership._meta
    assert isinstance(meta, WatchedMeta)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            meta.beaten.clear()
            await meta.beaten.wait()


async def test_two_clusters_of_one_name_share_a_server_as_long_as_their_databases_differ(
    mysql_server: LocalServer, meta_url: str, shard_urls: dict[int, str]
) -> None:
    """Each would take the other's lock for that of a dead host, and end its session."""
    other_urls = mysql_server.create_database("other_meta"), mysql_server.create_database("other_shard")
    apply(other_urls[0], SchemaKind.META)
    apply(other_urls[1], SchemaKind.SHARD)
    try:
        async with running_host(meta_url, {0: shard_urls[0]}, name="one") as one:
            locked = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'shard_0'"
            await one.client.enqueue("jobs", "t", b"1")
            sessions = one.rows(locked)
            with capture_logs() as logs:
                async with running_host(other_urls[0], {0: other_urls[1]}, name="two") as two:
                    await two.client.enqueue("jobs", "t", b"2")
                    await one.client.enqueue("jobs", "t", b"3")
            assert one.rows(locked) == sessions
        assert not {"session_lost", "shard_lost"} & {log["event"] for log in logs}
    finally:
        with closing(mysql_server.connect()) as session, session.cursor() as cursor:
            cursor.execute("DROP DATABASE other_meta")
            cursor.execute("DROP DATABASE other_shard")
