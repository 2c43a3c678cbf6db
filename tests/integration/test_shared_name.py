"""Two hosts, or two clusters, that were given one name."""

from __future__ import annotations

from contextlib import closing
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


async def test_two_hosts_of_one_name_say_so_and_do_not_end_each_others_sessions(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    with patch.object(limits, "HEARTBEAT_MS", 20), capture_logs() as logs:
        async with running_host(meta_url, shard_urls, name="host-1") as first:
            async with running_host(meta_url, shard_urls, name="host-1") as second:
                assert first.host.id != second.host.id
                await until(lambda: sum(log["event"] == "host_name_shared" for log in logs) >= 2)
                await until(lambda: first.host.owned_count + second.host.owned_count == len(shard_urls))
                events = {log["event"] for log in logs}
                told = [(*log["others"],) for log in logs if log["event"] == "host_name_shared"]
                assert len(set(told)) == len(told), "each is told once, not at every heartbeat"
            logs.clear()
            await first.client.enqueue("jobs", "t", b"1")
    assert not {"session_lost"} & events
    assert "host_name_shared" not in {log["event"] for log in logs}


async def test_a_host_that_is_started_again_is_no_namesake_of_itself(meta_url: str, shard_urls: dict[int, str]) -> None:
    with patch.object(limits, "HEARTBEAT_MS", 20), capture_logs() as logs:
        for number in range(2):
            async with running_host(meta_url, shard_urls, name="host-1") as host:
                await until(lambda host=host: host.host.owned_count == len(shard_urls))
                await host.client.enqueue("jobs", "t", b"%d" % number)
    assert "host_name_shared" not in {log["event"] for log in logs}


async def test_two_clusters_of_one_name_share_a_server_as_long_as_their_databases_differ(
    mysql_server: LocalServer, meta_url: str, shard_urls: dict[int, str]
) -> None:
    """Each would take the other's lock for that of a dead host, and end its session."""
    other_urls = mysql_server.create_database("other_meta"), mysql_server.create_database("other_shard")
    apply(other_urls[0], SchemaKind.META)
    apply(other_urls[1], SchemaKind.SHARD)
    try:
        async with running_host(meta_url, {0: shard_urls[0]}, name="one") as one:
            await one.client.enqueue("jobs", "t", b"1")
            session_id = one.host._shards.writers[0]._store._owning_session_id
            with capture_logs() as logs:
                async with running_host(other_urls[0], {0: other_urls[1]}, name="two") as two:
                    await two.client.enqueue("jobs", "t", b"2")
                    await one.client.enqueue("jobs", "t", b"3")
            assert one.host._shards.writers[0]._store._owning_session_id == session_id
        assert not {"session_lost", "shard_lost"} & {log["event"] for log in logs}
    finally:
        with closing(mysql_server.connect()) as session, session.cursor() as cursor:
            cursor.execute("DROP DATABASE other_meta")
            cursor.execute("DROP DATABASE other_shard")
