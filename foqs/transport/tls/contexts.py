"""The TLS contexts of a host, made from files and tried before they are used."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from foqs.model.host_certificates import HOST_SERVER_NAME, certificate_problem
from foqs.model.peer_proof import binding_of
from foqs.transport.tls.caller_tls import uris_in
from foqs.transport.tls.pem_files import Pair, load_authorities

Clients = Literal["none", "wanted", "required"]
_VERIFY = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_STEPS_MAX = 20
"""Bound on the steps of a handshake in memory, which takes three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """The certificate by which other hosts know a host, and the authority of hosts."""

    ca_file: str
    pair: Pair
    cluster: str
    host_name: str
    """The name of this host, which the certificate must have."""
    is_shown: bool = True
    """True if this host calls others by certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files of the certificate of a host, and its demands on callers."""

    cert_file: str
    """PEM, with the certificates of intermediate authorities behind it."""
    key_file: str
    """PEM, without a pass phrase."""
    ca_file: str = ""
    """The authorities of client certificates and of other hosts."""
    clients: Clients = "none"
    """The demand for certificates of clients."""
    version_min: Literal["1.2", "1.3"] = "1.2"
    calls_peers: bool = False
    """True if this host calls others by TLS, and knows them by their addresses alone."""
    hosts: HostFiles | None = None
    """None if hosts are not known by certificates."""

    @property
    def paths(self) -> Sequence[str]:
        """All files."""
        given = [self.cert_file, self.key_file, self.ca_file]
        if self.hosts is not None:
            given += [self.hosts.ca_file, self.hosts.pair.cert_file, self.hosts.pair.key_file]
        return [path for path in given if path]


class ServerContext(NamedTuple):
    """The context of connections of callers, and the binding of the certificate that it shows."""

    context: ssl.SSLContext
    binding: bytes
    """`peer_proof.binding_of` the certificate as callers get it."""
    host_entry: HostEntry | None = None
    """None if hosts are not known by certificates."""
    is_of_hosts: bool = False
    """True if callers have to show certificates of the authority of hosts."""


class HostEntry:
    """The context for callers that mean to call as hosts, which they say by the server name that they ask for.

    It has the authority of hosts, and the context of all others has not, so that a certificate of one authority is
    nothing before the other one. OpenSSL cannot change the demand for a certificate within a handshake, so the layer
    begins the handshake of such a caller again.
    """

    def __init__(self, served: ServerContext) -> None:
        self.served = served
        self.is_asked = False
        """True if the handshake of the running step has just been broken off for it. The layer takes it back."""

    def watch(self, others: ssl.SSLContext) -> None:
        """Break off the handshakes of hosts with the context of all other callers."""
        others.sni_callback = self._named

    def _named(self, encrypted: object, server_name: str | None, context: ssl.SSLContext) -> int | None:
        self.is_asked = server_name == HOST_SERVER_NAME
        return ssl.ALERT_DESCRIPTION_USER_CANCELLED if self.is_asked else None


class PeerTls(NamedTuple):
    """TLS of connections to other hosts."""

    context: Callable[[], ssl.SSLContext]
    """Returns the newest one."""
    is_by_certificate: bool = False
    """True if hosts are known by the URIs in their certificates; False if by their addresses."""
    left_s: Callable[[int], float] = lambda ends_at_ms: inf
    """Returns how long a new connection lasts, by the end of the other host's certificate and of this host's own."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts that were made from one state of the files."""

    server: ServerContext
    peers: ssl.SSLContext
    """The context of connections to other hosts: by certificates, or else with their names verified."""
    expires_at_ms: int
    expires_first: str
    """The file of the certificate that expires first."""
    host_expires_at_ms: int
    """The end of the certificate by which other hosts know this one."""


