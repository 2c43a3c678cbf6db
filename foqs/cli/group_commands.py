"""`foqs group ...`: the consumer groups of topics; and the option of other commands that names one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import click

from foqs.cli.job_commands import status
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import note, time_of
from foqs.cli.remote import Remote, confirmed, remote_command
from foqs.model import limits
from foqs.model.groups import TopicGroup
from foqs.model.jobs import JobState


def group_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--group", help="A consumer group of TOPIC; by default its own items.")(command)


def key_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--fairness-key", metavar="KEY", help="Only items with this fairness key.")(command)
    return click.option("--ordering-key", metavar="KEY", help="Only items with this ordering key.")(command)


@click.group("group")
def group() -> None:
    """Declare, list and delete the consumer groups of topics."""


@group.command()
@click.argument("namespace")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option(
    "--ttl-ms", type=WholeNumber(0, limits.TTL_MS_MAX), default=0, metavar="MS", help="Its items expire no later."
)
@click.option(
    "--delay-ms", type=WholeNumber(0, limits.DELAY_MS_MAX), default=0, metavar="MS", help="Its items are ready later."
)
@click.option("--from-queued", is_flag=True, help="Copy the items that wait now, too, in the background.")
@remote_command
def create(
    remote: Remote, namespace: str, topic: str, name: str, ttl_ms: int, delay_ms: int, from_queued: bool
) -> None:
    """Declare GROUP of TOPIC: each item that is enqueued from now on has a copy in it.

    Items before are not copied, unless --from-queued is given: a job copies them then. `foqs group status NAMESPACE
    JOB` shows how far it is, and `foqs group cancel NAMESPACE JOB` ends it. Run the command again if a host does not
    follow yet.
    """
    with remote.admin() as admin:
        made = admin.create_group(namespace, topic, name, ttl_ms=ttl_ms, delay_ms=delay_ms, from_queued=from_queued)
        _show(remote, made)


group.add_command(status)


@group.command()
@click.argument("namespace")
@click.argument("job")
@remote_command
def cancel(remote: Remote, namespace: str, job: str) -> None:
    """End JOB, which copies items for a new group, for good. The group keeps what it has, and gets all later items."""
    with remote.admin() as admin:
        admin.update_job(namespace, job, state=JobState.FAILED)
    note(f"job {job} copies no more items: hosts follow within a few seconds")


@group.command("list")
@click.argument("namespace")
@click.option("--prefix", default="", help="Only topics with this prefix.")
@remote_command
def list_(remote: Remote, namespace: str, prefix: str) -> None:
    """List the declared groups of topics. A deleted one is listed until its items are deleted."""
    with remote.admin() as admin:
        found = list(admin.list_groups(namespace, prefix))
    remote.output.document([asdict(one) for one in found])
    remote.output.table(["TOPIC", "GROUP", "STATE", "TTL MS", "DELAY MS", "CREATED", "COPIES BY JOB"], map(_row, found))


@group.command()
@click.argument("namespace")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@remote_command
@confirmed()
def delete(remote: Remote, namespace: str, topic: str, name: str) -> None:
    """Delete GROUP of TOPIC with all its items, which hosts delete in the background.

    GROUP can be "", which is the topic as consumers without a group see it. Only its other groups get items then.
    """
    with remote.admin() as admin:
        admin.delete_group(namespace, topic, name)
    note(f"group {name!r} of topic {topic} gets no more items, and those that it holds are being deleted")


def _show(remote: Remote, found: TopicGroup) -> None:
    remote.output.document(asdict(found))
    names = ("topic", "group", "state", "ttl ms", "delay ms", "created", "copies by job")
    remote.output.table(["KEY", "VALUE"], zip(names, _row(found), strict=True))


def _row(one: TopicGroup) -> tuple[object, ...]:
    state = "deleted" if one.is_deleted else "copying" if one.is_copying else "active"
    times = one.ttl_ms or "", one.delay_ms or "", time_of(one.created_at_ms)
    return one.topic, one.group, state, *times, one.copy_job
