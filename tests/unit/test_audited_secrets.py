"""A host notes each file with a secret that it reads again, and each that it refuses, without the secret."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from foqs.config import ConfigError, HostConfig
from foqs.model.audit import NAME_BYTES_MAX, RELOAD_CERTIFICATES, RELOAD_CONFIGURATION, AuditNote
from foqs.model.errors import InvalidArgumentError
from foqs.reload import Reload
from foqs.storage.sessions import secret_file as module
from foqs.storage.sessions.secret_file import CHANGES_MAX, FileChange, SecretFile, take_changes
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import TlsFiles
from tests.support.certificates import Authority

PLANTED = "planted-Xq7"


def config(**changes: object) -> HostConfig:
    given = {"meta_url": "mysql://app:secret@db/meta", "shards": {0: "mysql://app:secret@db/s0"}, "host_name": "h"}
    return HostConfig.model_validate({**given, **changes})


async def test_certificates_that_are_read_again_and_those_that_are_refused_are_noted(tmp_path: Path) -> None:
    authority, noted = Authority(tmp_path), list[AuditNote]()
    issued = authority.issue("host", hosts=["127.0.0.1"])
    files = TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file)
    certificates = Certificates(files, lambda: time.time_ns() // 1_000_000, noted.append)
    await certificates.start()
    try:
        assert noted == []
        await certificates.reload()
        await asyncio.to_thread(Path(files.key_file).unlink)
        await certificates.reload()
    finally:
        await certificates.stop()
    assert [(note.what, note.outcome) for note in noted] == [
        (RELOAD_CERTIFICATES, "OK"),
        (RELOAD_CERTIFICATES, "INVALID_ARGUMENT"),
    ]
    assert noted[0].changes.startswith("the first one expires 20")
    assert noted[1].changes.startswith("nothing: ")
    assert files.key_file in noted[1].changes


def test_a_configuration_that_is_read_again_is_noted_by_its_keys_alone() -> None:
    noted: list[AuditNote] = []
    wanted = config(port=7, log_level="debug", meta_url=f"mysql://app:{PLANTED}@db/meta")
    Reload(config(), lambda: wanted, noted.append).run()
    (note,) = noted
    assert (note.what, note.outcome, note.subject) == (RELOAD_CONFIGURATION, "OK", "configuration")
    assert note.changes == "changed=meta_url,log_level needs_restart=port"


def test_a_configuration_or_a_password_file_that_is_refused_is_noted_with_what_stays(tmp_path: Path) -> None:
    noted: list[AuditNote] = []

    def broken() -> HostConfig:
        raise ConfigError(["port: 70000 is above 65535", "log_level: loud is unknown"])

    Reload(config(), broken, noted.append).run()
    path = tmp_path / "secret"
    path.write_text(PLANTED)
    path.chmod(0o604)
    after = Reload(config(), lambda: config(meta_url=f"mysql://app@db/meta?password_file={path}"), noted.append).run()
    assert after == config()
    assert [(note.outcome, note.subject) for note in noted] == [
        ("INVALID_ARGUMENT", "configuration"),
        ("INVALID_ARGUMENT", "meta_url"),
        ("OK", "configuration"),
    ]
    assert "port: 70000" in noted[0].changes
    assert "its mode 0604 lets others read it" in noted[1].changes
    assert PLANTED not in str(noted)


def test_a_file_with_another_secret_is_told_once_and_so_is_one_that_became_unusable(tmp_path: Path) -> None:
    take_changes()
    path = tmp_path / "secret"
    file = SecretFile(str(path))
    with pytest.raises(InvalidArgumentError):
        file.read()
    path.write_text("one")
    path.chmod(0o600)
    file.read()
    file.read(again=True)
    assert take_changes() == [], "the first secret is no change, and neither is the same one read again"
    path.write_text(PLANTED)
    file.read(again=True)
    path.write_text("")
    for _ in range(3):
        assert file.read(again=True).reveal() == PLANTED.encode()
    changed, refused = take_changes()
    assert changed == FileChange(str(path), "")
    assert refused.path == str(path)
    assert "is empty" in refused.problem
    assert PLANTED not in str(refused)
    assert take_changes() == []


def test_the_changes_that_nobody_takes_are_bounded() -> None:
    take_changes()
    for number in range(CHANGES_MAX + 5):
        module._changes.append(FileChange(f"/{number}", ""))
    assert [change.path for change in take_changes()] == [f"/{number}" for number in range(5, CHANGES_MAX + 5)]


def test_a_note_becomes_a_record_that_fits_the_table_whatever_is_in_it() -> None:
    huge = "\N{SNOWMAN}" * 100_000
    record = AuditNote("signIn", huge, huge, huge, huge, huge, huge).record(5, "a#1")
    assert (record.at_ms, record.host, record.verb, record.namespace_name) == (5, "a#1", "signIn", "")
    for text, bytes_max in (
        (record.outcome, NAME_BYTES_MAX), (record.principal, NAME_BYTES_MAX), (record.address, NAME_BYTES_MAX),
        (record.credential, 255), (record.subject, 512), (record.changes, 2_048),
    ):  # fmt: skip
        assert len(text.encode()) <= bytes_max
