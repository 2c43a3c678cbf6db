"""Bytes that are nearly TLS, before anybody is logged in: a live port refuses them, and serves all others."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.model.access import AccessMode
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.contexts import TlsFiles, load
from foqs.transport.tls.layer import PortTls
from foqs.wire.codec import Codec, structs
from tests.support.certificates import Authority
from tests.support.sign_in_world import SWEEP_MS, sign_in_world, who

ROUNDS = [pytest.param(300, 1), pytest.param(6_000, 2, marks=pytest.mark.slow)]


def hellos(authority: Authority) -> list[bytes]:
    """First flights of clients of each version."""
    found = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.client_context()
        context.minimum_version = context.maximum_version = version
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        found.append(outgoing.read())
    return found


def mutated(seed: random.Random, hello: bytes) -> bytes:
    """A first flight with some changes, of which a third are to lengths."""
    data = bytearray(hello)
    for _ in range(seed.choice((0, 1, 1, 2, 5))):
        at = seed.randrange(len(data))
        match seed.randrange(5):
            case 0:
                data[at] = seed.randrange(256)
            case 1:
                del data[at : at + seed.randrange(1, 40)]
            case 2:
                data[at:at] = seed.randbytes(seed.randrange(1, 40))
            case 3:
                data[3:5] = seed.randbytes(2)
            case _:
                data[6:9] = seed.randbytes(3)
        data = data or bytearray(b"\x16")
    match seed.randrange(4):
        case 0:
            return bytes(data[: seed.randrange(1, len(data) + 1)])
        case 1:
            return bytes(data) + seed.randbytes(seed.randrange(200))
        case 2:
            return bytes(data) + bytes(data)
        case _:
            return bytes(data)


def pieces(seed: random.Random, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = seed.choice((1, 3, 50, len(data)))
        yield data[at : at + size]
        at += size


@pytest.mark.parametrize(("count", "seed"), ROUNDS)
async def test_nothing_that_is_nearly_a_handshake_ends_the_server_or_is_a_call(
    tmp_path: Path, count: int, seed: int
) -> None:
    chance, authority = random.Random(seed), Authority(tmp_path)
    issued = authority.issue("host", hosts=["127.0.0.1"])
    files = TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file, clients="wanted")
    begun, failures = hellos(authority), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    times = replace(TransportLimits().frame_times, first_frame_ms_max=100, header_ms_max=100)
    bounds = TransportLimits(sweep_ms=SWEEP_MS, frame_times=times)
    context = load(files, 1_800_000_000_000).server
    for is_required in (False, True):
        async with sign_in_world(AccessMode.ENFORCED, tls=PortTls(lambda: context, is_required), bounds=bounds) as w:
            for _ in range(count // 20):
                await asyncio.gather(*[_send(w.server.port, chance, chance.choice(begun)) for _ in range(10)])
            async with w.connect(tls=authority.client_context()) as client:
                assert (await who(client)).principal == "nobody"
            await w.until_open(0)
            assert w.server.handshakes_waiting == 0
            assert w.queue.contexts == []
            assert set(w.counts.errors) <= {
                "tls_handshake", "tls_record", "first_frame_deadline", "record_deadline", "plain_connection",
                "frame_length", "truncated", "version", "header_deadline", "body_deadline", "login_frame",
            }  # fmt: skip
    assert failures == []


async def _send(port: int, chance: random.Random, hello: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        for piece in pieces(chance, mutated(chance, hello)):
            writer.write(piece)
            await writer.drain()
        if chance.randrange(2):
            writer.write(Codec().encode_call("whoAmI", structs.WhoAmIRequest(), 1))
        if chance.randrange(3) == 0:
            writer.transport.abort()
        else:
            while await reader.read(65_536):
                pass
    writer.transport.abort()
