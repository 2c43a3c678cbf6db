"""A port for hosts alone: somebody with the credentials of a client comes to it, or a host to the port for clients.

A flood of one of the two ports leaves the other one usable.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.contract.verbs import VERBS, Whole
from foqs.model.access import AccessMode
from foqs.model.errors import ErrorCode, PermissionDeniedError
from foqs.model.host_certificates import HOST_SERVER_NAME
from foqs.transport import server as server_module
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.certificates import Certificates
from foqs.wire.codec import UNKNOWN_METHOD, ApplicationError, Codec, structs
from tests.support.front_door import Counts, enqueue_request
from tests.support.host_certificates import TwoAuthorities, by_certificate, call_by, now_ms, port_tls
from tests.support.peer_world import SWEEP_MS, PeerWorld, greet, join, peer_world
from tests.support.raw_client import RawClient
from tests.support.sign_in_world import SignInWorld, log_in, mailer, sign_in_world, who
from tests.support.waiting import PATIENCE_S, until

DENIED = ErrorCode.PERMISSION_DENIED
OF_HOSTS = sorted(name for name, verb in VERBS.items() if verb.route is Whole.OF_PEERS)
ANY_PORT = 0
HERE, THERE = "127.0.0.1", "127.0.0.2"
"""Two addresses of callers."""


def request_of(verb: str) -> Any:
    return getattr(structs, f"{verb[0].upper()}{verb[1:]}Request")()


def at_peer_port(w: SignInWorld, tls: ssl.SSLContext | None = None, own_address: str | None = None) -> Any:
    assert w.server.peer_port is not None
    return RawClient.connect("127.0.0.1", w.server.peer_port, own_address, tls)


async def error_of_unknown(client: RawClient, verb: str) -> str:
    """The error of a method that the contract does not have, with the name of the verb in it."""
    frame = Codec().encode_call(verb, request_of(verb), 9)
    await client.send_bytes(frame.replace(verb.encode(), b"x" * len(verb), 1))
    error = (await client.receive()).error
    assert isinstance(error, ApplicationError)
    return str(error).replace("x" * len(verb), verb)


# ---- the port for clients ----


@pytest.mark.parametrize("mode", AccessMode)
async def test_the_verbs_between_hosts_do_not_exist_on_the_port_for_clients(mode: AccessMode) -> None:
    async with sign_in_world(mode, peer_port=ANY_PORT) as w, w.connect() as client:
        for logs_in in (False, True):
            if logs_in:
                assert (await log_in(client, mailer(w))).error is None
            for verb in OF_HOSTS:
                error = (await client.call(verb, request_of(verb))).error
                assert isinstance(error, ApplicationError), verb
                assert error.kind == UNKNOWN_METHOD
                assert str(error) == await error_of_unknown(client, verb)
        assert (await who(client)).principal == "mailer"
        assert not w.door.looked_up
    assert {outcome for method, outcome in w.counts.finished if method == "unknown"} == {"UNKNOWN_METHOD"}


async def test_a_host_joins_at_the_port_for_hosts_and_not_at_that_for_clients() -> None:
    async with peer_world(peer_port=ANY_PORT) as w:
        async with w.at_peer_port() as host:
            assert (await join(host)).response.proof
            assert (await host.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"
            assert (await host.call("createNamespace", structs.CreateNamespaceRequest("n"))).error.code is DENIED
        async with w.stranger() as client:
            reply, _ = await greet(client)
            assert isinstance(reply.error, ApplicationError)
            assert (await client.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"


async def test_while_a_host_of_an_older_build_lives_it_alone_joins_at_the_port_for_clients() -> None:
    async with peer_world(peer_port=ANY_PORT) as w:
        w.older = {"caller"}
        w.look()
        async with w.stranger() as older, w.stranger() as newer, w.at_peer_port() as there:
            assert (await join(older, "caller")).response.proof
            assert (await older.call("report", structs.ReportRequest([]))).error is None
            with capture_logs() as logs:
                reply, _ = await greet(newer, "other")
                assert isinstance(reply.error, PermissionDeniedError)
                assert await newer.is_closed()
            assert [one["reason"] for one in logs if one["event"] == "peer_refused"] == ["port_of_clients"]
            assert (await join(there, "other")).response.proof
            del w.proofs["caller"]
            w.look()
            assert await older.is_closed(), "it lives no more"
        async with w.stranger() as client:
            reply, _ = await greet(client, "caller")
            assert isinstance(reply.error, ApplicationError), "no host of an older build is left"


async def test_a_host_that_knows_its_own_port_alone_cannot_be_made_to_use_the_old_proof_there() -> None:
    async with peer_world(peer_port=ANY_PORT) as w:
        w.older = {"other"}
        w.proofs["caller"] = 1
        w.look()
        async with w.stranger() as client:
            hello = await client.call("hello", structs.HelloRequest("caller", b"0" * 16))
            assert isinstance(hello.error, PermissionDeniedError)
            assert await client.is_closed()


# ---- the port for hosts ----


@pytest.mark.parametrize("mode", AccessMode)
async def test_no_verb_of_clients_is_done_on_the_port_for_hosts_and_no_token_is_taken(mode: AccessMode) -> None:
    async with sign_in_world(mode, peer_port=ANY_PORT) as w:
        token = mailer(w)
        async with at_peer_port(w) as client:
            for verb in ("enqueue", "dequeue", "whoAmI", "listHosts", "createNamespace", "endWait", "report", "seek"):
                error = (await client.call(verb, request_of(verb))).error
                assert (error.code, error.nothing_done) == (DENIED, True), verb
                assert error.message.startswith(f"only hosts of this cluster may call {verb} here"), verb
            told = set()
            for shown in (token, token[:-1] + ("a" if token[-1] != "a" else "b"), ""):
                error = (await log_in(client, shown)).error
                assert error.code is DENIED
                told.add(error.message.partition(" (request ")[0])
            assert len(told) == 1, "a right token and a wrong one are told the same"
            assert w.door.book.used == []
        assert not w.door.looked_up
        async with w.connect() as client:
            assert (await log_in(client, token)).error is None


async def test_a_stranger_at_the_port_for_hosts_is_held_to_the_bounds_of_callers_without_a_login() -> None:
    bounds = TransportLimits(
        sweep_ms=10, unknown_connections_max=3, unknown_connections_per_address_max=2, login_ms_max=100
    )
    async with sign_in_world(AccessMode.OPEN, peer_port=ANY_PORT, bounds=bounds) as w:
        async with at_peer_port(w) as one, at_peer_port(w) as two:
            for client in (one, two):
                assert (await client.call("ack", structs.AckRequest("ns", []))).error.code is DENIED
            async with at_peer_port(w) as third:
                assert await third.is_closed(), "its address has too many"
            async with at_peer_port(w, own_address=THERE) as other:
                assert (await other.call("ack", structs.AckRequest("ns", []))).error.code is DENIED
                async with at_peer_port(w, own_address="127.0.0.3") as last:
                    assert await last.is_closed(), "all have too many"
                async with w.connect() as client:
                    assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
                assert await one.is_closed(), "it has not proven to be a host in time"
        assert {"peer_port_unknown_connections_per_address_max", "peer_port_unknown_connections_max"} <= set(
            w.counts.refused
        )
        async with at_peer_port(w) as client:
            frame = Codec().encode_call("enqueue", enqueue_request(b"x" * 100_000), 7)
            await client.send_bytes(frame[:200])
            assert (await client.receive()).error.code is DENIED
            assert await client.is_closed(), "its large frame is not waited for"


# ---- floods ----


async def test_a_flood_of_the_port_for_clients_keeps_no_host_out() -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, connections_max=4, connections_per_address_max=100)
    counts = Counts()
    async with peer_world(peer_port=ANY_PORT, bounds=bounds, metrics=counts) as w, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(w.stranger())
        await until(lambda: counts.open == 4)
        async with w.stranger() as client:
            assert await client.is_closed()
        for _ in range(3):
            async with w.at_peer_port() as host:
                assert (await join(host)).response.proof
        assert counts.refused == ["connections_max"]


async def test_a_flood_of_the_port_for_hosts_keeps_no_client_out_and_hosts_that_joined_go_on() -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, connections_max=2, peer_connections_max=5)
    counts = Counts()
    async with peer_world(peer_port=ANY_PORT, bounds=bounds, metrics=counts) as w, AsyncExitStack() as stack:
        host = await stack.enter_async_context(w.at_peer_port())
        assert (await join(host)).response.proof
        for _ in range(4):
            await stack.enter_async_context(w.at_peer_port())
        await until(lambda: counts.open == 5)
        async with w.at_peer_port() as more:
            assert await more.is_closed()
        async with w.stranger() as one, w.stranger() as two:
            for client in (one, two):
                assert (await client.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"
            assert (await host.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"
        assert counts.refused == ["peer_port_connections_max"]


async def test_handshakes_that_wait_at_the_port_for_clients_delay_none_at_that_for_hosts(tmp_path: Path) -> None:
    two = TwoAuthorities(tmp_path)
    tls = port_tls(two.load("callee"))
    async with peer_world(peer_port=ANY_PORT, tls=tls, peer_tls=tls, needs_certificate=True) as w:
        w.server._handshakes[0]._left_s = -1e6  # Others have just taken what there was.
        waiting = asyncio.create_task(in_handshake(w, two.clients.client_context()))
        await until(lambda: w.server.handshakes_waiting == 1)
        assert await call_by(w, by_certificate(two.load("caller")), f"127.0.0.1:{w.server.peer_port}")
        assert w.server.handshakes_waiting == 1
        waiting.cancel()
        await asyncio.wait([waiting])


async def in_handshake(w: PeerWorld, tls: ssl.SSLContext) -> None:
    async with w.stranger(tls):
        pass


@pytest.mark.parametrize(("allowed", "clients", "hosts"), [(10_000, 9_000, 1_000), (2_000, 1_500, 500), (1, 1, 1)])
def test_where_the_system_allows_fewer_files_hosts_get_a_quarter_of_the_connections_at_most(
    monkeypatch: pytest.MonkeyPatch, allowed: int, clients: int, hosts: int
) -> None:
    monkeypatch.setattr(server_module, "allowed_connections", lambda wanted: min(wanted, allowed))
    bounds = TransportLimits(connections_max=9_000, peer_connections_max=1_000)
    found = server_module._fitting(bounds, has_peer_port=True)
    assert (found.connections_max, found.peer_connections_max) == (clients, hosts)
    alone = server_module._fitting(bounds, has_peer_port=False)
    assert alone.connections_max == min(9_000, allowed), "a host without such a port keeps no place for it"


# ---- certificates ----


def guarded(two: TwoAuthorities, certificates: Certificates) -> Any:
    """Both kinds of callers are served on the port for clients, and hosts with certificates alone on the other one."""
    return peer_world(
        tls=certificates.port_tls(is_required=False),
        peer_tls=certificates.peer_port_tls(is_required=False, needs_certificates=True),
        peer_port=ANY_PORT,
        needs_certificate=True,
    )


async def is_turned_away(w: PeerWorld, tls: ssl.SSLContext, server_name: str | None) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(PATIENCE_S), w.at_peer_port(tls, server_name) as client:
            await greet(client)


async def test_hosts_need_certificates_at_their_port_while_clients_are_served_without_tls(tmp_path: Path) -> None:
    two = TwoAuthorities(tmp_path)
    certificates = Certificates(two.files("callee"), now_ms)
    await certificates.start()
    try:
        async with guarded(two, certificates) as w:
            address = f"127.0.0.1:{w.server.peer_port}"
            assert await call_by(w, by_certificate(two.load("caller")), address)
            async with w.stranger() as plain, w.stranger(two.clients.client_context()) as encrypted:
                assert (await plain.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"
                assert (await who(encrypted)).principal == "everybody"
            async with w.at_peer_port() as plain:
                reply, _ = await greet(plain)
                assert "this port speaks TLS" in str(reply.error)
                assert await plain.is_closed()
            mailer_certificate = two.clients.issue("mailer", uris=["foqs://c/host/caller"])
            for name in (HOST_SERVER_NAME, None):
                await is_turned_away(w, two.clients.client_context(mailer_certificate), name)
                await is_turned_away(w, two.host_context(None), name)
            async with w.at_peer_port(two.host_context(two.issue("other")), HOST_SERVER_NAME) as host:
                assert (await join(host, "other")).response.proof
                shown = host.certificate_bytes()
                assert two.files("callee") == certificates._files, "they are replaced on the disk"
                await certificates.reload()
                async with w.at_peer_port(two.host_context(two.issue("other")), HOST_SERVER_NAME) as later:
                    assert (await join(later, "other")).response.proof
                    assert later.certificate_bytes() != shown
                assert (await host.call("getHostStatus", structs.HostStatusRequest())).response.host == "fake"
            assert await call_by(w, by_certificate(two.load("caller")), address)
    finally:
        await certificates.stop()


# ---- the server ----


async def test_a_server_that_drains_takes_connections_at_neither_port() -> None:
    async with sign_in_world(AccessMode.OPEN, peer_port=ANY_PORT) as w:
        await w.server.drain()
        for port in (w.server.port, w.server.peer_port):
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_for_hosts_that_is_taken_leaves_nothing_open() -> None:
    async with sign_in_world() as taken:
        with pytest.raises(OSError, match="in use"):
            async with sign_in_world(peer_port=taken.server.port):
                pass
        async with taken.connect() as client:
            assert (await log_in(client, mailer(taken))).error is None
