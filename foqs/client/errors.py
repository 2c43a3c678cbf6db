"""What can go wrong on the client's side, and the typed error of what came over the wire.

The tree of foqs.core.errors stays whole: everything here that concerns a host is an UnavailableError, split
by what a caller must know, namely whether the call can have been done.
"""

from __future__ import annotations

from foqs.core.errors import ErrorCode, FoqsError, UnavailableError, error_for_code


class OutcomeUnknownError(UnavailableError):
    """The call was sent and no answer came, or the host answered UNAVAILABLE: it was done or it was not.

    Repeating an enqueue may store the items twice.
    """


class NotSentError(UnavailableError):
    """No host was reached in time, or the call was never handed over whole: certainly nothing was done."""


class ClientClosedError(RuntimeError):
    """The client was closed before the call was through; if the call was sent, its outcome is unknown."""


def error_from_wire(code: int, message: str | None, retry_after_ms: int | None = None) -> FoqsError:
    """The typed error of a FoqsError or an ItemError; UNAVAILABLE becomes OutcomeUnknownError."""
    if code == ErrorCode.UNAVAILABLE:
        return OutcomeUnknownError(message or "", retry_after_ms=retry_after_ms)
    return error_for_code(code, message or "", retry_after_ms)


def copy_of(error: FoqsError) -> FoqsError:
    """An equal error for another caller: one exception raised in two threads would mix their tracebacks."""
    copy = type(error)(error.message, retry_after_ms=error.retry_after_ms)
    copy.__cause__ = error.__cause__
    return copy
