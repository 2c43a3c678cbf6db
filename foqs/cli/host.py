"""`foqs host`: one host of a cluster."""

from __future__ import annotations

import click

from foqs.cli.host_options import host_command
from foqs.cli.output import note
from foqs.cli.running import run_until_signal
from foqs.config import LoadedConfig


@click.command()
@host_command
def host(loaded: LoadedConfig) -> None:
    """Run one host until SIGTERM or SIGINT, which drain it.

    SIGHUP has it read its configuration again, for the log level, the passwords and TLS options of its
    URLs, and shard_places.

    Its databases must be up to date: see `foqs schema apply`.
    """
    config = loaded.config
    run_until_signal(
        config,
        lambda port: note(f"host {config.host_name} serves {config.listen_address}:{port}"),
        lambda: loaded.again().config,
    )
