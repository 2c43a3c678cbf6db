"""`foqs config ...`: what a host would run with."""

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
    """Check every value; connects to nothing. Exit code 2 and every problem if one is not valid.

    Warnings change no exit code: of TLS files that cannot be used on this machine, and of what is wrong in a cluster
    and may be right for a single host.

    Whether the databases are there and up to date says `foqs schema status`.
    """
    for warning in loaded.config.warnings():
        note(f"warning: {warning}")
    note(f"the configuration is valid: host {loaded.config.host_name}, {len(loaded.config.shards)} shards")
