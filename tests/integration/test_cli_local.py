"""The commands that run or set up hosts: config, schema, host, dev."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from foqs import supervised
from foqs.cli.main import cli
from foqs.config import HostConfig
from foqs.dev.local_server import BINARY_VARIABLE, LocalServer
from foqs.model.errors import InternalError, InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import MigrationError
from foqs.supervised import Orders
from tests.support.databases import server_binary
from tests.support.waiting import PATIENCE_S

SCHEMA = Path(__file__).parents[2] / "schema"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def migrations_of(kind: str) -> list[str]:
    return sorted(path.stem for path in (SCHEMA / kind).glob("*.sql"))


def database_flags(meta_url: str, shard_urls: dict[int, str]) -> list[str]:
    shards = [flag for shard_id, url in shard_urls.items() for flag in ("--shard", f"{shard_id}={url}")]
    return ["--meta-url", meta_url, *shards]


class FakeBootstrap:
    """Stands in for the host: says it is ready, hangs up, asks for the end as Ctrl-C does, and waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs: list[HostConfig] = []
        self.reloaded: list[HostConfig] = []
        self.reasons: list[str] = []
        self.failure: Exception | None = None
        monkeypatch.setattr(supervised, "run_host", self.run_host)

    async def run_host(self, config: HostConfig, orders: Orders, on_ready: Callable[[int], None]) -> None:
        if self.failure is not None:
            raise self.failure
        self.configs.append(config)
        on_ready(1234)
        os.kill(os.getpid(), signal.SIGHUP)
        is_dev = config.host_name == "dev"
        if not is_dev:
            await asyncio.wait_for(orders.reload.wait(), PATIENCE_S)
            self.reloaded.append(orders.load_config())
            assert not orders.stop.done()
            os.kill(os.getpid(), signal.SIGINT)
        self.reasons.append(await asyncio.wait_for(orders.stop, PATIENCE_S))


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> FakeBootstrap:
    monkeypatch.setenv(BINARY_VARIABLE, str(server_binary().path))
    return FakeBootstrap(monkeypatch)


