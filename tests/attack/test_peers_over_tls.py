"""Hosts call each other by TLS, and somebody with another certificate of the same authority stands between them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.model.errors import UnavailableError
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import PeerTls, TlsFiles, load
from foqs.transport.tls.layer import PortTls
from tests.support.certificates import Authority, Issued
from tests.support.host_certificates import call_by, now_ms, port_tls
from tests.support.peer_world import PeerWorld, join, peer_world


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(authority: Authority, name: str = "callee") -> TlsFiles:
    issued = authority.issue(name, hosts=["127.0.0.1"])
    ca_file = authority.ca_file
    return TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=ca_file, calls_peers=True)


@asynccontextmanager
async def between(
    w: PeerWorld, shown: Issued | None, to_host: ssl.SSLContext | None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Somebody who ends the TLS of a caller with a certificate of its own, and hands all bytes on to the host.

    Gives the address, and what passed in clear.
    """
    own = None
    if shown is not None:
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(*shown)
    seen: list[bytes] = []
    open_ones: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                seen.append(data)
                writer.write(data)
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", w.server.port, ssl=to_host)
        open_ones.extend([writer, to_them])
        await asyncio.gather(copy(reader, to_them), copy(theirs, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=own)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
        for one in open_ones:
            one.transport.abort()


async def test_a_host_joins_over_tls_and_over_a_plain_connection_of_the_same_port(authority: Authority) -> None:
    made = load(files(authority), now_ms())
    async with peer_world(tls=port_tls(made, is_required=False)) as w:
        address = f"127.0.0.1:{w.server.port}"
        assert await call_by(w, PeerTls(lambda: made.peers), address)
        assert await call_by(w, None, address)


async def test_who_ends_the_tls_between_two_hosts_cannot_hand_their_proofs_on(authority: Authority) -> None:
    """It has a certificate of the authority that both trust, for the address that the caller dials."""
    made = load(files(authority), now_ms())
    own = authority.issue("between", hosts=["127.0.0.1"])
    async with (
        peer_world(tls=port_tls(made)) as w,
        between(w, own, authority.client_context()) as (address, seen),
    ):
        with capture_logs() as logs, pytest.raises(UnavailableError, match="not the proof of a host"):
            await call_by(w, PeerTls(lambda: made.peers), address)
        assert [one["reason"] for one in logs if one["event"] == "peer_refused"] == ["wrong_proof"]
        assert any(b"join" in data for data in seen), "the way through it is open"
        assert not any(b"getHostStatus" in data for data in seen)


async def test_without_the_binding_the_same_way_would_lead_in(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack of the test above is one: what stops it is the binding."""
    for module in ("foqs.transport.peer_connection", "foqs.transport.tls.contexts"):
        monkeypatch.setattr(f"{module}.binding_of", lambda certificate: b"")
    made = load(files(authority), now_ms())
    own = authority.issue("between", hosts=["127.0.0.1"])
    async with (
        peer_world(tls=port_tls(made)) as w,
        between(w, own, authority.client_context()) as (address, seen),
    ):
        assert await call_by(w, PeerTls(lambda: made.peers), address)
        assert any(b"getHostStatus" in data for data in seen)


@pytest.mark.parametrize("is_caller_plain", [True, False], ids=["to the caller", "to the host"])
async def test_who_takes_the_tls_off_one_side_cannot_hand_proofs_on_either(
    authority: Authority, *, is_caller_plain: bool
) -> None:
    made = load(files(authority), now_ms())
    own = authority.issue("between", hosts=["127.0.0.1"])
    shown, to_host = (None, authority.client_context()) if is_caller_plain else (own, None)
    async with (
        peer_world(tls=port_tls(made, is_required=False)) as w,
        between(w, shown, to_host) as (address, seen),
    ):
        with pytest.raises(UnavailableError, match="not the proof of a host"):
            await call_by(w, None if is_caller_plain else PeerTls(lambda: made.peers), address)
        assert not any(b"getHostStatus" in data for data in seen)


async def test_a_reload_within_the_handshake_leaves_the_proof_with_the_certificate_that_was_shown(
    authority: Authority,
) -> None:
    """Each look at the newest context after that of the first byte finds another one."""
    made = [load(files(authority), now_ms()).server for _ in range(2)]
    assert made[0].binding != made[1].binding
    served = iter([made[0]])
    tls = PortTls(lambda: next(served, made[1]), is_required=True)
    async with peer_world(tls=tls) as w, w.stranger(authority.client_context()) as client:
        assert (await join(client)).response.proof


async def test_a_proof_is_bound_to_the_certificate_of_its_handshake_also_after_a_reload(authority: Authority) -> None:
    """A connection that was made with the old certificate is joined with it, and a new one with the new one."""
    certificates = Certificates(files(authority), now_ms)
    await certificates.start()
    try:
        async with peer_world(tls=PortTls(lambda: certificates.server, is_required=True)) as w:
            tls = authority.client_context()
            async with w.stranger(tls) as old:
                before = old.certificate_bytes()
                authority.issue("callee", hosts=["127.0.0.1"])
                await certificates.reload()
                assert (await join(old)).response.proof
                async with w.stranger(tls) as new:
                    assert new.certificate_bytes() != before
                    assert (await join(new)).response.proof
            caller = load(files(authority, "caller"), now_ms())
            assert await call_by(w, PeerTls(lambda: caller.peers))
    finally:
        await certificates.stop()
