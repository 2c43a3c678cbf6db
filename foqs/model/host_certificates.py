"""The names of hosts in certificates of the authority of hosts: docs/decisions/0058-certificates-of-hosts.md."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model.cluster import host_name_of
from foqs.model.peer_proof import PeerLink, PeerRefusedError

HOST_SERVER_NAME = "host.foqs.invalid"
"""The server name for which hosts ask in the handshake of TLS when they call by certificate. No machine has it."""


def host_uri(cluster: str, host_name: str) -> str:
    """Return the URI by which a certificate names a host."""
    return f"foqs://{cluster}/host/{host_name}"


def host_named(uris: Sequence[str], cluster: str) -> str:
    """Return the name of the one host of the cluster that a certificate with these URIs is for; empty for none.

    A certificate for several hosts is for none, because each could call as another one with it.
    """
    prefix = host_uri(cluster, "")
    names = [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
    return names[0] if len(names) == 1 else ""


def certificate_problem(uris: Sequence[str], cluster: str, host_name: str) -> str:
    """Return the reason why a certificate with these URIs is not that of the host, or an empty text."""
    named = host_named(uris, cluster)
    if named == host_name:
        return ""
    of = f"of host {named[:80]}" if named else "that names no host, or several hosts, of this cluster"
    return f"it is one {of}, and needs the one URI {host_uri(cluster, host_name)[:200]}"


def check_certificate(link: PeerLink, cluster: str, host_id: str, *, is_required: bool) -> None:
    """Raise PeerRefusedError unless the caller's certificate, if any, names the host of this process."""
    if link.host_uris is None:
        if is_required:
            raise PeerRefusedError(
                "no_certificate",
                "a host of this cluster calls by TLS and shows a certificate of the authority of hosts: set "
                "peer_ca_file on it, and peer_certificates = shown or required",
            )
        return
    if problem := certificate_problem(link.host_uris, cluster, host_name_of(host_id)):
        raise PeerRefusedError("another_name", f"the certificate is not that of host {host_id[:80]}: {problem}")
