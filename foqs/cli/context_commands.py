"""`foqs context ...`: the named ways to reach a cluster, in a file of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from foqs.cli.output import Output, note
from foqs.client.context_file import FILE_VARIABLE, ContextFile
from foqs.client.named_contexts import NamedContext, NamedContexts


@click.group()
def context() -> None:
    """List, show and choose contexts, by which commands find hosts.

    \b
    They are tables of ~/.config/foqs/contexts.toml, a file of mode 0600:
        default = "prod"
        [prod]
        addresses = "queue-a.example:7600,queue-b.example:7600"
        ca_file = "ca.pem"
        token_file = "prod.token"
        namespace = "mail"
    Further keys: tls, server_name, cert_file, key_file. Relative paths begin where the file is.

    A flag counts before a variable, and both before the context of --context or FOQS_CONTEXT. The default context is
    for commands without --context, and without an address by flag or variable. As NAMESPACE, @ is that of the context.
    """


def _output_option(command: Callable[..., None]) -> Callable[..., None]:
    kinds = click.Choice(["table", "json"])
    shown = click.option("--output", type=kinds, default="table", show_default=True, help="For people or for programs.")
    return shown(command)


@context.command("list")
@_output_option
def list_contexts(output: str) -> None:
    """List the contexts, each without a secret."""
    found = ContextFile.of_user().read()
    _show(found, list(found.by_name.values()), Output(as_json=output == "json"), is_list=True)


@context.command()
@click.argument("name", required=False)
@_output_option
def show(name: str | None, output: str) -> None:
    """Show the context NAME, or the default one."""
    found = ContextFile.of_user().read()
    _show(found, [found.named(name)], Output(as_json=output == "json"))


@context.command()
@click.argument("name")
@_output_option
def use(name: str, output: str) -> None:
    """Make the context NAME the default one. Everything else in the file stays as it is."""
    found = ContextFile.of_user().use(name)
    _show(found, [found.named(name)], Output(as_json=output == "json"))
    note(f"{name} is the default context in {found.path}; {FILE_VARIABLE} can name another file")


def _show(contexts: NamedContexts, found: list[NamedContext], output: Output, *, is_list: bool = False) -> None:
    documents: list[dict[str, Any]] = [asdict(one) | {"default": one.name == contexts.default} for one in found]
    output.document(documents if is_list else documents[0])
    output.table(
        ["CONTEXT", "DEFAULT", "ADDRESSES", "TLS", "CREDENTIAL", "NAMESPACE"],
        (
            (
                one.name, "yes" if one.name == contexts.default else None, one.addresses, "yes" if one.tls else "no",
                " ".join(path for path in (one.token_file, one.cert_file) if path) or None, one.namespace or None,
            )
            for one in found
        ),
    )  # fmt: skip
