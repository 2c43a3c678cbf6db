"""A real ZooKeeper server of the tests' own, of Debian's package libzookeeper-java, run as any user."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.programs import free_port
from tests.support.waiting import PATIENCE_S

_JARS = Path("/usr/share/java")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZookeeperServer:
    """One server that can be killed and started again on the same port, with what it had. A context manager.

    Never skipped: without a server the tests prove nothing.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("java") is None or not (_JARS / "zookeeper.jar").exists():
            pytest.fail("missing: java or libzookeeper-java; run scripts/test-tools.sh", pytrace=False)
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "zoo.cfg").write_text(
            f"tickTime=500\ndataDir={directory}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "maxSessionTimeout=600000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        )

    def __enter__(self) -> ZookeeperServer:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def url(self, path: str = "") -> str:
        return f"zookeeper://127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        """Return when it answers."""
        assert self._process is None, "it runs"
        options = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{_JARS}/*")
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *options, _MAIN, str(self._directory / "zoo.cfg")],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        began_s = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began_s > PATIENCE_S:
                self.kill()
                pytest.fail((self._directory / "output").read_text()[-4_000:], pytrace=False)
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, if it runs: sessions that it knows count on when it is back."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE_S)

    def forget(self) -> None:
        """Lose all data, while it does not run."""
        assert self._process is None, "it runs"
        shutil.rmtree(self._directory / "data")

    def freeze(self) -> None:
        """Answer nobody, as a server does whose network has gone; connections stay."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return connection.recv(4_096).startswith(b"Zookeeper version")
        return False
