"""Frames for both ends of a connection, without a socket and without a clock: cut, held to deadlines, scanned.

A frame is a big-endian u32 length and that many bytes of one message. `FrameCutter` takes bytes as they come and gives
complete messages; `FrameDeadline` bounds the time in which a peer has to send the rest of a frame that it has begun.

Every message is scanned before the decoder sees a byte of it. thriftpy2's Cython decoder trusts lengths and counts.
From untrusted bytes it reads past the end of its buffer, loops over 2^31 elements of no width, or allocates any size
that a peer claims. The scan walks a message by its structure alone and builds nothing.

A successful scan makes decoding safe. It reads lengths and counts as unsigned, so the position only moves forward.
Reading beyond the buffer raises, and the walk must end exactly on the last byte of the message. Hence every byte that
was taken for granted lies within the message, and the decoder, which takes the same steps, neither reads past the end
nor loops longer than the scan did. A budget of elements and fields bounds the scan itself, for any declared counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from struct import error as struct_error
from typing import Final, NoReturn

from foqs.model import limits

LENGTH_BYTES: Final = 4
"""Bytes of the header of every frame."""

FRAME_LENGTH: Final = "frame_length"
"""The reason of a FrameError for a length that no frame can have."""

LOGIN_FRAME: Final = "login_frame"
"""The reason of a FrameError for a frame that is too long for a caller without a login."""

CALL: Final = 1
REPLY: Final = 2
EXCEPTION: Final = 3

_VERSION_1: Final = 0x8001_0000

_STOP: Final = 0
_BOOL: Final = 2
_STRING: Final = 11
_STRUCT: Final = 12
_MAP: Final = 13
_SET: Final = 14
_LIST: Final = 15

_WIDTHS: Final = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}
"""Bytes of bool, byte, double, i16, i32 and i64."""
WIDTHS: Final = bytes(_WIDTHS.get(kind, 0) for kind in range(256))
"""The same by type, with 0 for all other types."""

_STRICT_CALL: Final = _VERSION_1 | CALL
_HEAD_BYTES: Final = 12
"""Bytes of a message's head besides its method's name: version and type, length of the name, seqid."""
_FIRST_FIELD: Final = bytes([_STRUCT, 0, 1, _STRING, 0, 1])
"""The first bytes of the arguments of a call if the first field of its request is text."""
_BULK_AT_THE_END: Final = bytes([_BOOL, 0, 3, 1, _STOP, _STOP])
"""The last bytes of a bulk enqueue that names no job."""
_NOT_BULK_AT_THE_END: Final = bytes([_BOOL, 0, 3, 0, _STOP, _STOP])
_BULK_BEFORE_JOB: Final = bytes([_BOOL, 0, 3, 1, _STRING, 0, 4])
_BULK_TAIL_BYTES_MAX: Final = len(_BULK_BEFORE_JOB) + 4 + limits.JOB_ID_CHARS_MAX + 2
_NAME_BYTES_MAX: Final = limits.METHOD_NAME_BYTES_MAX
_DEPTH_MAX: Final = limits.FRAME_DEPTH_MAX
_ELEMENTS_MAX: Final = limits.FRAME_ELEMENTS_MAX
_FIELDS: Final = range(limits.FRAME_FIELDS_PER_STRUCT_MAX + 1)

_u32 = Struct("!I").unpack_from
_i32 = Struct("!i").unpack_from


class FrameError(Exception):
    """The bytes are not a message that is safe to decode. `reason` is one of a few words, fit for a metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class FramePart(Enum):
    """The part of a frame that a peer still has to send."""

    FIRST_FRAME = "first_frame"
    """The first complete frame header of a new connection."""
    HEADER = "header"
    BODY = "body"


