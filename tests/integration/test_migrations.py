from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from foqs.dev.local_server import LocalServer
from foqs.model.errors import UnavailableError
from foqs.storage.schema.migrations import (
    MigrationError,
    SchemaKind,
    apply,
    load_migrations,
    split_statements,
    status,
)
from foqs.storage.sessions.durability import check_durable, durability_problems
from tests.support.databases import Databases

_names = itertools.count()


@pytest.fixture
def database(mysql_server: LocalServer) -> Iterator[str]:
    """The name of a database that does not exist yet."""
    name = f"migrated_{next(_names)}"
    yield name
    query(mysql_server, f"DROP DATABASE IF EXISTS {name}")


def query(server: LocalServer, statement: str) -> tuple[tuple[Any, ...], ...]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def write_migrations(directory: Path, *contents: str) -> Path:
    for number, content in enumerate(contents, start=1):
        (directory / f"{number:04d}_step.sql").write_text(content)
    return directory


@pytest.mark.parametrize("kind", list(SchemaKind))
def test_apply_creates_the_database_and_is_done_the_second_time(
    mysql_server: LocalServer, database: str, kind: SchemaKind
) -> None:
    url = mysql_server.url(database)
    assert status(url, kind).pending == tuple(map(str, load_migrations(kind)))
    assert apply(url, kind) == list(load_migrations(kind))
    assert apply(url, kind) == []
    assert status(url, kind).is_current


