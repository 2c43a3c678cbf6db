"""Makes the server of a host, with one port or two, from its configuration."""

from __future__ import annotations

from collections.abc import Callable

from foqs.cluster.routing.routing import Routing
from foqs.config import HostConfig
from foqs.host.access.book import AccessBook
from foqs.model.audit import AuditNote
from foqs.parts import Parts
from foqs.transport.bounds import KnownNamespaces, TransportLimits, TransportMetrics
from foqs.transport.server import ThriftServer
from foqs.transport.tls.certificates import Certificates


def make_server(
    config: HostConfig,
    parts: Parts,
    routing: Routing,
    access: AccessBook,
    namespaces: KnownNamespaces,
    metrics: TransportMetrics,
    tls: Certificates | None,
    note_refusal: Callable[[AuditNote], None],
    has_older_hosts: Callable[[], bool],
) -> ThriftServer:
    """Make the server for clients and other hosts. `note_refusal` takes refused sign-ins, for the audit.

    `has_older_hosts` is True while a host lives whose build knows no port for hosts alone.
    """
    port_tls = peer_port_tls = None
    if tls is not None:
        is_required = config.tls == "required"
        port_tls = tls.port_tls(is_required=is_required)
        peer_port_tls = tls.peer_port_tls(is_required=is_required, needs_certificates=config.needs_peer_certificates)
    return parts.server(
        routing.router.call,
        is_living_peer=routing.door.is_living,
        identities=access,
        check=routing.router.check,
        wall_ms=parts.wall_ms,
        note_refusal=note_refusal,
        tokens_without_tls=config.tokens_without_tls,
        tls=port_tls,
        address=config.listen_address,
        port=config.port,
        namespaces=namespaces,
        metrics=metrics,
        bounds=TransportLimits(
            connections_max=config.connections_max,
            connections_per_address_max=config.connections_per_address_max,
            idle_ms_max=config.idle_ms_max,
            # The other half is for the shards, to release the claims of healthy ones.
            drain_ms_max=config.drain_ms_max // 2,
        ),
        peer_port=config.peer_port or None,
        peer_tls=peer_port_tls,
        has_older_hosts=has_older_hosts,
    )
