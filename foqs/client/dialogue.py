"""The protocol of one connection without its I/O: encodes calls and matches replies to them.

Only the seqid matches a reply to its call, and a connection is never used again after anything unexpected. Without
these two rules, a client would take the late answer to a timed-out call for the answer to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from thriftpy2.thrift import TDecodeException

from foqs.client.checks import check_request
from foqs.client.client_errors import as_client_error
from foqs.client.flows import Call
from foqs.model import limits
from foqs.model.errors import InternalError, InvalidArgumentError
from foqs.wire import codec as wire
from foqs.wire.frames import FrameError

_SEQID_MAX = 2**31 - 1
_TLS_RECORDS: Final = (0x15, 0x16)
"""First byte of an alert and of a handshake of TLS. As a length of a frame it is far beyond the limit."""
_TLS_MAJOR: Final = 3
_NOT_ENCODABLE = (TDecodeException, ValueError, TypeError, ArithmeticError, AttributeError, BufferError)
"""Exceptions of the encoder for a value that it cannot write. Nothing has been sent then."""


class BrokenDialogueError(Exception):
    """The peer sent something other than a response to the call; the connection must be closed."""


class SpeaksTlsError(BrokenDialogueError):
    """The peer answered with a record of TLS, so it cannot have read the call."""


class Dialogue:
    """Seqids and codec of one connection, which owns it. Not safe for threads."""

    def __init__(self) -> None:
        self._codec = wire.Codec()
        self._seqid = 0

    def frame_of(self, call: Call) -> tuple[int, bytes]:
        """Return the seqid of the call and its complete frame.

        Raises InvalidArgumentError for an argument of a wrong type or range, TooLargeError beyond the frame limit.
        """
        try:
            check_request(call.request)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{call.method}: {error.message}") from error
        self._seqid = seqid = self._seqid % _SEQID_MAX + 1
        try:
            if (encoded := call.encoded) is not None:
                return seqid, self._codec.join_call(call.method, call.request, len(encoded), encoded.parts(), seqid)
            return seqid, self._codec.encode_call(call.method, call.request, seqid)
        except _NOT_ENCODABLE as error:
            raise InvalidArgumentError(f"{call.method}: an argument has a wrong type or range: {error}") from error

    def reply_in(self, message: bytes) -> wire.Reply:
        try:
            return self._codec.decode_reply(message)
        except FrameError as error:
            raise BrokenDialogueError(str(error)) from error


def outcome_of(reply: wire.Reply, call: Call) -> Any:
    """Return the response struct. Raises the host's error, or BrokenDialogueError if the connection must be closed."""
    if reply.method is None or reply.method.name != call.method:
        name = reply.method.name if reply.method else "no method"
        raise BrokenDialogueError(f"the answer to {call.method} speaks of {name}")
    error = reply.error
    if error is None:
        return reply.response
    if isinstance(error, wire.ApplicationError):
        if error.kind == wire.UNKNOWN_METHOD:
            raise InvalidArgumentError(f"the host does not know {call.method}: {error}")
        raise InternalError(f"{call.method}: the host could not answer: {error}")
    raise as_client_error(error)


def leaves_connection_usable(reply: wire.Reply, call: Call) -> bool:
    """True if the connection can be used again: after a response to this call that the contract declares."""
    answers_call = reply.method is not None and reply.method.name == call.method
    return answers_call and not isinstance(reply.error, wire.ApplicationError)


def body_bytes(header: bytes | bytearray | memoryview) -> int:
    """Return the length in a frame's header. Raises BrokenDialogueError beyond the limit, before any allocation."""
    size = int.from_bytes(header[: wire.LENGTH_BYTES])
    if header[0] in _TLS_RECORDS and header[1] == _TLS_MAJOR:
        raise SpeaksTlsError("the server speaks TLS on this port, and the client does not: give tls=True")
    if not 0 < size <= limits.FRAME_BYTES_MAX:
        raise BrokenDialogueError(f"a frame of {size} bytes; the limit is {limits.FRAME_BYTES_MAX}")
    return size


class FrameReader:
    """Splits a stream into messages. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Iterate over the messages that `data` completes. Raises BrokenDialogueError."""
        buffer = self._buffer
        header = wire.LENGTH_BYTES
        if not buffer and len(data) > header and header + body_bytes(data) == len(data):
            yield data[header:]
            return
        buffer += data
        start = 0
        while len(buffer) - start >= wire.LENGTH_BYTES:
            body = start + wire.LENGTH_BYTES
            end = body + body_bytes(buffer[start:body])
            if end > len(buffer):
                break
            yield bytes(buffer[body:end])
            start = end
        del buffer[:start]
