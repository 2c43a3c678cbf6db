"""The options and the clients that all commands with a host share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Output
from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient, Client

ADDRESS_VARIABLE = "FOQS_ADDRESS"
_RETRY_MS_MAX = 3_600_000
_IDS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Remote:
    """The address of a command's host, and the printer of its output. The clients are context managers."""

    address: str
    retry_ms: int
    output: Output

    def client(self) -> Client:
        return Client(self.address, connections_max=1, retry=RetryPolicy(deadline_ms=self.retry_ms))

    def admin(self) -> AdminClient:
        return AdminClient(self.address, connections_max=1, retry=RetryPolicy(deadline_ms=self.retry_ms))


def remote_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of all remote commands; they arrive as its first argument, a Remote."""

    @click.option(
        "--address",
        metavar="HOST:PORT",
        envvar=ADDRESS_VARIABLE,
        default="127.0.0.1:7600",
        show_default=True,
        help=f"Hosts to ask, separated by commas.  [{ADDRESS_VARIABLE}]",
    )
    @click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people or for programs.",
    )
    @click.option(
        "--retry-ms",
        type=WholeNumber(0, _RETRY_MS_MAX),
        default=0,
        help="Try again for this long while no host can be reached or it has no room.",
    )
    @functools.wraps(command)
    def run(*, address: str, output: str, retry_ms: int, **arguments: Any) -> None:
        command(Remote(address, retry_ms, Output(as_json=output == "json")), **arguments)

    return run


def named(_: Remote, arguments: dict[str, Any]) -> str:
    """Describe the target of a destructive command: its texts and numbers, up to 5 ids, and the number of ids if
    there are more.
    """
    words = [str(value) for value in arguments.values() if isinstance(value, str | int) and not isinstance(value, bool)]
    ids: list[str] = [one for value in arguments.values() if isinstance(value, tuple) for one in value]
    shown = ids if len(ids) <= _IDS_NAMED_MAX else [*ids[:_IDS_NAMED_MAX], f"... ({len(ids)} in all)"]
    return " ".join([*words, *shown])


def confirmed(what: Callable[[Remote, dict[str, Any]], str] = named) -> Callable[..., Callable[..., None]]:
    """Ask before a destructive command runs; scripts answer with --yes. Use below `remote_command`.

    `what` describes what will be destroyed.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--yes", is_flag=True, help="Do not ask.")
        @functools.wraps(command)
        def run(remote: Remote, *, yes: bool, **arguments: Any) -> None:
            if not yes:
                path = click.get_current_context().command_path
                click.confirm(f"{path} {what(remote, arguments)}: really?", abort=True, err=True)
            command(remote, **arguments)

        return run

    return decorate
