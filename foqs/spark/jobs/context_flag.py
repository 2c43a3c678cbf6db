"""The flag of jobs for a named context of the user, which takes the place of the flags for hosts, TLS and identity.

A context has paths and no secrets, so nothing secret becomes an option of Spark. Each executor needs the files at the
same paths as the driver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from click.core import ParameterSource

from foqs.client.context_file import ContextFile
from foqs.client.named_contexts import NamedContext
from foqs.model.errors import InvalidArgumentError
from foqs.spark.credentials import CREDENTIAL_OPTIONS

CONTEXT_VARIABLE: Final = "FOQS_CONTEXT"
NAMESPACE_OF_CONTEXT: Final = "@"
"""Stands for the namespace of the context, as in all commands."""
_OF_CONTEXTS: Final = frozenset({"addresses", *[option.field for option in CREDENTIAL_OPTIONS.values()]})
"""The arguments of a command that can come from a context."""
_HELP: Final = (
    "Take the hosts, the TLS files and the token file that are not given from this context of yours; see foqs context. "
    f"Executors need the files at the same paths.  [{CONTEXT_VARIABLE}]"
)


def context_flag(*, needs_hosts: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that gives a command the flag; the command gets the arguments of the context as its own.

    With `needs_hosts` the command does not run without addresses, and takes the default context if it is given none.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--context", metavar="NAME", envvar=CONTEXT_VARIABLE, help=_HELP)
        @functools.wraps(command)
        def run(*, context: str | None, **arguments: Any) -> None:
            try:
                taken = _from_context(context, arguments, needs_hosts=needs_hosts)
            except InvalidArgumentError as error:
                raise click.ClickException(error.message) from None
            if needs_hosts and not taken.get("addresses"):
                raise click.UsageError("Missing option '--addresses', or '--context' with the name of a context.")
            command(**taken)

        return run

    return decorate


def _from_context(name: str | None, arguments: Mapping[str, Any], *, needs_hosts: bool) -> dict[str, Any]:
    """Return the arguments of a command with those of its context, where the user gave no other ones.

    Raises InvalidArgumentError for a context that is not known or cannot be used.
    """
    given = {key: value for key, value in arguments.items() if key in _OF_CONTEXTS and _is_given(key)}
    found = _context_for(name, given, needs_hosts=needs_hosts)
    taken = dict(arguments)
    if found is not None:
        own = found.arguments(given)
        taken |= {key: own.get(key, arguments[key]) for key in _OF_CONTEXTS if key in arguments}
    if arguments.get("namespace") == NAMESPACE_OF_CONTEXT:
        if found is None or not found.namespace:
            missing = "there is no context" if found is None else f"the context {found.name} has none"
            raise InvalidArgumentError(f"{NAMESPACE_OF_CONTEXT} stands for the namespace of the context, and {missing}")
        taken["namespace"] = found.namespace
    return taken


def _context_for(name: str | None, given: Mapping[str, Any], *, needs_hosts: bool) -> NamedContext | None:
    """Return the context of a command, or None. The token of the default one is sent to no other addresses."""
    if name is not None:
        return ContextFile.of_user().read().named(name)
    if "addresses" in given or not needs_hosts:
        return None
    contexts = ContextFile.of_user().read_if_there()
    return contexts.named() if contexts is not None and contexts.default else None


def _is_given(argument: str) -> bool:
    """True if the user gave it by a flag or a variable."""
    source = click.get_current_context().get_parameter_source(argument)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
