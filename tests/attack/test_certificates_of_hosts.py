"""Hosts know each other by certificates, and somebody who has another one wants to be taken for a host.

Each attacker here also knows the secret of the cluster, so that nothing but its certificate keeps it out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.cluster.routing import peer_door
from foqs.model.access import AccessMode
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from foqs.model.host_certificates import HOST_SERVER_NAME, host_uri
from foqs.model.peer_proof import OLD_PROOF, PROOF
from foqs.model.secret import Secret
from foqs.transport import peers as peers_module
from foqs.transport.tls import layer as layer_module
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import PeerTls, load
from foqs.wire.codec import structs
from tests.support.asked import Asked
from tests.support.certificates import Issued
from tests.support.host_certificates import CALLER, TwoAuthorities, by_certificate, call_by, now_ms, port_tls
from tests.support.peer_world import CLUSTER, PeerWorld, greet, join, peer_world
from tests.support.raw_client import RawClient
from tests.support.sign_in_world import sign_in_world, who
from tests.support.tls_world import of_version
from tests.support.waiting import PATIENCE_S, until

URI_OF_CALLER = host_uri(CLUSTER, "caller")


@pytest.fixture
def two(tmp_path: Path) -> TwoAuthorities:
    return TwoAuthorities(tmp_path)


def guarded(two: TwoAuthorities, *, is_required: bool = True) -> Any:
    """A host that admits hosts by certificate alone."""
    return peer_world(tls=port_tls(two.load("callee"), is_required=is_required), needs_certificate=True)


def reasons(logs: Sequence[Any]) -> list[str]:
    return [one["reason"] for one in logs if one["event"] == "peer_refused"]


async def is_turned_away(w: PeerWorld, tls: ssl.SSLContext, server_name: str | None = HOST_SERVER_NAME) -> None:
    """The handshake fails, so that nothing can be called."""
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(PATIENCE_S), w.stranger(tls, server_name) as client:
            await greet(client)


async def is_refused_as_host(w: PeerWorld, tls: ssl.SSLContext | None, server_name: str | None, reason: str) -> None:
    """It can call, and is not admitted."""
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S), w.stranger(tls, server_name) as client:
            reply, _ = await greet(client)
            assert isinstance(reply.error, PermissionDeniedError)
            assert await client.is_closed()
    assert reasons(logs) == [reason]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_hosts_know_each_other_by_certificates_and_clients_use_the_same_port(
    two: TwoAuthorities, version: ssl.TLSVersion
) -> None:
    async with guarded(two) as w:
        caller = two.load("caller")
        of_version(caller.peers, version)
        assert await call_by(w, by_certificate(caller))
        async with w.stranger(of_version(two.clients.client_context(), version)) as client:
            assert client.certificate_bytes() is not None
            assert (await who(client)).principal == "everybody"


async def test_a_host_with_the_certificate_of_another_name_is_not_admitted(two: TwoAuthorities) -> None:
    async with guarded(two) as w:
        tls = two.host_context(two.issue("other"))
        await is_refused_as_host(w, tls, HOST_SERVER_NAME, "another_name")
        async with w.stranger(tls, HOST_SERVER_NAME) as client:
            assert (await join(client, "other")).response.proof, "it is admitted as itself"


async def test_without_the_check_of_the_name_it_would_be(two: TwoAuthorities, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_door, "check_certificate", lambda *_, **__: None)
    async with guarded(two) as w, w.stranger(two.host_context(two.issue("other")), HOST_SERVER_NAME) as client:
        assert (await join(client, "caller")).response.proof


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["foqs://other-cluster/host/caller"],
        [f"{URI_OF_CALLER}x"],
        [f"{URI_OF_CALLER}/"],
        [URI_OF_CALLER.upper()],
        [f"x{URI_OF_CALLER}"],
        ["foqs://c/host/"],
        ["foqs://c/host/*"],
        [URI_OF_CALLER, host_uri(CLUSTER, "other")],
        [URI_OF_CALLER, URI_OF_CALLER],
        [f"{URI_OF_CALLER}\0.example"],
        ["foqs://c/client/caller"],
    ],
    ids=repr,
)
async def test_only_a_certificate_for_one_host_and_exactly_that_one_will_do(
    two: TwoAuthorities, uris: list[str]
) -> None:
    async with guarded(two) as w:
        await is_refused_as_host(w, two.host_context(two.issue("caller", uris)), HOST_SERVER_NAME, "another_name")


async def test_names_of_hosts_count_in_uris_alone(two: TwoAuthorities) -> None:
    """Not in the common name, and not as a DNS name."""
    issued = two.hosts.issue(URI_OF_CALLER.rpartition("/")[2], hosts=["caller", "caller.example"])
    async with guarded(two) as w:
        await is_refused_as_host(w, two.host_context(issued), HOST_SERVER_NAME, "another_name")


async def test_a_client_certificate_with_the_name_of_a_host_makes_no_host(two: TwoAuthorities) -> None:
    """It is one of the authority of clients, and says what that of the host says."""
    issued = two.clients.issue("client", uris=[URI_OF_CALLER])
    async with guarded(two) as w:
        await is_turned_away(w, two.host_context(issued))
        await is_refused_as_host(w, two.clients.client_context(issued), None, "no_certificate")


async def test_with_one_authority_for_both_that_client_would_be_a_host(two: TwoAuthorities) -> None:
    """So the test above is about the authority."""
    issued = two.hosts.issue("client", uris=[URI_OF_CALLER])
    async with guarded(two) as w, w.stranger(two.host_context(issued), HOST_SERVER_NAME) as client:
        assert (await join(client)).response.proof


async def test_who_asks_for_the_handshake_of_hosts_without_a_certificate_is_turned_away(two: TwoAuthorities) -> None:
    async with guarded(two) as w:
        await is_turned_away(w, two.host_context(None))


async def test_the_certificate_of_a_host_makes_no_client(two: TwoAuthorities) -> None:
    """A principal has the name that is in it, and it is shown in the handshake of clients, and in that of hosts."""
    files, issued = two.files("callee"), two.issue("caller", [URI_OF_CALLER, "spiffe://admin"])
    async with sign_in_world(AccessMode.ENFORCED, tls=port_tls(load(files, now_ms()))) as w:
        w.book.grant("admin", {"*": "admin"})
        w.book.certificate("spiffe://admin", "admin")
        context = two.clients.client_context(issued)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with w.connect(tls=context) as client:
                await who(client)
        tls = two.host_context(issued)
        async with RawClient.connect("127.0.0.1", w.server.port, tls=tls, server_name=HOST_SERVER_NAME) as client:
            assert (await who(client)).principal == "nobody"
        proper = two.clients.issue("admin", uris=["spiffe://admin"])
        async with w.connect(tls=two.clients.client_context(proper)) as client:
            assert (await who(client)).principal == "admin"


async def test_a_certificate_does_not_stand_in_for_the_secret(two: TwoAuthorities) -> None:
    async with guarded(two) as w:
        with capture_logs() as logs, pytest.raises(UnavailableError, match="another secret"):
            await call_by(w, by_certificate(two.load("caller")), secret=Secret(b"x" * 32))
        assert reasons(logs) == ["wrong_proof"]


async def test_what_listens_with_the_certificate_of_another_host_is_not_called(
    two: TwoAuthorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of the cluster takes the address of another one, and says to be that."""
    other, caller = two.load("other"), two.load("caller")
    async with peer_world(tls=port_tls(other), needs_certificate=True) as w:
        with pytest.raises(UnavailableError, match="not shown the certificate of host callee: it is one of host other"):
            await call_by(w, by_certificate(caller))
        assert not w.queue.contexts
        monkeypatch.setattr(peers_module, "certificate_problem", lambda *_: "")
        assert await call_by(w, by_certificate(caller)), "the check of the name keeps it from that"


