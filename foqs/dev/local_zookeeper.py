"""A private ZooKeeper server on 127.0.0.1, by which hosts find each other: for `foqs dev`, loads and tests.

It is a single node with a small heap and without an admin server, and keeps its data in a directory that survives
restarts. Not for production: the server belongs to the process that started it and ends with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Self

from foqs.dev.directory_lock import DirectoryLock, DirectoryTakenError
from foqs.dev.free_port import free_port
from foqs.dev.local_access import LocalAccessError, make_private

HOME_VARIABLE = "FOQS_ZOOKEEPER"
INSTALL_HINT = (
    "install it (Debian: apt-get install libzookeeper-java default-jre-headless; macOS: brew install zookeeper) or "
    f"name the directory of an unpacked release in {HOME_VARIABLE}"
)
_JAVA_HINT = "install a Java runtime (Debian: apt-get install default-jre-headless) or name one in JAVA_HOME"
_HOMES = ("/usr/share/java", "/opt/homebrew/opt/zookeeper/libexec", "/usr/local/opt/zookeeper/libexec")
"""Debian's package has its JAR files in the first directory, Homebrew's under the others."""
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ADDRESS = "127.0.0.1"
_TICK_MS = 500
_SESSION_MS_MAX = 600_000
_HEAP_MIB = 64
_LOG_FILE_KIB = 1_024
"""The space preallocated for transactions; the default is 64 MiB at each start."""
_START_MS_MAX = 60_000
_STOP_MS_MAX = 10_000
_PROBE_MS = 50
_ANSWER_S_MAX = 1.0
_OUTPUT_LINES = 15


class LocalZookeeperError(Exception):
    """The private server could not be found, started or stopped; the message has the remedy."""


class ZookeeperProgram(NamedTuple):
    """The program and its class path, to be started by Java."""

    java: str
    jars: str


def find_zookeeper() -> ZookeeperProgram:
    """Find the ZooKeeper in the directory named by FOQS_ZOOKEEPER, else in one of the usual places, and a Java for it.

    Raises LocalZookeeperError if one is missing.
    """
    named = os.environ.get(HOME_VARIABLE)
    jars = next((jars for home in ([named] if named else _HOMES) if (jars := _jars_in(Path(home)))), None)
    if jars is None:
        where = f"in {named}, which {HOME_VARIABLE} names" if named else f"in {', '.join(_HOMES)}"
        raise LocalZookeeperError(f"no ZooKeeper {where}: {INSTALL_HINT}")
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(java_home) / "bin")) if java_home else shutil.which("java")
    if java is None:
        where = f"in {java_home}/bin, which JAVA_HOME names" if java_home else "on PATH"
        raise LocalZookeeperError(f"ZooKeeper needs Java, and there is no java {where}: {_JAVA_HINT}")
    return ZookeeperProgram(java, jars)


def require_client() -> None:
    """Raise LocalZookeeperError if hosts could not talk to the server."""
    if find_spec("kazoo") is None:
        raise LocalZookeeperError("hosts need the package kazoo for ZooKeeper: pip install 'foqs[zookeeper]'")


class LocalZookeeper:
    """One server process in one directory, on a free port that it keeps across restarts.

    The kernel kills it (Linux, through setpriv of util-linux) when the thread that called start() ends, even by
    kill -9; start it from a thread that lives on. Methods are for one thread at a time. As a context manager it starts
    and stops.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Choose a port. Raises LocalZookeeperError if the program is missing."""
        self.directory = Path(directory).absolute()
        self.output = self.directory / "output"
        self.port = free_port()
        self._program = find_zookeeper()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: DirectoryLock | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    def url(self, path: str = "") -> str:
        """Return the value of the setting `membership` for hosts that use this server."""
        return f"zookeeper://{_ADDRESS}:{self.port}{path}"

    def start(self) -> None:
        """Start the server, and return when it answers.

        Raises LocalZookeeperError if another server uses the directory, if the directory belongs to another user, and,
        with the tail of the server's output, if the server ends or does not answer within 60 s.
        """
        if self._process is not None:
            raise LocalZookeeperError(
                f"the ZooKeeper server in {self.directory} is started already (pid {self._process.pid})"
            )
        try:
            make_private(self.directory)
            self._lock = DirectoryLock(self.directory)
        except (LocalAccessError, DirectoryTakenError) as error:
            raise LocalZookeeperError(str(error)) from error
        try:
            self._spawn()
            self._wait_until_it_answers()
        except BaseException:
            self._abandon()
            raise

    def stop(self) -> None:
        """Shut the server down, if it runs; kill it if that takes longer than 10 s, which loses nothing."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_MS_MAX / 1000)
            self._abandon()

    def kill(self) -> None:
        """Kill the server, if it runs. Sessions that it knows continue after its restart."""
        self._abandon()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LocalZookeeperError(f"the ZooKeeper server in {self.directory} is not started")
        return self._process

    def _configuration(self) -> str:
        settings = {
            "tickTime": _TICK_MS,
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": _ADDRESS,
            "maxSessionTimeout": _SESSION_MS_MAX,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            # The smallest number that it allows, because nobody needs old snapshots.
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _spawn(self) -> None:
        assert self._lock is not None
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(self._configuration())
        setpriv = shutil.which("setpriv")
        options = [f"-Xmx{_HEAP_MIB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [
            *([setpriv, "--pdeathsig", "KILL"] if setpriv else []), self._program.java, *options,
            f"-Dzookeeper.preAllocSize={_LOG_FILE_KIB}", "-cp", self._program.jars, _MAIN, str(configuration),
        ]  # fmt: skip
        with self.output.open("ab") as output:
            # A session of its own, so that Ctrl-C in a terminal reaches only the parent, which stops the server in
            # order.
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
            )
        self._lock.name_holder(self._process.pid)

    def _wait_until_it_answers(self) -> None:
        process = self._running()
        deadline_s = time.monotonic() + _START_MS_MAX / 1000
        while not self._answers():
            if process.poll() is not None:
                raise LocalZookeeperError(
                    f"the ZooKeeper server in {self.directory} ended with {process.returncode}:\n{self._last_words()}"
                )
            if time.monotonic() > deadline_s:
                late = f"the ZooKeeper server in {self.directory} did not answer within {_START_MS_MAX} ms"
                raise LocalZookeeperError(f"{late}:\n{self._last_words()}")
            time.sleep(_PROBE_MS / 1000)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((_ADDRESS, self.port), timeout=_ANSWER_S_MAX) as connection:
            connection.sendall(b"srvr")
            return connection.recv(4_096).startswith(b"Zookeeper version")
        return False

    def _last_words(self) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-_OUTPUT_LINES:])

    def _abandon(self) -> None:
        """Remove everything but the data, including the process and the lock."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def _jars_in(home: Path) -> str | None:
    """Return the class path of the ZooKeeper in this directory, or None."""
    for directory in (home, home / "lib"):
        if any(directory.glob("zookeeper*.jar")):
            return f"{directory}/*"
    return None
