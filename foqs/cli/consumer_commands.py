"""`foqs consumer ...`: the list of consumers, and the end of the leases of one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, confirmed, remote_command
from foqs.model.holder import ConsumerRow


@click.group("consumer")
def consumer() -> None:
    """List consumers with their items, and end their leases."""


@consumer.command("list")
@click.argument("namespace")
@click.option("--topic", default="", help="Only waits for this topic, and items of it.")
@click.option("--group", help='Only of this consumer group; "" for the topics\' own items.')
@click.option("--name-prefix", default="", metavar="TEXT", help="Only consumers whose names begin with this.")
@click.option("--partial", is_flag=True, help="Exit code 0 also while shards or hosts do not respond.")
@remote_command
def list_(remote: Remote, namespace: str, topic: str, group: str | None, name_prefix: str, partial: bool) -> None:
    """List the consumers of NAMESPACE on all hosts, with the calls that wait and the items under lease.

    Consumers that have asked for items in the last 10 minutes are listed as well. Shards and hosts that do not respond
    are named on stderr. The exit code is then 6, unless --partial accepts an incomplete list.
    """
    missing: dict[str, None] = {}

    def note_missing(parts: Sequence[str]) -> None:
        for what in parts:
            if what not in missing:  # Each page names the missing parts again.
                missing[what] = None
                note(f"not listed: {what}")

    with remote.admin() as admin:
        rows = admin.list_consumers(namespace, topic, group=group, name_prefix=name_prefix, on_missing=note_missing)
        if remote.output.as_json:
            remote.output.document(list(rows))
        else:
            remote.output.table(
                ["NAME", "TOPIC", "WAITS", "HOLDS", "LONGEST SINCE", "LAST ASKED", "ADDRESS", "HOSTS"],
                map(_cells, rows),
            )
    if missing and not partial:
        leave(Exit.PARTIAL)


def _cells(row: ConsumerRow) -> tuple[object, ...]:
    topic = row.topic if row.prefix is None else f"{row.prefix}*"
    return (
        row.name,
        f"{topic} (group {row.group})" if row.group else topic,
        row.waiting_calls,
        row.held,
        time_of(row.held_since_ms),
        time_of(row.last_dequeue_at_ms),
        row.caller,
        ", ".join(row.hosts),
    )


@consumer.command()
@click.argument("namespace")
@click.argument("name")
@click.option("--topic", default="", help="Only the items of this topic.")
@click.option("--group", help='Only of this consumer group; "" for the topics\' own items.')
@click.option("--at-most-once", is_flag=True, help="Also items that are delivered once at most: it deletes these.")
@remote_command
@confirmed()
def release(remote: Remote, namespace: str, name: str, topic: str, group: str | None, at_most_once: bool) -> None:
    """End the leases of the consumer NAME: its items are ready again, and no failed attempt counts.

    Acks that come later are refused. The command does not keep a living consumer from taking items again: pause the
    topic before. NAME is as `foqs consumer list` shows it.
    """
    with remote.admin() as admin:
        result = admin.release_leases(namespace, name, topic, group=group, at_most_once=at_most_once)
    remote.output.document(result)
    note(f"released {result.released}")
    if result.left_at_most_once:
        note(f"left {result.left_at_most_once} that are delivered once at most: --at-most-once deletes them")
