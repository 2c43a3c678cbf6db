"""Certificates end and are replaced: what a host shows is a pair that fits, and a caller ends with its own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.host.access.guard import check_is_guarded
from foqs.model.access import AccessMode
from foqs.model.errors import InvalidArgumentError
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import ServerContext, TlsFiles
from tests.support.certificates import Authority
from tests.support.sign_in_world import who
from tests.support.tls_world import tls_world

SAN = "foqs://prod/mailer"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shown_by(served: ServerContext, authority: Authority) -> bytes:
    """The certificate that a host with this context shows; empty if a handshake with it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = served.context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return b""
    return client.getpeercert(binary_form=True) or b""


@pytest.mark.parametrize("replaced", ["the key", "the certificate"])
async def test_half_a_pair_that_was_replaced_leaves_the_old_pair_served(authority: Authority, replaced: str) -> None:
    """OpenSSL takes the certificate before it looks at the key: whoever loads into the live context has neither."""
    own, other = authority.issue("host", hosts=["127.0.0.1"]), authority.issue("other", hosts=["127.0.0.1"])
    certificates = Certificates(
        TlsFiles(cert_file=own.cert_file, key_file=own.key_file), lambda: time.time_ns() // 1_000_000
    )
    await certificates.start()
    try:
        before = shown_by(certificates.server, authority)
        place, source = (own.key_file, other.key_file) if replaced == "the key" else (own.cert_file, other.cert_file)
        await asyncio.to_thread(shutil.copy, source, place)
        with capture_logs() as logs:
            for _ in range(2):
                await certificates.reload()
        assert [one["event"] for one in logs] == ["certificate_not_reloaded"] * 2
        assert shown_by(certificates.server, authority) == before
        renewed = authority.issue("host", hosts=["127.0.0.1"])
        assert renewed == own
        await certificates.reload()
        assert shown_by(certificates.server, authority) not in (before, b"")
    finally:
        await certificates.stop()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_end_of_a_client_s_certificate_is_the_end_of_what_it_proves(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    issued = authority.issue("host", hosts=["127.0.0.1"])
    files = TlsFiles(
        cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file, clients="required"
    )
    own = authority.issue("mailer", uris=[SAN], days=2)
    tls = authority.client_context(own)
    tls.minimum_version = tls.maximum_version = version
    async with tls_world(replace(files), is_required=True, mode=AccessMode.ENFORCED) as w:
        w.book.now_ms = time.time_ns() // 1_000_000
        w.book.grant("mailer", {"ns": "worker"})
        w.book.certificate(SAN, "mailer")
        async with w.connect(tls=tls) as client:
            identity = await who(client)
            assert identity.principal == "mailer"
            left_ms = identity.expires_at_ms - w.book.now_ms
            assert 1.9 < left_ms / 86_400_000 < 2.1
            w.book.now_ms = identity.expires_at_ms
            assert await client.is_closed()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "queue-a", "127.0.0.1.example"])
def test_a_port_that_others_reach_is_not_served_while_access_is_not_enforced(address: str) -> None:
    """Nor are metrics without a token while it is."""
    for mode in AccessMode:
        if mode is AccessMode.ENFORCED:
            check_is_guarded(settings_of(address), mode)
            with pytest.raises(InvalidArgumentError, match="metrics_open"):
                check_is_guarded(settings_of(address, metrics_address=address), mode)
        else:
            with pytest.raises(InvalidArgumentError, match="allow_open"):
                check_is_guarded(settings_of(address), mode)
        check_is_guarded(settings_of("127.0.0.1"), mode)


def settings_of(address: str, *, metrics_address: str = "127.0.0.1") -> Any:
    return SimpleNamespace(
        listen_address=address, allow_open=False, metrics_address=metrics_address, metrics_port=9_100,
        metrics_token_file="", metrics_open=False,
    )  # fmt: skip
