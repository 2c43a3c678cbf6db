"""The remedies of explanations: command lines that have to be commands of foqs, and that tests run."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import click
from click.testing import CliRunner

from foqs.cli.main import cli
from foqs.cli.remote import Remote


def words_of(remedy: str) -> list[str]:
    """The words of a command line behind its program, which must be foqs."""
    program, *words = shlex.split(remedy)
    assert program == "foqs", remedy
    return words


def check_is_command(remedy: str) -> None:
    """Check that click parses the command line: the command, its options and its arguments exist."""
    command: click.Command = cli
    words = words_of(remedy)
    with cli.make_context("foqs", [*words], resilient_parsing=False) as outer:
        context = outer
        while isinstance(command, click.Group):
            name, found, words = command.resolve_command(context, words)
            assert found is not None, remedy
            command, context = found, click.Context(found, parent=context, info_name=name)
        command.parse_args(context, words)


def run_remedy(remedy: str, admin: Any, client: Any) -> None:
    """Run the command line against these clients."""
    with (
        patch.object(Remote, "admin", lambda _: nullcontext(admin)),
        patch.object(Remote, "client", lambda _: nullcontext(client)),
    ):
        result = CliRunner().invoke(cli, words_of(remedy), input="y\n", catch_exceptions=False)
    assert result.exit_code == 0, (remedy, result.output)
