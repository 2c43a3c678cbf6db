"""Secrets in files, which are read anew when they change, so that a rotated one needs no restart."""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from foqs.model.errors import InvalidArgumentError
from foqs.model.secret import Secret

BYTES_MAX: Final = 4_096
"""The maximum size of a file with a secret."""
CREDENTIALS: Final = "$CREDENTIALS_DIRECTORY"
"""The beginning of a path that means the directory of systemd's credentials for this service."""
CHANGES_MAX: Final = 100
"""Changes of files that are remembered until somebody takes them; the oldest ones are dropped first."""
_FILES_MAX: Final = 1_000
_WIDELY_OPEN: Final = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH

_log = structlog.get_logger(__name__)


class FileChange(NamedTuple):
    """A file whose secret has become another one, or has become unusable."""

    path: str
    problem: str
    """Empty if the new secret is used; otherwise the old one still is."""


def path_of(named: str) -> Path:
    """Return the path that a setting names. Raises InvalidArgumentError if it cannot be one."""
    if named.startswith(f"{CREDENTIALS}/"):
        directory = os.environ.get(CREDENTIALS[1:])
        if not directory:
            raise InvalidArgumentError(
                f"{named} cannot be used: the variable {CREDENTIALS[1:]} is not set, as systemd does with "
                "LoadCredential= in the unit"
            )
        named = directory + named.removeprefix(CREDENTIALS)
    if not named.startswith("/") or "\0" in named:
        raise InvalidArgumentError(f"{named!r:.200} cannot be used: name a file by its full path")
    return Path(named)


class SecretFile:
    """One file with a secret. Safe to use on any thread.

    A file that becomes unusable, as one that is half written, does not replace a secret that was read before.
    """

    def __init__(self, named: str) -> None:
        """Take the path of a setting, which can begin with `$CREDENTIALS_DIRECTORY/`. The file is read later."""
        self._named = named
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        """Marks of the version that was read; another version has others."""
        self._secret: Secret | None = None
        self._problem = ""
        """The last problem that was logged, so that each is logged once."""

    def read(self, *, again: bool = False) -> Secret:
        """Return the secret of the file, which is read if it has changed, or anyway if `again` is set.

        Blocks. Raises InvalidArgumentError, with the path and the reason, if it was never usable.
        """
        with self._lock:
            try:
                return self._read(again=again)
            except InvalidArgumentError as error:
                if self._secret is None:
                    raise
                if error.message != self._problem:
                    self._problem = error.message
                    _changes.append(FileChange(self._named, error.message))
                    _log.error("secret_file_unusable", error=error.message)
                return self._secret

    def check(self) -> None:
        """Raise InvalidArgumentError unless the file can be used as it is now. Blocks."""
        with self._lock:
            self._read(again=True)

    def _read(self, *, again: bool) -> Secret:
        path = path_of(self._named)
        try:
            # Without O_NONBLOCK a pipe would wait for its other end.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise InvalidArgumentError(f"{path} cannot be used: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            marks = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            _check_status(path, status)
            if self._secret is not None and marks == self._seen and not again:
                return self._secret
            secret = _secret_in(path, _content(descriptor))
        except OSError as error:
            raise InvalidArgumentError(f"{path} cannot be used: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if self._secret is not None and secret != self._secret:
            _changes.append(FileChange(self._named, ""))
        self._secret, self._seen, self._problem = secret, marks, ""
        return secret


_changes: deque[FileChange] = deque(maxlen=CHANGES_MAX)
_files: dict[str, SecretFile] = {}
_files_lock = threading.Lock()


def secret_file(named: str) -> SecretFile:
    """Return the file of this name. All sessions share it, so that one session reads a new version for all."""
    with _files_lock:
        if named not in _files:
            if len(_files) >= _FILES_MAX:
                _files.clear()  # They are read again.
            _files[named] = SecretFile(named)
        return _files[named]


def take_changes() -> list[FileChange]:
    """Return the changes of files that were seen since the last time, for the audit. Safe to call from any thread."""
    taken: list[FileChange] = []
    with suppress(IndexError):
        while True:
            taken.append(_changes.popleft())
    return taken


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{path} cannot be used: it is no regular file")
    if status.st_mode & _WIDELY_OPEN:
        raise InvalidArgumentError(
            f"{path} cannot be used: its mode {stat.S_IMODE(status.st_mode):04o} lets others read it, or others than "
            "its owner write it; set 0600, or 0640 for a group that may read it"
        )


def _content(descriptor: int) -> bytes:
    """Return up to a byte more than BYTES_MAX."""
    content = b""
    while len(content) <= BYTES_MAX and (more := os.read(descriptor, BYTES_MAX + 1 - len(content))):
        content += more
    return content


def _secret_in(path: Path, content: bytes) -> Secret:
    if len(content) > BYTES_MAX:
        raise InvalidArgumentError(f"{path} cannot be used: it has more than {BYTES_MAX} bytes")
    value = content.removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise InvalidArgumentError(f"{path} cannot be used: it is empty, as a file is that is being written")
    if any(byte in value for byte in b"\0\r\n"):
        raise InvalidArgumentError(f"{path} cannot be used: it has more than one line, or a zero byte")
    return Secret(value)
