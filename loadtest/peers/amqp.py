"""A thin pipelining AMQP 0-9-1 client for the bench: the frames that carry items by hand, all others by pamqp.

So that the broker is measured, not the comfort of a Python client. Frames:
https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, section 4.2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any

from pamqp import commands, frame, header

_HEAD = Struct(">BHI")
_TAG = Struct(">Q").unpack_from
_ACK = Struct(">BHI HHQB B")
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_END_BYTE = b"\xce"
_DELIVER, _SERVER_ACK, _SERVER_NACK = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"
_FRAME_BYTES_MAX = 131_072


class AmqpError(Exception):
    """The broker closed the connection or a channel, refused an item, or is gone."""


class Channel:
    """What was published on it and is not confirmed yet, and what was delivered and not claimed yet."""

    def __init__(self, link: Link, number: int) -> None:
        self._link, self.number = link, number
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.delivered: deque[tuple[int, bytes]] = deque()
        self.on_delivery: Any = None
        self._published = 0
        self._confirmed = _Frontier()
        self._settled = _Frontier()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def call(self, method: Any) -> Any:
        """A method and its answer. Not for several tasks at once."""
        self._link.send(frame.marshal(method, self.number))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def publish(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Routing keys (see routing) and payloads; returns when the broker has confirmed all of them."""
        number = self.number
        parts: list[bytes] = []
        for routing, payload in items:
            parts += (
                _HEAD.pack(_METHOD, number, len(routing)), routing, _END_BYTE,
                _HEAD.pack(_HEADER, number, 15), b"\x00\x3c\x00\x00", len(payload).to_bytes(8, "big"), b"\x10\x00\x02",
                _END_BYTE, _HEAD.pack(_BODY, number, len(payload)), payload, _END_BYTE,
            )  # fmt: skip
        self._published += len(items)
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._published, confirmed))
        self._link.send(b"".join(parts))
        await confirmed

    def settle(self, tags: Sequence[int]) -> None:
        """Ack them, in one frame as far as nothing before them is open. The broker does not answer."""
        before = self._settled.up_to
        for tag in tags:
            self._settled.add(tag)
        up_to = self._settled.up_to
        parts = [_ack(self.number, up_to, 1)] if up_to > before else []
        parts += [_ack(self.number, tag, 0) for tag in tags if tag > up_to]
        self._link.send(b"".join(parts))

    def requeue(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self._settled.add(tag)
        nacks = [frame.marshal(commands.Basic.Nack(tag, False, True), self.number) for tag in tags]
        self._link.send(b"".join(nacks))

    def on_confirm(self, tag: int, is_multiple: bool) -> None:
        if is_multiple:
            self._confirmed.advance(tag)
        else:
            self._confirmed.add(tag)
        while self._waiting and self._waiting[0][0] <= self._confirmed.up_to:
            _, confirmed = self._waiting.popleft()
            if not confirmed.done():
                confirmed.set_result(None)

    def fail(self, error: AmqpError) -> None:
        self.answers.put_nowait(error)
        for _, confirmed in self._waiting:
            if not confirmed.done():
                confirmed.set_exception(error)
        self._waiting.clear()


class Link(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self.channels: dict[int, Channel] = {}
        self._buffer = bytearray(1 << 20)
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._delivering: dict[int, int] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control = self.channels[0] = Channel(self, 0)

    @classmethod
    async def connect(cls, port: int) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        await link._handshake()
        return link

    async def open_channel(self) -> Channel:
        channel = Channel(self, len(self.channels))
        self.channels[channel.number] = channel
        await channel.call(commands.Channel.Open())
        return channel

    async def close(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            await self._control.call(commands.Connection.Close(200, "", 0, 0))
            self._transport.close()
        await self._ended

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection is lost: {exc}")
        self._ended.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._buffer)[: self._size + nbytes])
        at, size = 0, len(data)
        while size - at >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(data, at)
            begin = at + _HEAD.size
            end = begin + length
            if end >= size:
                break
            self._frame(kind, number, data, begin, end)
            at = end + 1
        self._size = size - at
        self._buffer[: self._size] = data[at:]

    def _frame(self, kind: int, number: int, data: bytes, begin: int, end: int) -> None:
        if kind == _BODY:
            channel = self.channels[number]
            channel.delivered.append((self._delivering[number], data[begin:end]))
            channel.on_delivery()
        elif kind == _METHOD:
            method = data[begin : begin + 4]
            if method == _DELIVER:
                after_consumer = begin + 5 + data[begin + 4]
                self._delivering[number] = _TAG(data, after_consumer)[0]
            elif method == _SERVER_ACK:
                self.channels[number].on_confirm(_TAG(data, begin + 4)[0], bool(data[begin + 12] & 1))
            elif method == _SERVER_NACK:
                self.channels[number].fail(AmqpError("the broker did not take an item"))
            else:
                self._answer(number, frame.unmarshal(data[begin - _HEAD.size : end + 1])[2])

    def _answer(self, number: int, method: Any) -> None:
        if isinstance(method, commands.Connection.Close | commands.Channel.Close):
            self._fail(f"closed by the broker: {method.reply_code} {method.reply_text}")
        else:
            self.channels[number].answers.put_nowait(method)

    async def _handshake(self) -> None:
        self.send(header.ProtocolHeader().marshal())
        await self._control.answers.get()
        login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        tune = await self._control.call(login)
        self.send(frame.marshal(commands.Connection.TuneOk(tune.channel_max, _FRAME_BYTES_MAX, 0), 0))
        await self._control.call(commands.Connection.Open("/"))

    def _fail(self, reason: str) -> None:
        for channel in self.channels.values():
            channel.fail(AmqpError(reason))


class _Frontier:
    """The highest tag up to which all have been added; tags count from 1."""

    def __init__(self) -> None:
        self.up_to = 0
        self._beyond: set[int] = set()

    def add(self, tag: int) -> None:
        if tag > self.up_to:
            self._beyond.add(tag)
        while self.up_to + 1 in self._beyond:
            self.up_to += 1
            self._beyond.discard(self.up_to)

    def advance(self, tag: int) -> None:
        """All up to this one."""
        self._beyond = {beyond for beyond in self._beyond if beyond > tag} if self._beyond else self._beyond
        self.up_to = max(self.up_to, tag)
        self.add(self.up_to)


def routing(queue: str) -> bytes:
    """basic.publish to the default exchange, for Channel.publish."""
    name = queue.encode()
    return b"\x00\x3c\x00\x28\x00\x00\x00" + bytes([len(name)]) + name + b"\x00"


def _ack(number: int, tag: int, is_multiple: int) -> bytes:
    return _ACK.pack(_METHOD, number, 13, 60, 80, tag, is_multiple, _END)
