"""Sessions of a real server whose password is in a file, and is rotated while sessions are opened."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from foqs.client.sync import AdminClient
from foqs.dev.local_server import LocalServer
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from tests.support.databases import prepared_server
from tests.support.faults.programs import FOQS, Program, free_port
from tests.support.waiting import PATIENCE_MS

pytestmark = pytest.mark.database
WORDS = ["first planted word", "second/planted@word", "third planted word"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("password-files")) as server:
        apply(server.url("foqs_meta"), SchemaKind.META)
        apply(server.url("foqs_0"), SchemaKind.SHARD)
        yield server


@pytest.fixture
def file(server: LocalServer, tmp_path: Path) -> Iterator[Path]:
    run(
        server,
        f"CREATE USER app@localhost IDENTIFIED BY '{WORDS[0]}'",
        "GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO app@localhost",
    )
    yield written(tmp_path / "password", WORDS[0])
    run(server, "DROP USER app@localhost")


def run(server: LocalServer, *statements: str) -> None:
    with closing(server.connect()) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def written(path: Path, word: str) -> Path:
    new = path.with_suffix(".new")
    new.write_text(f"{word}\n")
    new.chmod(0o600)
    return new.rename(path)


def rotate(server: LocalServer, word: str) -> None:
    run(server, f"ALTER USER app@localhost IDENTIFIED BY '{word}'")


def url_of(server: LocalServer, database: str, file: Path) -> str:
    return f"{server.url(database).replace('//root@', '//app@')}&password_file={file}"


def denied_count(server: LocalServer) -> int:
    with closing(server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Aborted_connects'")
        return int(cursor.fetchall()[0][1])


def test_a_new_session_logs_in_by_the_file_as_it_is_then(server: LocalServer, file: Path) -> None:
    url = url_of(server, "foqs_meta", file)
    with closing(connect(url)) as before:
        for word in WORDS[1:]:
            rotate(server, word)
            written(file, word)
            connect(url).close()
        assert before.ping(reconnect=False) is None


def test_a_refused_password_is_tried_once_more_if_the_file_has_another_by_then(
    server: LocalServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is rewritten so that it looks unchanged: only the refusal tells."""
    url = url_of(server, "foqs_meta", file)
    connect(url).close()
    status = file.stat()
    monkeypatch.setattr("os.fstat", lambda _: status)
    rotate(server, WORDS[2])
    before = denied_count(server)
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        connect(url)
    assert denied_count(server) == before + 1, "the same password is not tried again"
    file.write_text(WORDS[2])
    connect(url).close()
    assert denied_count(server) == before + 2
    file.write_text(WORDS[0])
    connect(url).close()  # By the password that was read last, which the server takes.
    rotate(server, WORDS[1])
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        connect(url)
    assert denied_count(server) == before + 4, "the newer one is tried once, and not for ever"


def test_a_file_that_cannot_be_used_calls_no_server(server: LocalServer, file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(pymysql.err.OperationalError, match=r"was not called: password_file = .*0644") as refused:
        connect(url_of(server, "foqs_meta", file))
    assert refused.value.args[0] == 2003


def test_a_host_goes_on_with_a_rotated_password_without_a_restart_or_a_signal(
    server: LocalServer, file: Path, tmp_path: Path
) -> None:
    port, settings = free_port(), tmp_path / "foqs.toml"
    settings.write_text(
        f'meta_url = "{url_of(server, "foqs_meta", file)}"\nport = {port}\nhost_name = "h"\n[shards]\n'
        f'0 = "{url_of(server, "foqs_0", file)}"\n'
    )
    host = Program(str(FOQS), "host", "--config", str(settings), name="host")
    try:
        host.wait_for_line("shard_opened")
        host.wait_for_line(" serves ")
        with closing(AdminClient(f"127.0.0.1:{port}", timeout_ms=PATIENCE_MS)) as admin:
            admin.create_namespace("before")
            rotate(server, WORDS[1])
            written(file, WORDS[1])
            kill_all(server)
            admin.create_namespace("after")
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
        assert "Access denied" not in host.output
        assert not any(word in host.output for word in WORDS)
    finally:
        host.close()


def kill_all(server: LocalServer) -> None:
    with closing(server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'app'")
        for (session_id,) in cursor.fetchall():
            cursor.execute(f"KILL {session_id}")
