"""A private ZooKeeper server: what is missing for it is said, and one directory is one server's."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from foqs.cli.main import cli
from foqs.dev import local_zookeeper
from foqs.dev.local_zookeeper import HOME_VARIABLE, LocalZookeeper, LocalZookeeperError, find_zookeeper
from tests.support.waiting import PATIENCE_S


def test_who_starts_a_second_server_in_a_directory_is_told_of_the_first_one(tmp_path: Path) -> None:
    with LocalZookeeper(tmp_path) as server:
        with pytest.raises(LocalZookeeperError, match=rf"another server \(pid {server.pid}\) uses {tmp_path}: stop it"):
            LocalZookeeper(tmp_path).start()
        with pytest.raises(LocalZookeeperError, match=rf"is started already \(pid {server.pid}\)"):
            server.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S):
            pid = server.pid
        server.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(LocalZookeeperError, match="is not started"):
            _ = server.pid
        server.start()


def test_a_server_that_ends_at_its_start_has_its_last_words_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(LocalZookeeperError, match=r"ended with \d+:\n(.*\n)*.*data"):
        LocalZookeeper(tmp_path).start()


@pytest.fixture
def run_dev(tmp_path: Path) -> tuple[str, ...]:
    return ("dev", "--zookeeper", "--data-dir", str(tmp_path / "data"), "--port", "0")


def test_dev_says_what_to_install_without_zookeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dev: tuple[str, ...]
) -> None:
    monkeypatch.setattr(local_zookeeper, "_HOMES", (str(tmp_path / "one"), str(tmp_path / "two")))
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    result = CliRunner().invoke(cli, run_dev)
    assert result.exit_code == 1
    assert f"error: no ZooKeeper in {tmp_path}/one, {tmp_path}/two: install it (Debian: apt-get" in result.stderr
    assert f"unpacked release in {HOME_VARIABLE}" in result.stderr
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "three"))
    result = CliRunner().invoke(cli, run_dev)
    assert f"error: no ZooKeeper in {tmp_path}/three, which {HOME_VARIABLE} names: install it" in result.stderr
    assert not (tmp_path / "data").exists()


def test_dev_says_what_to_install_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dev: tuple[str, ...]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(cli, run_dev)
    assert result.exit_code == 1
    assert "error: ZooKeeper needs Java, and there is no java on PATH: install a Java runtime" in result.stderr
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = CliRunner().invoke(cli, run_dev)
    assert f"there is no java in {tmp_path}/bin, which JAVA_HOME names: install" in result.stderr


def test_dev_says_what_to_install_without_kazoo(monkeypatch: pytest.MonkeyPatch, run_dev: tuple[str, ...]) -> None:
    monkeypatch.setattr(local_zookeeper, "find_spec", lambda _: None)
    result = CliRunner().invoke(cli, run_dev)
    assert result.exit_code == 1
    assert result.stderr == "error: hosts need the package kazoo for ZooKeeper: pip install 'foqs[zookeeper]'\n"


def test_a_named_release_and_a_named_java_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "zookeeper-3.9.3.jar").touch()
    (tmp_path / "bin").mkdir()
    shutil.copy(sys.executable, tmp_path / "bin" / "java")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_zookeeper() == (f"{tmp_path}/bin/java", f"{tmp_path}/lib/*")
