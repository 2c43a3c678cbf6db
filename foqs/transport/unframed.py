"""Answers for clients that forgot the framed transport or TLS, in the form they understand, before they are closed."""

from __future__ import annotations

from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.model.errors import PermissionDeniedError
from foqs.wire.codec import LENGTH_BYTES, METHODS_BY_NAME_BYTES, Codec
from foqs.wire.frames import CALL, EXCEPTION

UNFRAMED_CALL: Final = 0x8001_0000 | CALL
"""The first word of a strict binary message; as a frame length it would be above 2 GiB, which is invalid."""
_UNFRAMED_CALL_BYTES: Final = UNFRAMED_CALL.to_bytes(4, "big")
UNFRAMED_EXCEPTION: Final = (0x8001_0000 | EXCEPTION).to_bytes(4, "big")
"""The first bytes of the answer."""
HEAD_BYTES_MAX: Final = 12 + limits.METHOD_NAME_BYTES_MAX

_PROTOCOL_ERROR: Final = 7
"""The TApplicationException type for it."""
_FRAMED_ADVICE: Final = (
    "this server speaks the framed transport: wrap the socket in TFramedTransport, under TBinaryProtocol"
)
_TLS_ADVICE: Final = (
    "this port speaks TLS alone: connect with TLS, and verify the certificate of the host (ca_file, server_name)"
)

_u32 = Struct("!I").unpack_from
_i32 = Struct("!i").unpack_from


def answer_unframed(codec: Codec, head: bytes) -> bytes | None:
    """Return the bytes of a TApplicationException for an unframed call that begins with `head`, itself unframed.

    Clients compare the method's name and the seqid with those of their call. The result is empty for anything but an
    unframed call, or for a name that no client would send. It is None while the head of the call, of up to
    HEAD_BYTES_MAX, is incomplete.
    """
    found = _call_of(head)
    if not found:
        return None if found is None else b""
    name, seqid = found
    return codec.encode_application_error(name, _PROTOCOL_ERROR, _FRAMED_ADVICE, seqid)[LENGTH_BYTES:]


def answer_without_tls(codec: Codec, head: bytes) -> bytes | None:
    """Return the answer to a plain call that begins with `head`, framed or not, where all callers have to use TLS.

    A framed call of the contract gets the error that the contract declares. The result is empty or None as that of
    `answer_unframed`.
    """
    if len(head) < LENGTH_BYTES:
        return None
    is_framed = _u32(head, 0)[0] != UNFRAMED_CALL
    found = _call_of(head[LENGTH_BYTES:] if is_framed else head)
    if not found:
        return None if found is None else b""
    name, seqid = found
    method = METHODS_BY_NAME_BYTES.get(name)
    if is_framed and method is not None:
        return codec.encode_error(method, PermissionDeniedError(_TLS_ADVICE), seqid)
    answer = codec.encode_application_error(name, _PROTOCOL_ERROR, _TLS_ADVICE, seqid)
    return answer if is_framed else answer[LENGTH_BYTES:]


def _call_of(head: bytes) -> tuple[bytes, int] | tuple[()] | None:
    """Return the name and the seqid of a call; nothing if it is none, and None while too few bytes have come."""
    if len(head) < 8:
        begun = head[:LENGTH_BYTES]
        return None if begun == _UNFRAMED_CALL_BYTES[: len(begun)] else ()
    if _u32(head, 0)[0] != UNFRAMED_CALL:
        return ()
    name_bytes = _u32(head, 4)[0]
    if not 0 < name_bytes <= limits.METHOD_NAME_BYTES_MAX:
        return ()
    end = 8 + name_bytes
    if len(head) < end + 4:
        return None
    name, seqid = head[8:end], _i32(head, end)[0]
    if not name.isascii() or not name.decode("ascii").isprintable():
        return ()
    return name, seqid
