"""`foqs schema ...`: the tables of the meta database and of every shard in the configuration."""

from __future__ import annotations

from collections.abc import Iterator

import click

from foqs.cli.host_options import host_command
from foqs.cli.output import Exit, Output, leave, note
from foqs.config import HostConfig, LoadedConfig
from foqs.model.errors import UnavailableError
from foqs.storage import migrations
from foqs.storage.migrations import MigrationError, SchemaKind


@click.group()
def schema() -> None:
    """Create and bring up to date the databases of the configuration."""


@schema.command()
@host_command
def apply(loaded: LoadedConfig) -> None:
    """Create what is missing and apply what is pending, database after database. Safe to repeat."""
    codes = set()
    for name, kind, url in _databases(loaded.config):
        try:
            applied = migrations.apply(url, kind)
        except (MigrationError, UnavailableError) as error:
            codes.add(_report(name, error))
        else:
            note(f"{name}: applied {', '.join(map(str, applied))}" if applied else f"{name}: up to date")
    if codes:
        leave(max(codes))


@schema.command()
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@host_command
def status(loaded: LoadedConfig, output: str) -> None:
    """Show what is applied and what is pending. Exit code 1 when a database is not up to date."""
    codes, found = set(), {}
    for name, kind, url in _databases(loaded.config):
        try:
            found[name] = migrations.status(url, kind)
        except (MigrationError, UnavailableError) as error:
            codes.add(_report(name, error))
        else:
            codes |= set() if found[name].is_current else {Exit.FAILURE}
    printer = Output(as_json=output == "json")
    printer.document(found)
    printer.table(
        ["DATABASE", "APPLIED", "PENDING", "PROBLEMS"],
        (
            (name, ", ".join(s.applied) or None, ", ".join(s.pending) or None, "; ".join(s.problems) or None)
            for name, s in found.items()
        ),
    )
    if codes:
        leave(max(codes))


def _databases(config: HostConfig) -> Iterator[tuple[str, SchemaKind, str]]:
    yield "meta", SchemaKind.META, config.meta_url
    for shard_id, url in sorted(config.shards.items()):
        yield f"shard {shard_id}", SchemaKind.SHARD, url


def _report(name: str, error: MigrationError | UnavailableError) -> Exit:
    note(f"error: {name}: {error}")
    return Exit.UNAVAILABLE if isinstance(error, UnavailableError) else Exit.FAILURE
