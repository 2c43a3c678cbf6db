"""`foqs console`: web pages on the queue, for people."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
import structlog

from foqs.cli.output import Exit, leave, note
from foqs.cli.remote import Remote, remote_command
from foqs.console.console_server import serve_console
from foqs.console.console_settings import LISTEN, ConsoleSettings, read_users
from foqs.console.reach import HostReach


@click.command()
@click.option("--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="Where browsers reach it.")
@click.option(
    "--allow-actions", is_flag=True, help="Let viewers pause, redrive, delete..., as far as hosts permit each."
)
@click.option("--sign-in-by-token", is_flag=True, help="People sign in with their tokens of the port.")
@click.option("--behind-tls", is_flag=True, help="A proxy before it speaks TLS with browsers.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME[:PORT]", help="A name in URLs of browsers.")
@click.option("--trust-header", default="", metavar="HEADER", help="The header in which a proxy names the user.")
@click.option("--trusted-proxy", "proxies", multiple=True, metavar="CIDR", help="Addresses whose header is taken.")
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML with the principal and token_file of each user.",
)
@click.option("--hide-payloads", is_flag=True, help="Show no payload and no metadata.")
@remote_command
def console(
    remote: Remote,
    listen: str,
    allow_actions: bool,
    sign_in_by_token: bool,
    behind_tls: bool,
    host_names: tuple[str, ...],
    trust_header: str,
    proxies: tuple[str, ...],
    users: Path | None,
    hide_payloads: bool,
) -> None:
    """Serve web pages on the queue, for people, until Ctrl-C.

    They are an overview, topics, items, consumers, jobs, the cluster and the audit.

    It prints a URL that signs one browser in with the console's own rights, which are those of the options below. It
    changes nothing without --allow-actions. Elsewhere than on loopback it listens only if people have to sign in.
    """
    settings = ConsoleSettings(
        listen=listen,
        allows_actions=allow_actions,
        is_behind_tls=behind_tls,
        signs_in_by_token=sign_in_by_token,
        host_names=host_names,
        trust_header=trust_header,
        trusted_proxies=proxies,
        users=read_users(users) if users is not None else {},
        hides_payloads=hide_payloads,
    )
    log_to_stderr()
    try:
        serve_console(settings, HostReach(remote.arguments), note)
    except OSError as error:
        note(f"error: cannot listen on {listen}: {error.strerror or error}; choose another address with --listen")
        leave(Exit.FAILURE)


def log_to_stderr() -> None:
    """Print log lines of the console on stderr: warnings and worse."""
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
