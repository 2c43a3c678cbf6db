"""The lock on the directory of a private server, which one server at a time holds for its whole life."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

_LOCK_MS_MAX = 1_000
_PROBE_MS = 20


class DirectoryTakenError(Exception):
    """Another server has the directory; the message has its process id and the remedy."""


class DirectoryLock:
    """A locked file in the directory, with the process id of the server in it.

    The server inherits `fileno`, and with it the lock, which therefore lasts as long as the server, even if the process
    that started it ends first.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises DirectoryTakenError if another server has the directory."""
        self._file = (directory / "lock").open("a+")
        try:
            # A process being started by another thread has our files, and with them the lock, until it runs the new
            # program.
            deadline_s = time.monotonic() + _LOCK_MS_MAX / 1000
            while not _try_lock(self._file):
                if time.monotonic() > deadline_s:
                    self._file.seek(0)
                    holder = self._file.read().strip() or "unknown"
                    raise DirectoryTakenError(
                        f"another server (pid {holder}) uses {directory}: stop it or choose another directory"
                    )
                time.sleep(_PROBE_MS / 1000)
        except BaseException:
            self._file.close()
            raise

    def fileno(self) -> int:
        return self._file.fileno()

    def name_holder(self, pid: int) -> None:
        """Note the process that has the lock now."""
        self._file.truncate(0)
        self._file.write(str(pid))
        self._file.flush()

    def close(self) -> None:
        """Release the lock, as far as this process is concerned."""
        self._file.close()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
