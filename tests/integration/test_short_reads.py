"""A server that returns fewer rows than there are: no item ends for that, and the shard says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from structlog.testing import capture_logs

from foqs.client.queue_items import Item, NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.ids import parse
from foqs.shard.writer import keeper
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema import statements
from foqs.storage.schema.migrations import SchemaKind, check_current
from foqs.storage.sessions import session_variables
from foqs.storage.sessions.session import connect
from foqs.storage.sessions.whole_reads import ShortReadError
from tests.support.cut_reads import cut_reads
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@contextmanager
def global_variables(server: LocalServer, values: Mapping[str, object]) -> Iterator[None]:
    """The variables have the values for all sessions that begin meanwhile."""
    with closing(server.connect()) as root, root.cursor() as cursor, ExitStack() as stack:
        for name, value in values.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            ((before,),) = cursor.fetchall()
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))
            stack.callback(cursor.execute, f"SET GLOBAL {name} = %s", (before,))
        yield


def is_served(running: RunningHost) -> bool:
    writer = running.host._shards.writers[0]
    return writer.shard is not None and writer.health.healthy


async def all_delivered(running: RunningHost, topic: str, count: int) -> set[str]:
    found: set[str] = set()
    while len(found) < count:
        items = await running.client.dequeue("jobs", topic, 100, wait_ms=20_000)
        assert items, f"only {len(found)} of {count} items came"
        found |= {item.id for item in items}
        await running.client.ack("jobs", [item.receipt for item in items])
    return found


@pytest.mark.parametrize("limit", [0, 10])
async def test_no_delayed_item_is_lost_when_the_server_limits_what_sessions_select(
    meta_url: str, shard_urls: Mapping[int, str], mysql_server: LocalServer, limit: int
) -> None:
    with global_variables(mysql_server, {"sql_select_limit": limit}):
        async with running_host(meta_url, {0: shard_urls[0]}) as running:
            result = await running.client.enqueue_many("jobs", [NewItem("t", b"x", delay_ms=1_000) for _ in range(300)])
            assert await all_delivered(running, "t", 300) == set(result.ids)
    assert running.items_stored() == 0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the server's clock on by an hour, which hosts notice in no time."""
    monkeypatch.setattr(keeper, "CLOCK_PROBE_MS", 50)
    return lambda: monkeypatch.setattr(statements, "NOW_MS", f"{statements.NOW_MS} + {limits.HOUR_MS}")


