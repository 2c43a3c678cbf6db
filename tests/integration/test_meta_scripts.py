"""Scripts on a real meta database: what they read by, and what becomes of the locks of a host that hangs or is far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy.engine import make_url

from foqs.dev.local_server import LocalServer
from foqs.model.cluster import HostRow
from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask, Grant
from foqs.model.meta_bounds import META_SESSIONS_MARKED_MAX, META_SILENT_MS_MAX
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta import meta_scripts
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript, Statement
from foqs.storage.meta.meta_sessions import marks_of
from foqs.storage.meta.meta_store import MetaStore

pytestmark = pytest.mark.database


@pytest.fixture
def meta(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url, process_id="me#1")) as store:
        yield store


@contextmanager
def session_of(url: str, process_id: str) -> Iterator[Any]:
    """A session as that process has them, which says nothing more, as one whose host hangs."""
    store = MetaStore(url, process_id=process_id)
    session = store._sessions._connect()
    try:
        yield session
    finally:
        session._force_close()
        store.close()


def rows_of(session: Any, statement: str) -> Any:
    with session.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def scripts_of(meta: MetaStore, work: Callable[[], Any]) -> list[list[Statement]]:
    """The scripts that the work sends."""
    sent: list[list[Statement]] = []
    before = meta_scripts._Scripting.__call__

    def noted(self: Any, *statements: Statement) -> Any:
        sent.append(list(statements))
        return before(self, *statements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_scripts._Scripting, "__call__", noted)
        work()
    return sent


@pytest.mark.parametrize("kind", ["_connect", "_connect_for_scripts"])
def test_no_session_is_silent_for_long_and_none_waits_for_a_lock_for_longer_than_for_a_response(
    meta: MetaStore, kind: str
) -> None:
    session = meta._sessions._connect() if kind == "_connect" else meta._sessions._connect_for_scripts(3.0)
    names = "@@wait_timeout, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@time_zone"
    with closing(session):
        assert rows_of(session, f"SELECT {names}") == ((META_SILENT_MS_MAX // 1000, 2, 2, "+00:00"),)
    assert META_SILENT_MS_MAX <= 30_000


def test_the_sessions_of_a_host_can_be_told_and_a_session_beyond_the_marks_works_without_one(meta_url: str) -> None:
    marks = marks_of(str(make_url(meta_url).database), "other#1")
    store = MetaStore(meta_url, process_id="other#1")
    sessions = [store._sessions._connect() for _ in range(META_SESSIONS_MARKED_MAX + 1)]
    ids = [rows_of(session, "SELECT CONNECTION_ID()")[0][0] for session in sessions]
    holders = [rows_of(sessions[0], f"SELECT IS_USED_LOCK('{mark}')")[0][0] for mark in marks]
    assert sorted(holders) == sorted(ids[:-1])
    assert max(map(len, marks)) <= 64, "which is the longest name of a lock"
    for session in sessions:
        session._force_close()


def test_what_a_dead_host_has_locked_is_free_once_its_sessions_are_ended_and_nobody_elses_are(
    meta: MetaStore, meta_url: str
) -> None:
    number = meta.namespaces.insert("jobs", NamespaceSettings(), 1).number
    meta.shards.take_epoch(3, "dead#1", 0, 0)
    meta.quotas.ask("a", {number: Ask(1)})
    with session_of(meta_url, "dead#1") as dead, session_of(meta_url, "living#1") as living:
        rows_of(dead, "SELECT * FROM shard WHERE shard_id = 3 FOR UPDATE")
        rows_of(dead, f"SELECT * FROM quota WHERE namespace = {number} FOR UPDATE")
        assert isinstance(meta.quotas.ask("a", {number: Ask(1)})[number], UnavailableError)
        assert meta.hosts.end_sessions("dead#1") == (1, 0)
        assert isinstance(meta.quotas.ask("a", {number: Ask(1)})[number], Grant)
        assert meta.shards.take_epoch(3, "me#1", 0, 0).epoch == 2
        assert rows_of(living, "SELECT 1") == ((1,),)
        assert meta.hosts.end_sessions("dead#1") == (0, 0)
        with pytest.raises(pymysql.err.Error):
            rows_of(dead, "SELECT 1")


def test_a_user_with_the_least_grants_ends_its_own_sessions_and_is_told_that_it_must_not_end_others(
    meta: MetaStore, meta_url: str, mysql_server: LocalServer
) -> None:
    name = make_url(meta_url).database
    users = [f"foqs_meta_{number}" for number in range(2)]
    with closing(mysql_server.connect(name)) as root, root.cursor() as cursor:
        for user in users:
            cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'")
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}@'%'")
        urls = [make_url(meta_url).set(username=user, password="secret") for user in users]
        one, other = [url.render_as_string(hide_password=False) for url in urls]
        try:
            with closing(MetaStore(one)) as killer, session_of(one, "mine#1"), session_of(other, "theirs#1"):
                assert killer.hosts.end_sessions("mine#1") == (1, 0)
                assert killer.hosts.end_sessions("theirs#1") == (0, 1)
        finally:
            for user in users:
                cursor.execute(f"DROP USER {user}@'%'")


def test_a_heartbeat_takes_one_round_trip_and_an_ask_and_an_epoch_take_two(meta: MetaStore) -> None:
    """In one round trip nobody can die with a lock, nor in the two of an epoch: its write checks what it has read."""
    row = HostRow("me#1", "", 1, 1)
    number = meta.namespaces.insert("jobs", NamespaceSettings(), 1).number
    meta.quotas.ask("a", {number: Ask(1)})
    heartbeat, epoch, again, ask = [
        scripts_of(meta, work)
        for work in (
            lambda: meta.hosts.beat(row),
            lambda: meta.shards.take_epoch(1, "me#1", 0, 0),
            lambda: meta.shards.take_epoch(1, "me#1", 0, 0),
            lambda: meta.quotas.ask("a", {number: Ask(1)}),
        )
    ]
    assert [len(scripts) for scripts in (heartbeat, epoch, again, ask)] == [1, 2, 2, 2]
    for scripts in (epoch, again):
        assert [[text.split()[0] for text, _ in script] for script in scripts] in [
            [["SELECT"], [write, "SELECT"]] for write in ("INSERT", "UPDATE")
        ], "each statement commits by itself"


def test_one_locked_book_fails_no_other_of_the_same_ask_and_nothing_is_done_to_it(
    meta: MetaStore, meta_url: str
) -> None:
    numbers = [meta.namespaces.insert(name, NamespaceSettings(), 1).number for name in ("a", "b", "new")]
    meta.quotas.ask("a", dict.fromkeys(numbers[:2], Ask(5)))
    with session_of(meta_url, "dead#1") as dead:
        rows_of(dead, f"SELECT * FROM quota WHERE namespace = {numbers[0]} FOR UPDATE")
        answers = meta.quotas.ask("a", dict.fromkeys(numbers, Ask(5)))
        assert [isinstance(answers[number], Grant) for number in numbers] == [False, True, True]
    # A namespace that is being deleted holds up the first ask of no other one.
    late = [meta.namespaces.insert(name, NamespaceSettings(), 1).number for name in ("late", "later")]
    with session_of(meta_url, "dead#2") as dead:
        rows_of(dead, f"SELECT * FROM namespace WHERE number = {late[0]} FOR UPDATE")
        answers = meta.quotas.ask("a", dict.fromkeys(late, Ask(5)))
        assert [isinstance(answers[number], Grant) for number in late] == [False, True]


def test_an_epoch_is_above_all_before_it_and_above_the_one_that_the_shard_has(meta: MetaStore) -> None:
    assert [meta.shards.take_epoch(9, "me#1", 5, at_least).epoch for at_least in (0, 0, 41, 3)] == [1, 2, 42, 43]
    (row,) = meta.shards.read_all()
    assert (row.epoch, row.owner, row.owned_since_ms, row.moving_to) == (43, "me#1", 5, "")


def test_a_host_that_starts_and_one_that_sweeps_wait_for_no_row_of_another(meta: MetaStore, meta_url: str) -> None:
    for name in ("me#0", "you#1"):
        meta.hosts.beat(HostRow(name, "", 1, 1))
    with session_of(meta_url, "dead#1") as dead:
        rows_of(dead, "SELECT * FROM host WHERE name = 'you#1' FOR UPDATE")
        meta.hosts.forget("me")
        assert meta.hosts.sweep() == 0
        assert len(meta.hosts.beat(HostRow("me#1", "", 1, 1))) == 3


def test_a_session_that_was_ended_while_it_was_idle_costs_a_heartbeat_nothing(meta: MetaStore, meta_url: str) -> None:
    row = HostRow("me#1", "", 1, 1)
    meta.hosts.beat(row)
    with closing(MetaStore(meta_url)) as other:
        assert other.hosts.end_sessions("me#1").ended_count >= 1
    assert meta.hosts.beat(row) == [row]


def test_an_error_in_the_middle_of_a_transaction_leaves_no_lock(meta: MetaStore) -> None:
    number = meta.namespaces.insert("jobs", NamespaceSettings(), 1).number
    meta.quotas.ask("a", {number: Ask(1)})

    def fails(run: RunScript) -> None:
        run((sql.BEGIN, ()), (sql.LOCK_BOOKS.format(number), ()))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        meta._sessions.script(fails)
    for _ in range(100):  # The server needs a moment to notice.
        if isinstance(meta.quotas.ask("a", {number: Ask(1)})[number], Grant):
            return
    raise AssertionError("its session has not ended")


def test_statements_of_scripts_read_by_the_primary_key(meta: MetaStore) -> None:
    number = meta.namespaces.insert("jobs", NamespaceSettings(), 1).number
    scripts = scripts_of(meta, lambda: [meta.quotas.ask("a", {number: Ask(1)}) for _ in range(2)])
    explained = []
    with meta._sessions.transaction() as connection:
        for other in range(1_000, 1_500):
            connection.exec_driver_sql("INSERT INTO quota VALUES (%s, '')", (other,))
        connection.exec_driver_sql("ANALYZE TABLE quota").all()
        for statement, arguments in [each for script in scripts for each in script]:
            if statement.startswith(("SELECT", "UPDATE", "INSERT")) and (
                "quota" in statement or "namespace" in statement
            ):
                rows = connection.exec_driver_sql(f"EXPLAIN {statement}", arguments).mappings().all()
                explained += [(statement.split()[0], row["key"], int(row["rows"])) for row in rows if row["rows"]]
    assert {verb for verb, _, _ in explained} == {"SELECT", "UPDATE", "INSERT"}
    assert {(key, rows) for _, key, rows in explained} == {("PRIMARY", 1)}
