"""`foqs schema grants`: the statements that make the two database users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from sqlalchemy import make_url

from foqs.cli.host_options import host_command
from foqs.config import HostConfig, LoadedConfig
from foqs.model.errors import InvalidArgumentError
from foqs.storage.schema.database_users import Database, DatabaseUser, account, creation, data_grants, schema_grants
from foqs.storage.schema.migrations import SchemaKind
from foqs.storage.sessions.places import server_at


class _DatabaseUserType(click.ParamType[DatabaseUser]):
    name = "account"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DatabaseUser:
        try:
            return value if isinstance(value, DatabaseUser) else account(value)
        except InvalidArgumentError as error:
            self.fail(error.message, param, ctx)


@click.command()
@click.option(
    "--user",
    "of",
    type=click.Choice(["schema", "data", "both"]),
    default="both",
    show_default=True,
    help="The user whose statements are printed.",
)
@click.option(
    "--schema-user",
    type=_DatabaseUserType(),
    default="foqs_schema",
    show_default=True,
    metavar="NAME[@MACHINES]",
    help="The user for foqs schema and foqs access init.",
)
@click.option(
    "--data-user",
    type=_DatabaseUserType(),
    default="foqs",
    show_default=True,
    metavar="NAME[@MACHINES]",
    help="The user for hosts.",
)
@host_command
def grants(loaded: LoadedConfig, of: str, schema_user: DatabaseUser, data_user: DatabaseUser) -> None:
    """Print the SQL that makes a user for the schema and one for the hosts, who cannot change the schema.

    It connects to no server. The users are locked until ALTER USER gives them a password. Run the statements of the
    schema user, then foqs schema apply, then those of the data user, because these name the tables. A version with new
    tables needs the latter once more. Only the databases of the configuration are named: give those of other shards
    by --shard.
    """
    for server, databases in _by_server(loaded.config).items():
        if of in ("schema", "both"):
            _print(f"{server}: before foqs schema apply", schema_user, list(schema_grants(schema_user, databases)))
        if of in ("data", "both"):
            _print(f"{server}: after foqs schema apply", data_user, list(data_grants(data_user, databases)))


def _print(title: str, user: DatabaseUser, statements: Sequence[str]) -> None:
    click.echo(f"-- {title}")
    click.echo(f"{creation(user)};")
    click.echo(f"-- if it is new: ALTER USER {user} IDENTIFIED BY '...' ACCOUNT UNLOCK;")
    for statement in statements:
        click.echo(f"{statement};")


def _by_server(config: HostConfig) -> dict[str, list[Database]]:
    """The databases of the configuration by their servers, the meta database first."""
    found: dict[str, list[Database]] = {}
    for kind, url in [(SchemaKind.META, config.meta_url), *((SchemaKind.SHARD, url) for url in config.shards.values())]:
        found.setdefault(server_at(url), []).append(Database(kind, make_url(url).database or ""))
    return found
