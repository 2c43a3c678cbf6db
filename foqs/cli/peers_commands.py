"""`foqs peers`: the secret of the cluster, by the login to the meta database, without a host.

Whoever can read that database can already call as a host, so this needs no other proof.
"""

from __future__ import annotations

import os
import time
from contextlib import closing

import click

from foqs.cli.host_options import host_command
from foqs.cli.login_audit import record_change
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Output, note, time_of
from foqs.config import LoadedConfig
from foqs.model.audit import CANCEL_PEER_SECRET, FINISH_PEER_SECRET, NEW_PEER_SECRET
from foqs.model.cluster_secret import ClusterSecret, not_ready
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.peer_proof import SECRET_BYTES
from foqs.model.secret import Secret
from foqs.storage.meta.meta_secrets import Rotation
from foqs.storage.meta.meta_store import MetaStore

WAIT_S_MAX = 600
_CHECK_EVERY_S = 0.5
_pause = time.sleep


@click.group()
def peers() -> None:
    """Show the secret by which hosts know each other, and replace it."""


@peers.command()
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@host_command
def show(loaded: LoadedConfig, output: str) -> None:
    """Show which hosts know the secret of the cluster, and the new one while it is replaced, by their ids.

    It uses the login to the meta database (`meta_url`) and no host, and never prints a secret. A host is listed for a
    minute after its last heartbeat.
    """
    with closing(MetaStore(loaded.config.meta_url)) as meta:
        rotation = meta.secrets.rotation()
    _print(Output(as_json=output == "json"), rotation)


@peers.command("new-secret")
@click.option("--finish", is_flag=True, help="Make the new secret the only one, once all hosts know it.")
@click.option("--cancel", is_flag=True, help="Drop the new secret, and keep the old one.")
@click.option(
    "--wait-s",
    type=WholeNumber(0, WAIT_S_MAX),
    default=10,
    show_default=True,
    help="With --finish: wait so long for hosts that do not know the new secret yet.",
)
@host_command
def new_secret(loaded: LoadedConfig, finish: bool, cancel: bool, wait_s: int) -> None:
    """Replace the secret of the cluster while its hosts run: first without a flag, then with --finish.

    Without a flag it prints the id of the new secret. Hosts read it within a second and take both until the end, and
    clients notice nothing. It uses the login to the meta database (`meta_url`) that makes the tables; that of the hosts
    cannot change the secret.
    """
    if finish and cancel:
        raise InvalidArgumentError("--finish and --cancel are opposites: give one")
    url = loaded.config.meta_url
    with closing(MetaStore(url)) as meta:
        if finish:
            secret = _finish(meta, wait_s)
            record_change(meta, url, FINISH_PEER_SECRET, f"secret={secret.ids[0]}")
            _finished(secret)
        elif cancel:
            secret = meta.secrets.cancel()
            record_change(meta, url, CANCEL_PEER_SECRET, f"secret={secret.ids[0]}")
            note(f"{secret.ids[0]} stays the secret of the cluster")
        else:
            secret = meta.secrets.begin(Secret(os.urandom(SECRET_BYTES)))
            record_change(meta, url, NEW_PEER_SECRET, f"secret={secret.ids[0]} next={secret.ids[-1]}")
            click.echo(secret.ids[-1])
            note(
                f"the new secret is {secret.ids[-1]}, and {secret.ids[0]} counts beside it: see foqs peers show, then "
                "foqs peers new-secret --finish"
            )


def _finish(meta: MetaStore, wait_s: int) -> ClusterSecret:
    """Finish as soon as all hosts know the new secret. Raises UnavailableError if they do not in time."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return meta.secrets.finish()
        except UnavailableError as error:
            # Another error than that of waiting hosts, such as a denied statement, does not pass by itself.
            if not error.nothing_done or time.monotonic() >= until_s:
                raise
        _pause(_CHECK_EVERY_S)


def _finished(secret: ClusterSecret) -> None:
    note(f"{secret.ids[0]} is the secret of the cluster; hosts that run end connections by the old one in a minute")


def _print(printer: Output, rotation: Rotation) -> None:
    secret, hosts = rotation
    current, *others = secret.ids
    coming = others[0] if others else None
    printer.document(
        {
            "secret": current,
            "next": coming,
            "began_at_ms": secret.began_at_ms if others else None,
            "hosts": [
                {"host": host.host_id, "seen_ms": host.seen_ms, "state": host.state(secret).value} for host in hosts
            ],
        }
    )
    printer.line(f"secret {current}" + (f", next {coming} since {time_of(secret.began_at_ms)}" if others else ""))
    printer.table(
        ["HOST", "SEEN", "KNOWS IT"],
        ((host.host_id, f"{host.seen_ms} ms ago", host.state(secret).value) for host in hosts),
    )
    if others and not not_ready(hosts, secret):
        note("all hosts know the new secret: foqs peers new-secret --finish")
