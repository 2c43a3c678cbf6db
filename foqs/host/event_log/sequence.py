"""The files of one kind that a host writes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foqs.host.event_log.files import SUFFIX, OpenFile, folder_of, hour_of
from foqs.model import limits

FILE_MS_MAX = 10 * limits.MINUTE_MS
"""A file is closed when it is so old, and at the end of its hour."""
FLUSH_MS = 2 * limits.SECOND_MS
"""How often lines go to the disk, so that they survive their process."""


class FileSequence:
    """Adds lines to the present file, and begins another one when that is large or old.

    The event log's thread owns it. After an error the file is left as it is, and the next line begins another one.
    """

    def __init__(self, root: Path, name: str, file_bytes_max: int) -> None:
        """`name` begins the names of all files, and is that of no other process."""
        self.root = root
        self.written_count = 0
        """Records that were given to the system."""
        self.lost_count = 0
        """Records that were not, or of which that is unknown after an error."""
        self._name = name
        self._file_bytes_max = file_bytes_max
        self._sequence = 0
        self._file: OpenFile | None = None
        self._flushed_s = 0.0
        self._unflushed_count = 0

    def write(self, lines: Sequence[tuple[int, bytes]], now_s: float, *, close: bool = False) -> None:
        """Add lines, each with the number of its records; then do what is due. Raises OSError."""
        left = list(reversed(lines))
        try:
            while left:
                file = self._file or self._open(now_s)
                count, line = left.pop()
                self._unflushed_count += count
                file.write(line)
                if file.size_bytes >= self._file_bytes_max:
                    self._close()
            if self._file is not None and (close or self._is_old(self._file, now_s)):
                self._close()
            if self._file is not None and self._unflushed_count and now_s - self._flushed_s > FLUSH_MS / 1000:
                self._flush(self._file, now_s)
        except OSError:
            self._abandon()
            self.drop(left)
            raise

    def drop(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Count lines that are not written."""
        self.lost_count += sum(count for count, _ in lines)

    def _open(self, now_s: float) -> OpenFile:
        self._sequence += 1
        name = f"{self._name}-{self._sequence:06d}{SUFFIX}"
        self._file = OpenFile(folder_of(self.root, now_s), name, now_s)
        self._flushed_s = now_s
        return self._file

    def _is_old(self, file: OpenFile, now_s: float) -> bool:
        return hour_of(now_s) != hour_of(file.opened_s) or now_s - file.opened_s > FILE_MS_MAX / 1000

    def _flush(self, file: OpenFile, now_s: float) -> None:
        file.flush()
        self._flushed_s = now_s
        self.written_count += self._unflushed_count
        self._unflushed_count = 0

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.written_count += self._unflushed_count
        self._unflushed_count = 0

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._file = None
        self.lost_count += self._unflushed_count
        self._unflushed_count = 0
