"""Files of the event log. A compressed file grows under a name that Spark skips, until it is closed and renamed."""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from foqs.model.event_log import GZIP_WBITS

SUFFIX = ".jsonl.gz"
OPEN_PREFIX = "_"
"""Spark, and all of Hadoop, skip files whose names begin with it."""
LOCK_NAME = f"{OPEN_PREFIX}lock"
"""The name of the file whose lock says that a process uses the directory."""
GZIP_LEVEL = 1
PROBE_BYTES = 4_096
"""The size of a test write, after which the disk counts as having room."""


class Moment(NamedTuple):
    """One moment on the two clocks of a host: the time of day, which can step, and a steady clock."""

    wall_s: float
    steady_s: float


class LogLock:
    """The lock of a process on its directory. The system releases it when the process dies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def take(self) -> None:
        """Take the lock unless it is held. Raises OSError, also if another process has it."""
        if self._fd is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                text = "another process uses this directory; each host needs an event_log_dir of its own"
                raise BlockingIOError(error.errno, text, str(self._directory)) from None
            raise
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class OpenFile:
    """A file under construction."""

    def __init__(self, folder: Path, name: str, opened: Moment) -> None:
        """Create the file. Raises OSError."""
        self.opened = opened
        self.size_bytes = 0
        """The written bytes, without those still in the compressor."""
        self._flushed_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{OPEN_PREFIX}{name}"
        self._closed_path = folder / name
        self._compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, line: bytes) -> None:
        """Add a line. Raises OSError; the caller must then abandon the file."""
        self._write(self._compressor.compress(line))

    def flush(self) -> None:
        """Write all added lines, so that they survive the process. Raises OSError."""
        self._write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self._flushed_bytes = self.size_bytes

    def close(self) -> None:
        """Complete the file and rename it to its final name. Raises OSError."""
        self._write(self._compressor.flush(zlib.Z_FINISH))
        os.fsync(self._fd)
        self.path.rename(self._closed_path)
        fd, self._fd = self._fd, -1
        os.close(fd)

    def abandon(self) -> bool:
        """Leave the file to `recover`, cut to its flushed part. False if it possibly has some of the rest too."""
        is_cut = True
        try:
            os.ftruncate(self._fd, self._flushed_bytes)
            if not self._flushed_bytes:
                self.path.unlink()
        except OSError:
            is_cut = False
        with suppress(OSError):
            os.close(self._fd)
        return is_cut

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._fd, rest)
            self.size_bytes += written
            rest = rest[written:]


def folder_of(root: Path, now_s: float) -> Path:
    """Return the folder of files that are opened in this hour, in UTC."""
    return root / datetime.fromtimestamp(now_s, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_of(now_s: float) -> int:
    return int(now_s // 3600)


def probe(root: Path) -> None:
    """Raise OSError unless the disk takes a small file, which is removed again."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{OPEN_PREFIX}probe"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, bytes(PROBE_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
        path.unlink()
