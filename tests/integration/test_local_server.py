from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from foqs.dev.local_server import LocalServer, LocalServerError, find_server_binary
from tests.support.databases import new_server, prepared_server, server_binary
from tests.support.waiting import PATIENCE_MS

pytestmark = [pytest.mark.database, pytest.mark.deep]


def write_one(server: LocalServer) -> None:
    server.create_database("kept")
    with closing(server.connect("kept")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (n INT PRIMARY KEY) ENGINE=InnoDB")
        cursor.execute("INSERT INTO t VALUES (7)")


def read_all(server: LocalServer) -> tuple[tuple[int, ...], ...]:
    with closing(server.connect("kept")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT n FROM t")
        return cursor.fetchall()


def test_a_lock_that_a_process_which_just_starts_has_by_inheritance_is_waited_for(tmp_path: Path) -> None:
    with prepared_server(tmp_path) as server:
        server.stop()
        inherited = (tmp_path / "lock").open("a+")
        fcntl.flock(inherited, fcntl.LOCK_EX)
        threading.Timer(0.2, inherited.close).start()
        server.start()


def test_data_survives_a_clean_stop_and_a_kill(tmp_path: Path) -> None:
    with new_server(tmp_path) as server:
        write_one(server)
        server.kill()
        server.start()
        assert read_all(server) == ((7,),)
        server.stop()
        server.start()
        assert read_all(server) == ((7,),)


def test_a_paused_server_hangs_and_goes_on_when_resumed(tmp_path: Path) -> None:
    with prepared_server(tmp_path) as server:
        server.pause()
        with pytest.raises(pymysql.err.OperationalError):
            server.connect(connect_timeout=1, read_timeout=1)
        server.resume()
        with closing(server.connect()) as connection:
            connection.ping()


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    server = prepared_server(tmp_path)
    server.start()
    pid = server.pid
    server.pause()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_socket_path_is_short_however_long_the_data_directory_is(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with new_server(deep) as server:
        socket_path = server.socket_path
        assert len(os.fsencode(socket_path)) < 100
        write_one(server)
    assert not socket_path.parent.exists()


def test_a_second_server_in_the_same_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with prepared_server(tmp_path) as server:
        with pytest.raises(LocalServerError, match=f"pid {server.pid}"):
            new_server(tmp_path).start()
        write_one(server)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = new_server(tmp_path, "--no-such-option=1")
    with pytest.raises(LocalServerError, match="no-such-option"):
        server.start()
    with pytest.raises(LocalServerError, match="not started"):
        server.url("x")
    with new_server(tmp_path) as repaired:
        write_one(repaired)


def test_an_interrupted_initialisation_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "mysql.partial").mkdir()
    (tmp_path / "mysql.partial" / "ibdata1").write_bytes(b"half")
    with new_server(tmp_path) as server:
        write_one(server)


def test_the_server_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "from foqs.dev.local_server import LocalServer\n"
        "server = LocalServer(sys.argv[1], binary=sys.argv[2], buffer_pool_mib=64)\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "signal.pause()\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path), str(server_binary().path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            # A pidfd becomes readable when its process ends; taken while it surely lives.
            pidfd = os.pidfd_open(pid)
        finally:
            parent.send_signal(signal.SIGKILL)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(PATIENCE_MS), "the server outlived its parent"
    finally:
        os.close(pidfd)
    with new_server(tmp_path) as again:
        write_one(again)


def test_a_socket_file_that_names_a_living_process_keeps_no_server_from_starting(tmp_path: Path) -> None:
    """After a crash and a reboot the pid in MySQL's lock file may be anybody's."""
    (tmp_path / "mysql.sock.lock").write_text("1\n")
    with new_server(tmp_path) as server:
        assert server.socket_path.parent == tmp_path, "otherwise the file is in nobody's way"
        write_one(server)


def test_a_database_name_that_could_be_sql_is_refused(mysql_server: LocalServer) -> None:
    with pytest.raises(ValueError, match="database name"):
        mysql_server.create_database("x; DROP DATABASE y")


def test_a_missing_binary_is_named_with_how_to_install_one() -> None:
    with pytest.raises(LocalServerError, match=r"/nowhere/mysqld.*install"):
        find_server_binary("/nowhere/mysqld")


def test_the_binary_may_be_a_script_that_execs_the_server(tmp_path: Path) -> None:
    wrapper = tmp_path / "mysqld-wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec {server_binary().path} "$@"\n')
    wrapper.chmod(0o755)
    assert find_server_binary(wrapper).version == server_binary().version
