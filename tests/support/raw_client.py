"""A Thrift client for tests that can send any bytes and see how the connection ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from foqs.model.errors import ErrorCode
from foqs.wire.codec import LENGTH_BYTES, Codec, Reply
from tests.support.waiting import PATIENCE_S


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._codec = Codec()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        address: str,
        port: int,
        own_address: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> AsyncIterator[RawClient]:
        place = (own_address, 0) if own_address else None
        reader, writer = await asyncio.open_connection(
            address, port, local_addr=place, ssl=tls, server_hostname=server_name
        )
        client = cls(reader, writer)
        try:
            yield client
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                writer.transport.abort()

    def tls_version(self) -> str:
        """The version that was agreed on."""
        version: str = self._writer.get_extra_info("ssl_object").version()
        return version

    def certificate(self) -> Any:
        """The certificate that the host has shown, as a dictionary."""
        return self._writer.get_extra_info("peercert")

    def certificate_bytes(self) -> bytes | None:
        """The same in DER; None without TLS."""
        encrypted = self._writer.get_extra_info("ssl_object")
        shown: bytes | None = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        return shown

    async def call(self, method: str, request: Any) -> Reply:
        self.send(method, request, seqid=1)
        return await self.receive()

    def send(self, method: str, request: Any, seqid: int) -> None:
        self._writer.write(self._codec.encode_call(method, request, seqid))

    async def send_bytes(self, data: bytes) -> None:
        """Send; a server that closed in the meantime is no failure."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self._writer.transport.abort()

    def end_sending(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        """End the connection with a RST, as a crashed machine's peer would see it."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def receive(self) -> Reply:
        async with asyncio.timeout(PATIENCE_S):
            header = await self._reader.readexactly(LENGTH_BYTES)
            message = await self._reader.readexactly(int.from_bytes(header, "big"))
        return self._codec.decode_reply(message)

    async def receive_unframed(self) -> Reply:
        """An answer without a length, which the end of the connection follows."""
        async with asyncio.timeout(PATIENCE_S):
            return self._codec.decode_reply(await self._reader.read())

    def pause_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def closes_within(self, bound_s: float) -> bool:
        try:
            return await self.is_closed(bound_s)
        except TimeoutError:
            return False

    async def is_closed(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the server ends the connection without another byte."""
        try:
            async with asyncio.timeout(within_s):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True


def codes_of(reply: Reply) -> Any:
    """The code of the whole call, or the codes by position."""
    if reply.error is not None:
        return reply.error.code
    return {position: ErrorCode(error.code) for position, error in (reply.response.errors or {}).items()}
