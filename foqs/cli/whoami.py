"""`foqs whoami`: the principal of the caller."""

from __future__ import annotations

import click

from foqs.cli.output import note, time_of
from foqs.cli.remote import Remote, remote_command


@click.command()
@remote_command
def whoami(remote: Remote) -> None:
    """Show the principal that the host takes the caller for, and its grants."""
    with remote.admin() as admin:
        found = admin.who_am_i()
    remote.output.document(found)
    remote.output.line(found.principal)
    if found.expires_at_ms:
        note(f"its credential expires on {time_of(found.expires_at_ms)} UTC")
    remote.output.table(["NAMESPACES", "ROLES"], ((grant.namespaces, ", ".join(grant.roles)) for grant in found.grants))
