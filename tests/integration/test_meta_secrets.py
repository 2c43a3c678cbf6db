"""The secret of the cluster in a real meta database: who can replace it, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import make_url

from foqs.cli import peers_commands
from foqs.cli.main import cli
from foqs.dev.local_server import LocalServer
from foqs.model.cluster import HostRow
from foqs.model.cluster_secret import secret_id
from foqs.model.errors import AlreadyExistsError, NotFoundError, UnavailableError
from foqs.model.meta_bounds import HOST_ROW_READ_MS
from foqs.model.secret import Secret
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_store import MetaStore

pytestmark = pytest.mark.database

OLD, NEW, THIRD = Secret(b"o" * 32), Secret(b"n" * 32), Secret(b"t" * 32)
Run = Callable[..., Result]


@pytest.fixture
def meta(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        meta.secrets.keep(OLD)
        yield meta


@pytest.fixture
def run(meta_url: str) -> Run:
    def run(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli, ["peers", *arguments, "--meta-url", meta_url], prog_name="foqs")
        assert done.exit_code == code, done.output
        return done

    return run


def beat(meta: MetaStore, name: str, *secrets: Secret) -> None:
    meta.hosts.beat(HostRow(name, "h:1", 1, 1, secret_ids=tuple([secret_id(one) for one in secrets])))


def execute(server: LocalServer, url: str, statement: str) -> list[tuple[object, ...]]:
    with closing(server.connect(make_url(url).database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()
        return list(cursor.fetchall())


def test_a_rotation_from_its_beginning_to_its_end(meta: MetaStore) -> None:
    beat(meta, "one#1", OLD)
    began = meta.secrets.begin(NEW)
    assert (began.current, began.next) == (OLD, NEW)
    assert began.began_at_ms > 1_700_000_000_000
    assert meta.secrets.read() == began
    with pytest.raises(UnavailableError, match=r"one#1 \(not yet, last heartbeat \d+ ms ago\)") as refused:
        meta.secrets.finish()
    assert refused.value.nothing_done
    beat(meta, "one#1", OLD, NEW)
    finished = meta.secrets.finish()
    assert (finished.current, finished.next) == (NEW, None)
    found = meta.secrets.read()
    assert found is not None
    assert (found.current, found.next) == (NEW, None)


def test_a_host_reads_the_secret_that_the_first_one_made(meta: MetaStore) -> None:
    meta.secrets.keep(NEW)
    found = meta.secrets.read()
    assert found is not None
    assert (found.current, found.next) == (OLD, None)


def test_a_second_rotation_is_refused_until_the_first_one_has_ended(meta: MetaStore) -> None:
    meta.secrets.begin(NEW)
    with pytest.raises(AlreadyExistsError, match=f"{secret_id(NEW)}, is already on its way.*--finish, or --cancel"):
        meta.secrets.begin(THIRD)
    assert meta.secrets.rotation().secret.next == NEW
    meta.secrets.cancel()
    assert meta.secrets.begin(THIRD).known[-1].secret == THIRD


def test_of_operators_who_begin_at_once_one_begins(meta: MetaStore) -> None:
    def begin(number: int) -> bytes | None:
        try:
            found = meta.secrets.begin(Secret(bytes([number]) * 32))
        except AlreadyExistsError:
            return None
        assert found.next is not None
        return found.next.reveal()

    with ThreadPoolExecutor(5) as pool:
        began = [one for one in pool.map(begin, range(1, 6)) if one is not None]
    found = meta.secrets.read()
    assert found is not None
    assert found.next is not None
    assert began == [found.next.reveal()]


def test_nothing_is_finished_or_cancelled_where_nothing_began(meta: MetaStore) -> None:
    for end in (meta.secrets.finish, meta.secrets.cancel):
        with pytest.raises(NotFoundError, match="begin with foqs peers new-secret"):
            end()
    found = meta.secrets.read()
    assert found is not None
    assert found.current == OLD


def test_a_cancelled_rotation_keeps_the_old_secret(meta: MetaStore) -> None:
    meta.secrets.begin(NEW)
    beat(meta, "one#1", OLD, NEW)
    assert meta.secrets.cancel().known == meta.secrets.rotation().secret.known
    found = meta.secrets.read()
    assert found is not None
    assert (found.current, found.next) == (OLD, None)


def test_a_cluster_that_has_never_run_has_nothing_to_replace(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as meta:
        assert meta.secrets.read() is None
        for work in (meta.secrets.rotation, lambda: meta.secrets.begin(NEW), meta.secrets.finish, meta.secrets.cancel):
            with pytest.raises(NotFoundError, match="start a host"):
                work()


@pytest.mark.parametrize("write", ["beat", "note_elsewhere"])
def test_hosts_of_either_membership_and_of_older_builds_are_waited_for(
    meta: MetaStore, mysql_server: LocalServer, meta_url: str, write: str
) -> None:
    getattr(meta.hosts, write)(HostRow("old#1", "h:1", 1, 1))
    meta.secrets.begin(NEW)
    with pytest.raises(UnavailableError, match=r"old#1 \(older build"):
        meta.secrets.finish()
    # It was killed: nobody knows that, so its row counts for a minute.
    execute(mysql_server, meta_url, f"UPDATE host SET heartbeat_at = heartbeat_at - {HOST_ROW_READ_MS - 5_000}")
    with pytest.raises(UnavailableError, match="wait until dead ones have not beaten for 60 s"):
        meta.secrets.finish()
    execute(mysql_server, meta_url, "UPDATE host SET heartbeat_at = heartbeat_at - 5001")
    assert meta.secrets.finish().current == NEW


def test_a_refusal_names_a_few_hosts_of_many(meta: MetaStore) -> None:
    for number in range(8):
        beat(meta, f"h{number}#1", OLD)
    meta.secrets.begin(NEW)
    with pytest.raises(UnavailableError) as refused:
        meta.secrets.finish()
    assert refused.value.message.count("not yet") == 5
    assert "and 3 others" in refused.value.message


def test_statements_on_the_secret_find_their_row_by_its_key(
    meta: MetaStore, mysql_server: LocalServer, meta_url: str
) -> None:
    for number in range(20):
        beat(meta, f"h{number}#1", OLD)
    hosts = sql.READ_SECRETS_OF_HOSTS % (HOST_ROW_READ_MS, HOST_ROW_READ_MS, 1_000)
    for statement in (sql.READ_SECRETS, f"{sql.READ_SECRETS} FOR UPDATE", hosts):
        (plan,) = execute(mysql_server, meta_url, f"EXPLAIN {statement}")
        assert "filesort" not in str(plan), statement
        assert "temporary" not in str(plan), statement
        assert "PRIMARY" in plan or statement == hosts, plan


# ---- the command ----


def test_the_command_shows_begins_and_finishes(meta: MetaStore, run: Run) -> None:
    beat(meta, "one#1", OLD)
    assert json.loads(run("show", "--output", "json").stdout) == {
        "secret": secret_id(OLD), "next": None, "began_at_ms": None,
        "hosts": [{"host": "one#1", "seen_ms": pytest.approx(0, abs=60_000), "state": "ready"}],
    }  # fmt: skip
    began = run("new-secret")
    rotation = meta.secrets.rotation()
    coming = rotation.secret.ids[-1]
    assert began.stdout.strip() == coming
    assert coming in began.stderr
    assert "--finish" in began.stderr
    assert "--finish" in run("new-secret", code=4).stderr
    assert "not yet" in run("show").stdout
    assert "one#1 (not yet" in run("new-secret", "--finish", "--wait-s", "0", code=5).stderr
    assert rotation.secret.next is not None
    beat(meta, "one#1", OLD, rotation.secret.next)
    assert "foqs peers new-secret --finish" in run("show").stderr
    assert coming in run("new-secret", "--finish").stderr
    shown = json.loads(run("show", "--output", "json").stdout)
    assert (shown["secret"], shown["next"]) == (coming, None)
    assert "begin with" in run("new-secret", "--finish", code=3).stderr


def test_the_command_waits_for_hosts(meta: MetaStore, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(meta, "one#1", OLD)
    secret = meta.secrets.begin(NEW)
    pauses: list[float] = []

    def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 3:
            beat(meta, "one#1", OLD, NEW)

    monkeypatch.setattr(peers_commands, "_pause", pause)
    assert secret.ids[-1] in run("new-secret", "--finish", "--wait-s", "600").stderr
    assert len(pauses) == 3


def test_the_command_cancels(meta: MetaStore, run: Run) -> None:
    run("new-secret")
    assert secret_id(OLD) in run("new-secret", "--cancel").stderr
    run("new-secret", "--cancel", code=3)
    assert "opposites" in run("new-secret", "--cancel", "--finish", code=2).stderr


def test_no_command_prints_a_secret(meta: MetaStore, run: Run) -> None:
    beat(meta, "one#1", OLD)
    texts = [run("new-secret").output, run("show").output, run("show", "--output", "json").output]
    (row,) = meta.secrets._sessions.script(lambda run: run((sql.READ_SECRETS, ())))
    texts += [run("new-secret", "--finish", "--wait-s", "0", code=5).output, run("new-secret", "--cancel").output]
    for secret in row[0][:2]:
        for form in (repr(secret)[2:-1], secret.hex(), secret.decode("latin-1")):
            assert not any(form in text for text in texts)
