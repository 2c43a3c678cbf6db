"""A secret in a file is read anew when the file changes, and nothing unusable replaces one that works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import make_url
from structlog.testing import capture_logs

from foqs.config import ConfigError, HostConfig, load_config
from foqs.config_urls import passwords_on_command_line
from foqs.model.errors import InvalidArgumentError
from foqs.storage.sessions import passwords
from foqs.storage.sessions.passwords import password_text, shown_url, without_password
from foqs.storage.sessions.secret_file import BYTES_MAX, SecretFile
from foqs.storage.sessions.session import session_arguments

PLANTED = "planted-Xq7"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "secret", PLANTED.encode() + b"\n")


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def replaced(path: Path, content: bytes) -> None:
    """Puts another file into its place, as whoever rotates a secret should do."""
    written(path.with_suffix(".new"), content).rename(path)


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"word", b"word"),
        (b"word\n", b"word"),
        (b"word\r\n", b"word"),
        (b" a b ", b" a b "),
        ("pä".encode(), "pä".encode()),
    ],
)
def test_the_end_of_the_line_is_no_part_of_the_secret(tmp_path: Path, content: bytes, secret: bytes) -> None:
    assert SecretFile(str(written(tmp_path / "s", content))).read().reveal() == secret


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"), (b"\n", "empty"), (b"one\ntwo\n", "more than one line"), (b"wo\0rd", "zero byte"),
        (b"x" * (BYTES_MAX + 1), f"more than {BYTES_MAX} bytes"),
    ],
)  # fmt: skip
def test_a_file_without_a_secret_is_refused_without_its_content(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as refused:
        SecretFile(str(written(tmp_path / "s", content))).read()
    assert str(tmp_path) in refused.value.message
    assert "two" not in refused.value.message


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o620, 0o660, 0o666, 0o777])
def test_a_file_that_others_can_read_or_change_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(InvalidArgumentError, match=f"mode {mode:04o}.*set 0600"):
        SecretFile(str(file)).read()


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_its_owner_and_a_group_may_read_it(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert SecretFile(str(file)).read().reveal() == PLANTED.encode()


def test_what_is_no_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, told in (
        (tmp_path / "pipe", "no regular file"),
        (tmp_path, "no regular"),
        (tmp_path / "none", "No such"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            SecretFile(str(path)).read()
    with pytest.raises(InvalidArgumentError, match="full path"):
        SecretFile("relative").read()


def test_a_link_to_a_file_is_followed(file: Path, tmp_path: Path) -> None:
    """Secrets of Kubernetes are links into a directory that is replaced as a whole."""
    (tmp_path / "link").symlink_to(file)
    read = SecretFile(str(tmp_path / "link"))
    assert read.read().reveal() == PLANTED.encode()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(written(tmp_path / "other", b"next"))
    assert read.read().reveal() == b"next"


def test_a_new_version_is_read_and_an_unusable_one_is_not_and_is_told_once(file: Path) -> None:
    read = SecretFile(str(file))
    assert read.read().reveal() == PLANTED.encode()
    replaced(file, b"next")
    assert read.read().reveal() == b"next"
    with capture_logs() as logs:
        for spoil in (lambda: replaced(file, b""), lambda: file.chmod(0o644), file.unlink):
            spoil()
            assert [read.read().reveal(), read.read(again=True).reveal()] == [b"next", b"next"]
    assert [log["event"] for log in logs] == ["secret_file_unusable"] * 3
    written(file, b"last")
    assert read.read().reveal() == b"last"


def test_a_change_that_leaves_all_marks_of_the_file_is_seen_by_who_reads_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can be changed twice within one tick of the file system's clock."""
    status = os.stat(file)
    monkeypatch.setattr("os.fstat", lambda _: status)
    read = SecretFile(str(file))
    read.read()
    file.write_bytes(b"x" * len(PLANTED))
    assert read.read().reveal() == PLANTED.encode()
    assert read.read(again=True).reveal() == b"x" * len(PLANTED)


def test_a_path_may_begin_with_the_credentials_of_systemd(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"mysql://app@db/meta?password_file=$CREDENTIALS_DIRECTORY/{file.name}"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="CREDENTIALS_DIRECTORY is not set"):
        load_config({"meta_url": url})
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(file.parent))
    config = load_config({"meta_url": url}).config
    assert password_text(config.meta_url) == PLANTED
    assert config.password_problems() == {}


def test_the_password_of_shards_is_that_of_the_file_of_their_login(file: Path) -> None:
    config = HostConfig(meta_url=f"mysql://app@db/meta?password_file={file}")
    assert password_text(config.url_at("mysql://db/s0")) == PLANTED


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"mysql://app:{PLANTED}@db/meta?password_file=/f", "has a password and password_file"),
        ("mysql://app@db/meta?password_file=f", "full path"),
        ("mysql://app@db/meta?password_file=", "without a value"),
        ("mysql://app@db/meta?kept_password=0", "kept_password, which is none of foqs"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"meta_url": url})
    assert told in str(refused.value)
    assert PLANTED not in str(refused.value)


def test_a_password_in_a_file_that_a_login_would_show_is_told(tmp_path: Path) -> None:
    file = written(tmp_path / "s", b"met")
    config = HostConfig(meta_url=f"mysql://app@db/meta?password_file={file}")
    assert "part of the user's" in config.password_problems()["meta_url"]
    assert any("part of the user's" in warning for warning in config.warnings())


def test_a_checked_url_stays_the_same_when_it_is_checked_again() -> None:
    config = HostConfig(meta_url=f"mysql://app:{PLANTED}@db/meta", shards={0: f"mysql://app:{PLANTED}@db/s0"})
    again = HostConfig(meta_url=config.meta_url, shards=config.shards)
    assert (again.meta_url, again.shards) == (config.meta_url, config.shards)
    assert session_arguments(again.meta_url)["password"].read().reveal() == PLANTED.encode()
    assert config.redacted()["meta_url"] == "mysql+pymysql://app:***@db/meta"


def test_equal_passwords_have_one_name_and_others_have_others_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_kept", {})
    monkeypatch.setattr(passwords, "PASSWORDS_MAX", 2)
    one, same, other = (without_password(make_url(f"mysql://u:{word}@h/d")) for word in ("a1", "a1", "b2"))
    assert one == same != other
    assert shown_url(one) == shown_url(other) == "mysql://u:***@h/d"
    with pytest.raises(ValueError, match="restart it"):
        without_password(make_url("mysql://u:c3@h/d"))
    assert without_password(make_url("mysql://u:a1@h/d")) == one


def test_a_password_on_the_command_line_is_refused_and_in_a_variable_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"mysql://app:{PLANTED}@db/s0"
    for flags in ({"meta_url": url}, {"shards": [f"0={url}"]}, {"shard_login": url}, {"shards": (f"0={url}",)}):
        (problem,) = passwords_on_command_line(flags)
        assert "whoever lists processes can read it" in problem
        assert PLANTED not in problem
    assert passwords_on_command_line({"meta_url": "mysql://app@db/s?password_file=/f", "shards": None}) == []
    monkeypatch.setenv("FOQS_META_URL", f"mysql://app:{PLANTED}@db/meta")
    monkeypatch.setenv("FOQS_SHARDS", f"0={url}")
    loaded = load_config({})
    assert [warning.split()[0] for warning in loaded.warnings] == ["FOQS_META_URL", "FOQS_SHARDS"]
    assert PLANTED not in repr(loaded)
