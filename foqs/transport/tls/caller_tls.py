"""The certificates of a connection."""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

CALLER_TLS = "foqs_caller_tls"
"""The key of `get_extra_info` for the CallerTls of a connection; it is None without TLS."""


class CallerTls(NamedTuple):
    """The certificate that the caller has shown, and the one that it was shown."""

    binding: bytes
    """The value of the certificate that it was shown: `peer_proof.binding_of`."""
    names: tuple[str, ...] = ()
    """The names in the caller's certificate by which a client can be known: those of URIs and of hosts."""
    host_uris: tuple[str, ...] | None = None
    """The URIs in the caller's certificate if it is one of the authority of hosts; None otherwise."""
    ends_at_ms: int = 0
    """The time at which the caller's certificate expires; 0 without one."""


def caller_tls(encrypted: ssl.SSLObject, binding: bytes, *, is_host: bool) -> CallerTls:
    """Return the certificates after the handshake. `is_host` is True if the authority of hosts was demanded.

    The names of a host are not those of a principal.
    """
    ends_at_ms = ends_at_ms_of(encrypted)
    if is_host:
        return CallerTls(binding, host_uris=uris_in(encrypted), ends_at_ms=ends_at_ms)
    return CallerTls(binding, _names_in(encrypted, "URI", "DNS"), ends_at_ms=ends_at_ms)


def ends_at_ms_of(encrypted: ssl.SSLObject) -> int:
    """Return when the verified certificate of the other side expires; 0 without one."""
    # A session of TLS 1.2 that is resumed shows a certificate without a look at its end.
    certificate = encrypted.getpeercert() or {}
    return 1_000 * ssl.cert_time_to_seconds(str(certificate["notAfter"])) if "notAfter" in certificate else 0


def uris_in(encrypted: ssl.SSLObject) -> tuple[str, ...]:
    """Return the URIs in the verified certificate of the other side."""
    return _names_in(encrypted, "URI")


def _names_in(encrypted: ssl.SSLObject, *kinds: str) -> tuple[str, ...]:
    names: Any = (encrypted.getpeercert() or {}).get("subjectAltName", ())
    return tuple(name for kind, name in names if kind in kinds)
