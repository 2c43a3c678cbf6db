"""The retention of the event log: closed files are removed by age and by size, the oldest first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from foqs.host.event_log.files import OPEN_PREFIX, SUFFIX
from foqs.host.event_log.recovery import WORK_SUFFIX
from foqs.model.event_log import LIVES, ROLLUPS

_DAY = re.compile(r"date=\d{4}-\d\d-\d\d")
_HOUR = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)")
_SUFFIXES = (SUFFIX, SUFFIX + WORK_SUFFIX)


class Kept(NamedTuple):
    """The result of a clean-up: the size left on disk, and the number of removed files."""

    size_bytes: int
    removed_count: int
    failure: OSError | None = None
    """The error of a file that could not be removed, or of a folder that could not be read."""


class _File(NamedTuple):
    hour_s: float
    name: str
    path: Path
    size_bytes: int
    is_open: bool


def retain(directory: Path, bytes_max: int, days: int, now_s: float) -> Kept:
    """Remove closed files older than `days`, then the oldest ones until the remaining files have at most `bytes_max`.

    Open files count, but are removed only a day later, when they must be abandoned. Files that are not of an event log
    stay. An unreadable or irremovable file does not stop the removal of others.
    """
    scan = _Scan()
    files = sorted(scan.files(directory))
    size_bytes = sum(file.size_bytes for file in files)
    removed_count, failure = 0, scan.failure
    for file in files:
        is_old = now_s - file.hour_s > (days + file.is_open) * 86_400
        if is_old or (size_bytes > bytes_max and not file.is_open):
            try:
                file.path.unlink(missing_ok=True)  # An operator possibly removed it.
            except OSError as error:
                failure = error
                continue
            size_bytes -= file.size_bytes
            removed_count += 1
            _remove_empty(file.path.parent)
    return Kept(size_bytes, removed_count, failure)


class _Scan:
    """One walk through all files of an event log. It skips unreadable ones."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        """The last error of a read."""

    def files(self, directory: Path) -> Iterator[_File]:
        for kind in (LIVES, ROLLUPS):
            for day in self._entries(directory / kind):
                if not _DAY.fullmatch(day.name):
                    continue
                for hour in self._entries(Path(day.path)):
                    hour_s = _hour_s(f"{day.name}/{hour.name}")
                    if hour_s is not None:
                        yield from self._files_of(Path(hour.path), hour_s)

    def _files_of(self, folder: Path, hour_s: float) -> Iterator[_File]:
        for entry in self._entries(folder):
            if not entry.name.endswith(_SUFFIXES):
                continue
            try:
                size_bytes = entry.stat().st_size
            except FileNotFoundError:
                continue  # An operator has removed it.
            except OSError as error:
                self.failure = error
                continue
            yield _File(hour_s, entry.name, Path(entry.path), size_bytes, entry.name.startswith(OPEN_PREFIX))

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.failure = error
            return []


def _hour_s(name: str) -> float | None:
    """Return the start of the hour of a folder, in seconds since 1970; None for any other folder."""
    found = _HOUR.fullmatch(name)
    if found is None:
        return None
    try:
        return datetime(*map(int, found.groups()), tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
    except ValueError:
        return None


def _remove_empty(folder: Path) -> None:
    """Remove the folders of an hour and of its day if they are empty."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()
