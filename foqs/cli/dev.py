"""`foqs dev`: a whole queue on this machine: a private MySQL server, its schema and one host."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from foqs.cli.dev_console import CONSOLE_PORT, DevConsole
from foqs.cli.first_administrator import ADMINISTRATOR, make_administrator
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note
from foqs.cli.running import run_until_signal
from foqs.config import HostConfig
from foqs.dev.local_authority import LocalAuthority
from foqs.dev.local_server import LocalServer, LocalServerError
from foqs.dev.local_zookeeper import LocalZookeeper, LocalZookeeperError, require_client
from foqs.model.access import AccessGrant, AccessMode
from foqs.model.cluster import lost_database_problem
from foqs.model.errors import AlreadyExistsError
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import HOST
from foqs.storage.schema.migrations import MigrationError, SchemaKind, apply, status

_SHARDS_DEFAULT = 4
_SHARDS_MAX = 64
_HOSTS_MAX = 8
_SERVERS_MAX = 8
_SERVER_DIR = "server-"
"""The data directories of the second server and those after it begin so."""
_ZOOKEEPER_DIR = "zookeeper"
_TLS_DIR = "tls"
_TOKEN_FILE = "admin.token"
_ADDRESS = "127.0.0.1"
_NAMESPACE = "default"
_PORT = WholeNumber(0, 65_535)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="foqs-data",
    show_default=True,
    help="Where everything is kept; made when it is missing.",
)
@click.option("--port", type=_PORT, default=7600, show_default=True, help="0 lets the system choose.")
@click.option(
    "--shards",
    "shard_count",
    type=WholeNumber(1, _SHARDS_MAX),
    help=f"Number of shards; {_SHARDS_DEFAULT}, or as many as the data directory has.",
)
@click.option(
    "--hosts",
    "host_count",
    type=WholeNumber(1, _HOSTS_MAX),
    default=1,
    show_default=True,
    help="Hosts that share the shards, on ports that follow each other.",
)
@click.option(
    "--servers",
    "server_count",
    type=WholeNumber(1, _SERVERS_MAX),
    help="MySQL servers that the shards are spread over; 1, or as many as the data directory has.",
)
@click.option(
    "--zookeeper",
    "by_zookeeper",
    is_flag=True,
    help="The hosts find each other by a private ZooKeeper server, and not by the meta database.",
)
@click.option(
    "--tls",
    "is_protected",
    is_flag=True,
    help="TLS is required, by certificates of an authority in the data directory, and access is enforced.",
)
@click.option("--console", "has_console", is_flag=True, help="Serve the console beside the queue, with actions.")
@click.option(
    "--console-port",
    type=WholeNumber(1, 65_535),
    default=CONSOLE_PORT,
    show_default=True,
    help="Where browsers reach the console.",
)
@click.option("--metrics-port", type=_PORT, default=0, help="Serve metrics there; 0 serves none.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Least level to log.",
)
def dev(
    data_dir: Path,
    port: int,
    shard_count: int | None,
    host_count: int,
    server_count: int | None,
    by_zookeeper: bool,
    is_protected: bool,
    has_console: bool,
    console_port: int,
    metrics_port: int,
    log_level: str,
) -> None:
    """Run a whole queue on this machine until Ctrl-C; its items survive restarts.

    Needs a MySQL or MariaDB server program, the one that FOQS_MYSQLD names or else the one that is found. It runs
    privately in the data directory, which is closed to other users of the machine. --zookeeper needs ZooKeeper, the one
    in the directory that FOQS_ZOOKEEPER names or else the one that is found, and Java.

    Without --tls everybody on this machine can use and administer the queue.
    """
    if host_count > 1 and not port:
        raise click.UsageError("several hosts need a --port, which the first of them gets")
    try:
        with ExitStack() as running:
            zookeeper = _zookeeper(data_dir) if by_zookeeper else None
            servers = [running.enter_context(LocalServer(at)) for at in _directories(data_dir, server_count)]
            config = _prepare(servers, port, shard_count, metrics_port, log_level)
            authority = None
            if is_protected:
                authority = LocalAuthority(data_dir.absolute() / _TLS_DIR)
                config = _protect(config, data_dir, authority, host_count)
            if zookeeper is not None:
                running.enter_context(zookeeper)
                config = config.model_copy(update={"membership": zookeeper.url()})
            others = [_other(config, number, authority) for number in range(2, host_count + 1)]
            console = running.enter_context(DevConsole(console_port)) if has_console else None
            say_ready = partial(_say_ready, servers, config, others, console)
            run_until_signal(config, say_ready, others=others)
    except (LocalServerError, LocalZookeeperError, MigrationError, AlreadyExistsError) as error:
        note(f"error: {error}")
        leave(Exit.FAILURE)
    except OSError as error:
        note(f"error: cannot use {data_dir} as the data directory: {error.strerror or error}; choose another one")
        leave(Exit.FAILURE)


def _zookeeper(data_dir: Path) -> LocalZookeeper:
    """Return a server that is not started yet. Missing programs and packages are reported before any file is
    created.
    """
    require_client()
    return LocalZookeeper(data_dir / _ZOOKEEPER_DIR)


def _directories(data_dir: Path, server_count: int | None) -> list[Path]:
    """The servers' data directories. The first one is `data_dir` itself, and contains the others."""
    found = 1 + len(list(data_dir.glob(f"{_SERVER_DIR}*")))
    if server_count is not None and server_count < found:
        raise click.UsageError(f"{data_dir} has {found} servers; fewer would hide items")
    return [data_dir, *[data_dir / f"{_SERVER_DIR}{number}" for number in range(2, (server_count or found) + 1)]]


