"""A private MySQL or MariaDB server on a unix socket: for `foqs dev`, the demo, benches and tests.

Durable like production (every commit flushed, doublewrite on), and accessible only to the user who runs it: see
foqs.dev.local_access. Its directory survives restarts. Not for production: the server belongs to the process that
started it and ends with it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql

from foqs.dev.directory_lock import DirectoryLock, DirectoryTakenError
from foqs.dev.local_access import LocalAccessError, TcpListener, file_options, listen_options, make_private
from foqs.storage.sessions.login import GuardedConnection

BINARY_VARIABLE = "FOQS_MYSQLD"
INSTALL_HINT = (
    "install one (Debian: apt-get install mariadb-server-core mariadb-client-core; "
    f"macOS: brew install mariadb) or name its binary in {BINARY_VARIABLE}"
)

_BINARY_NAMES = ("mariadbd", "mysqld")
_BINARY_DIRECTORIES = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/local/mysql/bin",
)
_SOCKET_PATH_BYTES_MAX = 99
"""The kernel's limit is 107 on Linux and 103 on macOS, and mysqld appends a suffix to the name."""
_START_MS_MAX = 60_000
_STOP_MS_MAX = 60_000
_LOGIN_MS_MAX = 30_000
"""Generous, because a machine with many servers is busy, and a login at the caller's own server is no attack."""
_PROBE_MS = 20
_LOG_TAIL_LINES = 15
_DATABASE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


class LocalServerError(Exception):
    """The private server could not be found, initialised, started or stopped; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program and its reported version. `path` can be a script that execs the server."""

    path: Path
    version: str

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()


