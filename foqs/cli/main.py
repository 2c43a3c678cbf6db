"""The `foqs` command: its subcommands, and one place where errors become messages and exit codes."""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from foqs.cli.output import Exit, exit_of, leave, note
from foqs.client.errors import NotSentError
from foqs.core.errors import FoqsError

_COMMANDS = {
    "dev": "foqs.cli.dev:dev",
    "host": "foqs.cli.host:host",
    "config": "foqs.cli.config:config",
    "schema": "foqs.cli.schema:schema",
    "namespace": "foqs.cli.namespaces:namespace",
    "topics": "foqs.cli.queue:topics",
    "enqueue": "foqs.cli.queue:enqueue",
    "dequeue": "foqs.cli.queue:dequeue",
    "ack": "foqs.cli.queue:ack",
    "nack": "foqs.cli.queue:nack",
    "item": "foqs.cli.items:item",
    "dead-letter": "foqs.cli.items:dead_letter",
    "host-status": "foqs.cli.host_status:host_status",
}


class FoqsGroup(click.Group):
    """Imports a subcommand when it is used: `foqs enqueue` must not wait for the imports of `foqs host`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FoqsError as error:
            _report(error)
            leave(exit_of(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of a pipe has had enough: click ends without a word
            note(f"error: {error.strerror or error}")
            leave(Exit.FAILURE)


def _report(error: FoqsError) -> None:
    note(f"error: {error.message}")
    if isinstance(error, NotSentError):
        note("is a host running there? --address or FOQS_ADDRESS names another one, --retry-ms waits for it")
    if error.retry_after_ms:
        note(f"try again in {error.retry_after_ms} ms, or give --retry-ms")


@click.group(cls=FoqsGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="foqs")
def cli() -> None:
    """foqs: a durable, multi-tenant distributed priority queue on sharded MySQL.

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage or argument, 3 not found, 4 conflict,
    5 unavailable, overloaded or over quota: try again.
    """


def main() -> None:
    """The entry point of the `foqs` script."""
    cli(prog_name="foqs")