def _other(config: HostConfig, number: int, authority: LocalAuthority | None) -> HostConfig:
    """Another host of the same shards."""
    name = _name_of_other(config, number)
    changes: dict[str, object] = {"host_name": name}
    if authority is not None:
        changes |= _files_of(authority, name)
    for key in ("port", "metrics_port"):
        first = getattr(config, key)
        changes[key] = first + number - 1 if first else 0
    return config.model_copy(update=changes)


def _prepare(
    servers: list[LocalServer], port: int, shard_count: int | None, metrics_port: int, log_level: str
) -> HostConfig:
    """Bring the databases up to date and return the configuration of a host that serves them."""
    server = servers[0]
    found = {shard_id: one for one in servers for shard_id in _shard_ids(one)}
    count_before = max(found, default=-1) + 1
    if shard_count is not None and shard_count < count_before:
        raise click.UsageError(f"{server.data_dir} has {count_before} shards; fewer would hide items")
    meta_url = server.url("foqs_meta")
    count = shard_count or count_before or _SHARDS_DEFAULT
    shards = {
        shard_id: found.get(shard_id, servers[shard_id % len(servers)]).url(f"foqs_shard_{shard_id}")
        for shard_id in range(count)
    }
    apply(meta_url, SchemaKind.META)
    with closing(MetaStore(meta_url)) as meta:
        epochs = {row.shard_id: row.epoch for row in meta.shards.read_all()}
    for shard_id, url in shards.items():
        if (epoch := epochs.get(shard_id, 0)) and not status(url, SchemaKind.SHARD).applied:
            raise MigrationError(f"shard {shard_id}: {lost_database_problem(shard_id, epoch)}")
        apply(url, SchemaKind.SHARD)
    _forget_hosts(server)
    with closing(MetaStore(meta_url)) as meta, suppress(AlreadyExistsError):
        # An earlier run may have created it and changed its settings since.
        meta.namespaces.insert(_NAMESPACE, NamespaceSettings(), time.time_ns() // 1_000_000)
    return HostConfig(
        meta_url=meta_url,
        shards=shards,
        listen_address=_ADDRESS,
        port=port,
        host_name="dev",
        metrics_port=metrics_port,
        log_level=log_level,  # type: ignore[arg-type]
        log_format="console",
    )


def _name_of_other(config: HostConfig, number: int) -> str:
    return f"{config.host_name}-{number}"


def _files_of(authority: LocalAuthority, host_name: str) -> dict[str, str]:
    """The settings of the certificate by which other hosts know this one."""
    return dict(zip(("peer_cert_file", "peer_key_file"), map(str, authority.files_of(host_name)), strict=True))


def _protect(config: HostConfig, data_dir: Path, authority: LocalAuthority, host_count: int) -> HostConfig:
    """Make certificates and an administrator, enforce access, and return the configuration that requires TLS."""
    host_names = [config.host_name, *[_name_of_other(config, number) for number in range(2, host_count + 1)]]
    authority.prepare(datetime.now(UTC), config.cluster, host_names)
    token_file = data_dir / _TOKEN_FILE
    with closing(MetaStore(config.meta_url)) as meta:
        if not token_file.exists():
            make_administrator(meta, token_file, 0, anew=True)
        now_ms = time.time_ns() // 1_000_000
        meta.access.update_principal(ADMINISTRATOR, now_ms, grants=[AccessGrant("*", ("admin", "operator", "owner"))])
        meta.access.set_mode(AccessMode.ENFORCED, now_ms)
    tls = {"tls": "required", "tls_ca_file": str(authority.ca_file), "tls_clients": "wanted"}
    files = {"tls_cert_file": str(authority.cert_file), "tls_key_file": str(authority.key_file)}
    files |= {"peer_ca_file": str(authority.ca_file), **_files_of(authority, config.host_name)}
    return config.model_copy(update=tls | files)


def _forget_hosts(server: LocalServer) -> None:
    """Remove the rows of earlier hosts. None can still run, because a host holds the lock of the data directory.

    Otherwise the rows of killed hosts would delay hosts with another membership by 10 s.
    """
    with closing(server.connect("foqs_meta")) as connection, connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {HOST.name}")


def _shard_ids(server: LocalServer) -> list[int]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata")
        names = [re.fullmatch(r"foqs_shard_(\d+)", name) for (name,) in cursor.fetchall()]
        return [int(name[1]) for name in names if name]


def _say_ready(
    servers: list[LocalServer], config: HostConfig, others: list[HostConfig], console: DevConsole | None, port: int
) -> None:
    more = f", and on {', '.join(f'{_ADDRESS}:{one.port}' for one in others)}" if others else ""
    on_servers = f" on {len(servers)} servers" if len(servers) > 1 else ""
    membership = f"membership by {config.membership}, " if config.membership else ""
    click.echo(
        f"foqs is ready on {_ADDRESS}:{port}{more}: namespace {_NAMESPACE}, {len(config.shards)} shards{on_servers}, "
        f"{membership}data in {servers[0].data_dir}. Ctrl-C stops it.",
    )
    options: list[str] = []
    if config.tls == "required":
        token_file = servers[0].data_dir / _TOKEN_FILE
        options = ["--ca-file", config.tls_ca_file, "--token-file", str(token_file)]
        click.echo(f"It requires TLS and a token: --ca-file {config.tls_ca_file} --token-file {token_file}")
    if console is not None:
        console.start(f"{_ADDRESS}:{port}", options)
