"""Frames out of a stream of bytes, for both ends of a connection, without a socket and without a clock.

A frame is a big-endian u32 length and that many bytes of one message. `FrameCutter` takes bytes as they come and gives
whole messages; `FrameDeadline` says until when a peer has to send the rest of a frame that it has begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.wire.frame_scan import FrameError

LENGTH_BYTES: Final = 4
"""Bytes of the header of every frame."""

FRAME_LENGTH: Final = "frame_length"
"""The reason of a FrameError for a length that no frame may have."""

_u32 = Struct("!I").unpack_from


class FramePart(Enum):
    """The part of a frame that a peer still has to send."""

    FIRST_FRAME = "first_frame"
    """The first whole frame header of a new connection."""
    HEADER = "header"
    BODY = "body"


class FrameCutter:
    """Cuts a stream of bytes into messages. A connection has one for what it receives.

    Bytes go in with `feed`, and `next_message` gives one message after the other while they are whole. What came of
    later frames stays here: `buffered_bytes` says how much, and `missing` what the next frame waits for. The first
    frame that breaks the protocol raises FrameError, then and ever after.
    """

    __slots__ = ("_at", "_buffer", "buffered_bytes")

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._at = 0
        """Everything before this position was given away."""
        self.buffered_bytes = 0
        """Bytes that were received and not given away."""

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

    def next_message(self) -> bytes | None:
        """The next message without its header, or None until more bytes come.

        Raises FrameError for a length out of 1..FRAME_BYTES_MAX, before a byte of that frame is waited for.
        """
        if self.buffered_bytes < LENGTH_BYTES:
            return None
        buffer, start = self._buffer, self._at + LENGTH_BYTES
        length = _u32(buffer, self._at)[0]
        if not 0 < length <= limits.FRAME_BYTES_MAX:
            raise FrameError(FRAME_LENGTH, f"a frame of {length} bytes, not 1..{limits.FRAME_BYTES_MAX}")
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
        """What the frame that has begun waits for. Only after `next_message` gave None and left bytes here."""
        return FramePart.HEADER if self.buffered_bytes < LENGTH_BYTES else FramePart.BODY

    def body_bytes(self) -> int:
        """The length that the header of the frame that has begun declares; 0 while its header is missing."""
        return 0 if self.buffered_bytes < LENGTH_BYTES else int(_u32(self._buffer, self._at)[0])

    def head(self, size: int) -> bytes:
        """The next `size` bytes, or fewer if fewer have come."""
        return bytes(memoryview(self._buffer)[self._at : self._at + size])

    def clear(self) -> None:
        """Forget all that has come."""
        self._buffer, self._at, self.buffered_bytes = b"", 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTimes:
    """How long a peer may take to send a frame, in milliseconds."""

    first_frame_ms_max: int = limits.FIRST_FRAME_MS_MAX
    header_ms_max: int = limits.FRAME_HEADER_MS_MAX
    body_ms_min: int = limits.FRAME_BODY_MS_MIN
    body_bytes_per_ms_min: int = limits.FRAME_BODY_BYTES_PER_MS_MIN


class FrameDeadline:
    """Until when a peer has to send the rest of the frame that it has begun. All times are the caller's, in seconds.

    A deadline is set when a part of a frame begins, and more bytes of that part do not move it. It stands still while
    the host itself does not read: between `pause` and `resume`.
    """

    __slots__ = ("_deadline_s", "_paused_at_s", "_times", "awaited", "partial_since_s")

    def __init__(self, times: FrameTimes, now_s: float) -> None:
        self._times = times
        self.awaited: FramePart | None = FramePart.FIRST_FRAME
        self._deadline_s: float | None = now_s + times.first_frame_ms_max / 1000
        self.partial_since_s: float | None = None
        """When the body that is awaited began to come."""
        self._paused_at_s: float | None = None

    def await_part(self, part: FramePart, body_bytes: int, now_s: float) -> None:
        """A frame lacks this part now; `body_bytes` is its length if the part is its body.

        The first frame's header has to be there by the deadline of the first frame.
        """
        if part is FramePart.HEADER and self.awaited is None:
            self._set(part, self._times.header_ms_max, now_s)
        elif part is FramePart.BODY and self.awaited is not part:
            self._set(part, self._times.body_ms_min + body_bytes / self._times.body_bytes_per_ms_min, now_s)
            self.partial_since_s = now_s

    def await_nothing(self) -> None:
        """No frame has begun, or what has come of it is not to be read on yet."""
        self.awaited = None
        self._deadline_s = self.partial_since_s = None

    def pause(self, now_s: float) -> None:
        """The host stops reading."""
        self._paused_at_s = now_s

    def resume(self, now_s: float) -> None:
        """The host reads on: the peer has as much time left as when the pause began."""
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
        """Whether the peer took too long."""
        return self._deadline_s is not None and self._paused_at_s is None and now_s >= self._deadline_s

    def _set(self, part: FramePart, allowed_ms: float, now_s: float) -> None:
        self.awaited = part
        self._deadline_s = now_s + allowed_ms / 1000
        if self._paused_at_s is not None:
            self._paused_at_s = now_s  # This deadline stands still from now on.
