"""`foqs config ...`: the effective configuration of a host."""

from __future__ import annotations

import click

from foqs.cli.host_options import host_command
from foqs.cli.output import Output, note
from foqs.config import LoadedConfig


@click.group()
def config() -> None:
    """Show or check the configuration of a host: flag > FOQS_* variable > file > default."""


@config.command()
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@host_command
def show(loaded: LoadedConfig, output: str) -> None:
    """Print the effective values, without passwords, and where each came from."""
    values = loaded.config.redacted()
    printer = Output(as_json=output == "json")
    printer.document({key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()})
    shards = values.pop("shards")
    rows = [(key, loaded.origins[key], value) for key, value in values.items()]
    rows += [(f"shard {shard_id}", loaded.origins["shards"], url) for shard_id, url in shards.items()]
    printer.table(["KEY", "ORIGIN", "VALUE"], rows)


@config.command()
@host_command
def check(loaded: LoadedConfig) -> None:
    """Check every value without connecting to anything. If one is invalid, print every problem and exit with code 2.

    Warnings do not change the exit code. They name TLS files that cannot be used on this machine, and settings that
    suit a single host but not a cluster.

    `foqs schema status` says if the databases exist and are up to date.
    """
    for warning in loaded.config.warnings():
        note(f"warning: {warning}")
    note(f"the configuration is valid: host {loaded.config.host_name}, {len(loaded.config.shards)} shards")
