"""`foqs host-status`: a host and its shards."""

from __future__ import annotations

import click

from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, remote_command
from foqs.model.calls import HostStatus


@click.command("host-status")
@click.option("--check", is_flag=True, help="Exit code 1 unless every shard is owned and healthy here.")
@remote_command
def host_status(remote: Remote, check: bool) -> None:
    """Show the host that answers, and the shards it serves.

    With --check the exit code is 0 if every shard is owned and healthy and the host is not draining, 1 otherwise, and 5
    if no host answers.
    """
    with remote.admin() as admin:
        status = admin.host_status()
    remote.output.document(status)
    draining = ", draining" if status.draining else ""
    owned_count = sum(shard.state != "lost" for shard in status.shards)
    owned = f"owns {owned_count} of {len(status.shards)} shards" if owned_count else "owns no shard: it serves nothing"
    note(f"{status.host}, version {status.version}, up since {time_of(status.started_at_ms)} UTC{draining}, {owned}")
    if status.peer_address:
        note(f"other hosts call it at {status.peer_address}")
    remote.output.table(
        ["SHARD", "STATE", "EPOCH", "ITEMS", "OPEN LEASES", "DETAIL"],
        ((s.shard_id, s.state, s.epoch, s.items, s.open_leases, s.detail) for s in status.shards),
    )
    problems = _problems(status)
    if check and problems:
        for problem in problems:
            note(f"not well: {problem}")
        leave(Exit.FAILURE)


def _problems(status: HostStatus) -> list[str]:
    problems = ["the host is draining"] if status.draining else []
    if not status.shards:
        problems.append("the host has no shard")
    return problems + [f"shard {s.shard_id} is {s.state}: {s.detail}" for s in status.shards if s.state != "owned"]
