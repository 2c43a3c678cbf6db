"""The settings of certificates in the configuration of a host: their faults, and the files that they name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foqs.cluster.members.backends import zookeeper_url
from foqs.transport.tls.contexts import HostFiles, TlsFiles
from foqs.transport.tls.pem_files import Pair

if TYPE_CHECKING:
    from foqs.config import HostConfig


def tls_problems_of(config: HostConfig) -> Iterator[str]:
    """The faults in the settings of the port's certificate and of the certificates of hosts."""
    if config.tls != "off":
        for key in ("tls_cert_file", "tls_key_file"):
            if not getattr(config, key):
                yield f"tls = {config.tls} needs {key}, which is not set"
    if config.tls_clients != "none" and not config.tls_ca_file:
        yield f"tls_clients = {config.tls_clients} needs tls_ca_file, which is not set"
    for key in ("tls_to_peers", "tls_clients", "peer_ca_file"):
        value = getattr(config, key)
        if config.tls == "off" and value not in (False, "none", ""):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key} = {shown} needs tls = accepted or tls = required"
    if bool(config.peer_cert_file) is not bool(config.peer_key_file):
        one, other = ("cert", "key") if config.peer_cert_file else ("key", "cert")
        yield f"peer_{one}_file is set without peer_{other}_file; allowed: both, or none"
    if not config.peer_ca_file:
        if config.peer_cert_file:
            yield "peer_cert_file needs peer_ca_file, which is not set"
        if config.peer_certificates != "required":
            yield f"peer_certificates = {config.peer_certificates} needs peer_ca_file, which is not set"


def zookeeper_problems_of(config: HostConfig) -> Iterator[str]:
    """The faults in the settings of ZooKeeper's certificates and login."""
    keys = ("membership_ca_file", "membership_cert_file", "membership_key_file", "membership_login_file")
    given = [key for key in keys if getattr(config, key)]
    if given and not config.membership.startswith(f"{zookeeper_url.TLS_SCHEME}://"):
        yield f"{given[0]} is set, and membership is no zookeeper+tls:// URL; allowed: both, or none"
    if config.membership_key_file and not config.membership_cert_file:
        yield "membership_key_file is set without membership_cert_file; allowed: both, or none"


def tls_files_of(config: HostConfig) -> TlsFiles | None:
    """The certificate of the port, and that by which other hosts know this one; None without TLS."""
    if config.tls == "off":
        return None
    return TlsFiles(
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        ca_file=config.tls_ca_file,
        clients=config.tls_clients,
        version_min=config.tls_min,
        calls_peers=config.calls_peers_by_tls and not config.calls_peers_by_certificate,
        hosts=_host_files_of(config),
    )


def _host_files_of(config: HostConfig) -> HostFiles | None:
    if not config.peer_ca_file:
        return None
    pair = Pair(config.tls_cert_file, config.tls_key_file)
    if config.peer_cert_file:
        pair = Pair(config.peer_cert_file, config.peer_key_file, "peer")
    return HostFiles(
        ca_file=config.peer_ca_file,
        pair=pair,
        cluster=config.cluster,
        host_name=config.host_name,
        is_shown=config.calls_peers_by_certificate,
    )
