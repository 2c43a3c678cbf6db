"""Errors that arise in the client, and typed errors from the wire.

They extend the tree of foqs.model.errors. Every error here that concerns a host is an UnavailableError, and its
subclass says if the call might have been done. A plain UnavailableError comes from a host that does not serve the shard
and did nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foqs.model.errors import ErrorCode, FoqsError, UnavailableError, error_for_code

if TYPE_CHECKING:
    from foqs.model.calls import PositionErrors

_ERRORS_NAMED_MAX = 3


class OutcomeUnknownError(UnavailableError):
    """The call was sent and got no response, or the host does not know its outcome either.

    Repeating an enqueue can store its items twice.
    """


class NotSentError(UnavailableError):
    """No host was reached in time, or the call was not sent completely. Nothing was done."""

    is_refusal = True


class BatchError(FoqsError):
    """Some positions of a batch failed; all others were done.

    Calls with many items raise it so that no failure is overlooked; with return_errors=True they return the errors
    instead.

    errors: the errors by position, from 0 in the given order.
    total_count: the number of positions.
    ids: for an enqueue, the id of each position, "" for a failed one.
    duplicates: for an enqueue, the positions that got the id of an item enqueued before.
    code: of the first error.  nothing_done: True if certainly no position of the batch was done.
    retry_after_ms: pause until another try can succeed; None if unknown.
    """

    def __init__(
        self,
        verb: str,
        errors: PositionErrors,
        total_count: int,
        ids: Sequence[str] = (),
        duplicates: Sequence[int] = (),
    ) -> None:
        self.verb = verb
        self.errors = errors
        self.total_count = total_count
        self.ids = ids
        self.duplicates = duplicates
        first = sorted(errors.items())[:_ERRORS_NAMED_MAX]
        named = [f"position {position}: {type(error).__name__}: {error.message}" for position, error in first]
        if len(errors) > len(first):
            named.append(f"and {len(errors) - len(first)} more")
        super().__init__(
            f"{verb}: {len(errors)} of {total_count} positions failed, see `errors`: {'; '.join(named)}",
            retry_after_ms=max((error.retry_after_ms or 0 for error in errors.values()), default=0) or None,
            nothing_done=len(errors) == total_count and all(error.nothing_done for error in errors.values()),
        )

    @property
    def code(self) -> ErrorCode:  # type: ignore[override] # a batch has that of its errors, not one of its class
        """Code of the first error."""
        return self.errors[min(self.errors)].code

    @property
    def done_count(self) -> int:
        """Number of positions that were done."""
        return self.total_count - len(self.errors)

    def __reduce__(
        self,
    ) -> tuple[type[BatchError], tuple[str, PositionErrors, int, Sequence[str], Sequence[int]]]:
        return BatchError, (self.verb, self.errors, self.total_count, self.ids, self.duplicates)


class ClientClosedError(RuntimeError):
    """The client was closed during the call, or it belongs to another process or event loop.

    The outcome of a call that was already sent is unknown.
    """


def check_process(process_id: int) -> None:
    """Raise ClientClosedError unless this process created the client.

    A forked process shares its parent's sockets, so each would read the other's responses.
    """
    if process_id != os.getpid():
        raise ClientClosedError(
            f"the client was made in process {process_id} and is used in its fork {os.getpid()}: "
            "make a client in each process, after the fork"
        )


def error_from_wire(decoded: Any) -> FoqsError:
    """Return the typed error of an ItemError, see `as_client_error`."""
    return as_client_error(
        error_for_code(decoded.code, decoded.message or "", decoded.retry_after_ms, decoded.nothing_done)
    )


def as_client_error(error: FoqsError) -> FoqsError:
    """Return a host's error, but OutcomeUnknownError for an UNAVAILABLE call that might have been done."""
    if type(error) is UnavailableError and not error.nothing_done:
        return OutcomeUnknownError(error.message, retry_after_ms=error.retry_after_ms)
    return error


def copy_of(error: FoqsError) -> FoqsError:
    """Copy an error for another caller, because one exception raised in two threads mixes their tracebacks."""
    copy = type(error)(error.message, retry_after_ms=error.retry_after_ms, nothing_done=error.nothing_done)
    copy.__cause__ = error.__cause__
    return copy
