"""The file of a user's contexts: where it is, who can change it, and its change in one step.

It says where tokens are sent, so a file that others can change or read is refused.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from foqs.client.named_contexts import NamedContexts, parsed_contexts, with_default
from foqs.model.errors import InvalidArgumentError
from foqs.model.limits import KIB

FILE_VARIABLE: Final = "FOQS_CONTEXTS_FILE"
FILE_DEFAULT: Final = "~/.config/foqs/contexts.toml"
BYTES_MAX: Final = 256 * KIB
"""The maximum size of the file."""
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class ContextFile:
    """The file of contexts. It is read for each call, because nobody keeps it long."""

    def __init__(self, path: Path | None, *, is_named: bool = False) -> None:
        """Take the path, or None for a user without a home directory. `is_named`: the user has named the path."""
        self._path = path
        self._is_named = is_named

    @classmethod
    def of_user(cls) -> ContextFile:
        """Return the file that FOQS_CONTEXTS_FILE names, or else the one in the home directory."""
        if named := os.environ.get(FILE_VARIABLE):
            return cls(Path(named).absolute(), is_named=True)
        try:
            return cls(Path(FILE_DEFAULT).expanduser())
        except RuntimeError:  # A user without a home, as in many containers.
            return cls(None)

    def read(self) -> NamedContexts:
        """Return the contexts. Raises InvalidArgumentError if the file does not exist or cannot be used."""
        found = self.read_if_there()
        if found is None:
            raise InvalidArgumentError(
                f"{self._path or FILE_DEFAULT} does not exist, so there are no contexts: make it, with mode 0600 and a "
                f"table [NAME] for each, or name another file in {FILE_VARIABLE}"
            )
        return found

    def read_if_there(self) -> NamedContexts | None:
        """Return the contexts, or None without a file.

        Raises InvalidArgumentError if the file cannot be used, or does not exist though a variable names it.
        """
        content = self._content()
        return None if content is None or self._path is None else parsed_contexts(self._path, content)

    def use(self, name: str) -> NamedContexts:
        """Make a context the default one, and return all contexts. The other contents of the file stay.

        Raises InvalidArgumentError for an unknown context, and OSError if the file cannot be written.
        """
        before = self.read()
        before.named(name)
        content = self._content() or b""
        changed = with_default(content.decode(), name).encode()
        after = _parsed_or_none(before.path, changed)
        if after is None or (after.default, after.by_name) != (name, before.by_name):
            raise InvalidArgumentError(
                f"{before.path} has its default in an unusual form, and is left as it is: write default = "
                f'"{name}" at its top'
            )
        if changed != content:
            _replace(before.path.resolve(), changed)  # A link to the file stays one.
        return after

    def _content(self) -> bytes | None:
        if self._path is None:
            return None
        try:
            # Without O_NONBLOCK a pipe would wait for its other end.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (FileNotFoundError, NotADirectoryError):
            if self._is_named:
                raise InvalidArgumentError(
                    f"{self._path}, which {FILE_VARIABLE} names, does not exist: make it, with mode 0600"
                ) from None
            return None
        except OSError as error:
            raise InvalidArgumentError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            _check_status(self._path, os.fstat(descriptor))
            return _read(self._path, descriptor)
        except OSError as error:
            raise InvalidArgumentError(f"{self._path} cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)


def _parsed_or_none(path: Path, content: bytes) -> NamedContexts | None:
    with suppress(InvalidArgumentError):
        return parsed_contexts(path, content)
    return None


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{path} is no regular file: name another one in {FILE_VARIABLE}")
    if status.st_uid != os.geteuid():
        raise InvalidArgumentError(
            f"{path} belongs to the user {status.st_uid} and not to you ({os.geteuid()}), and its owner could have "
            f"your token sent elsewhere: change its owner, or name a file of your own in {FILE_VARIABLE}"
        )
    if status.st_mode & _OF_OTHERS:
        raise InvalidArgumentError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, so others can read or change it: chmod 600 {path}"
        )


def _read(path: Path, descriptor: int) -> bytes:
    content = b""
    while len(content) <= BYTES_MAX and (more := os.read(descriptor, BYTES_MAX + 1 - len(content))):
        content += more
    if len(content) > BYTES_MAX:
        raise InvalidArgumentError(f"{path} has more than {BYTES_MAX} bytes, which are the most that contexts can have")
    return content


def _replace(path: Path, content: bytes) -> None:
    """Replace the file in one step, so that nobody reads half of it, and a full disk leaves the old one."""
    mode = stat.S_IMODE(path.stat().st_mode)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        new.unlink()  # A process of the same number died while it wrote.
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
