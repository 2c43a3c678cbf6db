"""Mutated calls before anybody is logged in, plain and inside TLS: nothing is done, and the right token is taken."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.model.access import AccessMode
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.contexts import TlsFiles, load
from foqs.transport.tls.layer import PortTls
from foqs.wire.codec import LENGTH_BYTES, Codec, structs
from loadtest.fuzz.corpus import seed_messages
from loadtest.fuzz.mutations import Mutator
from tests.support.certificates import Authority
from tests.support.sign_in_world import START_MS, SWEEP_MS, SignInWorld, log_in, sign_in_world

FRAMES_PER_CONNECTION = 40
ROUNDS = [pytest.param(1_500, 1), pytest.param(60_000, 2, marks=pytest.mark.deep)]
BREACHES = {
    "depth", "elements", "empty", "frame_length", "length", "login_frame", "message_type", "method_name", "missing",
    "seqid", "truncated", "type", "version", "sign_in_calls", "peer_refused", "first_frame_deadline",
    "header_deadline", "body_deadline", "login_deadline",
}  # fmt: skip
"""The reasons for which the server ends a connection."""


@asynccontextmanager
async def guarded(tmp_path: Path, *, is_tls: bool) -> AsyncIterator[tuple[SignInWorld, ssl.SSLContext | None]]:
    """A port that enforces access, and the context of its clients. No address is held back for its refusals."""
    times = replace(TransportLimits().frame_times, first_frame_ms_max=200, header_ms_max=200)
    bounds = TransportLimits(sweep_ms=SWEEP_MS, frame_times=times, refusals_per_address_max=1 << 30)
    if not is_tls:
        async with sign_in_world(AccessMode.ENFORCED, bounds=bounds) as w:
            yield w, None
        return
    authority = Authority(tmp_path)
    issued = authority.issue("host", hosts=["127.0.0.1"])
    files = TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file, clients="wanted")
    context = load(files, START_MS).server
    tls = PortTls(lambda: context, is_required=True)
    async with sign_in_world(AccessMode.ENFORCED, bounds=bounds, tls=tls) as w:
        yield w, authority.client_context()


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize(("count", "seed"), ROUNDS)
async def test_no_mutated_call_does_anything_before_a_login(
    tmp_path: Path, count: int, seed: int, *, is_tls: bool
) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with guarded(tmp_path, is_tls=is_tls) as (w, tls):
        w.book.grant("mailer", {"ns": "worker"})
        token = w.book.token("mailer")
        whole = [
            Codec().encode_call(name, request, 1)[LENGTH_BYTES:]
            for name, request in (
                ("authenticate", structs.AuthenticateRequest(token)),
                ("authenticate", structs.AuthenticateRequest("foqs_" + "a" * 62)),
                ("whoAmI", structs.WhoAmIRequest()),
            )
        ]
        # Half of them are about logins. The right token is there to be mutated, and is never sent as it is.
        mutators = [Mutator((seed, number), whole * 30 + seed_messages()) for number in range(8)]
        with capture_logs() as logged:
            for _ in range(count // (len(mutators) * FRAMES_PER_CONNECTION) + 1):
                sent = [_send(w.server.port, tls, one, whole[0], seed) for one in mutators]
                answered = sum(await asyncio.gather(*sent))
        assert answered > 0
        assert w.door.looked_up == []
        assert w.queue.contexts == []
        assert set(w.counts.errors) <= BREACHES
        assert token[20:-6] not in str(logged)
        async with w.connect(tls=tls) as client:
            assert (await log_in(client, token)).error is None
        await w.until_open(0)
    assert failures == []


async def _send(port: int, tls: ssl.SSLContext | None, mutator: Mutator, right: bytes, seed: int) -> int:
    """Send mutated calls on one connection, and return the number of bytes that came back."""
    chance = random.Random(repr((seed, mutator.message())))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    except (ConnectionError, ssl.SSLError):  # The deadline of the first frame is short, and so is that of a handshake.
        return 0
    taken = 0
    with suppress(ConnectionError, ssl.SSLError):
        for _ in range(FRAMES_PER_CONNECTION):
            message = mutator.message()
            if right in message:
                continue
            if writer.is_closing() or reader.at_eof():
                break
            length = len(message) if chance.random() > 0.02 else chance.randrange(1 << 32)
            writer.write(length.to_bytes(LENGTH_BYTES, "big") + message)
            await writer.drain()
        if tls is None and chance.randrange(2):
            writer.write_eof()
        async with asyncio.timeout(20):
            while data := await reader.read(65_536):
                taken += len(data)
    writer.transport.abort()
    return taken