def find_server_binary(path: str | os.PathLike[str] | None = None) -> ServerBinary:
    """Find the server at `path`, else the one named by FOQS_MYSQLD, else mariadbd or mysqld in the usual places.

    Raises LocalServerError if none is found or it does not run.
    """
    named = path or os.environ.get(BINARY_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise LocalServerError(f"no executable MySQL server at {os.fspath(named)}: {INSTALL_HINT}")
    else:
        places = os.pathsep.join([os.environ.get("PATH", os.defpath), *_BINARY_DIRECTORIES])
        found = next((at for name in _BINARY_NAMES if (at := shutil.which(name, path=places))), None)
        if found is None:
            raise LocalServerError(f"no mariadbd or mysqld on PATH or in {_BINARY_DIRECTORIES}: {INSTALL_HINT}")
    asked = subprocess.run(
        [found, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    if asked.returncode != 0 or "Ver " not in asked.stdout:
        raise LocalServerError(f"{found} --version failed ({asked.returncode}): {asked.stderr.strip()[-500:]}")
    return ServerBinary(Path(found), asked.stdout.strip().partition("Ver ")[2])


class LocalServer:
    """One server process in one data directory.

    `binary`: see find_server_binary. `options` are further server options (`--name=value`); they win over the defaults
    chosen here. `listener`: its address besides its socket. `die_with_parent` (Linux, through setpriv of util-linux)
    makes the kernel kill the server when the thread that called start() ends, even by kill -9; start it from a
    thread that lives on.
    Methods are for one thread at a time. As a context manager it starts and stops.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        binary: str | os.PathLike[str] | None = None,
        buffer_pool_mib: int = 128,
        log_file_mib: int = 64,
        options: Sequence[str] = (),
        listener: TcpListener | None = None,
        die_with_parent: bool = True,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.error_log = self.data_dir / "error.log"
        self.binary = find_server_binary(binary)
        self._buffer_pool_mib = buffer_pool_mib
        self._log_file_mib = log_file_mib
        self._options = tuple(options)
        self._listener = listener
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: DirectoryLock | None = None
        self._socket_dir: Path | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def socket_path(self) -> Path:
        """Return the socket's path, which is shorter than 100 bytes even if the data directory's is longer."""
        if self._socket_dir is None:
            raise self._not_started()
        return self._socket_dir / "mysql.sock"

    def url(self, database: str = "") -> str:
        """Return the SQLAlchemy URL of a database of this server, as root and by the socket."""
        return f"mysql+pymysql://root@localhost/{database}?unix_socket={quote(str(self.socket_path), safe='/')}"

    def connect(self, database: str | None = None, **arguments: Any) -> pymysql.Connection[Any]:
        """Open a raw autocommit session; `arguments` are those of pymysql."""
        defaults: dict[str, Any] = {"user": "root", "autocommit": True, "connect_timeout": _LOGIN_MS_MAX / 1000}
        return GuardedConnection(
            unix_socket=str(self.socket_path), database=database, **(defaults | {"ssl_disabled": True} | arguments)
        )

    def create_database(self, name: str) -> str:
        """Create the database if it does not exist and return its URL."""
        if _DATABASE_NAME.fullmatch(name) is None:
            raise ValueError(f"database name {name!r} is not of A-Z a-z 0-9 _")
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (name,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url(name)

    def start(self) -> None:
        """Initialise the directory if it is new, start the server and return when it answers.

        Raises LocalServerError if another server uses the directory, if the directory belongs to another user or is
        shared with others, and, with the tail of the error log, if the server ends or does not answer within 60 s.
        """
        if self._process is not None:
            raise LocalServerError(f"the server in {self.data_dir} is started already (pid {self._process.pid})")
        try:
            make_private(self.data_dir)
            self._lock = DirectoryLock(self.data_dir)
        except (LocalAccessError, DirectoryTakenError) as error:
            raise LocalServerError(str(error)) from error
        try:
            self._initialise()
            self._socket_dir = self._choose_socket_dir()
            # The owner of these files is dead, because we have the lock. MySQL would check only the pid in its file,
            # which can belong to another process by now, and refuse to start.
            self._remove_socket()
            self._spawn()
            self._wait_until_it_answers()
        except BaseException:
            self._abandon()
            raise

    def stop(self) -> None:
        """Shut down cleanly, paused or not. Does nothing if it does not run.

        Raises LocalServerError if the server had to be killed after 60 s; it recovers at its next start.
        """
        if self._process is None:
            return
        process = self._process
        process.terminate()
        self.resume()
        try:
            process.wait(_STOP_MS_MAX / 1000)
        except subprocess.TimeoutExpired as error:
            raise LocalServerError(
                f"the server in {self.data_dir} did not stop within {_STOP_MS_MAX} ms and was killed"
            ) from error
        finally:
            self._abandon()

    def kill(self) -> None:
        """Kill the server as in a crash (kill -9). start() recovers all committed data."""
        self._running()
        self._abandon()

    def pause(self) -> None:
        """SIGSTOP: the server hangs, connections stay open. Returns when all its threads have stopped."""
        server = self._running()
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT after pause()."""
        if self._paused:
            self._running().send_signal(signal.SIGCONT)
            self._paused = False

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise self._not_started()
        return self._process

    def _not_started(self) -> LocalServerError:
        return LocalServerError(f"the server in {self.data_dir} is not started")

    def _initialise(self) -> None:
        """Make the system tables in another directory and move them in place, so that a crash leaves no half of it."""
        database_dir = self.data_dir / "mysql"
        if database_dir.exists():
            return
        partial = self.data_dir / "mysql.partial"
        shutil.rmtree(partial, ignore_errors=True)
        if self.binary.is_mariadb:
            command = [
                self._install_program(), "--no-defaults", f"--datadir={partial}", "--skip-test-db",
                f"--tmpdir={self._tmp_dir()}", "--auth-root-authentication-method=normal", "--skip-name-resolve",
                self._log_size_option(), *self._user_option(),
            ]  # fmt: skip
        else:
            command = [
                str(self.binary.path), "--no-defaults", "--initialize-insecure", f"--datadir={partial}",
                self._log_size_option(), *self._user_option(),
            ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).strip()[-2_000:]
            raise LocalServerError(f"{command[0]} failed ({done.returncode}) in {self.data_dir}:\n{tail}")
        partial.rename(database_dir)

    def _tmp_dir(self) -> Path:
        directory = self.data_dir / "tmp"
        directory.mkdir(exist_ok=True)
        return directory

    def _install_program(self) -> str:
        home = self.binary.path.resolve().parent
        places = [
            os.environ.get("PATH", os.defpath),
            *map(str, (home, home.parent / "bin", home.parent / "scripts")),
        ]
        for name in ("mariadb-install-db", "mysql_install_db"):
            if found := shutil.which(name, path=os.pathsep.join(places)):
                return found
        raise LocalServerError(f"no mariadb-install-db on PATH or beside {self.binary.path}: {INSTALL_HINT}")

    def _choose_socket_dir(self) -> Path:
        if len(os.fsencode(self.data_dir / "mysql.sock")) <= _SOCKET_PATH_BYTES_MAX:
            return self.data_dir
        short = Path(tempfile.mkdtemp(prefix="foqs-"))
        if len(os.fsencode(short / "mysql.sock")) > _SOCKET_PATH_BYTES_MAX:
            short.rmdir()
            short = Path(tempfile.mkdtemp(prefix="foqs-", dir="/tmp"))
        return short

    @staticmethod
    def _user_option() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def _log_size_option(self) -> str:
        # MySQL before 8.0.30 has another name for the capacity, so there its default applies.
        name = "innodb-log-file-size" if self.binary.is_mariadb else "loose-innodb-redo-log-capacity"
        return f"--{name}={self._log_file_mib}M"

    def _command(self) -> list[str]:
        setpriv = shutil.which("setpriv") if self._die_with_parent else None
        return [
            *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
            str(self.binary.path),
            "--no-defaults",
            f"--datadir={self.data_dir / 'mysql'}",
            f"--socket={self.socket_path}",
            f"--pid-file={self.data_dir / 'mysql.pid'}",
            f"--log-error={self.error_log}",
            # A shared directory is unsafe, because a starting server removes other servers' temporary tables there.
            f"--tmpdir={self._tmp_dir()}",
            # Otherwise a client from 127.0.0.1 counts as root@localhost, which has no password.
            "--skip-name-resolve",
            *listen_options(self._listener, self.data_dir / "init.sql"),
            *file_options(self.data_dir / "files", is_mariadb=self.binary.is_mariadb),
            "--skip-log-bin",
            "--sync-binlog=1",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-doublewrite=1",
            f"--innodb-buffer-pool-size={self._buffer_pool_mib}M",
            self._log_size_option(),
            "--max-allowed-packet=64M",
            "--character-set-server=utf8mb4",
            *([] if self.binary.is_mariadb else ["--mysqlx=OFF"]),
            *self._user_option(),
            *self._options,
        ]

    def _spawn(self) -> None:
        assert self._lock is not None
        with self.error_log.open("ab") as log:
            # A session of its own, so that Ctrl-C in a terminal reaches only the parent, which stops the server in
            # order.
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
            )
        self._paused = False
        self._lock.name_holder(self._process.pid)

    def _wait_until_it_answers(self) -> None:
        process = self._running()
        deadline = time.monotonic() + _START_MS_MAX / 1000
        while True:
            if process.poll() is not None:
                raise LocalServerError(f"{self.binary.path} ended with {process.returncode}:\n{self._log_tail()}")
            try:
                self.connect().close()
            except pymysql.err.OperationalError as error:
                if time.monotonic() > deadline:
                    late = f"{self.binary.path} did not answer within {_START_MS_MAX} ms ({error})"
                    raise LocalServerError(f"{late}:\n{self._log_tail()}") from error
                time.sleep(_PROBE_MS / 1000)
            else:
                return

    def _log_tail(self) -> str:
        try:
            lines = self.error_log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return f"(no error log at {self.error_log})"
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _remove_socket(self) -> None:
        for path in (self.socket_path, Path(f"{self.socket_path}.lock")):
            path.unlink(missing_ok=True)

    def _abandon(self) -> None:
        """Remove everything but the data, including the process, the socket and the lock."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._paused = False
        if self._socket_dir is not None:
            self._remove_socket()
            if self._socket_dir != self.data_dir:
                shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