async def test_what_listens_with_the_certificate_of_a_port_is_not_called(two: TwoAuthorities) -> None:
    """It is one of the other authority, for the address that is dialled."""
    async with peer_world(tls=port_tls(two.load("callee", has_hosts=False))) as w:
        with pytest.raises(UnavailableError, match=r"certificate verify failed: .*peer_ca_file"):
            await call_by(w, by_certificate(two.load("caller")))


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_host_that_calls_without_a_certificate_is_refused_where_they_are_required(
    two: TwoAuthorities, *, is_plain: bool
) -> None:
    caller = two.load("caller", is_shown=False)
    async with guarded(two, is_required=False) as w:
        with capture_logs() as logs, pytest.raises(UnavailableError, match="set peer_ca_file on it"):
            await call_by(w, None if is_plain else PeerTls(lambda: caller.peers))
        assert reasons(logs) == ["no_certificate"]


# What a host does in each step of the way from the secret alone to certificates: whether it has them, shows them to
# others, and demands them.
STEPS = {"off": (False, False, False), "accepted": (True, False, False), "shown": (True, True, False)}
STEPS["required"] = (True, True, True)


@pytest.mark.parametrize(
    ("calls", "is_called"),
    [pair for one, other in pairwise(STEPS) for pair in ((one, other), (other, one))],
)
async def test_a_cluster_comes_to_certificates_step_by_step_without_a_refused_call(
    two: TwoAuthorities, calls: str, is_called: str
) -> None:
    has_hosts, is_shown, needs = STEPS[is_called]
    callee = two.load("callee", has_hosts=has_hosts, is_shown=is_shown)
    has_hosts, is_shown, _ = STEPS[calls]
    caller = two.load("caller", has_hosts=has_hosts, is_shown=is_shown)
    async with peer_world(tls=port_tls(callee), needs_certificate=needs) as w:
        assert await call_by(w, PeerTls(lambda: caller.peers, is_shown))