def test_callers_at_the_same_time_apply_each_migration_once(mysql_server: LocalServer, database: str) -> None:
    url = mysql_server.url(database)
    applied: list[object] = []
    threads = [threading.Thread(target=lambda: applied.extend(apply(url, SchemaKind.SHARD))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert applied == list(load_migrations(SchemaKind.SHARD))


def test_a_changed_migration_is_refused_but_not_a_changed_comment(
    mysql_server: LocalServer, database: str, tmp_path: Path
) -> None:
    url = mysql_server.url(database)
    apply(url, SchemaKind.META, write_migrations(tmp_path, "-- one\nCREATE TABLE a (n INT);\n"))
    assert apply(url, SchemaKind.META, write_migrations(tmp_path, "-- other;\nCREATE TABLE a (n INT);\n")) == []
    write_migrations(tmp_path, "CREATE TABLE a (n BIGINT);\n")
    with pytest.raises(MigrationError, match="0001_step was changed"):
        apply(url, SchemaKind.META, tmp_path)
    assert "was changed" in status(url, SchemaKind.META, tmp_path).problems[0]


def test_a_database_newer_than_the_code_is_refused(mysql_server: LocalServer, database: str, tmp_path: Path) -> None:
    url = mysql_server.url(database)
    apply(
        url,
        SchemaKind.META,
        write_migrations(tmp_path, "CREATE TABLE a (n INT);\n", "CREATE TABLE b (n INT);\n"),
    )
    (tmp_path / "0002_step.sql").unlink()
    with pytest.raises(MigrationError, match="0002_step, which this version does not know"):
        apply(url, SchemaKind.META, tmp_path)


def test_a_refused_statement_is_named_and_the_migration_goes_on_there_once_it_is_possible(
    mysql_server: LocalServer, database: str, tmp_path: Path
) -> None:
    url = mysql_server.url(database)
    migrations = "CREATE TABLE a (n INT);\nINSERT INTO a VALUES (1);\nCREATE TABLE foreign_table (n INT);\n"
    write_migrations(tmp_path, migrations)
    query(mysql_server, f"CREATE DATABASE {database}")
    query(mysql_server, f"CREATE TABLE {database}.foreign_table (other INT)")
    for _ in range(2):
        with pytest.raises(MigrationError, match=r"statement 3.*already exists"):
            apply(url, SchemaKind.META, tmp_path)
    query(mysql_server, f"DROP TABLE {database}.foreign_table")
    apply(url, SchemaKind.META, tmp_path)
    assert query(mysql_server, f"SELECT n FROM {database}.a") == ((1,),)
    assert status(url, SchemaKind.META, tmp_path).is_current


def test_a_process_that_ended_between_a_statement_and_its_record_is_made_up_for(
    mysql_server: LocalServer, database: str, tmp_path: Path
) -> None:
    url = mysql_server.url(database)
    write_migrations(tmp_path, "CREATE TABLE a (n INT);\nCREATE TABLE b (n INT);\n")
    apply(url, SchemaKind.META, tmp_path)
    query(mysql_server, f"UPDATE {database}.schema_migration SET statements_done = 1, applied_at = 0")
    assert status(url, SchemaKind.META, tmp_path).pending == ("0001_step",)
    apply(url, SchemaKind.META, tmp_path)
    assert status(url, SchemaKind.META, tmp_path).is_current


def test_between_tests_tables_are_as_migrated_and_sessions_are_gone(databases_of_session: Databases) -> None:
    databases_of_session.wipe()
    server = databases_of_session.server
    with closing(server.connect("shard_0", autocommit=False)) as left_over, left_over.cursor() as cursor:
        cursor.execute("INSERT INTO topic VALUES (1, 1, 'committed')")
        cursor.execute("UPDATE writer SET epoch = 7")
        left_over.commit()
        cursor.execute("SELECT GET_LOCK('left over', 1)")
        cursor.execute("INSERT INTO topic VALUES (2, 1, 'open')")
        databases_of_session.wipe()
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("SELECT 1")
    assert query(server, "SELECT COUNT(*) FROM shard_0.topic") == ((0,),)
    assert query(server, "SELECT epoch, owner FROM shard_0.writer") == ((0, b""),)
    assert query(server, "SELECT IS_FREE_LOCK('left over')") == ((1,),)


def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    url = f"mysql+pymysql://root@localhost/x?unix_socket={tmp_path}/none.sock"
    with pytest.raises(UnavailableError):
        apply(url, SchemaKind.META)
    with pytest.raises(UnavailableError):
        status(url, SchemaKind.META)


def test_a_gap_in_the_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0002_late.sql").write_text("SELECT 1;\n")
    with pytest.raises(MigrationError, match=r"\[2\]"):
        load_migrations(SchemaKind.META, tmp_path)


def test_statements_end_with_a_semicolon_at_the_end_of_a_line_outside_comments() -> None:
    assert split_statements("-- a;\nSELECT ';' ,\n  -- b;\n 1;  \n\nSELECT 2;\n") == [
        "SELECT ';' ,\n 1",
        "SELECT 2",
    ]


def test_the_private_server_is_durable_and_every_weaker_setting_is_found(mysql_server: LocalServer) -> None:
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        assert check_durable(connection) == []
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            assert [problem.split()[0] for problem in check_durable(connection)] == ["innodb_flush_log_at_trx_commit"]
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_durable_check_does_not_hide_a_lost_connection(mysql_server: LocalServer) -> None:
    connection = mysql_server.connect()
    connection.close()
    with pytest.raises(pymysql.err.InterfaceError):
        check_durable(connection)


@pytest.mark.parametrize(
    ("changed", "problems"),
    [
        ({}, 0),
        ({"innodb_flush_log_at_trx_commit": "0"}, 1),
        ({"log_bin": "ON", "sync_binlog": "0"}, 1),
        ({"log_bin": "ON", "sync_binlog": "1"}, 0),
        ({"innodb_doublewrite": "OFF"}, 1),
        ({"innodb_doublewrite": "DETECT_ONLY"}, 1),
        ({"innodb_flush_method": "NOSYNC"}, 1),
        ({"innodb_redo_log_enabled": "ON"}, 0),
        ({"innodb_redo_log_enabled": "OFF"}, 1),
        ({"debug_no_sync": "ON"}, 1),
    ],
)
def test_each_setting_that_loses_commits_is_a_problem(changed: dict[str, str], problems: int) -> None:
    durable = {
        "innodb_flush_log_at_trx_commit": "1",
        "innodb_doublewrite": "ON",
        "log_bin": "OFF",
        "sync_binlog": "0",
    }
    assert len(durability_problems(durable | changed)) == problems
