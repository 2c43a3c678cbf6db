"""The flags of jobs for TLS and identity, which are the options of reads and writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from foqs.spark.credentials import CREDENTIAL_OPTIONS, Credentials
from foqs.spark.option_texts import flag

_VARIABLES = {
    "tls": "FOQS_USE_TLS",
    "caFile": "FOQS_CA_FILE",
    "serverName": "FOQS_SERVER_NAME",
    "certFile": "FOQS_CERT_FILE",
    "keyFile": "FOQS_KEY_FILE",
    "tokenFile": "FOQS_TOKEN_FILE",
    "tokensWithoutTls": "FOQS_TOKENS_WITHOUT_TLS",
}
"""The environment variables of all commands. A token itself is taken from none, because it would become an option."""
_ASK_FOR_TLS = ("ca_file", "server_name", "cert_file", "key_file")


def flag_of(name: str) -> str:
    """Return the flag of the command for an option: batchSize is batch-size."""
    return re.sub(r"([A-Z])", lambda found: "-" + found[1].lower(), name)


def credential_flag(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that gives a command the flag of one of these options."""
    option, variable = CREDENTIAL_OPTIONS[name], _VARIABLES[name]
    meaning = option.meaning.replace("`", "")
    help_text = f"{meaning[0].upper()}{meaning[1:]}.  [{variable}]"
    if option.parse is flag:
        return click.option(f"--{flag_of(name)}", is_flag=True, envvar=variable, help=help_text)
    return click.option(f"--{flag_of(name)}", envvar=variable, help=help_text)


def credential_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of all these options."""
    for name in reversed(list(CREDENTIAL_OPTIONS)):
        command = credential_flag(name)(command)
    return command


def with_tls(given: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a command. Each of the files and the name asks for TLS, as in all commands."""
    return {**given, "tls": given["tls"] or any(given[name] for name in _ASK_FOR_TLS)}


def taken_credentials(given: dict[str, Any]) -> Credentials:
    """Remove these arguments of a command from `given`, and return them."""
    full: dict[str, Any] = with_tls(given)
    fields = [option.field for option in CREDENTIAL_OPTIONS.values()]
    for name in fields:
        given.pop(name)
    return Credentials(**{name: full[name] for name in fields})