def load(files: TlsFiles, now_ms: int) -> Contexts:
    """Read the files, and try them by a handshake in memory. Blocks.

    A pair that does not match spoils the context that it is loaded into, so contexts are made anew each time. Raises
    InvalidArgumentError with the file and its fault.
    """
    pair = Pair(files.cert_file, files.key_file)
    ends = [(pair.end_ms(now_ms), pair.cert_file)]
    server, peers = _server_context(files, pair), _client_context(files, pair)
    if files.ca_file:
        for context in (server, peers):
            load_authorities(context, "tls_ca_file", files.ca_file)
    else:
        peers.load_default_certs()
    if files.calls_peers:  # With the demand for certificates, because this host shows its own.
        server.verify_mode = _VERIFY[files.clients]
    shown = _try(server, files)
    server.verify_mode = _VERIFY[files.clients]
    served = ServerContext(server, binding_of(shown))
    if files.hosts is not None:
        ends.append((files.hosts.pair.end_ms(now_ms), files.hosts.pair.cert_file))
        for_hosts, to_hosts = _host_contexts(files, files.hosts)
        entry = HostEntry(for_hosts)
        entry.watch(server)
        served = served._replace(host_entry=entry)
        peers = to_hosts if files.hosts.is_shown else peers
    return Contexts(served, peers, *min(ends), ends[-1][0])


def _server_context(files: TlsFiles, pair: Pair) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A session that is resumed would outlive the row of its certificate, and saves nothing.
    made.num_tickets = 0
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    made.minimum_version = _VERSIONS[files.version_min]
    pair.load_into(made)
    return made


def _client_context(files: TlsFiles, pair: Pair) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = _VERSIONS[files.version_min]
    pair.load_into(made)
    return made


def _host_contexts(files: TlsFiles, hosts: HostFiles) -> tuple[ServerContext, ssl.SSLContext]:
    """Return the contexts of calls from hosts and to hosts, after a handshake between them."""
    server, client = _server_context(files, hosts.pair), _client_context(files, hosts.pair)
    client.check_hostname = False  # Hosts are known by URIs, see foqs/transport/peers.py.
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        load_authorities(context, "peer_ca_file", hosts.ca_file)
    handshake = _tried(client, server, hosts.pair, f"peer_ca_file = {hosts.ca_file}")
    if problem := certificate_problem(handshake.uris, hosts.cluster, hosts.host_name):
        raise hosts.pair.unfit(f"other hosts would not know this one by it: {problem}")
    return ServerContext(server, binding_of(handshake.certificate), is_of_hosts=True), client


def _try(server: ssl.SSLContext, files: TlsFiles) -> bytes:
    """Shake hands in memory, as another host does, or as a client without a certificate.

    Returns the certificate that the server has shown, because the file can have been replaced since it was loaded.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # A certificate has many names, and none of them is known here.
    client.verify_mode = ssl.CERT_NONE
    pair = Pair(files.cert_file, files.key_file)
    if files.calls_peers:
        pair.load_into(client)
    if files.calls_peers and files.ca_file:
        client.verify_mode = ssl.CERT_REQUIRED
        load_authorities(client, "tls_ca_file", files.ca_file)
    return _tried(client, server, pair, f"tls_ca_file = {files.ca_file}").certificate


class _Handshake(NamedTuple):
    """The findings of the client of a handshake."""

    certificate: bytes
    """The certificate of the server (DER)."""
    uris: Sequence[str]
    """The URIs in it; empty if it was not verified."""


def _tried(client: ssl.SSLContext, server: ssl.SSLContext, pair: Pair, authorities: str) -> _Handshake:
    """Shake hands. Raises InvalidArgumentError if the pair is not one for that."""
    try:
        return _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        problem = f"it does not hold before {authorities}, by which hosts verify each other: {error.verify_message}"
        raise pair.unfit(problem) from None
    except ssl.SSLError as error:
        raise pair.unfit(f"a handshake with it fails: {error.reason}") from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> _Handshake:
    """Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for step in range(_STEPS_MAX):
        with suppress(ssl.SSLWantReadError):
            ends[step % 2].do_handshake()
            if step % 2 == 1:
                break
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None, "a handshake ends in a few steps, and every server shows a certificate"
    return _Handshake(shown, uris_in(ends[0]))
