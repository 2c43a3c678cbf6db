"""A real ZooKeeper server of the tests' own, run as any user; scripts/test-tools.sh installs the program."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from foqs.dev.free_port import free_port
from foqs.dev.local_zookeeper import LocalZookeeper
from tests.support.certificates import Issued


class ZookeeperServer(LocalZookeeper):
    """One server that can hang, and be killed and started again on the same port, with what it had or without.

    Never skipped: without a server the tests prove nothing.
    """

    def __init__(self, directory: str | os.PathLike[str], tls: Issued | None = None, ca_file: str = "") -> None:
        """With a certificate it has a port for TLS as well; with `ca_file` clients have to show one there."""
        super().__init__(directory)
        self.tls_port = free_port()
        self._tls, self._ca_file = tls, ca_file

    def tls_url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"zookeeper+tls://{host}:{self.tls_port}{path}"

    def _configuration(self) -> str:
        if self._tls is None:
            return super()._configuration()
        pem = self.directory / "server.pem"
        pem.write_text(Path(self._tls.key_file).read_text() + Path(self._tls.cert_file).read_text())
        settings = {
            "secureClientPort": self.tls_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": pem,
            "ssl.trustStore.location": self._ca_file or self._tls.cert_file,
            "ssl.clientAuth": "need" if self._ca_file else "none",
        }
        return super()._configuration() + "".join(f"{name}={value}\n" for name, value in settings.items())

    def __exit__(self, *_: object) -> None:
        self.kill()

    def forget(self) -> None:
        """Lose all data, while it does not run."""
        shutil.rmtree(self.directory / "data")

    def freeze(self) -> None:
        """Answer nobody, as a server does whose network has gone; connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
