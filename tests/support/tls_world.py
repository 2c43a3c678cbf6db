"""A server with TLS, and clients of it that see the records."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from foqs.model.access import AccessMode
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.contexts import TlsFiles, load
from foqs.transport.tls.layer import PortTls
from foqs.wire.codec import Codec, Reply, structs
from tests.support.front_door import enqueue_request
from tests.support.sign_in_world import SignInWorld, sign_in_world
from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def tls_world(
    files: TlsFiles,
    *,
    is_required: bool = False,
    mode: AccessMode = AccessMode.OPEN,
    bounds: TransportLimits | None = None,
) -> AsyncIterator[SignInWorld]:
    context = load(files, time.time_ns() // 1_000_000).server
    async with sign_in_world(mode, tls=PortTls(lambda: context, is_required), bounds=bounds) as w:
        yield w


async def call_is_done(w: SignInWorld, tls: ssl.SSLContext | None) -> bool:
    async with w.connect(tls=tls) as client:
        return (await client.call("enqueue", enqueue_request(b"x"))).error is None


def of_version(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = version
    return context


def hello_of(context: ssl.SSLContext) -> bytes:
    own = TlsClient(context)
    with suppress(ssl.SSLWantReadError):
        own.tls.do_handshake()
    return own.outgoing.read()


class TlsClient:
    """A client that sees the records."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.is_encrypted = context is not None
        if context is not None:
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.reader: asyncio.StreamReader

    def encrypted(self, data: bytes) -> bytes:
        if not self.is_encrypted:
            return data
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.outgoing.read()

    async def call(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.encrypted(Codec().encode_call("whoAmI", structs.WhoAmIRequest(), 1)))
        assert (await self.reply()).error is None

    async def reply(self) -> Reply:
        head = await self._exactly(4)
        return Codec().decode_reply(await self._exactly(int.from_bytes(head, "big")))

    async def is_ended(self) -> bool:
        """Whether the host ends its stream in order."""
        while True:
            try:
                return self.tls.read(1) == b""
            except ssl.SSLWantReadError:
                await self._more()
            except ssl.SSLZeroReturnError:
                return True

    async def _exactly(self, count: int) -> bytes:
        if not self.is_encrypted:
            return await self.reader.readexactly(count)
        found = b""
        while len(found) < count:
            try:
                found += self.tls.read(count - len(found))
            except ssl.SSLWantReadError:
                await self._more()
        return found

    async def _more(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            data = await self.reader.read(65_536)
        assert data, "the host hung up"
        self.incoming.write(data)


@asynccontextmanager
async def below_tls(
    w: SignInWorld, context: ssl.SSLContext | None, *, byte_by_byte: bool = False
) -> AsyncIterator[tuple[TlsClient, asyncio.StreamWriter]]:
    own = TlsClient(context)
    own.reader, writer = await asyncio.open_connection("127.0.0.1", w.server.port)
    try:
        while own.is_encrypted:
            try:
                own.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                data = own.outgoing.read()
                for piece in [data[at : at + 1] for at in range(len(data))] if byte_by_byte else [data]:
                    writer.write(piece)
                    await asyncio.sleep(0)
                await own._more()
        writer.write(own.outgoing.read())
        yield own, writer
    finally:
        writer.transport.abort()
