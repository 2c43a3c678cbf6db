"""A password is changed under a running host: ALTER USER, the configuration, SIGHUP, and its sessions may go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.places import place_of
from tests.support.databases import prepared_server
from tests.support.faults.programs import FOQS, Program, free_port
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, until

pytestmark = [pytest.mark.database, pytest.mark.deep]
OLD, NEW = "the old word", "the/new@word"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("passwords")) as server:
        apply(server.url("foqs_meta"), SchemaKind.META)
        for shard_id in range(2):
            apply(server.url(f"foqs_{shard_id}"), SchemaKind.SHARD)
        with closing(MetaStore(server.url("foqs_meta"))) as meta:
            meta.shards.add(1, place_of(server.url("foqs_1")), "")
        run(
            server,
            f"CREATE USER app@localhost IDENTIFIED BY '{OLD}'",
            "GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO app@localhost",
        )
        yield server


def run(server: LocalServer, *statements: str) -> list[tuple[Any, ...]]:
    with closing(server.connect()) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def sessions(server: LocalServer) -> set[int]:
    found = run(server, "SELECT id FROM information_schema.processlist WHERE user = 'app'")
    return {session_id for (session_id,) in found}


def write(file: Path, server: LocalServer, password: str, port: int) -> None:
    def url(database: str) -> str:
        return server.url(database).replace("//root@", f"//app:{quote(password, safe='')}@")

    file.write_text(
        f'meta_url = "{url("foqs_meta")}"\nport = {port}\nhost_name = "h"\n[shards]\n0 = "{url("foqs_0")}"\n'
    )


async def test_a_host_takes_a_new_password_for_new_sessions(server: LocalServer, tmp_path: Path) -> None:
    """Shard 1 is one that only the meta database names: it is opened with the password of meta_url."""
    file, port = tmp_path / "foqs.toml", free_port()
    write(file, server, OLD, port)
    host = Program(str(FOQS), "host", "--config", str(file), name="host")
    try:
        host.wait_for_line(" serves ")
        address = f"127.0.0.1:{port}"
        async with (
            AsyncAdminClient(address, timeout_ms=PATIENCE_MS) as admin,
            AsyncClient(address, timeout_ms=PATIENCE_MS) as client,
        ):
            await admin.create_namespace("jobs")
            await until(lambda: host.events["shard_opened"] == 2)
            before = await client.enqueue("jobs", "t", b"before")

            run(server, f"ALTER USER app@localhost IDENTIFIED BY '{NEW}'")
            write(file, server, NEW, port)
            host.signal(signal.SIGHUP)
            reloaded = host.wait_for_line("configuration_reloaded")
            assert '"changed": ["meta_url", "shards"]' in reloaded
            assert '"needs_restart": []' in reloaded

            gone = sessions(server)
            assert len(gone) >= 3, "the meta database's and one of each shard at least"
            for session_id in gone:
                run(server, f"KILL {session_id}")
            shards: set[str] = {before.split("-")[0]}
            async with asyncio.timeout(PATIENCE_S):
                while shards != {"0", "1"}:
                    result = await client.enqueue_many("jobs", [NewItem("t", b"after")] * 1_000)
                    shards |= {item_id.split("-")[0] for item_id in result.ids if item_id}
            await admin.create_namespace("more")
            (first,) = await client.dequeue("jobs", "t", 1, wait_ms=20_000)
            assert first.payload in (b"before", b"after")
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
        assert "Access denied" not in host.output.partition("configuration_reloaded")[2]
        for word in (OLD, NEW, quote(NEW, safe="")):
            assert word not in host.output
    finally:
        host.close()