async def test_hello_is_no_way_around_the_certificate(two: TwoAuthorities) -> None:
    async with guarded(two, is_required=False) as w:
        w.proofs["caller"] = OLD_PROOF
        w.look()
        with capture_logs() as logs:
            async with w.stranger() as client:
                reply = await client.call("hello", structs.HelloRequest("caller", b"0" * 16))
                assert isinstance(reply.error, PermissionDeniedError)
                assert await client.is_closed()
        assert reasons(logs) == ["no_certificate"]


async def test_a_join_right_behind_a_refused_greet_joins_nothing(two: TwoAuthorities) -> None:
    """Both are on the way before the host has answered."""
    async with guarded(two) as w, w.stranger(two.host_context(two.issue("other")), HOST_SERVER_NAME) as client:
        with capture_logs() as logs:
            client.send("greet", structs.GreetRequest(PROOF, "caller", "callee", b"n" * 32), 1)
            client.send("join", structs.JoinRequest(b"0" * 32), 2)
            assert isinstance((await client.receive()).error, PermissionDeniedError)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert isinstance((await client.receive()).error, PermissionDeniedError)
                assert await client.is_closed()
        assert reasons(logs)[0] == "another_name"
        assert not any(one["event"] == "peer_admitted" for one in logs)


async def test_the_connection_of_a_host_ends_with_its_certificate(two: TwoAuthorities) -> None:
    issued = two.hosts.issue("caller", uris=[URI_OF_CALLER], days=30)
    async with guarded(two) as w, w.stranger(two.host_context(issued), HOST_SERVER_NAME) as client:
        assert (await join(client)).response.proof
        with capture_logs() as logs:
            w.clock_step_ms = 31 * 86_400_000
            assert await client.is_closed()
        assert reasons(logs) == ["certificate_ended"]


async def test_a_host_that_calls_changes_its_connection_before_the_certificates_end_and_loses_no_call(
    two: TwoAuthorities,
) -> None:
    """Also while the other side cannot be reached anew. Calls in flight end on the connection that they began on."""
    caller, lasts_s = two.load("caller"), 70.0
    ends: list[int] = []

    def left_s(ends_at_ms: int) -> float:
        ends.append(ends_at_ms)
        return lasts_s

    context = caller.peers
    async with guarded(two) as w, asyncio.timeout(PATIENCE_S):
        peers = w.connections_of("caller", tls=PeerTls(lambda: context, True, left_s))
        remote = peers.get("callee", f"127.0.0.1:{w.server.port}")
        asked = Asked(remote.call, CALLER)
        await asked.get_host_status()
        first = peers._links["callee"].connection
        assert first is not None
        assert ends[0] > now_ms(), "it is told the end of the certificate of the other side"
        w.queue.gate = asyncio.Event()
        calling = asyncio.create_task(asked.enqueue("ns", [structs.NewItem("t", b"x")]))
        await until(lambda: w.queue.calls_running == 1)
        w.callers_step_s = lasts_s - peers_module.RENEWED_S - 1
        await asked.get_host_status()
        assert peers._links["callee"].opening is None, "it is not time yet"
        context = two.host_context(None)  # It cannot connect anew.
        w.callers_step_s += 2
        await asked.get_host_status()
        await until(lambda: peers._links["callee"].opening is None)
        assert peers._links["callee"].connection is first
        assert peers.states()["connected"] == 1
        await asked.get_host_status()
        assert peers._links["callee"].opening is None, "it tries again after a pause"
        context = caller.peers
        w.callers_step_s += peers_module.RENEW_AGAIN_S
        await asked.get_host_status()
        await until(lambda: peers._links["callee"].connection is not first)
        assert not first.is_lost
        w.queue.gate.set()
        assert (await calling).ids
        await until(lambda: first.is_lost)
        await asked.get_host_status()
        await peers.stop()


async def test_the_connection_lasts_as_long_as_both_certificates(two: TwoAuthorities) -> None:
    now = now_ms()
    certificates = Certificates(two.files("callee"), lambda: now)
    await certificates.start()
    try:
        tls = certificates.peer_tls()
        assert tls.is_by_certificate
        end_ms = certificates._known().host_expires_at_ms
        assert tls.left_s(end_ms + 1_000) == (end_ms - now) / 1000
        assert tls.left_s(now + 5_000) == 5.0
    finally:
        await certificates.stop()


async def test_an_expired_certificate_of_a_host_is_refused_in_the_handshake(two: TwoAuthorities) -> None:
    issued = two.hosts.issue("caller", uris=[URI_OF_CALLER], days=-0.5)
    async with guarded(two) as w:
        await is_turned_away(w, two.host_context(issued))