class FrameCutter:
    """Cuts a stream of bytes into messages. A connection has one for its received bytes.

    `feed` takes bytes, and `next_message` returns one complete message after the other. The rest stays here:
    `buffered_bytes` is its size, and `missing` the part that the next frame lacks. The first frame that breaks the
    protocol raises FrameError, then and ever after.
    """

    __slots__ = ("_at", "_buffer", "buffered_bytes")

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._at = 0
        """All bytes before this position were returned."""
        self.buffered_bytes = 0
        """Bytes that were received and not returned."""

    def feed(self, data: bytes) -> None:
        """Take bytes in the order in which the peer sent them."""
        self.buffered_bytes += len(data)
        buffer = self._buffer
        if not buffer:
            self._buffer = data
        elif isinstance(buffer, bytearray):
            del buffer[: self._at]
            buffer += data
            self._at = 0
        else:
            joined = bytearray(memoryview(buffer)[self._at :])
            joined += data
            self._buffer = joined
            self._at = 0

    def next_message(self, bytes_max: int = limits.FRAME_BYTES_MAX) -> bytes | None:
        """Return the next message without its header, or None until more bytes come.

        Raises FrameError for a length out of 1..FRAME_BYTES_MAX, before waiting for any byte of that frame, and for one
        above `bytes_max`.
        """
        if self.buffered_bytes < LENGTH_BYTES:
            return None
        buffer, start = self._buffer, self._at + LENGTH_BYTES
        length = _u32(buffer, self._at)[0]
        if not 0 < length <= limits.FRAME_BYTES_MAX:
            raise FrameError(FRAME_LENGTH, f"a frame of {length} bytes, not 1..{limits.FRAME_BYTES_MAX}")
        if length > bytes_max:
            raise FrameError(LOGIN_FRAME, f"a frame of {length} bytes before a login, at most {bytes_max} are taken")
        end = start + length
        if end > len(buffer):
            return None
        message = buffer[start:end] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:end])
        self.buffered_bytes -= LENGTH_BYTES + length
        if self.buffered_bytes:
            self._at = end
        else:
            self._buffer, self._at = b"", 0
        return message

    def missing(self) -> FramePart:
        """Return the missing part of the begun frame. Only valid after `next_message` returned None and left bytes."""
        return FramePart.HEADER if self.buffered_bytes < LENGTH_BYTES else FramePart.BODY

    def body_bytes(self) -> int:
        """Return the length declared by the begun frame's header; 0 while the header is missing."""
        return 0 if self.buffered_bytes < LENGTH_BYTES else int(_u32(self._buffer, self._at)[0])

    def head(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer if fewer have come."""
        return bytes(memoryview(self._buffer)[self._at : self._at + size])

    def clear(self) -> None:
        """Drop all received bytes."""
        self._buffer, self._at, self.buffered_bytes = b"", 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTimes:
    """The time limits for a peer that sends a frame, in milliseconds."""

    first_frame_ms_max: int = limits.FIRST_FRAME_MS_MAX
    header_ms_max: int = limits.FRAME_HEADER_MS_MAX
    body_ms_min: int = limits.FRAME_BODY_MS_MIN
    body_bytes_per_ms_min: int = limits.FRAME_BODY_BYTES_PER_MS_MIN


class FrameDeadline:
    """Bounds the time in which a peer has to send the rest of a begun frame. A connection owns it and asks it.

    A deadline is set when a part of a frame begins, and more bytes of that part do not move it. It is suspended while
    the host itself does not read: between `pause` and `resume`. All times are the caller's, in seconds.
    """

    __slots__ = ("_deadline_s", "_paused_at_s", "_times", "awaited", "partial_since_s")

    def __init__(self, times: FrameTimes, now_s: float) -> None:
        self._times = times
        self.awaited: FramePart | None = FramePart.FIRST_FRAME
        self._deadline_s: float | None = now_s + times.first_frame_ms_max / 1000
        self.partial_since_s: float | None = None
        """The time at which the first bytes of the awaited body came."""
        self._paused_at_s: float | None = None

    def await_part(self, part: FramePart, body_bytes: int, now_s: float) -> None:
        """Note that a frame lacks this part now; `body_bytes` is the body's length if that is the part.

        The first frame's header must come by the deadline of the first frame.
        """
        if part is FramePart.HEADER and self.awaited is None:
            self._set(part, self._times.header_ms_max, now_s)
        elif part is FramePart.BODY and self.awaited is not part:
            self._set(part, self._times.body_ms_min + body_bytes / self._times.body_bytes_per_ms_min, now_s)
            self.partial_since_s = now_s

    def await_nothing(self) -> None:
        """Note that no frame has begun, or that the host does not want its rest yet."""
        self.awaited = None
        self._deadline_s = self.partial_since_s = None

    def pause(self, now_s: float) -> None:
        """Suspend the deadline, because the host stops reading."""
        self._paused_at_s = now_s

    def resume(self, now_s: float) -> None:
        """Resume the deadline with the time left at the pause, because the host reads again."""
        if self._paused_at_s is None:
            return
        paused_s = now_s - self._paused_at_s
        self._paused_at_s = None
        if self._deadline_s is not None:
            self._deadline_s += paused_s
        if self.partial_since_s is not None:
            self.partial_since_s += paused_s

    @property
    def is_paused(self) -> bool:
        return self._paused_at_s is not None

    def is_over(self, now_s: float) -> bool:
        """True if the deadline has passed."""
        return self._deadline_s is not None and self._paused_at_s is None and now_s >= self._deadline_s

    def _set(self, part: FramePart, allowed_ms: float, now_s: float) -> None:
        self.awaited = part
        self._deadline_s = now_s + allowed_ms / 1000
        if self._paused_at_s is not None:
            self._paused_at_s = now_s  # This deadline is suspended from now on.


def peek_call(message: bytes) -> tuple[bytes, bytes]:
    """Read a call's method and namespace before it is scanned or decoded; each is empty if absent.

    The method is returned only if the message head is complete. The namespace is the text in the first field of the
    request, if that field comes first, as Thrift libraries write it, and if its length is valid for a namespace.
    """
    if len(message) < _HEAD_BYTES or _u32(message, 0)[0] != _STRICT_CALL:
        return b"", b""
    at = _HEAD_BYTES + _u32(message, 4)[0]
    if at > _HEAD_BYTES + _NAME_BYTES_MAX or len(message) < at:
        return b"", b""
    name, start = message[8 : at - 4], at + 10
    if message[at : at + 6] != _FIRST_FIELD or len(message) < start:
        return name, b""
    end = start + _u32(message, at + 6)[0]
    return name, message[start:end] if end <= start + limits.NAMESPACE_NAME_CHARS_MAX else b""


def says_bulk(message: bytes) -> bool:
    """True if an enqueue is marked as bulk, judged before it is scanned or decoded.

    The mark is one of the last fields, as Thrift libraries write it, before the id of a job if the call has one. A mark
    in another place is ignored here. Other content that looks like a mark deceives the host only to the caller's own
    cost.
    """
    if message.endswith(_BULK_AT_THE_END):
        return True
    if message.endswith(_NOT_BULK_AT_THE_END):
        return False
    at = message.rfind(_BULK_BEFORE_JOB, max(0, len(message) - _BULK_TAIL_BYTES_MAX))
    end = at + len(_BULK_BEFORE_JOB)
    return at >= 0 and end + 4 <= len(message) and end + 4 + _u32(message, end)[0] + 2 == len(message)


def scan_call(data: bytes, start: int, end: int) -> tuple[bytes, int, int]:
    """Walk the call in `data[start:end]`; return its method name, its seqid and the start of its arguments.

    Raises FrameError for everything but a strict binary message of type CALL.
    """
    kind, name, seqid, body = _scan(data, start, end, True)
    if kind != CALL:
        raise FrameError("message_type", f"type {kind} where a call is due")
    return name, seqid, body


def scan_reply(data: bytes, start: int, end: int) -> tuple[int, bytes, int, int]:
    """Walk the answer in `data[start:end]`; return REPLY or EXCEPTION, method name, seqid, start of the body.

    Maps of strings are refused, because the decoder takes a string key or value for any declared type, and would leave
    the scanned path. The contract has none, and its calls have no map at all.
    """
    kind, name, seqid, body = _scan(data, start, end, False)
    if kind not in (REPLY, EXCEPTION):
        raise FrameError("message_type", f"type {kind} where an answer is due")
    return kind, name, seqid, body


def _scan(data: bytes, start: int, end: int, string_maps: bool) -> tuple[int, bytes, int, int]:
    try:
        head = _u32(data, start)[0]
        if head & 0xFFFF_FF00 != _VERSION_1:
            raise FrameError("version", f"first word 0x{head:08x}: not a strict binary message")
        name_bytes = _u32(data, start + 4)[0]
        if not 0 < name_bytes <= _NAME_BYTES_MAX:
            raise FrameError("method_name", f"{name_bytes} bytes, not 1..{limits.METHOD_NAME_BYTES_MAX}")
        at = start + 8 + name_bytes
        name = data[start + 8 : at]
        if not name.isalnum() and not (name.isascii() and name.decode("ascii").isprintable()):
            raise FrameError("method_name", f"{name!r} is not printable ASCII")
        seqid = _i32(data, at)[0]
        reached, _ = _skip_struct(data, at + 4, _ELEMENTS_MAX, 1, string_maps)
    except (IndexError, struct_error):
        raise FrameError("truncated", f"the message goes on after its {end - start} bytes") from None
    if reached != end:
        raise FrameError("length", f"the message has {reached - start} bytes, its frame {end - start}")
    return head & 0xFF, name, seqid, at + 4


def _skip_struct(data: bytes, at: int, budget: int, depth: int, string_maps: bool) -> tuple[int, int]:
    """Return the position after the struct that starts at `at`, and the rest of the budget."""
    if depth > _DEPTH_MAX:
        _refuse_depth()
    for field_count in _FIELDS:
        kind = data[at]
        if kind == _STRING:
            at += 7 + _u32(data, at + 3)[0]
        elif kind == _STOP:
            budget -= field_count
            if budget < 0:
                _refuse_budget()
            return at + 1, budget
        elif width := WIDTHS[kind]:
            at += 3 + width
        elif kind == _LIST:
            at, budget = _skip_list(data, at + 3, budget, depth + 1, string_maps)
        elif kind == _STRUCT:
            at, budget = _skip_struct(data, at + 3, budget, depth + 1, string_maps)
        else:
            at, budget = _skip_nested(kind, data, at + 3, budget, depth + 1, string_maps)
    raise FrameError("elements", f"a struct has more than {limits.FRAME_FIELDS_PER_STRUCT_MAX} fields")


def _skip_nested(kind: int, data: bytes, at: int, budget: int, depth: int, string_maps: bool) -> tuple[int, int]:
    if kind == _STRUCT:
        return _skip_struct(data, at, budget, depth, string_maps)
    if kind in (_LIST, _SET):
        return _skip_list(data, at, budget, depth, string_maps)
    if kind == _MAP:
        return _skip_map(data, at, budget, depth, string_maps)
    raise FrameError("type", f"unknown type {kind}")


def _skip_list(data: bytes, at: int, budget: int, depth: int, string_maps: bool) -> tuple[int, int]:
    if depth > _DEPTH_MAX:
        _refuse_depth()
    kind = data[at]
    count = _u32(data, at + 1)[0]
    at += 5
    budget -= count
    if budget < 0:
        _refuse_budget()
    if kind == _STRING:
        for _ in range(count):
            at += 4 + _u32(data, at)[0]
    elif kind == _STRUCT:
        for _ in range(count):
            at, budget = _skip_struct(data, at, budget, depth + 1, string_maps)
    elif width := WIDTHS[kind]:
        at += width * count
    else:
        for _ in range(count):
            at, budget = _skip_nested(kind, data, at, budget, depth + 1, string_maps)
    return at, budget


def _skip_map(data: bytes, at: int, budget: int, depth: int, string_maps: bool) -> tuple[int, int]:
    if depth > _DEPTH_MAX:
        _refuse_depth()
    kinds = data[at], data[at + 1]
    count = _u32(data, at + 2)[0]
    at += 6
    budget -= 2 * count
    if budget < 0:
        _refuse_budget()
    if _STRING in kinds and not string_maps:
        raise FrameError("type", "a map of strings in an answer")
    for _ in range(count):
        for kind in kinds:
            if kind == _STRING:
                at += 4 + _u32(data, at)[0]
            elif width := WIDTHS[kind]:
                at += width
            else:
                at, budget = _skip_nested(kind, data, at, budget, depth + 1, string_maps)
    return at, budget


def _refuse_depth() -> NoReturn:
    raise FrameError("depth", f"nested deeper than {limits.FRAME_DEPTH_MAX}")


def _refuse_budget() -> NoReturn:
    raise FrameError("elements", f"more than {limits.FRAME_ELEMENTS_MAX} elements and fields")
