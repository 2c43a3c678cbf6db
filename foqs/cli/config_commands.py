"""`foqs config ...`: the effective configuration of a host."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import click

from foqs.cli.host_options import host_command
from foqs.cli.output import Exit, Output, leave, note
from foqs.config import LoadedConfig
from foqs.config_doors import open_access, open_files, open_places, open_settings
from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_store import MetaStore

DOORS_OPEN_EXIT: Final = 3


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
@click.option("--protected", is_flag=True, help="Name every open door, and exit with code 3 if there is one.")
@host_command
def check(loaded: LoadedConfig, protected: bool) -> None:
    """Check every value without connecting to anything. If one is invalid, print every problem and exit with code 2.

    Warnings do not change the exit code. They name TLS files that cannot be used on this machine, and settings that
    suit a single host but not a cluster.

    With --protected, print a line for each open door, with its setting and the change that closes it, and exit with
    code 3. This looks at the modes of files on this machine, and reads from the meta database whether access is
    enforced and where shards are. If no door is open but something could not be looked at, the exit code is 5.

    `foqs schema status` says if the databases exist and are up to date.
    """
    for warning in loaded.config.warnings():
        note(f"warning: {warning}")
    note(f"the configuration is valid: host {loaded.config.host_name}, {len(loaded.config.shards)} shards")
    if protected:
        _check_doors(loaded)


def _check_doors(loaded: LoadedConfig) -> None:
    files = open_files(loaded)
    doors, unknown = [*open_settings(loaded.config), *files.doors], files.unknown
    try:
        with closing(MetaStore(loaded.config.meta_url)) as meta:
            rows = meta.access.read()
            doors += open_places(loaded.config, meta.shards.read_all())
    except FoqsError as error:
        unknown.append(f"access: {error.message}")
    except OSError as error:  # A file of the URL's TLS options.
        unknown.append(f"access: a session cannot be opened by meta_url: {error.strerror or error}")
    else:
        assert rows is not None, "they are not compared with others"
        doors = [*open_access(rows.mode), *doors]
    for door in doors:
        click.echo(str(door))
    for what in unknown:
        note(f"not known: {what}")
    if doors:
        raise click.exceptions.Exit(DOORS_OPEN_EXIT)
    if unknown:
        leave(Exit.UNAVAILABLE)
    note("no door is open")
