"""Hosts that verify their MySQL servers: with `database_tls = verify` no other server gets a session."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from structlog.testing import capture_logs

from foqs import shard_factory
from foqs.config import ConfigError, HostConfig, load_config
from foqs.dev.local_access import TcpListener
from foqs.model.errors import UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply, check_current
from foqs.storage.sessions import server_tls
from foqs.storage.sessions.places import place_of
from foqs.storage.sessions.session import connect
from tests.support.certificates import write_certificate
from tests.support.databases import prepared_server
from tests.support.false_server import FalseServer, Talk
from tests.support.faults.programs import free_port
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    write_certificate(directory)
    return directory / "cert.pem"


@pytest.fixture(scope="module")
def listener(ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpListener]:
    """A server with a certificate for 127.0.0.1, and for no name."""
    listener = TcpListener(free_port(), secrets.token_urlsafe())
    options = [f"--ssl-ca={ca}", f"--ssl-cert={ca}", f"--ssl-key={ca.parent / 'key.pem'}"]
    with prepared_server(tmp_path_factory.mktemp("server") / "data", *options, listener=listener) as server:
        apply(server.url("foqs_meta"), SchemaKind.META)
        for shard_id in range(2):
            apply(server.url(f"foqs_{shard_id}"), SchemaKind.SHARD)
        yield listener


def verifying(meta_url: str, ca: Path, **settings: object) -> HostConfig:
    return HostConfig.model_validate(
        {"meta_url": meta_url, "database_tls": "verify", "database_ca_file": str(ca), **settings}
    )


async def test_a_host_works_by_verified_sessions_and_shards_of_the_meta_database_are_verified_too(
    listener: TcpListener, ca: Path
) -> None:
    urls = {0: listener.url("foqs_0")}
    tls = {"database_tls": "verify", "database_ca_file": str(ca)}
    async with running_host(listener.url("foqs_meta"), urls, **tls) as host:
        await host.admin.add_shard(1, place_of(listener.url("foqs_1")))
        await until(lambda: host.host.owned_count == 2)
        await host.client.enqueue("jobs", "t", b"x")
        for shard in host.host._shards.by_id.values():
            sock = shard._store._session._sock
            assert isinstance(sock, ssl.SSLSocket)
            assert sock.context.verify_mode is ssl.CERT_REQUIRED
            assert sock.context.check_hostname


def attempts(config: HostConfig) -> Iterator[object]:
    """Opens a session in each way that foqs has."""
    yield lambda: connect(config.meta_url)
    yield lambda: connect(config.url_at(place_of(config.meta_url)))
    yield MetaStore(config.meta_url).namespaces.read
    yield lambda: check_current(config.meta_url, SchemaKind.META)


def refused(config: HostConfig, told: str) -> None:
    for attempt in attempts(config):
        with pytest.raises((pymysql.err.OperationalError, UnavailableError), match=told):
            attempt()  # type: ignore[operator]


def test_a_server_of_another_authority_gets_no_session(listener: TcpListener, tmp_path: Path) -> None:
    write_certificate(tmp_path)
    refused(verifying(listener.url("foqs_meta"), tmp_path / "cert.pem"), "certificate verify failed")


def test_a_server_of_another_name_gets_no_session(listener: TcpListener, ca: Path) -> None:
    url = listener.url("foqs_meta").replace("127.0.0.1", "localhost")
    refused(verifying(url, ca), "(?i)hostname mismatch")


def test_a_server_without_tls_gets_no_session_and_hears_no_name_and_no_password(ca: Path) -> None:
    def ask(talk: Talk) -> None:
        talk.greet("mysql_native_password")

    with FalseServer(ask) as server:
        refused(verifying(server.url(), ca), "SSL is required")
    assert len(server.talks) == 4
    assert server.heard == b""


def test_the_authorities_are_those_of_the_url_else_of_the_setting_else_of_the_system(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"ssl_ca={ca}" in verifying("mysql://db/meta", ca).meta_url.replace("%2F", "/")
    own = verifying("mysql://db/meta?ssl_ca=/own.pem", ca).meta_url.replace("%2F", "/")
    assert "ssl_ca=/own.pem" in own
    assert str(ca) not in own
    paths = ssl.get_default_verify_paths()
    for found, told in ((paths._replace(cafile="/system.pem"), "ssl_ca=/system.pem"),
                        (paths._replace(cafile=None, capath="/system"), "ssl_capath=/system")):  # fmt: skip
        monkeypatch.setattr(server_tls.ssl, "get_default_verify_paths", lambda found=found: found)
        config = HostConfig(meta_url="mysql://db/meta", database_tls="verify")
        assert told in config.meta_url.replace("%2F", "/")
        assert told in config.url_at("mysql://db-2/s").replace("%2F", "/")
    monkeypatch.setattr(server_tls.ssl, "get_default_verify_paths", lambda: paths._replace(cafile=None, capath=None))
    with pytest.raises(ConfigError, match="set database_ca_file"):
        load_config({"meta_url": "mysql://db/meta", "database_tls": "verify"})


def test_a_shard_elsewhere_is_verified_though_the_login_is_for_a_socket(ca: Path) -> None:
    config = verifying("mysql://u@h/meta?unix_socket=/run/m.sock", ca)
    assert "ssl_ca" not in config.meta_url
    assert f"ssl_ca={ca}" in config.url_at("mysql://db-2/s").replace("%2F", "/")
    assert "ssl_ca" not in config.url_at("mysql://h/s?unix_socket=/run/m.sock")


@pytest.mark.parametrize("key", ["meta_url", "shards", "shard_login"])
@pytest.mark.parametrize(
    "options", ["ssl_verify_cert=false", "ssl_ca=/ca&ssl_verify_identity=false", "ssl_ca=/ca&ssl_check_hostname=false"]
)
def test_a_url_cannot_take_the_verification_back(key: str, options: str) -> None:
    url = f"mysql://db-2/d?{options}"
    settings: dict[str, object] = {"meta_url": "mysql://db/meta", "database_tls": "verify", "database_ca_file": "/ca"}
    with pytest.raises(ConfigError) as problem:
        load_config(settings | {key: f"0={url}" if key == "shards" else url})
    assert "database_tls is verify" in str(problem.value)


def test_a_file_of_authorities_that_is_not_used_is_told() -> None:
    with pytest.raises(ConfigError, match="database_tls = any does not use it"):
        load_config({"meta_url": "mysql://db/meta", "database_ca_file": "/ca"})


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        ("mysql://db/meta", True), ("mysql://10.0.0.7/meta", True), ("mysql://[2001:db8::7]/meta", True),
        ("mysql://db/meta?ssl_verify_cert=false", True), ("mysql://db/meta?ssl_ca=/c&ssl_verify_identity=false", True),
        ("mysql://db/meta?ssl_cert=/c", True), ("mysql://db/meta?ssl_ca=/c", False), ("mysql://127.0.0.1/meta", False),
        ("mysql://localhost/meta", False), ("mysql://[::1]/meta", False), ("mysql://db/meta?unix_socket=/s", False),
    ],
)  # fmt: skip
def test_servers_of_other_machines_that_are_not_verified_are_told(url: str, *, is_told: bool) -> None:
    config = HostConfig(meta_url=url, shards={7: url.replace("meta", "s7")}, shard_login="mysql://u@any")
    assert config.unverified() == (["meta_url", "shard 7"] if is_told else [])


async def test_a_server_that_only_the_meta_database_names_is_told_once(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_factory, "is_unverified", lambda url: True)
    with closing(MetaStore(meta_url)) as meta:
        for shard_id in (1, 2):
            meta.shards.add(shard_id, place_of(shard_urls[shard_id]), "")
    with capture_logs() as logs:
        async with running_host(meta_url, {0: shard_urls[0]}) as host:
            await until(lambda: host.host.owned_count == 3)
    told = [log for log in logs if log["event"] == "database_not_verified"]
    assert [(log["log_level"], len(log["servers"])) for log in told] == [("warning", 1)]


# ---- the default where callers need TLS ----

REQUIRED = {"tls": "required", "tls_cert_file": "/cert.pem", "tls_key_file": "/key.pem"}


def where_tls_is_required(meta_url: str, **settings: object) -> HostConfig:
    return load_config({"meta_url": meta_url, **REQUIRED, "database_ca_file": "/ca.pem", **settings}).config


@pytest.mark.parametrize(
    ("url", "is_verified"),
    [
        ("mysql://db/meta", True), ("mysql://10.0.0.7/meta", True), ("mysql://localhost.example/meta", True),
        ("mysql://[::ffff:10.0.0.7]/meta", True), ("mysql://127.0.0.1/meta", False), ("mysql://localhost/meta", False),
        ("mysql://[::1]/meta", False), ("mysql://[::ffff:127.0.0.1]/meta", False),
        ("mysql://db/meta?unix_socket=/s", False),
    ],
)  # fmt: skip
def test_where_callers_need_tls_the_servers_of_other_machines_are_verified(url: str, *, is_verified: bool) -> None:
    shards = f"7={url.replace('meta', 's7')}"
    config = where_tls_is_required(url, shards=shards)
    assert config.database_tls == "remote"
    for one in (config.meta_url, config.shards[7], config.url_at(place_of(url))):
        assert ("ssl_ca=/ca.pem" in one.replace("%2F", "/")) is is_verified
    assert config.unverified() == []


@pytest.mark.parametrize("tls", [{}, {**REQUIRED, "tls": "accepted"}, {**REQUIRED, "database_tls": "any"}])
def test_nothing_is_verified_by_default_where_callers_need_no_tls_or_the_operator_says_so(
    tls: dict[str, object],
) -> None:
    config = load_config({"meta_url": "mysql://db/meta", **tls}).config
    assert config.database_tls == "any"
    assert "ssl_ca" not in config.meta_url
    assert config.unverified() == ["meta_url"]


@pytest.mark.parametrize("key", ["meta_url", "shards", "shard_login"])
def test_a_url_that_takes_the_default_back_is_a_problem_that_names_the_way_out(key: str) -> None:
    url = "mysql://db-2/d?ssl_ca=/own&ssl_verify_identity=false"
    with pytest.raises(ConfigError) as problem:
        where_tls_is_required(**{"meta_url": "mysql://db/meta", key: f"0={url}" if key == "shards" else url})
    assert "database_tls is remote; allowed: without" in str(problem.value)
    assert "or database_tls = any" in str(problem.value)


def test_the_options_of_a_url_to_this_machine_do_not_weaken_those_of_another() -> None:
    config = where_tls_is_required("mysql://127.0.0.1/meta?ssl_ca=/own&ssl_verify_identity=false")
    assert "ssl_check_hostname=false" in config.url_at("mysql://127.0.0.1/s")
    far = config.url_at("mysql://db-2/s").replace("%2F", "/")
    assert "ssl_ca=/own" in far
    assert "ssl_check_hostname" not in far


def test_a_login_for_shards_has_no_authorities_of_its_own_by_default() -> None:
    config = where_tls_is_required("mysql://127.0.0.1/meta", shard_login="mysql://u@any")
    assert "ssl_ca" not in config.url_at("mysql://127.0.0.1/s")
    assert "ssl_ca=/ca.pem" in config.url_at("mysql://db-2/s").replace("%2F", "/")


def test_a_configuration_that_is_loaded_again_has_the_same_default() -> None:
    urls = {"meta_url": "mysql://u:hidden@db/meta", "shard_login": "mysql://u:hidden@any"}
    loaded = load_config({**urls, **REQUIRED, "database_ca_file": "/ca.pem"})
    assert loaded.again().config == loaded.config
    again = HostConfig.model_validate(loaded.config.model_dump())
    assert (again.database_tls, again.meta_url) == ("remote", loaded.config.meta_url)


def test_a_far_server_of_another_authority_gets_no_session_by_default(
    listener: TcpListener, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "is_loopback", lambda host: False)
    url = listener.url("foqs_meta")
    connect(where_tls_is_required(url, database_ca_file=str(ca)).meta_url).close()
    write_certificate(tmp_path)
    refused(where_tls_is_required(url, database_ca_file=str(tmp_path / "cert.pem")), "certificate verify failed")
