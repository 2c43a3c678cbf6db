"""An answer for clients that forgot the framed transport, in the form they understand, before the connection ends."""

from __future__ import annotations

from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.wire.codec import LENGTH_BYTES, Codec
from foqs.wire.frames import CALL, EXCEPTION

UNFRAMED_CALL: Final = 0x8001_0000 | CALL
"""The first word of a strict binary message; as a frame length it would be above 2 GiB, which is invalid."""
UNFRAMED_EXCEPTION: Final = (0x8001_0000 | EXCEPTION).to_bytes(4, "big")
"""The first bytes of the answer."""
HEAD_BYTES_MAX: Final = 12 + limits.METHOD_NAME_BYTES_MAX

_PROTOCOL_ERROR: Final = 7
"""The TApplicationException type for it."""
_ADVICE: Final = "this server speaks the framed transport: wrap the socket in TFramedTransport, under TBinaryProtocol"

_u32 = Struct("!I").unpack_from
_i32 = Struct("!i").unpack_from


def answer_unframed(codec: Codec, head: bytes) -> bytes | None:
    """Return the bytes of a TApplicationException for an unframed call that begins with `head`, itself unframed.

    Clients compare the method's name and the seqid with those of their call. The result is empty for anything but an
    unframed call, or for a name that no client would send. It is None while the head of the call, of up to
    HEAD_BYTES_MAX, is incomplete.
    """
    if _u32(head, 0)[0] != UNFRAMED_CALL:
        return b""
    if len(head) < 8:
        return None
    name_bytes = _u32(head, 4)[0]
    if not 0 < name_bytes <= limits.METHOD_NAME_BYTES_MAX:
        return b""
    end = 8 + name_bytes
    if len(head) < end + 4:
        return None
    name, seqid = head[8:end], _i32(head, end)[0]
    if not name.isascii() or not name.decode("ascii").isprintable():
        return b""
    return codec.encode_application_error(name, _PROTOCOL_ERROR, _ADVICE, seqid)[LENGTH_BYTES:]
