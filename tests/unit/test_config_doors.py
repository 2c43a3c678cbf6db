"""The open doors of a configuration: each one is named, with the change that closes it, and a closed one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foqs.config import HostConfig, LoadedConfig, load_config
from foqs.config_doors import Door, open_access, open_files, open_places, open_settings
from foqs.model.access import AccessMode
from foqs.model.cluster import ShardRow, ShardUse

CLOSED: dict[str, Any] = {
    "meta_url": "mysql://foqs@db-0/meta?password_file=/p",
    "shards": "0=mysql://foqs@db-1/s0?password_file=/p",
    "shard_login": "mysql://foqs@any?password_file=/p",
    "shard_places": "db-*:3306",
    "listen_address": "0.0.0.0",
    "peer_port": "7601",
    "tls": "required",
    "tls_cert_file": "/cert.pem",
    "tls_key_file": "/key.pem",
    "database_ca_file": "/ca.pem",
    "metrics_port": "9600",
    "metrics_address": "0.0.0.0",
    "metrics_token_file": "/metrics.token",
    "membership": "zookeeper+tls://zk-1:2281/foqs",
    "membership_login_file": "/zookeeper.login",
}
"""A configuration without an open door, in which other machines reach everything."""

DOORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "without TLS": ({"tls": "off", "database_tls": "verify"}, "tls: off", "set tls = required"),
    "with TLS for some": ({"tls": "accepted", "database_tls": "verify"}, "tls: accepted", "set tls = required"),
    "a start without access": ({"allow_open": "true"}, "allow_open: true", "set allow_open = false"),
    "plain tokens": ({"tokens_without_tls": "true"}, "tokens_without_tls: true", "set it to false"),
    "one port for all": ({"peer_port": "0"}, "peer_port: 0", "set peer_port"),
    "hosts without certificates": (
        {"peer_ca_file": "/ca", "peer_certificates": "shown"}, "peer_certificates: shown", "set peer_certificates",
    ),
    "metrics without a token": ({"metrics_token_file": ""}, "metrics_token_file: not set", "set it to a file"),
    "metrics that may be open": ({"metrics_open": "true"}, "metrics_open: true", "set metrics_open = false"),
    "metrics that are open": (
        {"metrics_open": "true", "metrics_token_file": ""}, "metrics_open: true", "and metrics_token_file",
    ),
    "a password in the URL": (
        {"meta_url": "mysql://foqs:hidden@db-0/meta"}, "meta_url: the URL", "option password_file",
    ),
    "a password in the URL of a shard": (
        {"shards": "0=mysql://foqs:hidden@db-1/s0"}, "shard 0: the URL", "option password_file",
    ),
    "a password in the login": (
        {"shard_login": "mysql://foqs:hidden@any"}, "shard_login: the URL", "option password_file",
    ),
    "no password": ({"meta_url": "mysql://foqs@db-0/meta"}, "meta_url: the user logs in", "give the user a password"),
    "any server of shards": ({"shard_places": ""}, "shard_places: not set", "set it to the servers"),
    "ZooKeeper without a login": ({"membership_login_file": ""}, "membership_login_file: not set", "NAME:PASSWORD"),
}  # fmt: skip

BESIDE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unverified databases": (
        {"database_tls": "any", "database_ca_file": ""},
        ["database_tls: any, so whoever answers for the server of meta_url",
         "database_tls: any, so whoever answers for the server of shard 0"],
    ),
    "an unverified shard": (
        {"database_tls": "any", "database_ca_file": "", "meta_url": "mysql://foqs@db-0/meta?password_file=/p&ssl_ca=/c"},
        ["database_tls: any, so whoever answers for the server of shard 0"],
    ),
    "ZooKeeper without TLS": (
        {"membership": "zookeeper://127.0.0.1,zk-1:2181", "membership_login_file": ""},
        ["membership: ZooKeeper is on another machine", "membership_login_file: not set"],
    ),
}  # fmt: skip

NO_DOOR: dict[str, dict[str, Any]] = {
    "metrics on this machine": {"metrics_token_file": "", "metrics_address": "127.0.0.1"},
    "one port on this machine": {"peer_port": "0", "listen_address": "127.0.0.1"},
    "no metrics": {"metrics_token_file": "", "metrics_port": "0"},
    "databases by sockets": {
        "database_tls": "any", "database_ca_file": "", "meta_url": "mysql://foqs@h/meta?unix_socket=/s",
        "shards": "0=mysql://foqs@h/s0?unix_socket=/s",
    },
    "databases on this machine": {
        "database_tls": "any", "database_ca_file": "", "meta_url": "mysql://foqs@127.0.0.1/meta?password_file=/p",
        "shards": "0=mysql://foqs@localhost/s0?password_file=/p",
    },
    "a login by certificate": {"meta_url": "mysql://foqs@db-0/meta?ssl_cert=/c"},
    "ZooKeeper on this machine": {"membership": "zookeeper://127.0.0.1,[::1]:2181", "membership_login_file": ""},
    "ZooKeeper by certificate": {"membership_login_file": "", "membership_cert_file": "/c"},
    "no ZooKeeper": {"membership": "", "membership_login_file": ""},
    "all databases verified": {"database_tls": "verify"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


def loaded(**changed: Any) -> LoadedConfig:
    return load_config(CLOSED | changed)


def doors(**changed: Any) -> list[str]:
    return [str(door) for door in open_settings(loaded(**changed).config)]


def test_a_protected_configuration_has_no_open_door() -> None:
    assert doors() == []


@pytest.mark.parametrize("what", DOORS)
def test_each_open_door_is_one_line_with_the_setting_and_the_remedy(what: str) -> None:
    changed, begin, remedy = DOORS[what]
    (line,) = doors(**changed)
    assert line.startswith(begin)
    assert remedy in line
    assert "\n" not in line
    assert "hidden" not in line


@pytest.mark.parametrize("what", BESIDE)
def test_doors_that_come_together_have_a_line_each(what: str) -> None:
    changed, begins = BESIDE[what]
    lines = doors(**changed)
    assert len(lines) == len(begins)
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)


@pytest.mark.parametrize("what", NO_DOOR)
def test_what_nobody_else_can_reach_is_no_door(what: str) -> None:
    assert doors(**NO_DOOR[what]) == []


def test_each_setting_was_judged() -> None:
    """A new setting has to be sorted in here: does a value of it open a door?"""
    opening = {
        "tls", "allow_open", "tokens_without_tls", "metrics_open", "metrics_token_file", "metrics_address",
        "metrics_port", "database_tls", "meta_url", "shards", "shard_login", "shard_places", "membership",
        "membership_login_file", "membership_cert_file", "peer_certificates", "peer_port",
        "listen_address",
    }  # fmt: skip
    files = {
        "tls_cert_file", "tls_key_file", "tls_ca_file", "database_ca_file", "membership_ca_file",
        "membership_key_file", "event_log_dir", "peer_ca_file", "peer_cert_file", "peer_key_file",
    }  # fmt: skip
    harmless = {
        "port", "advertise_address", "tier", "host_name", "cluster", "log_level", "log_format",
        "allow_undurable_servers", "connections_max", "connections_per_address_max", "tls_clients", "tls_min",
        "tls_to_peers", "idle_ms_max", "transactions_per_server_max", "drain_ms_max", "event_log_bytes_max",
        "event_log_days",
    }  # fmt: skip
    judged = sorted([*opening, *files, *harmless])
    assert judged == sorted(HostConfig.model_fields)


# ---- the meta database ----


@pytest.mark.parametrize(
    ("mode", "count"), [(AccessMode.OPEN, 1), (AccessMode.PERMISSIVE, 1), (AccessMode.ENFORCED, 0)]
)
def test_access_that_is_not_enforced_is_an_open_door(mode: AccessMode, count: int) -> None:
    found = list(open_access(mode))
    assert len(found) == count
    assert all(mode.name.lower() in str(door) and "foqs access mode enforced" in door.remedy for door in found)


def row(shard_id: int, place: str, use: ShardUse = ShardUse.SERVING) -> ShardRow:
    return ShardRow(shard_id, 1, "", 0, place, use, "", "", "", 0)


def test_servers_that_only_the_meta_database_names_are_looked_at_too() -> None:
    rows = [
        row(0, "mysql://db-1/s0"), row(1, "mysql://db-3/s1"), row(2, "mysql://db-3:3306/s2"), row(3, "mysql://127.0.0.1/s3"),
        row(4, "mysql://db-4/s4", ShardUse.REMOVED), row(5, "mysql://elsewhere/s5"), row(6, ""),
    ]  # fmt: skip
    lines = [str(door) for door in open_places(loaded(database_tls="any", database_ca_file="").config, rows)]
    assert len(lines) == 1, "one for each server at which hosts log in"
    assert lines[0].startswith("database_tls: any, so whoever answers for db-3:3306, which has shards, is believed")
    assert list(open_places(loaded().config, rows)) == []


# ---- files ----


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    names = (
        "cert",
        "key",
        "ca",
        "password",
        "metrics",
        "zookeeper",
        "zk-cert",
        "zk-key",
        "ssl-cert",
        "ssl-key",
        "peer-cert",
        "peer-key",
    )
    made = {name: tmp_path / name for name in names}
    for path in made.values():
        path.write_text("x")
        path.chmod(0o640)
    made["log"] = tmp_path / "log"
    made["log"].mkdir(0o750)
    return made


def of_files(files: dict[str, Path], **changed: Any) -> dict[str, Any]:
    of_tls = f"ssl_ca={files['ca']}&ssl_cert={files['ssl-cert']}&ssl_key={files['ssl-key']}"
    options = f"?password_file={files['password']}&{of_tls}"
    return {
        "meta_url": f"mysql://foqs@db-0/meta{options}", "shards": f"0=mysql://foqs@db-1/s0{options}",
        "shard_login": f"mysql://foqs@any{options}", "tls_cert_file": str(files["cert"]),
        "tls_key_file": str(files["key"]), "database_ca_file": str(files["ca"]), "tls_ca_file": str(files["ca"]),
        "metrics_token_file": str(files["metrics"]), "membership_login_file": str(files["zookeeper"]),
        "membership_cert_file": str(files["zk-cert"]), "membership_key_file": str(files["zk-key"]),
        "membership_ca_file": str(files["ca"]), "event_log_dir": str(files["log"]), "tls": "required",
        "peer_ca_file": str(files["ca"]), "peer_cert_file": str(files["peer-cert"]),
        "peer_key_file": str(files["peer-key"]), **changed,
    }  # fmt: skip


def open_file_doors(files: dict[str, Path], **changed: Any) -> list[Door]:
    found = open_files(loaded(**of_files(files, **changed)))
    assert found.unknown == []
    return found.doors


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("key", "tls_key_file"), ("password", "password_file of meta_url"), ("metrics", "metrics_token_file"),
        ("zookeeper", "membership_login_file"), ("zk-key", "membership_key_file"), ("peer-key", "peer_key_file"),
        ("ssl-key", "ssl_key of meta_url"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("mode", "what"), [(0o644, "read"), (0o660, "change"), (0o602, "change"), (0o666, "change")])
def test_a_secret_that_others_can_read_or_change_is_an_open_door(
    files: dict[str, Path], name: str, setting: str, mode: int, what: str
) -> None:
    assert open_file_doors(files) == []
    files[name].chmod(mode)
    (door,) = open_file_doors(files)
    assert door.setting == setting
    assert f"{files[name]} has mode {mode:04o}, so others can {what} it" in door.problem
    assert door.remedy == f"chmod {mode & 0o640:04o} {files[name]}"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("cert", "tls_cert_file"), ("ca", "tls_ca_file"), ("zk-cert", "membership_cert_file"),
        ("peer-cert", "peer_cert_file"), ("ssl-cert", "ssl_cert of meta_url"),
    ],
)  # fmt: skip
def test_what_hosts_trust_may_be_read_and_not_changed_by_others(
    files: dict[str, Path], name: str, setting: str
) -> None:
    files[name].chmod(0o644)
    assert open_file_doors(files) == []
    files[name].chmod(0o664)
    (door,) = open_file_doors(files)
    assert (door.setting, door.remedy) == (setting, f"chmod 0644 {files[name]}")


def test_a_certificate_with_its_key_in_one_file_is_a_secret(files: dict[str, Path]) -> None:
    for name in ("zk-cert", "ssl-cert"):
        files[name].chmod(0o644)
    url = f"mysql://foqs@db-0/meta?ssl_cert={files['ssl-cert']}&ssl_ca={files['ca']}"
    found = open_file_doors(files, membership_key_file="", meta_url=url)
    assert {door.setting for door in found} == {"membership_cert_file", "ssl_cert of meta_url"}


def test_an_event_log_that_others_can_read_is_an_open_door(files: dict[str, Path]) -> None:
    files["log"].chmod(0o755)
    (door,) = open_file_doors(files)
    assert (door.setting, door.remedy) == ("event_log_dir", f"chmod 0750 {files['log']}")


def test_a_configuration_with_a_password_is_a_secret_and_any_one_is_for_its_owner_to_change(tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"

    def found(url: str, mode: int) -> list[Door]:
        path.write_text(f'meta_url = "{url}"\n')
        path.chmod(mode)
        return open_files(load_config({}, path)).doors

    assert found("mysql://u@db/meta", 0o644) == []
    assert found("mysql://u:hidden@db/meta", 0o640) == []
    (read,) = found("mysql://u:hidden@db/meta", 0o644)
    (changed,) = found("mysql://u@db/meta", 0o664)
    assert (read.setting, read.remedy) == ("configuration", f"chmod 0640 {path}")
    assert "can change it" in changed.problem


def test_a_password_of_a_variable_does_not_make_the_file_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text("port = 7\n")
    path.chmod(0o644)
    monkeypatch.setenv("FOQS_META_URL", "mysql://u:hidden@db/meta")
    assert open_files(load_config({}, path)).doors == []


def test_files_that_cannot_be_looked_at_are_told_and_are_no_doors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    config = {
        "meta_url": f"mysql://u@db/meta?password_file={tmp_path}/none",
        "metrics_token_file": "$CREDENTIALS_DIRECTORY/m",
    }
    found = open_files(load_config(config))
    assert found.doors == []
    assert sorted(one.partition(":")[0] for one in found.unknown) == ["metrics_token_file", "password_file of meta_url"]
