"""The options and the clients that all commands with a host share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
from click.core import ParameterSource

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Output
from foqs.client.context_file import ContextFile
from foqs.client.named_contexts import NamedContext
from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient, Client
from foqs.model.errors import InvalidArgumentError

ADDRESS_VARIABLE = "FOQS_ADDRESS"
TOKEN_VARIABLE = "FOQS_TOKEN"
CONTEXT_VARIABLE = "FOQS_CONTEXT"
NAMESPACE_OF_CONTEXT = "@"
"""Stands for the namespace of the context; no namespace has this name."""
_ARGUMENTS: Final = {
    "address": "addresses", "token_file": "token_file", "tokens_without_tls": "tokens_without_tls", "tls": "tls",
    "ca_file": "ca_file", "server_name": "server_name", "cert_file": "cert_file", "key_file": "key_file",
}  # fmt: skip
"""The arguments of a client by the options of a command."""
_ASKING_FOR_TLS: Final = {"tls", "ca_file", "server_name", "cert_file", "key_file"}
_RETRY_MS_MAX = 3_600_000
_IDS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Remote:
    """The hosts of a command, and the printer of its output. The clients are context managers."""

    arguments: Mapping[str, Any]
    """The arguments of a client."""
    output: Output

    def client(self) -> Client:
        return Client(connections_max=1, **self.arguments)

    def admin(self) -> AdminClient:
        return AdminClient(connections_max=1, **self.arguments)


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
    @click.option(
        "--token-file",
        metavar="FILE",
        envvar=f"{TOKEN_VARIABLE}_FILE",
        default="",
        help=f"The file with the caller's token; {TOKEN_VARIABLE} can have the token itself.  [{TOKEN_VARIABLE}_FILE]",
    )
    @click.option(
        "--tokens-without-tls",
        is_flag=True,
        envvar="FOQS_TOKENS_WITHOUT_TLS",
        help="Send the token to other machines, where whoever listens can read it.  [FOQS_TOKENS_WITHOUT_TLS]",
    )
    @_tls_options
    @click.option(
        "--context",
        metavar="NAME",
        envvar=CONTEXT_VARIABLE,
        help=f"Take the options that are not given from this context of yours; see foqs context.  [{CONTEXT_VARIABLE}]",
    )
    @functools.wraps(command)
    def run(*, output: str, retry_ms: int, context: str | None, **arguments: Any) -> None:
        values = {name: arguments.pop(option) for option, name in _ARGUMENTS.items()}
        given = {name: values[name] for option, name in _ARGUMENTS.items() if _is_given(option)}
        if not given.get("token_file") and (token := os.environ.get(TOKEN_VARIABLE)):
            given["token"] = token
        found = _context_for(context, given)
        if arguments.get("namespace") == NAMESPACE_OF_CONTEXT:
            arguments["namespace"] = _namespace_of(found)
        made = found.arguments(given) if found is not None else {"addresses": values["addresses"], **given}
        made["retry"] = RetryPolicy(deadline_ms=retry_ms)
        command(Remote(_with_tls(made), Output(as_json=output == "json")), **arguments)

    return run


def _is_given(option: str) -> bool:
    """True if the user gave an option of the current command by a flag or a variable."""
    source = click.get_current_context().get_parameter_source(option)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _context_for(name: str | None, given: Mapping[str, Any]) -> NamedContext | None:
    """Return the context of a command, or None without one. Raises InvalidArgumentError for one that is not known.

    The default context is for commands that do not say which hosts they mean: the token in it goes to no others.
    """
    if name is not None:
        return ContextFile.of_user().read().named(name)
    if "addresses" in given:
        return None
    contexts = ContextFile.of_user().read_if_there()
    return contexts.named() if contexts is not None and contexts.default else None


def _namespace_of(context: NamedContext | None) -> str:
    if context is None or not context.namespace:
        missing = f"the context {context.name} has none" if context else "there is no context"
        raise InvalidArgumentError(f"{NAMESPACE_OF_CONTEXT} stands for the namespace of the context, and {missing}")
    return context.namespace


def _with_tls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client without empty options. Each file and the name ask for TLS as well."""
    found = {name: value for name, value in arguments.items() if value or name == "addresses"}
    return found | ({"tls": True} if _ASKING_FOR_TLS & found.keys() else {})


def _tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of TLS."""
    options: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
        click.option(
            "--tls", is_flag=True, envvar="FOQS_USE_TLS", help="Speak TLS, and trust the system's CAs.  [FOQS_USE_TLS]"
        ),
        _file_option("--ca-file", "FOQS_CA_FILE", "Speak TLS, and trust the CAs in this PEM file."),
        click.option(
            "--server-name",
            metavar="NAME",
            envvar="FOQS_SERVER_NAME",
            default="",
            help="Name that the certificate of the host must have, at any address.  [FOQS_SERVER_NAME]",
        ),
        _file_option("--cert-file", "FOQS_CERT_FILE", "Certificate by which the host knows the caller, in PEM."),
        _file_option("--key-file", "FOQS_KEY_FILE", "Key of --cert-file, in PEM, without a pass phrase."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _file_option(flag: str, variable: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(flag, metavar="FILE", envvar=variable, default="", help=f"{help}  [{variable}]")


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
