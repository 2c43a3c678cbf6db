"""`foqs host-status`: a host and its shards."""

from __future__ import annotations

import click

from foqs.cli.output import note, time_of
from foqs.cli.remote import Remote, remote_command


@click.command("host-status")
@remote_command
def host_status(remote: Remote) -> None:
    """Show the host that answers, and the shards it serves."""
    with remote.admin() as admin:
        status = admin.host_status()
    remote.output.document(status)
    draining = ", draining" if status.draining else ""
    note(f"{status.host}, version {status.version}, up since {time_of(status.started_at_ms)} UTC{draining}")
    remote.output.table(
        ["SHARD", "STATE", "EPOCH", "ITEMS", "OPEN LEASES", "DETAIL"],
        ((s.shard_id, s.state, s.epoch, s.items, s.open_leases, s.detail) for s in status.shards),
    )
