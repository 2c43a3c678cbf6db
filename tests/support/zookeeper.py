"""A real ZooKeeper server of the tests' own, run as any user; scripts/test-tools.sh installs the program."""

from __future__ import annotations

import os
import shutil
import signal

from foqs.dev.local_zookeeper import LocalZookeeper


class ZookeeperServer(LocalZookeeper):
    """One server that can hang, and be killed and started again on the same port, with what it had or without.

    Never skipped: without a server the tests prove nothing.
    """

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