async def test_a_certificate_of_hosts_that_is_replaced_is_shown_on_new_connections(two: TwoAuthorities) -> None:
    certificates = Certificates(two.files("callee"), now_ms)
    await certificates.start()
    try:
        async with peer_world(tls=certificates.port_tls(is_required=True), needs_certificate=True) as w:
            tls = two.host_context(two.issue("caller"))
            async with w.stranger(tls, HOST_SERVER_NAME) as old:
                two.issue("callee")
                with capture_logs() as logs:
                    await certificates.reload()
                assert [one["event"] for one in logs] == ["certificate_reloaded"]
                async with w.stranger(tls, HOST_SERVER_NAME) as new:
                    assert new.certificate_bytes() != old.certificate_bytes()
                    for one in (old, new):
                        assert (await join(one)).response.proof
            # What cannot be used changes nothing.
            two.issue("callee", [host_uri(CLUSTER, "other")])
            with capture_logs() as logs:
                await certificates.reload()
            assert "needs the one URI foqs://c/host/callee" in logs[0]["error"]
            assert await call_by(w, by_certificate(two.load("caller")))
    finally:
        await certificates.stop()


Break = Callable[[TwoAuthorities], Issued]


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (lambda two: two.issue("callee", [host_uri(CLUSTER, "other")]), "one of host other, and needs the one URI"),
        (lambda two: two.issue("callee", []), "names no host"),
        (lambda two: two.clients.issue("x", uris=[host_uri(CLUSTER, "callee")]), "does not hold before peer_ca_file"),
        (lambda two: two.hosts.issue("callee", uris=[host_uri(CLUSTER, "callee")], days=-0.5), "it is valid from"),
    ],
)
async def test_a_host_whose_own_certificate_others_would_refuse_does_not_start(
    two: TwoAuthorities, broken: Break, problem: str
) -> None:
    files = two.files("callee")
    assert files.hosts is not None
    issued = broken(two)
    Path(issued.cert_file).replace(files.hosts.pair.cert_file)  # noqa: ASYNC240
    Path(issued.key_file).replace(files.hosts.pair.key_file)  # noqa: ASYNC240
    with pytest.raises(InvalidArgumentError, match=f"peer_cert_file = .*{problem}"):
        load(files, now_ms())


def hello_for(server_name: str, context: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    own = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    with suppress(ssl.SSLWantReadError):
        own.do_handshake()
    return own, incoming, outgoing


async def handshake(w: PeerWorld, context: ssl.SSLContext, piece_bytes: int) -> bytes:
    """Shake hands as a host does, in small pieces. Returns the certificate that was shown, empty if none was."""
    own, incoming, outgoing = hello_for(HOST_SERVER_NAME, context)
    reader, writer = await asyncio.open_connection("127.0.0.1", w.server.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                data = outgoing.read()
                for at in range(0, len(data), piece_bytes):
                    writer.write(data[at : at + piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)
                received = await reader.read(65_536)
                if not received:
                    return b""
                incoming.write(received)
                with suppress(ssl.SSLWantReadError):
                    own.do_handshake()
                    return own.getpeercert(binary_form=True) or b""
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 100_000])
async def test_the_first_message_of_a_host_can_come_in_pieces(
    two: TwoAuthorities, tmp_path: Path, piece_bytes: int
) -> None:
    async with guarded(two) as w:
        shown = await handshake(w, two.host_context(two.issue("caller")), piece_bytes)
        assert shown == ssl.PEM_cert_to_DER_cert((tmp_path / "callee.cert.pem").read_text())


async def test_a_first_message_that_is_too_long_for_a_host_is_refused_and_not_kept(
    two: TwoAuthorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_module, "HELLO_BYTES_MAX", 300)
    context = two.host_context(two.issue("caller"))
    async with guarded(two) as w:
        assert not await handshake(w, context, 100)
        assert not await handshake(w, context, 100_000)
        async with w.stranger(two.clients.client_context()) as client:  # Others may have longer ones.
            assert (await who(client)).principal == "everybody"
        monkeypatch.setattr(layer_module, "HELLO_BYTES_MAX", 8_192)
        assert await handshake(w, context, 100)


async def test_who_asks_for_the_handshake_of_hosts_delays_nobody_and_leaves_nothing(two: TwoAuthorities) -> None:
    """Strangers begin it together with clients, whose own handshakes are not taken for theirs."""
    async with guarded(two) as w:
        strange, client_tls = two.host_context(None), two.clients.client_context()

        async def stranger() -> None:
            await is_turned_away(w, strange)

        async def client() -> None:
            async with w.stranger(client_tls) as one:
                assert (await who(one)).principal == "everybody"

        await asyncio.gather(*[work() for _ in range(10) for work in (stranger, client)])
        assert await call_by(w, by_certificate(two.load("caller")))