@pytest.mark.parametrize("rows_max", [0, 1, 10])
async def test_what_a_proxy_leaves_out_is_not_deleted_and_the_shard_says_so_until_it_is_mended(
    meta_url: str, shard_urls: Mapping[int, str], rows_max: int, later: Callable[[], None]
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as running:
        news = [NewItem("t", b"x", delay_ms=limits.HOUR_MS) for _ in range(300)]
        result = await running.client.enqueue_many("jobs", news)
        with cut_reads(rows_max):
            later()
            consumer = asyncio.create_task(running.client.dequeue("jobs", "t", 100, wait_ms=20_000))
            await until(lambda: not is_served(running) and "row" in running.host._shards.writers[0].detail)
        assert running.items_stored() == 300
        first: list[Item] = []
        with suppress(UnavailableError):  # The host may have had no shard just then.
            first = await consumer
        await until(lambda: is_served(running))
        await running.client.ack("jobs", [item.receipt for item in first])
        left = set(result.ids) - {item.id for item in first}
        assert await all_delivered(running, "t", len(left)) == left


async def test_a_row_that_is_gone_keeps_a_transaction_from_changing_anything(
    meta_url: str, shard_urls: Mapping[int, str], mysql_server: LocalServer, later: Callable[[], None]
) -> None:
    """Somebody has deleted delayed items by hand: their owner reads its shard anew, and serves what there is."""
    async with running_host(meta_url, {0: shard_urls[0]}) as running:
        result = await running.client.enqueue_many(
            "jobs", [NewItem("t", b"x", delay_ms=limits.HOUR_MS) for _ in range(20)]
        )
        gone = {parse(item_id)[1] for item_id in result.ids[:5]}
        with capture_logs() as logs, closing(mysql_server.connect("shard_0")) as other, other.cursor() as cursor:
            cursor.execute(f"DELETE FROM item WHERE id IN ({','.join(map(str, gone))})")
            other.commit()
            later()
            await until(lambda: any(log["event"] == "shard_lost" for log in logs) and is_served(running))
            assert await all_delivered(running, "t", 15) == set(result.ids[5:])
        lost = [log for log in logs if log["event"] == "shard_lost"]
        assert "of those that a transaction was to change or delete it has found 15" in lost[0]["error"]


HOSTILE = {
    "sql_select_limit": 7, "max_join_size": 1, "sql_big_selects": 0, "sql_safe_updates": 1, "autocommit": 1,
    "completion_type": "RELEASE", "sql_mode": "ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE", "sql_auto_is_null": 1,
    "foreign_key_checks": 0, "unique_checks": 0, "time_zone": "-07:00", "net_read_timeout": 1, "net_write_timeout": 1,
    "tx_isolation": "SERIALIZABLE", "tx_read_only": 1, "max_statement_time": 1, "check_constraint_checks": 0,
    "innodb_lock_wait_timeout": 1, "lock_wait_timeout": 1,
}  # fmt: skip
"""Global values that a host's sessions must not inherit."""


async def test_a_host_serves_whatever_values_new_sessions_begin_with(
    meta_url: str, shard_urls: Mapping[int, str], mysql_server: LocalServer
) -> None:
    names = known_names(mysql_server)
    with global_variables(mysql_server, names):
        check_current(meta_url, SchemaKind.META)
        async with running_host(meta_url, {0: shard_urls[0]}) as running:
            new = [NewItem("t", b"x", dedup_id=str(n)) for n in range(40)]
            ids = (await running.client.enqueue_many("jobs", new)).ids
            assert (await running.client.enqueue_many("jobs", new)).ids == ids
            assert await all_delivered(running, "t", 40) == set(ids)
            sessions = [running.host._shards.writers[0]._store._session, connect(shard_urls[0])]
            meta = MetaStore(meta_url)
            sessions.append(meta._sessions._connect())
            for session in sessions:
                with session.cursor() as cursor:
                    cursor.execute("SHOW SESSION VARIABLES")
                    found = dict(cursor.fetchall())
                for name, value in names.items():
                    assert session_variables._plain(found[name]) != session_variables._plain(str(value)), name
            for session in sessions[1:]:
                session.close()
            meta.close()


def known_names(server: LocalServer) -> dict[str, object]:
    """The hostile values by the names that this server has for the variables."""
    with closing(server.connect()) as root, root.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        there = {name for name, _ in cursor.fetchall()}
    named = {name if name in there else name.replace("tx_", "transaction_"): value for name, value in HOSTILE.items()}
    return {name: value for name, value in named.items() if name in there}


def test_the_variables_that_sessions_are_given_are_tried_one_by_one() -> None:
    given = {*session_variables.SET, *session_variables.SET_OF_MARIADB, "innodb_lock_wait_timeout", "lock_wait_timeout"}
    assert HOSTILE.keys() == given


def test_a_cursor_that_counts_takes_statements_as_bytes_as_the_driver_sends_inserts_of_many_rows(meta_url: str) -> None:
    with (
        closing(MetaStore(meta_url)) as meta,
        closing(meta._sessions._connect()) as session,
        session.cursor() as cursor,
    ):
        cursor.executemany("INSERT INTO quota (namespace, book) VALUES (%s, %s)", [(1, b"\xff'"), (2, b"")])
        for select in ("SELECT book FROM quota WHERE namespace = 1", b"SELECT book FROM quota WHERE book = '\xff\\''"):
            cursor.execute(select)
            assert cursor.fetchall() == ((b"\xff'",),)
        cursor.execute("SET SESSION sql_select_limit = 1")
        with pytest.raises(ShortReadError):
            cursor.execute(b"SELECT namespace FROM quota")
