"""Hosts of a cluster that know each other by certificates, for tests."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from foqs.model.calls import CallContext
from foqs.model.host_certificates import host_uri
from foqs.model.principal import EVERYBODY
from foqs.model.secret import Secret
from foqs.transport.tls.contexts import Contexts, HostFiles, PeerTls, TlsFiles, load
from foqs.transport.tls.layer import PortTls
from foqs.transport.tls.pem_files import Pair
from tests.support.asked import Asked
from tests.support.certificates import Authority, Issued
from tests.support.peer_world import CLUSTER, SECRET, PeerWorld
from tests.support.waiting import PATIENCE_S

CALLER = CallContext("10.0.0.1", principal=EVERYBODY)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def port_tls(made: Contexts, *, is_required: bool = True) -> PortTls:
    return PortTls(lambda: made.server, is_required)


async def call_by(w: PeerWorld, tls: PeerTls | None, address: str = "", secret: Secret = SECRET) -> str:
    """The host `caller` calls the address, where it takes `callee` to be; by default it is."""
    peers = w.connections_of("caller", secret, tls=tls)
    try:
        remote = peers.get("callee", address or f"127.0.0.1:{w.server.port}")
        async with asyncio.timeout(PATIENCE_S):
            host: str = (await Asked(remote.call, CALLER).get_host_status()).host
            return host
    finally:
        await peers.stop()


class TwoAuthorities:
    """The authority of hosts, and that of ports and clients."""

    def __init__(self, directory: Path) -> None:
        self.hosts, self.clients = (Authority(directory, name) for name in ("of-hosts", "of-clients"))

    def issue(self, host_name: str, uris: Sequence[str] | None = None) -> Issued:
        """A certificate of the authority of hosts."""
        return self.hosts.issue(host_name, uris=[host_uri(CLUSTER, host_name)] if uris is None else uris)

    def files(self, name: str, *, is_shown: bool = True, has_hosts: bool = True) -> TlsFiles:
        """The files of a host, whose port shows a certificate of the other authority."""
        port = self.clients.issue(f"port-of-{name}", hosts=["127.0.0.1"])
        hosts = None
        if has_hosts:
            pair = Pair(*self.issue(name), "peer")
            ca_file = self.hosts.ca_file
            hosts = HostFiles(ca_file=ca_file, pair=pair, cluster=CLUSTER, host_name=name, is_shown=is_shown)
        return TlsFiles(
            cert_file=port.cert_file,
            key_file=port.key_file,
            ca_file=self.clients.ca_file,
            clients="wanted",
            calls_peers=not (has_hosts and is_shown),
            hosts=hosts,
        )

    def load(self, name: str, *, is_shown: bool = True, has_hosts: bool = True) -> Contexts:
        return load(self.files(name, is_shown=is_shown, has_hosts=has_hosts), now_ms())

    def host_context(self, shown: Issued | None) -> ssl.SSLContext:
        """The context of somebody who calls as a host does, with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.hosts.ca_file)
        if shown is not None:
            context.load_cert_chain(*shown)
        return context


def by_certificate(made: Contexts) -> PeerTls:
    return PeerTls(lambda: made.peers, is_by_certificate=True)
