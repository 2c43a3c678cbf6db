"""The files of one kind of a host, which it writes one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from foqs.host.event_log.files import SUFFIX, Moment, OpenFile, folder_of, hour_of
from foqs.host.event_log.lines import Line, WaitingLines
from foqs.model import limits

FILE_MS_MAX = 10 * limits.MINUTE_MS
"""The age at which a file is closed; it is closed at the end of its hour, too."""
FLUSH_MS = 2 * limits.SECOND_MS
"""The interval of flushes to the disk, after which lines survive their process."""


class FileSequence:
    """Adds lines to the current file, and begins another one when that is large or old.

    The event log's thread owns it. After an error the file is left with its flushed lines, and all other lines wait for
    the next file. So no line is lost while it has room in memory, and no line is on the disk twice.
    """

    def __init__(self, root: Path, name: str, file_bytes_max: int, closed: Callable[[], None] = lambda: None) -> None:
        """`name` is the prefix of all file names, unique in the cluster. `closed` is called for each closed file."""
        self.root = root
        self.written_count = 0
        """Records that were passed to the operating system."""
        self.lost_count = 0
        """Records that were not written, or possibly not after an error."""
        self.lost_items_count = 0
        """The items of the lost records."""
        self._name = name
        self._file_bytes_max = file_bytes_max
        self._closed = closed
        self._sequence = 0
        self._file: OpenFile | None = None
        self._flushed_s = 0.0
        self._unflushed: list[Line] = []
        """Lines of the current file that a kill of the process would lose."""
        self._unflushed_bytes = 0
        self._waiting = WaitingLines()

    @property
    def current(self) -> Path | None:
        """The path of the file that grows, or None."""
        return None if self._file is None else self._file.path

    @property
    def waiting_count(self) -> int:
        """Unwritten records that the disk has refused."""
        return self._waiting.records_count

    def write(self, lines: Iterable[Line], now: Moment, *, close: bool = False, flush: bool = False) -> None:
        """Write the waiting lines and these; then close or flush if due. Raises OSError; unwritten lines then wait."""
        new = iter(lines)
        try:
            while (line := self._waiting.take() or next(new, None)) is not None:
                self._add(line, now)
            file, is_flush_due = self._file, flush or now.steady_s - self._flushed_s > FLUSH_MS / 1000
            if file is not None and (close or _is_old(file, now)):
                self._close(file)
            elif file is not None and self._unflushed and is_flush_due:
                self._flush(file, now)
        except OSError:
            self._abandon()
            raise
        finally:
            self.keep(new)

    def keep(self, lines: Iterable[Line]) -> None:
        """Keep lines for the next write, and drop the oldest ones if they are too many."""
        self.drop(self._waiting.add(lines))

    def drop(self, lines: Sequence[Line]) -> None:
        """Count lines as lost."""
        self.lost_count += sum([line.records_count for line in lines])
        self.lost_items_count += sum([line.items_count for line in lines])

    def _add(self, line: Line, now: Moment) -> None:
        self._unflushed.append(line)
        self._unflushed_bytes += len(line.text)
        file = self._file or self._open(now)
        file.write(line.text)
        if file.size_bytes >= self._file_bytes_max:
            self._close(file)
        elif self._unflushed_bytes > limits.EVENT_LOG_UNWRITTEN_BYTES_MAX:
            self._flush(file, now)

    def _open(self, now: Moment) -> OpenFile:
        self._sequence += 1
        name = f"{self._name}-{self._sequence:06d}{SUFFIX}"
        self._file = OpenFile(folder_of(self.root, now.wall_s), name, now)
        self._flushed_s = now.steady_s
        return self._file

    def _flush(self, file: OpenFile, now: Moment) -> None:
        file.flush()
        self._flushed_s = now.steady_s
        self._count_written()

    def _close(self, file: OpenFile) -> None:
        file.close()
        self._file = None
        self._count_written()
        self._closed()

    def _count_written(self) -> None:
        self.written_count += sum([line.records_count for line in self._unflushed])
        self._unflushed, self._unflushed_bytes = [], 0

    def _abandon(self) -> None:
        """Leave the current file, if any, to `recover`."""
        file, self._file = self._file, None
        unflushed, self._unflushed, self._unflushed_bytes = self._unflushed, [], 0
        is_known = file is None or file.abandon()
        self.drop(self._waiting.put_back(unflushed) if is_known else unflushed)


def _is_old(file: OpenFile, now: Moment) -> bool:
    is_of_hour = hour_of(now.wall_s) == hour_of(file.opened.wall_s)
    return not is_of_hour or now.steady_s - file.opened.steady_s > FILE_MS_MAX / 1000
