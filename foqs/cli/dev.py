"""`foqs dev`: a whole queue on this machine: a private MySQL server, its schema and one host."""

from __future__ import annotations

import re
import time
from contextlib import closing, suppress
from pathlib import Path

import click

from foqs.cli.output import Exit, leave, note
from foqs.cli.running import run_until_signal
from foqs.config import HostConfig
from foqs.dev.local_server import LocalServer, LocalServerError
from foqs.model.errors import AlreadyExistsError
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta import MetaStore
from foqs.storage.migrations import MigrationError, SchemaKind, apply

_SHARDS_DEFAULT = 4
_SHARDS_MAX = 64
_ADDRESS = "127.0.0.1"
_NAMESPACE = "default"
_PORT = click.IntRange(0, 65_535)


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
    type=click.IntRange(1, _SHARDS_MAX),
    help=f"Number of shards; {_SHARDS_DEFAULT}, or as many as the data directory has.",
)
@click.option("--metrics-port", type=_PORT, default=0, help="Serve metrics there; 0 serves none.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Least level to log.",
)
def dev(data_dir: Path, port: int, shard_count: int | None, metrics_port: int, log_level: str) -> None:
    """Run a whole queue on this machine until Ctrl-C; its items survive restarts.

    Needs a MySQL or MariaDB server program, the one that FOQS_MYSQLD names or else the one that is found. It runs
    privately in the data directory, which is closed to other users of the machine.
    """
    try:
        with LocalServer(data_dir) as server:
            config = _prepare(server, port, shard_count, metrics_port, log_level)
            run_until_signal(config, lambda bound: _say_ready(server, bound, len(config.shards)))
    except (LocalServerError, MigrationError) as error:
        note(f"error: {error}")
        leave(Exit.FAILURE)
    except OSError as error:
        note(f"error: cannot use {data_dir} as the data directory: {error.strerror or error}; choose another one")
        leave(Exit.FAILURE)


def _prepare(server: LocalServer, port: int, shard_count: int | None, metrics_port: int, log_level: str) -> HostConfig:
    """The databases, brought up to date, and the configuration of a host that serves them."""
    count_before = _shard_count(server)
    if shard_count is not None and shard_count < count_before:
        raise click.UsageError(f"{server.data_dir} has {count_before} shards; fewer would hide items")
    meta_url = server.url("foqs_meta")
    count = shard_count or count_before or _SHARDS_DEFAULT
    shards = {shard_id: server.url(f"foqs_shard_{shard_id}") for shard_id in range(count)}
    apply(meta_url, SchemaKind.META)
    for url in shards.values():
        apply(url, SchemaKind.SHARD)
    with closing(MetaStore(meta_url)) as meta, suppress(AlreadyExistsError):
        # It may be there from an earlier run, with the settings it was given since.
        meta.insert_namespace(_NAMESPACE, NamespaceSettings(), time.time_ns() // 1_000_000)
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


def _shard_count(server: LocalServer) -> int:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata")
        names = [re.fullmatch(r"foqs_shard_(\d+)", name) for (name,) in cursor.fetchall()]
        return max((int(name[1]) + 1 for name in names if name), default=0)


def _say_ready(server: LocalServer, port: int, shard_count: int) -> None:
    click.echo(
        f"foqs is ready on {_ADDRESS}:{port}: namespace {_NAMESPACE}, {shard_count} shards, "
        f"data in {server.data_dir}. Ctrl-C stops it.",
    )
