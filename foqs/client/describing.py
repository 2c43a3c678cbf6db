"""The reason of a failed attempt, from the exception that a handler raised."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from foqs.client.settling import DeadLetter, Release, Retry, log
from foqs.model.errors import InvalidArgumentError
from foqs.model.failures import REASON_BYTES_MAX, clean_reason

Describe = Callable[[BaseException], str | None]
"""Returns the reason that the host keeps for an exception of a handler; None for no reason."""

_OWN: Final = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_FRAMES_MAX: Final = 10_000
"""Frames of a traceback that are looked at: more than the interpreter's limit of recursion."""


def describe_error(error: BaseException) -> str:
    """Return an exception in one line of 500 bytes at most: "ValueError: bad card (billing/charge.py:31)".

    It has the type, the first line of the message, and the place: the last call outside of libraries.
    """
    name = type(error).__qualname__
    message = clean_reason(_first_line(error))
    place = _place(error.__traceback__)
    room = REASON_BYTES_MAX - len(name.encode()) - len(place.encode()) - 5
    shown = clean_reason(message.encode()[: max(0, room)].decode(errors="ignore"))
    return clean_reason(f"{name}: {shown}{place}" if shown else f"{name}{place}")


def reason_of(error: BaseException, describe: Describe | None) -> str | None:
    """Return the reason for the end of a handler: what Retry, DeadLetter or Release say, or the description.

    Retry and DeadLetter without a reason have that of the exception that was being handled. It never raises, because
    then the item would not be settled: a failure of `describe` is logged, and the attempt has no reason.
    """
    if isinstance(error, Retry | DeadLetter) and not error.reason:
        handled = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if handled is None:
            return None
        error = handled
    if isinstance(error, Retry | DeadLetter | Release):
        return clean_reason(_text(error.reason)) or None
    if describe is None:
        return None
    try:
        return clean_reason(describe(error)) or None
    except Exception as failure:
        log.warning("a failed attempt has no reason, because `describe` failed: %s", type(failure).__name__)
        return None


def check_describe(describe: Describe | None) -> Describe | None:
    """Return the function. Raises InvalidArgumentError for a value that cannot be called."""
    if describe is not None and not callable(describe):
        raise InvalidArgumentError(f"describe {describe!r} is no function of an exception: give one, or None")
    return describe


def _first_line(error: BaseException) -> str:
    text = _text(error).lstrip()
    return text[: text.find("\n")] if "\n" in text else text


def _text(value: object) -> str:
    try:
        return str(value or "")
    except Exception:
        return ""


def _place(traceback: TracebackType | None) -> str:
    """Return the file and the line of the last call of the caller's code, in brackets; empty without one."""
    found: tuple[str, int] | None = None
    count = 0
    while traceback is not None and count < _FRAMES_MAX:
        file_name = traceback.tb_frame.f_code.co_filename
        if not file_name.startswith((_OWN, *_LIBRARIES, "<frozen", sys.base_prefix + "/lib/")):
            found = file_name, traceback.tb_lineno
        traceback, count = traceback.tb_next, count + 1
    if found is None:
        return ""
    return f" ({'/'.join(Path(found[0]).parts[-2:])}:{found[1]})"