def test_config_show_tells_each_value_and_its_origin_without_passwords(tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text('meta_url = "mysql://u:geheim@db/meta"\n[shards]\n3 = "mysql://u:geheim@db/s3"\n')
    result = run("config", "show", "--config", str(path), "--port", "7", "--output", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["port"] == {"value": 7, "origin": "flag"}
    assert document["shards"]["origin"] == f"file {path}"
    assert document["log_format"]["origin"] == "default"
    table = run("config", "show", "--config", str(path)).stdout
    assert "shard 3" in table
    assert "geheim" not in result.output + table


def test_config_check_names_every_problem_and_leaves_with_2() -> None:
    result = run("config", "check", "--port", "x", "--log-level", "loud")
    assert result.exit_code == 2
    assert [line.split()[1] for line in result.stderr.splitlines()] == [
        "meta_url",
        "port",
        "log_level",
    ]
    valid = run("config", "check", "--meta-url", "mysql://h/m", "--shard", "0=mysql://h/s")
    assert valid.exit_code == 0


def test_config_check_warns_of_an_address_that_no_other_host_could_use() -> None:
    flags = ["--meta-url", "mysql://h/m", "--listen-address", "0.0.0.0"]
    warned = run("config", "check", *flags)
    assert warned.exit_code == 0
    assert warned.stderr.startswith("warning: listen_address = 0.0.0.0 ")
    assert "the configuration is valid" in warned.stderr
    assert "warning" not in run("config", "check", *flags, "--advertise-address", "queue-a").stderr


def test_config_check_warns_of_tls_files_that_are_not_here(tmp_path: Path) -> None:
    url = f"mysql://h/m?ssl_ca={tmp_path}/none"
    warned = run("config", "check", "--meta-url", "mysql://h/m", "--shard-login", url)
    assert warned.exit_code == 0
    assert warned.stderr.startswith(f"warning: shard_login: ssl_ca = {tmp_path}/none cannot be used: No such file")


def test_every_key_of_the_configuration_has_its_option() -> None:
    text = run("host", "--help").stdout
    for key in HostConfig.model_fields.keys() - {"shards"}:
        assert f"--{key.replace('_', '-')}" in text
    words = " ".join(text.split())
    assert "all hosts of the cluster [required]" in words
    assert "0 lets the kernel choose [default: 7600]" in words


def test_schema_apply_makes_the_databases_that_status_finds_missing(mysql_server: LocalServer) -> None:
    flags = database_flags(mysql_server.url("cli_meta"), {7: mysql_server.url("cli_shard")})
    before = run("schema", "status", *flags)
    assert before.exit_code == 1
    assert before.stdout.count("0001_initial") == 2
    assert run("schema", "apply", *flags).exit_code == 0
    assert "up to date" in run("schema", "apply", *flags).stderr
    after = run("schema", "status", *flags, "--output", "json")
    assert after.exit_code == 0
    applied = {name: database["applied"] for name, database in json.loads(after.stdout).items()}
    assert applied == {"meta": migrations_of("meta"), "shard 7": migrations_of("shard")}
    for name in ("cli_meta", "cli_shard"):
        with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")


def test_a_database_that_is_away_does_not_keep_the_others_from_their_schema(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    away = f"mysql://root@localhost/x?unix_socket={tmp_path}/none"
    result = run("schema", "apply", *database_flags(away, {0: shard_urls[0]}))
    assert result.exit_code == 5
    assert "shard 0 (flag): up to date" in result.stderr


def test_host_runs_with_its_configuration_until_a_signal(
    bootstrap: FakeBootstrap, meta_url: str, shard_urls: dict[int, str]
) -> None:
    result = run("host", *database_flags(meta_url, shard_urls), "--cluster", "c1")
    assert result.exit_code == 0, result.output
    assert "draining" in result.stderr
    assert [(config.cluster, len(config.shards)) for config in bootstrap.configs] == [("c1", 4)]
    assert bootstrap.reloaded == bootstrap.configs
    assert bootstrap.reasons == ["SIGINT"]


def test_a_port_that_is_taken_is_a_failure_that_names_it(bootstrap: FakeBootstrap) -> None:
    bootstrap.failure = OSError(98, "address in use")
    result = run("host", "--meta-url", "mysql://h/m", "--shard", "0=mysql://h/s", "--port", "7")
    assert result.exit_code == 1
    assert "127.0.0.1:7" in result.stderr
    assert "choose another port with --port" in result.stderr


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (UnavailableError("ZooKeeper does not answer"), 5),
        (InvalidArgumentError("all hosts of a cluster need the same membership"), 2),
        (MigrationError("pending: 2"), 1),
        (InternalError("a defect"), 1),
    ],
)
def test_a_host_that_does_not_start_leaves_with_the_code_of_the_reason(
    bootstrap: FakeBootstrap, failure: Exception, code: int
) -> None:
    bootstrap.failure = failure
    result = run("host", "--meta-url", "mysql://h/m", "--shard", "0=mysql://h/s")
    assert (result.exit_code, result.stderr) == (code, f"error: {failure}\n")


def test_a_host_whose_meta_database_is_away_says_that_it_may_be_tried_again(tmp_path: Path) -> None:
    away = f"mysql://root@localhost/x?unix_socket={tmp_path}/none"
    result = run("host", "--meta-url", away, "--port", "0")
    assert result.exit_code == 5
    assert "error: no connection to mysql" in result.stderr


def test_dev_in_a_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("dev", "--data-dir", str(tmp_path / "file" / "data"))
    assert result.exit_code == 1
    assert "file/data as the data directory: Not a directory" in result.stderr


@pytest.mark.deep
def test_dev_prepares_everything_and_keeps_it_for_the_next_run(bootstrap: FakeBootstrap, tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    first = run("dev", "--data-dir", data_dir, "--shards", "2", "--metrics-port", "9")
    assert first.exit_code == 0, first.output
    assert "ready on 127.0.0.1:1234" in first.stdout
    second = run("dev", "--data-dir", data_dir, "--shards", "3")
    third = run("dev", "--data-dir", data_dir)
    assert (second.exit_code, third.exit_code) == (0, 0)
    assert [len(config.shards) for config in bootstrap.configs] == [2, 3, 3]
    assert bootstrap.configs[0].metrics_port == 9
    assert bootstrap.reasons == ["SIGHUP"] * 3, "its terminal was closed"
    refused = run("dev", "--data-dir", data_dir, "--shards", "1")
    assert refused.exit_code == 2
    assert "3 shards" in refused.stderr
    with LocalServer(data_dir) as server, closing(MetaStore(server.url("foqs_meta"))) as meta:
        assert [namespace.name for namespace in meta.namespaces.read().namespaces] == ["default"]


def test_dev_without_a_server_program_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "none"))
    result = run("dev", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "apt-get install mariadb-server" in result.stderr
