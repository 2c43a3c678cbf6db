"""`foqs topic ...`: commands on a whole topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import click

from foqs.cli.item_commands import states_of
from foqs.cli.output import exit_of, leave_for, note
from foqs.cli.policy_file import set_policies
from foqs.cli.rate_commands import history, rates
from foqs.cli.remote import Remote, remote_command
from foqs.cli.topic_policy import (
    aging,
    attempts,
    backoff,
    depth,
    expiry,
    in_flight,
    key_batch,
    key_buckets,
    limit,
    pause,
    policies,
    resume,
    serial,
    weight,
)  # fmt: skip
from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.calls import ExportPlan, ItemState, TopicStats
from foqs.model.errors import FoqsError, NotFoundError, UnavailableError

PROGRESS_EVERY_S = 2.0
SETTLED_TRIES = 20
"""Number of calls for items that another call is just settling."""
SETTLED_PAUSE_S = 0.05
ERRORS_SHOWN = 5
IDS_PER_CALL = min(limits.BATCH_ITEMS_MAX, limits.PAGE_ITEMS_MAX)


@click.group()
def topic() -> None:
    """Pause a topic, limit its rate, or work on all its items."""


topic.add_command(pause)
topic.add_command(resume)
topic.add_command(limit)
topic.add_command(weight)
topic.add_command(attempts)
topic.add_command(depth)
topic.add_command(expiry)
topic.add_command(backoff)
topic.add_command(serial)
topic.add_command(in_flight)
topic.add_command(key_batch)
topic.add_command(key_buckets)
topic.add_command(aging)
topic.add_command(policies)
topic.add_command(set_policies)
topic.add_command(rates)
topic.add_command(history)


@dataclass(slots=True)
class Purged:
    """The outcome of a purge, by its items."""

    deleted: int = 0
    gone: int = 0
    """Items that another caller removed before the purge could delete them."""
    failed: int = 0


@topic.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.name.lower() for state in ItemState]),
    help="Only items that are in this state when they are read; may be repeated. Default: all.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote_command
def purge(remote: Remote, namespace: str, topic_name: str, states: tuple[str, ...], yes: bool) -> None:
    """Delete the items of TOPIC in any state, including those under lease.

    Items that are enqueued after the start stay, even while the command waits for an answer. An ack of a deleted item
    gets STALE_LEASE. After an error run the command again: it deletes the remaining items.
    """
    wanted = states_of(states) or list(ItemState)
    with remote.admin() as admin:
        plan = admin.plan_export(namespace)
    if not yes:
        _ask(remote, namespace, topic_name, wanted)
    purged, errors = Purged(), list[FoqsError]()
    try:
        with remote.admin() as admin:
            noted_s = time.monotonic()
            for ids in _pages(admin, namespace, plan, topic_name, wanted):
                _delete(admin, namespace, ids, purged, errors)
                if time.monotonic() - noted_s >= PROGRESS_EVERY_S:
                    noted_s = time.monotonic()
                    note(f"{purged.deleted} deleted so far")
    finally:
        remote.output.document(purged)
        gone = f", {purged.gone} were gone before" if purged.gone else ""
        failed = f", {purged.failed} failed" if purged.failed else ""
        remote.output.line(f"{purged.deleted} deleted{gone}{failed}")
    for error in errors[:ERRORS_SHOWN]:
        note(f"error: {error.message}")
    leave_for({exit_of(error) for error in errors})


def _ask(remote: Remote, namespace: str, topic_name: str, states: list[ItemState]) -> None:
    """Ask for the name of the topic. Aborts if another name is typed."""
    with remote.client() as client:
        found = list(islice(client.topics(namespace, topic_name), 1))
    stats = found[0] if found and found[0].topic == topic_name else TopicStats(topic_name, 0, 0, 0, 0, 0, 0)
    counts = {state: int(getattr(stats, state.name.lower())) for state in states}
    counted = ", ".join(f"{count} {state.name.lower()}" for state, count in counts.items())
    note(f"{sum(counts.values())} items of topic {topic_name} in namespace {namespace} will be deleted ({counted})")
    typed = click.prompt("Type the name of the topic to delete them", err=True)
    if typed != topic_name:
        note("that is another name: nothing was deleted")
        raise click.Abort


def _pages(
    admin: AdminClient, namespace: str, plan: ExportPlan, topic_name: str, states: list[ItemState]
) -> Iterator[list[str]]:
    """The ids of the plan's items, page by page. A page has at most as many ids as one call accepts."""
    for split in plan.splits:
        after_key, is_first = 0, True
        while is_first or after_key:
            page = admin.export_items(
                namespace,
                split,
                after_key,
                IDS_PER_CALL,
                topics=topic_name,
                states=states,
                with_payload=False,
                with_metadata=False,
            )
            after_key, is_first = page.next_after_key, False
            yield [one.id for one in page.items]


def _delete(admin: AdminClient, namespace: str, ids: list[str], purged: Purged, errors: list[FoqsError]) -> None:
    """Delete the items. Repeat the call for items that another call is just settling."""
    if not ids:
        return
    for tries_left in reversed(range(SETTLED_TRIES)):
        failed = admin.delete_items(namespace, ids, return_errors=True)
        again = []
        for position, error in failed.items():
            if isinstance(error, NotFoundError):
                purged.gone += 1
            elif isinstance(error, UnavailableError) and error.nothing_done and tries_left:
                again.append(ids[position])
            else:
                purged.failed += 1
                if len(errors) < ERRORS_SHOWN or error.code not in {one.code for one in errors}:
                    errors.append(error)  # Keep ERRORS_SHOWN errors, and one of each code for the exit code.
        purged.deleted += len(ids) - len(failed)
        if not again:
            return
        ids = again
        time.sleep(SETTLED_PAUSE_S)
