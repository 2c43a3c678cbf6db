"""`foqs dedup ...`: the dedup ids of a namespace, for operators."""

from __future__ import annotations

import click

from foqs.cli.output import note, report_failures
from foqs.cli.remote import Remote, confirmed, remote_command


@click.group("dedup")
def dedup() -> None:
    """Make dedup ids free before their time."""


@dedup.command()
@click.argument("namespace")
@click.argument("dedup_ids", nargs=-1, required=True, metavar="DEDUP_ID...")
@click.option("--topic", help="The topic of the ids, where it is serial or the dedup_scope of NAMESPACE is topic.")
@click.option("--ordering-key", metavar="KEY", help="That of their items, which needs --topic, too.")
@remote_command
@confirmed()
def forget(
    remote: Remote, namespace: str, dedup_ids: tuple[str, ...], topic: str | None, ordering_key: str | None
) -> None:
    """Make dedup ids free at once: the next enqueue with one of these stores an item.

    Stored items stay as they are. The exit code is 3 if an id was free already.
    """
    with remote.admin() as admin:
        errors = admin.forget_dedup_ids(namespace, dedup_ids, topic, ordering_key=ordering_key, return_errors=True)
    remote.output.document({"errors": errors})
    note(f"made free {len(dedup_ids) - len(errors)}")
    report_failures(dedup_ids, errors)
