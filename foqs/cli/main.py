"""The `foqs` command: its subcommands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from foqs.cli.output import Exit, exit_of, leave, note
from foqs.client.client_errors import NotSentError
from foqs.model.errors import FoqsError


class _Place(NamedTuple):
    """The module and name of a subcommand, and its first sentence, which `foqs --help` prints without importing it.

    extra: the extra of the package foqs that the subcommand needs.
    """

    module: str
    name: str
    summary: str
    extra: str = "cli"


_COMMANDS = {
    "dev": _Place("dev", "dev", "Run a whole queue on this machine until Ctrl-C; its items survive restarts.", "host"),
    "host": _Place("host", "host", "Run one host until SIGTERM or SIGINT, which drain it.", "host"),
    "config": _Place(
        "config_commands",
        "config",
        "Show or check the configuration of a host: flag > FOQS_* variable > file > default.",
        "host",
    ),
    "schema": _Place("schema", "schema", "Create and bring up to date the databases of the cluster.", "host"),
    "namespace": _Place("namespace_commands", "namespace", "Create, list, show, change and delete namespaces."),
    "topics": _Place("queue_commands", "topics", "List the topics of NAMESPACE that hold an item."),
    "topic": _Place("topic_commands", "topic", "Pause a topic, limit its rate, or work on all its items."),
    "group": _Place("group_commands", "group", "Declare, list and delete the consumer groups of topics."),
    "consumer": _Place("consumer_commands", "consumer", "List consumers with their items, and end their leases."),
    "explain": _Place(
        "explain_command",
        "explain",
        "Say why items of NAMESPACE are not delivered: the decisive reason first, its end, and commands that help.",
    ),
    "enqueue": _Place(
        "queue_commands", "enqueue", "Store an item with PAYLOAD, or with what comes from stdin (-), and print its id."
    ),
    "dequeue": _Place(
        "queue_commands", "dequeue", "Take the most urgent ready items of TOPIC under a lease and print them."
    ),
    "ack": _Place("queue_commands", "ack", "Delete delivered items: they never come back."),
    "nack": _Place("queue_commands", "nack", "Give delivered items back as failed attempts."),
    "item": _Place("item_commands", "item", "Show items, delete them, and redrive dead letters."),
    "dead-letter": _Place("item_commands", "dead_letter", "Show dead letters, make them ready again, or delete them."),
    "job": _Place(
        "bulk_commands", "job", "Show, pause, resume, cancel and undo the jobs that hosts do; list all jobs."
    ),
    "dedup": _Place("dedup_commands", "dedup", "Make dedup ids free before their time."),
    "host-status": _Place("host_status", "host_status", "Show the host that answers, and the shards it serves."),
    "hosts": _Place("hosts", "hosts", "List the hosts that live, or check that they serve every shard."),
    "shard": _Place("shard_commands", "shard", "List, add, drain, move, park, relocate and remove shards."),
    "access": _Place("access_commands", "access", "Say who can call: principals, grants, tokens and certificates."),
    "context": _Place("context_commands", "context", "List, show and choose contexts, by which commands find hosts."),
    "whoami": _Place("whoami", "whoami", "Show the principal that the host takes the caller for, and its grants."),
    "peers": _Place(
        "peers_commands", "peers", "Show the secret by which hosts know each other, and replace it.", "host"
    ),
    "console": _Place(
        "console",
        "console",
        "Serve web pages on the queue, for people, until Ctrl-C.",
        "console",
    ),
    "audit": _Place("audit_commands", "audit", "Show the record of changes and of reads of payloads."),
    "spark": _Place("spark", "spark", "Jobs on Spark, and the records of jobs.", "spark"),
}


class FoqsGroup(click.Group):
    """Imports a subcommand when it is used, so `foqs enqueue` and `foqs --help` do not import the packages of `foqs
    host`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        try:
            command: click.Command = getattr(import_module(f"foqs.cli.{place.module}"), place.name)
        except ModuleNotFoundError as missing:
            package, _, _ = (missing.name or "foqs").partition(".")
            if package == "foqs":
                raise
            note(f"error: foqs {cmd_name} needs {package}: pip install 'foqs[{place.extra}]'")
            leave(Exit.USAGE)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in _COMMANDS.items()])

    def main(self, *args: Any, **extra: Any) -> Any:
        _open_missing_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Escape characters that the terminal or the pipe cannot encode.
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **extra)
        except OSError as error:  # Not for a closed pipe: click ends silently then.
            note(f"error: {error.strerror or error}")
            sys.exit(Exit.FAILURE)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FoqsError as error:
            _report(error)
            leave(exit_of(error))


def _open_missing_streams() -> None:
    """Open the standard streams that were closed at the start: an empty stdin, and outputs that discard all text.

    Otherwise the next file or socket would get the number of the closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _report(error: FoqsError) -> None:
    note(f"error: {error.message}")
    if isinstance(error, NotSentError):
        note("is a host running there? --address, FOQS_ADDRESS or --context names another one, --retry-ms waits for it")
    if error.retry_after_ms:
        note(f"try again in {error.retry_after_ms} ms, or give --retry-ms")


@click.group(cls=FoqsGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="foqs")
def cli() -> None:
    """A durable, multi-tenant distributed priority queue on sharded MySQL.

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage or argument, 3 not found, 4 conflict,
    5 unavailable, overloaded or over quota: try again, 6 what was printed is not all.
    """


def main() -> None:
    """The entry point of the `foqs` script."""
    cli(prog_name="foqs")


if __name__ == "__main__":
    main()
