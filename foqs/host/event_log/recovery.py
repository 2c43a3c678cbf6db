"""Recovery of files that a killed process or a full disk left open, with all their readable lines."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

from foqs.host.event_log.files import GZIP_LEVEL, OPEN_PREFIX, SUFFIX
from foqs.model.event_log import GZIP_WBITS, FileLines

WORK_SUFFIX = ".recovering"


class Recovered(NamedTuple):
    """The result of the recovery of a file."""

    lines_count: int
    is_torn: bool
    """True if a part of its end was lost."""


def leftovers(root: Path, own_prefix: str, current: Path | None) -> list[Path]:
    """Return the open files below `root` of this host name, but for the current one."""
    return [path for path in sorted(root.glob(f"date=*/hour=*/{OPEN_PREFIX}{own_prefix}*{SUFFIX}")) if path != current]


def recover(path: Path) -> Recovered:
    """Close a file that was left open, without its torn end. No process must write it.

    A file without lines is removed. Raises OSError, and can then be repeated.
    """
    closed = path.with_name(path.name.removeprefix(OPEN_PREFIX))
    work = path.with_name(path.name + WORK_SUFFIX)
    try:
        with path.open("rb") as file:
            found = _copy(FileLines(file), work)
    except OSError:
        work.unlink(missing_ok=True)  # A full disk needs the room.
        raise
    if found.lines_count:
        work.rename(closed)
    else:
        work.unlink()
    path.unlink()
    return found


def _copy(lines: FileLines, work: Path) -> Recovered:
    """Write the lines to another file."""
    lines_count = 0
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
    with work.open("wb") as sound:
        for block in lines.blocks():
            lines_count += block.count(b"\n") + 1
            sound.write(compressor.compress(block + b"\n"))
        sound.write(compressor.flush())
        sound.flush()
        os.fsync(sound.fileno())
    return Recovered(lines_count, lines.is_torn)
