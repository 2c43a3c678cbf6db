"""How much of the event log stays on disk: closed files go by age and by size, the oldest first."""

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

_HOUR = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)$")
_SUFFIXES = (SUFFIX, SUFFIX + WORK_SUFFIX)


class Kept(NamedTuple):
    """What is left on disk, and what went."""

    size_bytes: int
    removed_count: int
    failure: OSError | None = None
    """Why a file is still there that had to go."""


class _File(NamedTuple):
    hour_s: float
    name: str
    path: Path
    size_bytes: int
    is_open: bool


def retain(directory: Path, bytes_max: int, days: int, now_s: float) -> Kept:
    """Remove closed files older than so many days, then the oldest ones until the others have at most `bytes_max`.

    Files that are still open count, and go only when they are too old: nobody has them any more then. Files of other
    hosts in the same directory count and go like this host's own, and what is no file of an event log stays. One that
    cannot be removed keeps no other one. Raises OSError when the directory cannot be read.
    """
    files = sorted(_files(directory))
    size_bytes = sum(file.size_bytes for file in files)
    removed_count, failure = 0, None
    for file in files:
        is_old = now_s - file.hour_s > (days + file.is_open) * 86_400
        if is_old or (size_bytes > bytes_max and not file.is_open):
            try:
                file.path.unlink(missing_ok=True)  # Another host may have removed it.
            except OSError as error:
                failure = error
                continue
            size_bytes -= file.size_bytes
            removed_count += 1
            if now_s - file.hour_s > 7_200:  # Nobody makes files in it any more.
                _remove_empty(file.path.parent)
    return Kept(size_bytes, removed_count, failure)


def _files(directory: Path) -> Iterator[_File]:
    for kind in (LIVES, ROLLUPS):
        for folder in (directory / kind).glob("date=*/hour=*"):
            hour = _HOUR.search(str(folder))
            if hour is None:
                continue
            hour_s = datetime(*map(int, hour.groups()), tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.endswith(_SUFFIXES):
                        continue
                    with suppress(FileNotFoundError):
                        is_open = entry.name.startswith(OPEN_PREFIX)
                        yield _File(hour_s, entry.name, Path(entry.path), entry.stat().st_size, is_open)


def _remove_empty(folder: Path) -> None:
    """Remove the folders of an hour and of its day when nothing is in them."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()
