"""A peer's server program: started so that it cannot outlive the bench, awaited, stopped, and found dead or alive."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PLACES = (
    # Debian's rabbitmq-server of /usr/sbin changes its user and its settings; this one is the program itself.
    "/usr/lib/rabbitmq/bin",
    *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True),
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
)
_START_S_MAX = 90.0
_STOP_S_MAX = 60.0
_PROBE_S = 0.02
_LOG_TAIL_BYTES = 2_000


class NotInstalledError(Exception):
    """A peer's program is missing: which."""


class Program:
    """One server process. `user` is whom to run it as when this process is root, for servers that refuse root."""

    def __init__(
        self, command: Sequence[str], log: Path, *, user: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Starts it. The kernel kills it when the thread that did so is gone."""
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [find_program("setpriv"), *_identity(user), "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | dict(variables or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, answers: Callable[[], bool]) -> None:
        """Raises RuntimeError with the end of the log when it ends or is too slow; then it is gone."""
        deadline_s = time.monotonic() + _START_S_MAX
        while not answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                said = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
                raise RuntimeError(f"{self._process.args!r} did not start:\n{said}")
            time.sleep(_PROBE_S)

    def stop(self) -> None:
        """In order if it can, and whether or not it still runs."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def find_program(name: str) -> str:
    """Its path. Raises NotInstalledError."""
    found = shutil.which(name, path=os.pathsep.join([*_PLACES, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise NotInstalledError(f"the program {name} is not installed (make peers installs it)")
    return found


def run(*command: str, user: str | None = None) -> str:
    """Its output. Raises RuntimeError with what it said when it fails."""
    done = subprocess.run(
        [find_program("setpriv"), *_identity(user), *command], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command!r} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-_LOG_TAIL_BYTES:]}")
    return done.stdout.strip()


def give_to(user: str, directory: Path) -> None:
    """Make the directory theirs when this process is root, and so runs the server as them."""
    directory.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        os.chown(directory, entry.pw_uid, entry.pw_gid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """A loopback port has a listener."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _identity(user: str | None) -> list[str]:
    if user is None or os.geteuid() != 0:
        return []
    entry = pwd.getpwnam(user)
    return ["--reuid", str(entry.pw_uid), "--regid", str(entry.pw_gid), "--clear-groups"]
