"""Recovery of files that a killed process or a full disk left open, with all their readable lines."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from foqs.host.event_log.files import GZIP_LEVEL, OPEN_PREFIX, SUFFIX
from foqs.model import limits
from foqs.model.event_log import inflated_up_to_error

_CHUNK_BYTES = 64 * limits.KIB
_GZIP_WBITS = 31
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
    reader = _Lines()
    try:
        with path.open("rb") as file:
            _copy(file, reader, work)
    except OSError:
        work.unlink(missing_ok=True)  # A full disk needs the room.
        raise
    if reader.lines_count:
        work.rename(closed)
    else:
        work.unlink()
    path.unlink()
    return Recovered(reader.lines_count, reader.is_torn)


def _copy(file: BinaryIO, reader: _Lines, work: Path) -> None:
    """Copy all whole lines of the file to another one."""
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    with work.open("wb") as sound:
        while chunk := file.read(_CHUNK_BYTES):
            sound.write(compressor.compress(reader.whole_lines(chunk)))
        sound.write(compressor.flush())
        sound.flush()
        os.fsync(sound.fileno())


class _Lines:
    """The whole lines of the readable part of a gzip stream."""

    def __init__(self) -> None:
        self.lines_count = 0
        self._is_broken = False
        self._decompressor = zlib.decompressobj(_GZIP_WBITS)
        self._rest = b""

    @property
    def is_torn(self) -> bool:
        return self._is_broken or bool(self._rest) or not self._decompressor.eof

    def whole_lines(self, chunk: bytes) -> bytes:
        if self._is_broken:
            return b""
        before = self._decompressor.copy()
        try:
            text = self._rest + self._decompressor.decompress(chunk)
        except zlib.error:
            self._is_broken = True
            text = self._rest + inflated_up_to_error(before, chunk)
        end = text.rfind(b"\n") + 1
        self._rest = text[end:]
        self.lines_count += text.count(b"\n", 0, end)
        return text[:end]
