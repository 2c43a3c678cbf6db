"""A server that returns fewer rows than there are: no item ends for that, and the shard says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import pytest

from foqs.client.items import NewItem
from foqs.dev.local_server import LocalServer
from tests.support.running_host import RunningHost, running_host

pytestmark = pytest.mark.database


@contextmanager
def global_variable(server: LocalServer, name: str, value: object) -> Iterator[None]:
    """The variable has the value for all sessions that begin meanwhile."""
    with closing(server.connect()) as root, root.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL {name} = %s", (before,))


async def all_delivered(running: RunningHost, topic: str, count: int) -> set[str]:
    found: set[str] = set()
    while len(found) < count:
        items = await running.client.dequeue("jobs", topic, 100, wait_ms=10_000)
        assert items, f"only {len(found)} of {count} items came"
        found |= {item.id for item in items}
        await running.client.ack("jobs", [item.receipt for item in items])
    return found


@pytest.mark.parametrize("limit", [0, 10])
async def test_no_delayed_item_is_lost_when_the_server_limits_what_sessions_select(
    meta_url: str, shard_urls: Mapping[int, str], mysql_server: LocalServer, limit: int
) -> None:
    with global_variable(mysql_server, "sql_select_limit", limit):
        async with running_host(meta_url, {0: shard_urls[0]}) as running:
            result = await running.client.enqueue_many("jobs", [NewItem("t", b"x", delay_ms=1_000) for _ in range(300)])
            assert await all_delivered(running, "t", 300) == set(result.ids)
    assert running.items_stored() == 0
