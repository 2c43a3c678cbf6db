"""Files of the event log: one that grows, compressed, under a name that Spark skips, until it is closed and renamed."""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

SUFFIX = ".jsonl.gz"
OPEN_PREFIX = "_"
"""Spark, and all of Hadoop, skip files whose names begin with it."""
GZIP_LEVEL = 1
_GZIP_WBITS = 31


class OpenFile:
    """A file that lines are added to. It holds a lock for as long as its process lives."""

    def __init__(self, folder: Path, name: str, opened_s: float) -> None:
        """Make it. Raises OSError."""
        self.opened_s = opened_s
        self.size_bytes = 0
        """What has been written, without what the compressor has yet."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{OPEN_PREFIX}{name}"
        self._closed_path = folder / name
        self._compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.abandon()
            raise

    def write(self, line: bytes) -> None:
        """Add a line. Raises OSError; then the file is to be abandoned."""
        self._write(self._compressor.compress(line))

    def flush(self) -> None:
        """Let all that was added survive the process. Raises OSError."""
        self._write(self._compressor.flush(zlib.Z_SYNC_FLUSH))

    def close(self) -> None:
        """Complete the file and give it its name. Raises OSError."""
        self._write(self._compressor.flush(zlib.Z_FINISH))
        os.fsync(self._fd)
        self._path.rename(self._closed_path)
        os.close(self._fd)

    def abandon(self) -> None:
        """Leave it as it is, for `recover`."""
        with suppress(OSError):
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._fd, rest)
            self.size_bytes += written
            rest = rest[written:]


def folder_of(root: Path, now_s: float) -> Path:
    """The folder of files that are opened in this hour, in UTC."""
    return root / datetime.fromtimestamp(now_s, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_of(now_s: float) -> int:
    return int(now_s // 3600)
