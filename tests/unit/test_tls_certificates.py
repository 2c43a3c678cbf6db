"""The certificate of a host: which files it refuses, and how it follows those that are replaced."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from foqs.config import ConfigError, HostConfig, load_config
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.transport.tls import certificates as module
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import HostFiles, ServerContext, TlsFiles, load
from foqs.transport.tls.pem_files import Pair
from tests.support.certificates import Authority
from tests.support.waiting import eventually

NOW_MS = 1_800_000_000_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files_of(authority: Authority, **more: object) -> TlsFiles:
    issued = authority.issue("host", hosts=["127.0.0.1"])
    return replace(TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file), **more)  # type: ignore[arg-type]


def test_tickets_and_renegotiation_are_off_and_versions_bounded(authority: Authority) -> None:
    made = load(files_of(authority), NOW_MS)
    assert made.server.context.num_tickets == 0
    assert made.server.context.options & ssl.OP_NO_RENEGOTIATION
    assert made.server.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.peers.check_hostname
    assert made.peers.verify_mode is ssl.CERT_REQUIRED


Break = Callable[[TlsFiles, Authority, Path], TlsFiles]


def _mode(files: TlsFiles, authority: Authority, _: Path) -> TlsFiles:
    Path(files.key_file).chmod(0o644)
    return files


def _other_key(files: TlsFiles, authority: Authority, _: Path) -> TlsFiles:
    return replace(files, key_file=authority.issue("other").key_file)


def _pass_phrase(files: TlsFiles, authority: Authority, at: Path) -> TlsFiles:
    locked = at / "locked.pem"
    key = serialization.load_pem_private_key(Path(files.key_file).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"words")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    locked.chmod(0o600)
    return replace(files, key_file=str(locked))


def _expired(files: TlsFiles, authority: Authority, _: Path) -> TlsFiles:
    issued = authority.issue("old", days=-1, since_days=9)
    return replace(files, cert_file=issued.cert_file, key_file=issued.key_file)


def _cut(files: TlsFiles, authority: Authority, _: Path) -> TlsFiles:
    path = Path(files.cert_file)
    path.write_bytes(path.read_bytes()[:100])
    return files


def _empty_key(files: TlsFiles, authority: Authority, _: Path) -> TlsFiles:
    Path(files.key_file).write_bytes(b"")
    return files


def _foreign(files: TlsFiles, authority: Authority, at: Path) -> TlsFiles:
    return replace(files, ca_file=Authority(at, "foreign").ca_file, calls_peers=True)


def _empty_ca(files: TlsFiles, authority: Authority, at: Path) -> TlsFiles:
    (at / "empty.pem").write_bytes(b"")
    return replace(files, ca_file=str(at / "empty.pem"))


@pytest.mark.parametrize(
    ("spoil", "key", "problem"),
    [
        (_mode, "tls_key_file", "others can read or change it .mode 0644.: chmod 0600"),
        (_other_key, "tls_key_file", "it is not the key of"),
        (_pass_phrase, "tls_key_file", "it needs a pass phrase"),
        (_expired, "tls_cert_file", "it is valid from"),
        (_cut, "tls_cert_file", "it is no certificate in PEM"),
        (_empty_key, "tls_key_file", "it is no key in PEM"),
        (_foreign, "tls_cert_file", "by which hosts verify each other"),
        (_empty_ca, "tls_ca_file", "it has no certificate in PEM"),
        (lambda files, *_: replace(files, cert_file="/nowhere"), "tls_cert_file", "No such file"),
        (lambda files, *_: replace(files, key_file="/nowhere"), "tls_key_file", "No such file"),
        (lambda files, *_: replace(files, ca_file="/nowhere"), "tls_ca_file", "No such file"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_their_name(
    authority: Authority, tmp_path: Path, spoil: Break, key: str, problem: str
) -> None:
    now_ms = int(Path(authority.ca_file).stat().st_mtime * 1_000)
    files = spoil(files_of(authority), authority, tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"{key} = .*: .*{problem}"):
        load(files, now_ms)


def write_key(files: TlsFiles, content: bytes) -> None:
    key = Path(files.key_file)
    key.unlink()
    key.write_bytes(content)
    key.chmod(0o600)


async def test_a_file_that_is_replaced_is_read_and_one_that_is_broken_changes_nothing(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_MS", 1)
    files = files_of(authority)
    certificates = Certificates(files, lambda: NOW_MS)
    await certificates.start()
    first = certificates.server

    async def newest() -> ServerContext:
        await asyncio.sleep(0.001)
        return certificates.server

    try:
        with capture_logs() as logs:
            authority.issue("host", hosts=["127.0.0.1"])  # Two files, so a check can come between them.
            second = await eventually(newest, lambda context: context is not first)
            await asyncio.to_thread(write_key, files, b"broken")
            await eventually(newest, lambda _: any(one["event"] == "certificate_not_reloaded" for one in logs))
            assert certificates.server is (await newest())
            broken = certificates.server
            await asyncio.to_thread(write_key, files, b"broken again")
            await certificates.reload()
            assert certificates.server is broken
            authority.issue("host", hosts=["127.0.0.1"])
            await eventually(newest, lambda context: context not in (first, second, broken))
        assert {one["event"] for one in logs} <= {"certificate_reloaded", "certificate_not_reloaded"}
        assert "PRIVATE" not in str(logs)
    finally:
        await certificates.stop()


async def test_a_certificate_that_expires_soon_is_warned_of_once_a_day_and_is_not_served_at_a_start_after_that(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_MS", 1)
    files, now_ms = files_of(authority), NOW_MS
    ends_at_ms = load(files, NOW_MS).expires_at_ms
    now_ms = ends_at_ms - 13 * limits.DAY_MS
    certificates = Certificates(files, lambda: now_ms)
    with capture_logs() as logs:
        await certificates.start()
        checks_count = 0
        looked = certificates._file_states

        def look() -> object:
            nonlocal checks_count
            checks_count += 1
            return looked()

        certificates._file_states = look  # type: ignore[method-assign, assignment]

        async def checked(after: int) -> None:
            async def count() -> int:
                await asyncio.sleep(0.001)
                return checks_count

            await eventually(count, lambda count: count > after + 2)

        await checked(checks_count)
        assert [one["event"] for one in logs] == ["certificate_expires"]
        now_ms += limits.DAY_MS
        await checked(checks_count)
        assert [one["event"] for one in logs] == ["certificate_expires"] * 2
        assert certificates.left_s == 12 * limits.DAY_MS / 1000
        await certificates.stop()
    now_ms = ends_at_ms
    late = Certificates(files, lambda: now_ms)
    with pytest.raises(InvalidArgumentError, match="it is valid from"):
        await late.start()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tls": "required"}, "tls = required needs tls_cert_file"),
        ({"tls": "accepted", "tls_cert_file": "/c"}, "tls = accepted needs tls_key_file"),
        (
            {"tls": "accepted", "tls_cert_file": "/c", "tls_key_file": "/k", "tls_clients": "wanted"},
            "tls_clients = wanted needs tls_ca_file",
        ),
        ({"tls_to_peers": "true"}, "tls_to_peers = true needs tls = accepted or tls = required"),
        ({"peer_ca_file": "/ca"}, "peer_ca_file = /ca needs tls = accepted or tls = required"),
        ({"peer_cert_file": "/c"}, "peer_cert_file is set without peer_key_file"),
        ({"peer_key_file": "/k"}, "peer_key_file is set without peer_cert_file"),
        ({"peer_cert_file": "/c", "peer_key_file": "/k"}, "peer_cert_file needs peer_ca_file"),
        ({"peer_certificates": "shown"}, "peer_certificates = shown needs peer_ca_file"),
        ({"tls": "on"}, "tls"),
        ({"tls_cert_file": "relative.pem"}, "tls_cert_file"),
        ({"tls_min": "1.1"}, "tls_min"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config({"meta_url": "mysql://u:p@127.0.0.1/meta"} | given)


def test_a_host_calls_others_by_tls_where_tls_is_required_or_where_it_is_told_to() -> None:
    def made(**given: object) -> HostConfig:
        return HostConfig(
            meta_url="mysql://u:p@127.0.0.1/meta",
            tls_cert_file="/c",
            tls_key_file="/k",
            **given,  # type: ignore[arg-type]
        )

    assert made(tls="required").calls_peers_by_tls
    assert made(tls="accepted", tls_to_peers=True).calls_peers_by_tls
    assert not made(tls="accepted").calls_peers_by_tls
    assert made(tls="off").tls_files is None


@pytest.mark.parametrize(
    ("given", "by_tls", "by_certificate", "needs"),
    [("accepted", False, False, False), ("shown", True, True, False), (None, True, True, True)],
)
def test_peer_certificates_says_what_a_host_shows_and_demands(
    given: str | None, *, by_tls: bool, by_certificate: bool, needs: bool
) -> None:
    own = {"tls": "accepted", "tls_cert_file": "/c", "tls_key_file": "/k", "peer_ca_file": "/ca"}
    made = HostConfig(
        meta_url="mysql://u:p@127.0.0.1/meta",
        host_name="a",
        **own | ({} if given is None else {"peer_certificates": given}),  # type: ignore[arg-type]
    )
    found = (made.calls_peers_by_tls, made.calls_peers_by_certificate, made.needs_peer_certificates)
    assert found == (by_tls, by_certificate, needs)
    files = made.tls_files
    assert files is not None
    assert files.hosts == HostFiles(
        ca_file="/ca", pair=Pair("/c", "/k"), cluster="foqs", host_name="a", is_shown=by_certificate
    )
    assert not files.calls_peers
    assert set(files.paths) == {"/c", "/k", "/ca"}
    other = made.model_copy(update={"peer_cert_file": "/pc", "peer_key_file": "/pk"}).tls_files
    assert other is not None
    assert other.hosts is not None
    assert other.hosts.pair == Pair("/pc", "/pk", "peer")


def test_the_key_can_be_read_by_its_group_but_not_changed(authority: Authority) -> None:
    files = files_of(authority)
    for mode, is_fine in ((0o600, True), (0o640, True), (0o400, True), (0o660, False), (0o604, False)):
        os.chmod(files.key_file, mode)
        if is_fine:
            load(files, NOW_MS)
        else:
            with pytest.raises(InvalidArgumentError, match="others can read or change"):
                load(files, NOW_MS)
