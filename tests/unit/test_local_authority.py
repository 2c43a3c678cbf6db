"""The authority of `foqs dev --tls`: what it makes can be used, lasts, and is made anew before it ends."""

from __future__ import annotations

import ssl
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from foqs.dev.local_authority import LIFE_DAYS, RENEWED_BEFORE_DAYS, LocalAuthority
from foqs.transport.tls.contexts import HostFiles, TlsFiles, load
from foqs.transport.tls.pem_files import Pair

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_the_files_serve_a_host_and_hosts_that_call_each_other(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path / "tls")
    authority.prepare(NOW)
    files = TlsFiles(
        cert_file=str(authority.cert_file), key_file=str(authority.key_file), ca_file=str(authority.ca_file),
        clients="wanted", calls_peers=False,
    )  # fmt: skip
    made = load(files, int(NOW.timestamp() * 1_000))
    assert made.expires_at_ms == int((NOW + timedelta(days=LIFE_DAYS)).timestamp() * 1_000)
    (shown,) = ssl.create_default_context(cafile=authority.ca_file).get_ca_certs()
    assert shown["issuer"] == shown["subject"]
    for path in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {path.name for path in (tmp_path / "tls").iterdir()} == {"ca.pem", "host.cert.pem", "host.key.pem"}


def test_each_host_gets_a_certificate_by_which_the_others_know_it(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path)
    authority.prepare(NOW)
    first = authority.ca_file.read_bytes()
    authority.prepare(NOW, "foqs", ["dev", "dev-2"])
    both = authority.ca_file.read_bytes()
    assert both != first, "its key was not kept, so it signs no more"
    for name in ("dev", "dev-2"):
        pair = Pair(*map(str, authority.files_of(name)), "peer")
        hosts = HostFiles(ca_file=str(authority.ca_file), pair=pair, cluster="foqs", host_name=name)
        files = TlsFiles(cert_file=str(authority.cert_file), key_file=str(authority.key_file), hosts=hosts)
        assert load(files, int(NOW.timestamp() * 1_000)).server.host_entry is not None
    authority.prepare(NOW, "foqs", ["dev"])
    assert authority.ca_file.read_bytes() == both, "it has what one host needs"
    left = authority.files_of("dev-2")[0].read_bytes()
    authority.ca_file.unlink()
    authority.prepare(NOW, "foqs", ["dev"])
    authority.prepare(NOW, "foqs", ["dev", "dev-2"])
    assert authority.files_of("dev-2")[0].read_bytes() != left, "it was one of an authority that is gone"


def test_files_are_kept_until_a_week_before_their_end_and_made_anew_then_or_if_one_is_gone(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path)
    authority.prepare(NOW)
    first = authority.cert_file.read_bytes()
    authority.prepare(NOW + timedelta(days=LIFE_DAYS - RENEWED_BEFORE_DAYS, seconds=-1))
    assert authority.cert_file.read_bytes() == first
    authority.prepare(NOW + timedelta(days=LIFE_DAYS - RENEWED_BEFORE_DAYS))
    second = authority.cert_file.read_bytes()
    assert second != first
    authority.key_file.unlink()
    authority.prepare(NOW)
    assert authority.cert_file.read_bytes() != second
    authority.ca_file.write_bytes(b"broken")
    authority.prepare(NOW)
    assert b"BEGIN CERTIFICATE" in authority.ca_file.read_bytes()


def test_a_client_that_verifies_to_the_letter_trusts_the_host(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path)
    authority.prepare(datetime.now(UTC))
    client = ssl.create_default_context(cafile=authority.ca_file)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.cert_file, authority.key_file)
    for host in ("localhost", "127.0.0.1"):
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = client.wrap_bio(to_client, to_server, server_hostname=host)
        other = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (own, other):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        own.do_handshake()
        assert own.getpeercert()
