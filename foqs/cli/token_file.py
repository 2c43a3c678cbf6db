"""A token in a file of its owner alone, which is there before the token counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from foqs.model.access_calls import NewToken
from foqs.model.errors import AlreadyExistsError

TOKEN_FILE_HELP = "Write the token to this new file, which nobody else can read, and do not print it."


def write_new(path: Path, make: Callable[[], NewToken]) -> NewToken:
    """Make a token, write its text to a new file of mode 0600, and return it. Without a token there is no file.

    It is opened first: a token that was made and cannot be written would be known to nobody, and count all the same.
    Raises AlreadyExistsError if the file exists, and OSError if it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists already, and can have a token: name another file") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), 0o600)
            made = make()
            file.write(f"{made.token}\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return made
