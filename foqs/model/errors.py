"""One tree of errors, with the codes of the contract (idl/foqs.thrift).

An error has a code for machines, a sentence for people, and `retryable` and `nothing_done` as data. The sentence names
the fault, the value and the limit, and the remedy.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    INVALID_ARGUMENT = 1
    UNKNOWN_NAMESPACE = 2
    TOO_LARGE = 3
    RATE_LIMITED = 4
    OVERLOADED = 5
    UNAVAILABLE = 6
    NOT_FOUND = 7
    STALE_LEASE = 8
    PERMISSION_DENIED = 9
    ALREADY_EXISTS = 10
    PAUSED = 11
    INTERNAL = 12


class FoqsError(Exception):
    """Base of every error a caller can get.

    `retry_after_ms` is the time after which a retry can succeed; None if the host cannot know. `nothing_done` is True
    if the host certainly did nothing, so that a retry, here or elsewhere, does nothing twice, and False if that is
    unknown. It is True by default for a refusal; UNAVAILABLE and INTERNAL set it for each error.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retryable: ClassVar[bool] = False
    is_refusal: ClassVar[bool] = True
    """True if the code itself says that nothing was done."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_ms: int | None = None,
        nothing_done: bool | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.nothing_done = self.is_refusal if nothing_done is None else nothing_done
        self.request_id = request_id
        """The id under which the host that refused or failed the call logs it, or None."""


class InvalidArgumentError(FoqsError):
    """An argument breaks a rule of the contract. The same call can never succeed."""

    code = ErrorCode.INVALID_ARGUMENT


class UnknownNamespaceError(FoqsError):
    """The namespace does not exist. Create it first."""

    code = ErrorCode.UNKNOWN_NAMESPACE


class TooLargeError(FoqsError):
    """A payload, metadata, a batch or a frame exceeds its limit."""

    code = ErrorCode.TOO_LARGE


class RateLimitedError(FoqsError):
    """The namespace has used up its enqueues per minute, or a job its rate. Retry after `retry_after_ms`."""

    code = ErrorCode.RATE_LIMITED
    retryable = True


class OverloadedError(FoqsError):
    """The host cannot take this call now, because it is full, is draining, or has no shard that takes items."""

    code = ErrorCode.OVERLOADED
    retryable = True


class NoShardError(OverloadedError):
    """No shard of this host takes items now, regardless of its load. Another host can have a shard that does."""


class NotWrittenError(FoqsError):
    """The shard cannot take items now and certainly wrote nothing. Another shard can take them."""

    code = ErrorCode.OVERLOADED
    retryable = True


class UnavailableError(FoqsError):
    """The shard cannot respond now. The outcome of a write is unknown, unless `nothing_done` is true."""

    code = ErrorCode.UNAVAILABLE
    retryable = True
    is_refusal = False


class ShardElsewhereError(UnavailableError):
    """This host does not serve the shard, so nothing was done; another host can serve it."""

    is_refusal = True

    def __init__(
        self,
        message: str,
        *,
        shard_id: int,
        is_sick: bool = False,
        retry_after_ms: int | None = None,
        nothing_done: bool | None = None,
    ) -> None:
        """`is_sick` is True if the shard is this host's and stays here, so that no other host has it soon."""
        super().__init__(message, retry_after_ms=retry_after_ms, nothing_done=nothing_done)
        self.shard_id = shard_id
        self.is_sick = is_sick


class HostUnreachableError(UnavailableError):
    """Another host of the cluster has to do this call and is unreachable. It was not asked, so nothing was done."""

    is_refusal = True

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, nothing_done=True)


class SlotsBusyError(UnavailableError):
    """Some slots cannot move, because the shard that would receive them has older items of their serial topics."""

    def __init__(self, slots: frozenset[int], to_shard: int) -> None:
        super().__init__(
            f"shard {to_shard} still has older items of serial topics of {len(slots)} slots: these do not move there",
            nothing_done=True,
        )
        self.slots = slots


class NotFoundError(FoqsError):
    """No such item, job or shard exists."""

    code = ErrorCode.NOT_FOUND


class StaleLeaseError(FoqsError):
    """The lease of this receipt has ended. Nothing was changed."""

    code = ErrorCode.STALE_LEASE


class PermissionDeniedError(FoqsError):
    """The caller is not permitted to make this call, or its token is wrong. Operators can find it by its request id."""

    code = ErrorCode.PERMISSION_DENIED


class AlreadyExistsError(FoqsError):
    """Something with this name exists already."""

    code = ErrorCode.ALREADY_EXISTS


class PausedError(FoqsError):
    """An operator has paused the namespace or the topic, the topic is full, or the namespace is being deleted."""

    code = ErrorCode.PAUSED
    retryable = True


class InternalError(FoqsError):
    """The host has a bug; the outcome of a write is unknown. Its log has the cause under the id in the message."""

    code = ErrorCode.INTERNAL
    is_refusal = False


ERROR_BY_CODE: dict[int, type[FoqsError]] = {
    int(cls.code): cls
    for cls in (
        InvalidArgumentError,
        UnknownNamespaceError,
        TooLargeError,
        RateLimitedError,
        OverloadedError,
        UnavailableError,
        NotFoundError,
        StaleLeaseError,
        PermissionDeniedError,
        AlreadyExistsError,
        PausedError,
        InternalError,
    )
}


def shown(value: object) -> str:
    """Return the start of a caller's value, for a message. Text is cut before repr(), because it can have megabytes."""
    return repr(value[:80] if isinstance(value, str) else value)[:80]


def error_for_code(
    code: int,
    message: str,
    retry_after_ms: int | None = None,
    nothing_done: bool | None = None,
    *,
    request_id: str | None = None,
) -> FoqsError:
    """Return the typed error of a code from the wire; a code of a newer host becomes InternalError."""
    cls = ERROR_BY_CODE.get(code, InternalError)
    return cls(message, retry_after_ms=retry_after_ms, nothing_done=nothing_done, request_id=request_id)
