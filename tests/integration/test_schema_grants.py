"""The two users that `foqs schema grants` makes: one for the tables, and one that only serves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.storage.schema.database_users import tables_of
from foqs.storage.schema.migrations import SchemaKind
from foqs.storage.sessions.session import connect
from tests.support.databases import prepared_server
from tests.support.faults.programs import FOQS, foqs
from tests.support.running_host import running_host

pytestmark = [pytest.mark.database, pytest.mark.deep]
Urls = dict[str, dict[str, str]]
"""The URLs of databases by their names, by user."""
DATABASES = ("foqs_meta", "foqs_0", "foqs_1")
DENIED = (1044, 1142, 1143, 1227, 1370, 1410, 1045)
"""The codes by which MySQL and MariaDB refuse for want of a privilege."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("grants")) as server:
        yield server


@pytest.fixture(scope="module")
def urls(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Urls:
    """The URLs of the databases by user, which were made only by what the command prints."""
    found: Urls = {}
    directory = tmp_path_factory.mktemp("passwords")
    for user in ("foqs_schema", "foqs"):
        password = directory / user
        password.write_text(f"word of {user}!")
        password.chmod(0o600)
        found[user] = {
            name: f"{server.url(name).replace('//root@', f'//{user}@')}&password_file={password}" for name in DATABASES
        }
    execute(server, printed(found["foqs"], "schema"))
    execute(server, ["ALTER USER foqs_schema@localhost IDENTIFIED BY 'word of foqs_schema!' ACCOUNT UNLOCK"])
    foqs("schema", "apply", *flags(found["foqs_schema"]))
    execute(server, printed(found["foqs"], "data"))
    execute(server, ["ALTER USER foqs@localhost IDENTIFIED BY 'word of foqs!' ACCOUNT UNLOCK"])
    return found


def flags(urls: dict[str, str]) -> list[str]:
    return ["--meta-url", urls["foqs_meta"], "--shard", f"0={urls['foqs_0']}", "--shard", f"1={urls['foqs_1']}"]


def printed(urls: dict[str, str], user: str) -> list[str]:
    accounts = ["--schema-user", "foqs_schema@localhost", "--data-user", "foqs@localhost"]
    lines = foqs("schema", "grants", "--user", user, *accounts, *flags(urls)).splitlines()
    return [line.removesuffix(";") for line in lines if not line.startswith("--")]


def execute(server: LocalServer, statements: list[str]) -> None:
    with closing(server.connect()) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


async def test_a_host_serves_as_the_data_user(urls: Urls) -> None:
    mine = urls["foqs"]
    async with running_host(mine["foqs_meta"], {0: mine["foqs_0"], 1: mine["foqs_1"]}) as host:
        await host.client.enqueue_many("jobs", [NewItem("t", b"x", dedup_id=f"{at}") for at in range(20)])
        items = await host.leased(20)
        assert not await host.client.ack("jobs", [item.receipt for item in items], return_errors=True)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE foqs_0.item ADD COLUMN more INT", "DROP TABLE foqs_0.item", "TRUNCATE foqs_0.item",
        "CREATE TABLE foqs_0.more (one INT)", "CREATE INDEX more ON foqs_0.item (id)", "DROP DATABASE foqs_1",
        "CREATE DATABASE foqs_2", "CREATE VIEW foqs_0.more AS SELECT 1", "CREATE USER more@localhost",
        "GRANT SELECT ON foqs_0.item TO foqs_schema@localhost", "ALTER USER foqs_schema@localhost ACCOUNT LOCK",
        "RENAME TABLE foqs_0.item TO foqs_0.other", "SELECT * FROM mysql.user", "SET GLOBAL read_only = 1",
        "UPDATE foqs_meta.cluster_secret SET secret = ''", "DELETE FROM foqs_meta.cluster_secret",
        "UPDATE foqs_meta.cluster_id SET id = ''", "DELETE FROM foqs_meta.audit", "UPDATE foqs_meta.audit SET at = 0",
        "DELETE FROM foqs_meta.schema_migration", "INSERT INTO foqs_0.schema_migration VALUES (99, '', '', 0, 0)",
        "SELECT 1 INTO OUTFILE '/tmp/never-written-by-foqs'",
    ],
)  # fmt: skip
def test_the_data_user_cannot_change_the_schema_or_what_holds_the_cluster(urls: Urls, statement: str) -> None:
    with closing(connect(urls["foqs"]["foqs_0"])) as session, session.cursor() as cursor:
        with pytest.raises(pymysql.err.Error) as refused:
            cursor.execute(statement)
        assert refused.value.args[0] in DENIED, refused.value


def test_the_data_user_applies_no_migrations_and_the_schema_user_does_again(urls: Urls) -> None:
    assert (
        "up to date"
        in subprocess.run(
            [FOQS, "schema", "apply", *flags(urls["foqs_schema"])], capture_output=True, text=True, check=True
        ).stderr
    )
    refused = subprocess.run(
        [FOQS, "schema", "apply", *flags(urls["foqs"])], capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "command denied" in refused.stderr
    assert foqs("schema", "status", *flags(urls["foqs"]))


def test_a_new_user_is_locked_and_the_statements_can_be_repeated(server: LocalServer, urls: Urls) -> None:
    accounts = ["--data-user", "late@localhost"]
    lines = foqs("schema", "grants", "--user", "data", *accounts, *flags(urls["foqs"])).splitlines()
    statements = [line.removesuffix(";") for line in lines if not line.startswith("--")]
    execute(server, statements * 2)
    with pytest.raises(pymysql.err.OperationalError):
        connect(server.url("foqs_0").replace("//root@", "//late@"))
    execute(server, printed(urls["foqs"], "both"))
    connect(urls["foqs"]["foqs_0"]).close()


@pytest.mark.parametrize("kind", list(SchemaKind))
def test_each_table_that_exists_has_a_grant(server: LocalServer, urls: Urls, kind: SchemaKind) -> None:
    name = "foqs_meta" if kind is SchemaKind.META else "foqs_0"
    with closing(server.connect(name)) as session, session.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        assert {table for (table,) in cursor.fetchall()} == set(tables_of(kind))


@pytest.mark.parametrize("user", ["", "a'b", "x" * 33, "a@b'c", "a b"])
def test_a_user_that_could_break_out_of_a_statement_is_refused(urls: Urls, user: str) -> None:
    done = subprocess.run(
        [FOQS, "schema", "grants", "--data-user", user, *flags(urls["foqs"])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is no account" in done.stderr


def test_names_of_databases_stand_for_no_others(urls: Urls, tmp_path: Path) -> None:
    said = foqs("schema", "grants", "--meta-url", "mysql://db-0/my_meta%25x", "--shard", "0=mysql://db-1/s`0")
    assert "ON `my\\_meta\\%x`.* TO 'foqs_schema'@'%';" in said
    assert "ON `my_meta%x`.`host` TO 'foqs'@'%';" in said
    assert "ON `s``0`.`item` TO 'foqs'@'%';" in said
    assert said.index("-- db-0:3306") < said.index("-- db-1:3306")
