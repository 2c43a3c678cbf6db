"""A certificate for the host under attack, and what its clients have to know for it."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foqs.dev.local_authority import LocalAuthority


@dataclass(frozen=True, slots=True)
class TlsDoor:
    """`settings` of a host that requires TLS, and `client_options` of its clients."""

    settings: Mapping[str, Any]
    client_options: Mapping[str, Any]

    def context(self) -> ssl.SSLContext:
        """For connections without a client of foqs: TLS 1.3, which foqs's clients speak with a host as well."""
        context = ssl.create_default_context(cafile=self.client_options["ca_file"])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


@contextmanager
def tls_door() -> Iterator[TlsDoor]:
    """The files are there until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="foqs-tls-") as directory:
        authority = LocalAuthority(Path(directory) / "tls")
        authority.prepare(datetime.now(UTC))
        files = {
            "tls": "required",
            "tls_cert_file": str(authority.cert_file),
            "tls_key_file": str(authority.key_file),
            "tls_ca_file": str(authority.ca_file),
        }
        yield TlsDoor(files, {"tls": True, "ca_file": str(authority.ca_file)})
