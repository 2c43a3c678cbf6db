"""Nobody but its user reaches the private server."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from pymysql.constants import ER
from sqlalchemy import make_url

from foqs.dev.local_access import USER, LocalAccessError, TcpListener, make_private
from foqs.dev.local_server import LocalServer, LocalServerError
from foqs.storage.schema.migrations import SchemaKind, apply, load_migrations
from foqs.storage.sessions.login import GuardedConnection
from tests.support.databases import new_server, prepared_server
from tests.support.faults.programs import free_port

pytestmark = pytest.mark.deep

NOBODY = 65_534
OPEN = 0o755


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user of the machine can look into, as the working directory of a developer."""
    directory = Path(tempfile.mkdtemp(prefix="foqs-test-", dir="/tmp"))
    directory.chmod(OPEN)
    yield directory
    shutil.rmtree(directory)


def others_may(what: str, path: Path) -> bool:
    """Whether another user of this machine may do that (r, w or x) with the file."""
    command = ["/bin/sh", "-c", f'test -{what} "$0"', str(path)]
    return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=False, cwd="/").returncode == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user too")


@needs_root
@pytest.mark.database
def test_another_user_neither_reaches_the_socket_nor_reads_the_data(open_place: Path) -> None:
    data_dir = open_place / "data"
    with new_server(data_dir) as server:
        server.create_database("kept")
        private = [server.error_log, data_dir / "mysql/ibdata1", data_dir / "mysql/kept/db.opt", data_dir / "lock"]
        readable = [path for path in private if path.exists()]
        assert not others_may("w", server.socket_path)
        assert not any(others_may("r", path) for path in readable)
        data_dir.chmod(OPEN)
        assert others_may("w", server.socket_path), "the directory is what keeps them out"


@pytest.mark.database
@pytest.mark.parametrize("deep", [False, True], ids=["socket beside the data", "socket elsewhere"])
def test_the_directories_are_for_their_user_alone(open_place: Path, deep: bool) -> None:
    data_dir = open_place / ("d" * 100) / "data" if deep else open_place / "data"
    with new_server(data_dir) as server:
        assert (server.socket_path.parent == data_dir) is not deep
        for directory in (data_dir, server.socket_path.parent):
            assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.database
def test_a_directory_of_an_earlier_run_that_was_open_is_closed(open_place: Path) -> None:
    data_dir = open_place / "data"
    with new_server(data_dir):
        pass
    data_dir.chmod(OPEN)
    with new_server(data_dir):
        assert data_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("there", [["notes.txt"], ["lock"], ["mysql"], ["lock", "mysql"]], ids=str)
def test_a_directory_that_is_shared_with_others_is_refused_and_left_as_it_is(
    open_place: Path, there: list[str]
) -> None:
    # /etc and /var/lib have a `mysql`, /var has a `lock`.
    for name in there:
        (open_place / name).mkdir()
    with pytest.raises(LocalAccessError, match="mode 755") as refused:
        make_private(open_place)
    assert "chmod" not in str(refused.value), "whoever follows that advice for /tmp closes it to everybody"
    assert open_place.stat().st_mode & 0o777 == OPEN


@needs_root
@pytest.mark.database
def test_a_directory_of_another_user_is_refused(open_place: Path) -> None:
    os.chown(open_place, NOBODY, NOBODY)
    open_place.chmod(0o700)
    with pytest.raises(LocalServerError, match="another user"):
        new_server(open_place).start()
    assert list(open_place.iterdir()) == []


def test_statements_read_and_write_no_files(mysql_server: LocalServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("7")
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        with pytest.raises(pymysql.err.OperationalError) as refused:
            cursor.execute(f"SELECT 7 INTO OUTFILE '{tmp_path / 'written'}'")
        assert refused.value.args[0] == ER.OPTION_PREVENTS_STATEMENT
        cursor.execute(f"SELECT LOAD_FILE('{secret}')")
        assert cursor.fetchall() == ((None,),)
        cursor.execute("SELECT @@local_infile")
        assert cursor.fetchall() == ((0,),)
    assert not (tmp_path / "written").exists()


# ---- over the network ----


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, TcpListener]]:
    listener = TcpListener(free_port(), password="it's a \\ secret/@ with %41")
    with prepared_server(tmp_path_factory.mktemp("listening"), listener=listener) as server:
        yield server, listener


def try_by_tcp(listener: TcpListener, user: str, password: str) -> pymysql.Connection:  # type: ignore[type-arg]
    return GuardedConnection(
        host=listener.address, port=listener.port, user=user, password=password, connect_timeout=60
    )


@pytest.mark.database
def test_who_has_the_password_can_keep_a_queue_there(listening: tuple[LocalServer, TcpListener]) -> None:
    url = listening[1].url("foqs_kept")
    parsed, listener = make_url(url), listening[1]
    assert (parsed.username, parsed.password, parsed.port) == (USER, listener.password, listener.port)
    assert apply(url, SchemaKind.META) == list(load_migrations(SchemaKind.META))


@pytest.mark.database
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 7 INTO OUTFILE '{tmp_path}/written'",
        "SET GLOBAL general_log_file = '{tmp_path}/written'",
        "GRANT FILE ON *.* TO 'foqs'@'%'",
        "CREATE USER 'another'@'%'",
        "DELETE FROM mysql.db",
        "CREATE DATABASE foqsx",
        "SHUTDOWN",
    ],
)
def test_who_has_the_password_has_neither_the_server_nor_its_files(
    listening: tuple[LocalServer, TcpListener], tmp_path: Path, statement: str
) -> None:
    with (
        closing(try_by_tcp(listening[1], USER, listening[1].password)) as session,
        session.cursor() as cursor,
        pytest.raises(pymysql.err.OperationalError, match="denied"),
    ):
        cursor.execute(statement.format(tmp_path=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.database
@pytest.mark.parametrize(
    ("user", "password"), [("root", ""), ("", ""), ("foqs", ""), ("foqs", "another secret"), ("mariadb.sys", "")]
)
def test_nobody_else_gets_in_by_the_network(
    listening: tuple[LocalServer, TcpListener], user: str, password: str
) -> None:
    with pytest.raises(pymysql.err.OperationalError, match=r"denied|locked|was given up"):
        try_by_tcp(listening[1], user, password)


@pytest.mark.database
def test_the_password_changes_with_the_listener_and_without_one_nobody_listens(tmp_path: Path) -> None:
    first, second = (TcpListener(free_port(), secrets.token_urlsafe()) for _ in range(2))
    with new_server(tmp_path, listener=first):
        try_by_tcp(first, USER, first.password).close()
        assert (tmp_path / "init.sql").stat().st_mode & 0o777 == 0o600
    with new_server(tmp_path, listener=second):
        try_by_tcp(second, USER, second.password).close()
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            try_by_tcp(second, USER, first.password)
    with new_server(tmp_path) as server:
        with pytest.raises(pymysql.err.OperationalError, match="connect"):
            try_by_tcp(second, USER, second.password)
        server.connect().close()
        assert not (tmp_path / "init.sql").exists()


def test_a_listener_whose_password_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="5 characters"):
        TcpListener(1, "short")


def test_a_listener_keeps_its_password_out_of_logs() -> None:
    assert "long enough" not in repr(TcpListener(1, "long enough for this"))
