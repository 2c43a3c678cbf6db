"""The connection of this host to another host of its cluster: seqids match responses to calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

from foqs.model import limits
from foqs.model.errors import FoqsError, HostUnreachableError, OverloadedError, UnavailableError
from foqs.model.peer_proof import binding_of
from foqs.transport.call_table import PEER_LANES_COUNT
from foqs.transport.tls.caller_tls import ends_at_ms_of, uris_in
from foqs.wire import codec as wire
from foqs.wire.frames import FrameCutter, FrameError
from foqs.wire.replies import missing_field

_NUMBERS_COUNT = (1 << 31) // PEER_LANES_COUNT - 1
_SILENT_MS_MAX = 5_000
"""Time without acknowledgement by the peer's system, in milliseconds, after which the connection counts as lost."""
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    # An idle connection is probed, because a device between the hosts can have forgotten it.
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 5),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _SILENT_MS_MAX),
)
"""Options by level, name and value; systems without one of the names skip it."""


class _Call(NamedTuple):
    """A call that was sent."""

    method: str
    response: asyncio.Future[Any]
    late: Callable[[Any], object] | None
    """Takes the response if nobody waits for it any more."""


class PeerConnection(asyncio.Protocol):
    """One socket with many calls in flight. `Peers` opens it, and drops it once it `is_lost`.

    Any message but a response to one of its calls ends it; the outcome of all calls in flight is then unknown.
    """

    def __init__(self, codec: wire.Codec, host_id: str, on_bad_reply: Callable[[str], None]) -> None:
        """`on_bad_reply` takes the fault of an invalid reply."""
        self._on_bad_reply = on_bad_reply
        self._codec = codec
        self._host_id = host_id
        self._transport = cast(asyncio.Transport, None)
        self._cutter = FrameCutter()
        self._waiting: dict[int, _Call] = {}
        self._unsent_count = 0
        """Calls that wait until the peer has read the earlier ones."""
        self._numbers = count()
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle: asyncio.Event | None = None
        """Set when no call is in flight any more, if somebody waits for that."""
        self.is_lost = False

    @property
    def _encrypted(self) -> ssl.SSLObject | None:
        encrypted: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return encrypted

    def binding(self) -> bytes:
        """Return the binding of the certificate that the peer has shown; empty without TLS."""
        encrypted = self._encrypted
        shown = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        return b"" if shown is None else binding_of(shown)

    def certificate_ends_at_ms(self) -> int:
        """Return the time at which that certificate expires; 0 without one that was verified."""
        encrypted = self._encrypted
        return 0 if encrypted is None else ends_at_ms_of(encrypted)

    def uris(self) -> Sequence[str]:
        """Return the URIs in that certificate."""
        encrypted = self._encrypted
        return () if encrypted is None else uris_in(encrypted)

    @property
    def calls_count(self) -> int:
        """Calls that have no response yet, those included whose callers have left."""
        return len(self._waiting) + self._unsent_count

    async def call(
        self,
        method: str,
        request: Any,
        lane: int,
        timeout_ms: int,
        late: Callable[[Any], object] | None = None,
    ) -> Any:
        """Return the response struct. Raises the peer's error unchanged.

        `late` gets the response if it comes after the timeout, or after the caller has left.

        Raises OverloadedError if too much is in flight, and UnavailableError if no response comes in time; the latter
        has `nothing_done` only if the call was not sent.
        """
        calls_count = self.calls_count
        if calls_count >= limits.CALLS_IN_FLIGHT_PER_PEER_MAX - 1:
            raise OverloadedError(
                f"{calls_count} calls to host {self._host_id} are in flight, which is the limit: try again",
                retry_after_ms=100,
            )
        seqid = (next(self._numbers) % _NUMBERS_COUNT + 1) * PEER_LANES_COUNT + lane % PEER_LANES_COUNT
        frame = self._codec.encode_call(method, request, seqid)
        response: asyncio.Future[Any] | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._until_writable()
                if self.is_lost:
                    raise _not_sent(self._host_id, "the connection is gone")
                # It stays there when nobody waits any more, so that a late response finds it.
                response = asyncio.get_running_loop().create_future()
                self._waiting[seqid] = _Call(method, response, late)
                self._transport.write(frame)
                return await response
        except TimeoutError:
            if response is None:
                raise _not_sent(self._host_id, f"it read nothing for {timeout_ms} ms") from None
            raise UnavailableError(f"host {self._host_id} has not responded within {timeout_ms} ms") from None

    async def until_idle(self) -> None:
        """Wait until it has no call in flight, or is lost. Only one waits, and nobody begins a call meanwhile."""
        if self.calls_count and not self.is_lost:
            self._idle = asyncio.Event()
            await self._idle.wait()

    async def _until_writable(self) -> None:
        """Wait until the peer has read earlier calls, or is lost. All waiters wake at once, but one writes first."""
        self._unsent_count += 1
        try:
            while not self._writable.is_set():
                await self._writable.wait()
        finally:
            self._unsent_count -= 1

    def close(self) -> None:
        """Close it. Calls in flight end with an unknown outcome."""
        self._lose("it was closed")
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        for level, name, value in _SOCKET_OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                connected.setsockopt(level, option, value)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc or "closed by the peer"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._cutter.feed(data)
            while (message := self._cutter.next_message()) is not None:
                self._responded(self._codec.decode_reply(message))
        except FrameError as error:
            self._on_bad_reply(str(error))
            self._lose(f"it sent no response, {error}")
            self._transport.abort()

    def _responded(self, reply: wire.Reply) -> None:
        waiting = self._waiting.get(reply.seqid)
        if waiting is None:
            raise FrameError("seqid", f"nobody waits for {reply.seqid}")
        method, response, late = waiting
        if reply.method is not None and reply.method.name != method:
            raise FrameError("method_name", f"an answer to {reply.method.name} where {method} was called")
        if reply.response is not None and reply.method is not None:
            missing = missing_field(reply.method, reply.response)
            if missing is not None:
                raise FrameError("missing", f"an answer to {method} without {missing}")
        del self._waiting[reply.seqid]
        if self._idle is not None and not self.calls_count:
            self._idle.set()
        if response.done():
            if late is not None and reply.error is None:
                late(reply.response)
            return
        if reply.error is None:
            response.set_result(reply.response)
        elif isinstance(reply.error, FoqsError):
            response.set_exception(reply.error)
        elif reply.error.kind == wire.UNKNOWN_METHOD:
            response.set_exception(_not_sent(self._host_id, f"it does not know the call: {reply.error}"))
        else:
            self._on_bad_reply(str(reply.error))
            response.set_exception(UnavailableError(f"host {self._host_id} could not respond: {reply.error}"))

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._idle is not None:
            self._idle.set()
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for _, response, _late in waiting.values():
            if not response.done():
                response.set_exception(UnavailableError(f"the connection to host {self._host_id} broke: {reason}"))


def _not_sent(host_id: str, reason: str) -> UnavailableError:
    return HostUnreachableError(f"host {host_id} was not asked: {reason}", retry_after_ms=100)
