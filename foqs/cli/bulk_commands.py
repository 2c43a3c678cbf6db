"""`foqs item delete` and `redrive` by a filter, and `foqs job ...`: bulk jobs, which hosts do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import click

from foqs.cli.job_commands import jobs as list_jobs
from foqs.cli.job_commands import update as update_job
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note, report_failures, time_of
from foqs.cli.remote import Remote, remote_command
from foqs.cli.times import PastTime
from foqs.client.bulk_jobs import new_bulk_job_id
from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.bulk_work import BulkAction, BulkState
from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.model.item_filter import EVERYTHING, ItemFilter
from foqs.model.jobs import Job, JobState

POLL_S = 0.5
"""The pause between two looks at a job, in seconds."""
POLLS_PER_LINE = 10
_pause, _now_s = time.sleep, time.time
_STATES = click.Choice([state.name.lower() for state in ItemState])
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNIT_MS = {"s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}
_PRIORITY = WholeNumber(-(1 << 31), (1 << 31) - 1)
_ATTEMPTS = WholeNumber(0, (1 << 31) - 1)
_TIMES = ("enqueued_after", "enqueued_before", "died_after", "died_before")
_BOUNDS = ("priority_min", "priority_max", "attempts_min", "attempts_max")
_DONE = {BulkAction.DELETE: "deleted", BulkAction.REDRIVE: "redriven", BulkAction.UNDO: "buried again"}


class _Duration(click.ParamType):  # type: ignore[type-arg]  # it is generic from click 8.2 on
    """A duration as milliseconds: `90s`, `15m`, `6h` or `7d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no duration; give 90s, 15m, 6h or 7d")
        return int(found[1]) * _UNIT_MS[found[2]]


def _filter_options(command: Callable[..., None]) -> Callable[..., None]:
    when = PastTime()
    options = [
        click.option("--topic", "topics", multiple=True, help="Items of this topic; may be repeated."),
        click.option("--topic-prefix", default="", metavar="TEXT", help="Items of topics with this prefix."),
        click.option("--enqueued-after", type=when, metavar="TIME", help="Enqueued from then on: 6h, 7d ago, or UTC."),
        click.option("--enqueued-before", type=when, metavar="TIME", help="Enqueued before then."),
        click.option("--died-after", type=when, metavar="TIME", help="Dead letters from then on."),
        click.option("--died-before", type=when, metavar="TIME", help="Dead letters from before then."),
        click.option("--priority-min", type=_PRIORITY, help="This priority or a less urgent one.", metavar="NUMBER"),
        click.option("--priority-max", type=_PRIORITY, help="This priority or a more urgent one.", metavar="NUMBER"),
        click.option("--attempts-min", type=_ATTEMPTS, help="At least this many failed attempts.", metavar="NUMBER"),
        click.option("--attempts-max", type=_ATTEMPTS, help="At most this many failed attempts.", metavar="NUMBER"),
        click.option("--error-contains", default="", metavar="TEXT", help="This is in the reason of a failure."),
        click.option("--metadata-contains", default="", metavar="TEXT", help="This is in the metadata; needs READ."),
        click.option("--payload-contains", default="", metavar="TEXT", help="This is in the payload; needs READ."),
        click.option("--all", "takes_all", is_flag=True, help="No filter: all items."),
        click.option("--dry-run", is_flag=True, help="Only count the items."),
        click.option("--items-max", type=WholeNumber(1), help="Stop after this many.  [default: those counted]"),
        click.option(
            "--items-per-second-max",
            type=WholeNumber(0, limits.JOB_ITEMS_PER_SECOND_MAX),
            default=0,
            metavar="NUMBER",
            help="The rate on all hosts together.  [default: 500 of redrives, 2000 a shard of others]",
        ),
        click.option("--wait/--no-wait", default=True, help="Wait for the end of the job, or print its id alone."),
        click.option("--yes", is_flag=True, help="Do not count and ask before."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _chosen(given: dict[str, Any], states: Sequence[str] = ()) -> ItemFilter:
    """Return the filter of a command, and take its options out of `given`. Raises click.UsageError without one."""
    chosen = ItemFilter(
        topics=given.pop("topics"),
        topic_prefix=given.pop("topic_prefix"),
        states=tuple(ItemState[name.upper()] for name in states),
        error_contains=given.pop("error_contains"),
        metadata_contains=given.pop("metadata_contains").encode(),
        payload_contains=given.pop("payload_contains").encode(),
        **{
            f"{name}_ms": given.pop(name) for name in ("enqueued_after", "enqueued_before", "died_after", "died_before")
        },
        **{name: given.pop(name) for name in ("priority_min", "priority_max", "attempts_min", "attempts_max")},
    )
    if given.pop("takes_all") != (chosen == EVERYTHING):
        raise click.UsageError("say which items: give options such as --topic, or --all without any")
    return chosen


@click.command()
@click.argument("namespace")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@_filter_options
@click.option("--state", "states", multiple=True, type=_STATES, help="Items in this state; may be repeated.")
@remote_command
def delete(remote: Remote, namespace: str, ids: tuple[str, ...], states: tuple[str, ...], **given: Any) -> None:
    """Delete items: those with these IDs, in any state, or all that match.

    Without IDs a job of the hosts does it. It counts the items that match first, asks, and deletes no more than were
    counted. Items under lease are deleted only with --state leased. Ctrl-C does not end the job: see foqs job.
    """
    if ids:
        _delete_ids(remote, namespace, ids, given, states)
        return
    if states:
        given["takes_all"] = False
    _run(remote, namespace, BulkAction.DELETE, _chosen(given, states), given)


def _delete_ids(
    remote: Remote, namespace: str, ids: tuple[str, ...], given: dict[str, Any], states: tuple[str, ...]
) -> None:
    is_yes = given.pop("yes")
    context = click.get_current_context()
    is_set = context.get_parameter_source
    if states or any(is_set(name) is click.core.ParameterSource.COMMANDLINE for name in given):
        raise click.UsageError("IDs are given: leave out the options that choose items")
    if not is_yes:
        shown = ids if len(ids) <= 5 else [*ids[:5], f"... ({len(ids)} in all)"]
        click.confirm(f"{context.command_path} {namespace} {' '.join(shown)}: really?", abort=True, err=True)
    with remote.admin() as admin:
        errors = admin.delete_items(namespace, ids, return_errors=True)
    remote.output.document({"errors": errors})
    note(f"deleted {len(ids) - len(errors)}")
    report_failures(ids, errors)


@click.command()
@click.argument("namespace")
@_filter_options
@click.option(
    "--in", "delay_ms", type=_Duration(), metavar="DURATION", help="Deliver them then; undo is possible till then."
)
@remote_command
def redrive(remote: Remote, namespace: str, delay_ms: int | None, **given: Any) -> None:
    """Make all dead letters that match ready again, with no failed attempts.

    A job of the hosts does it. It counts the items that match first, asks, and redrives no more than were counted.
    Items that are delivered once at most are skipped. With --in 60s nothing is delivered for a minute from now, and
    foqs job undo takes all back. Ctrl-C does not end the job: see foqs job.
    """
    _run(remote, namespace, BulkAction.REDRIVE, _chosen(given), given, delay_ms)


def _run(
    remote: Remote,
    namespace: str,
    action: BulkAction,
    chosen: ItemFilter,
    given: dict[str, Any],
    delay_ms: int | None = None,
) -> None:
    """Count, ask, begin the job and wait for it."""
    path = click.get_current_context().command_path
    items_max = given["items_max"] or 0
    with remote.admin() as admin:
        if given["dry_run"] or not given["yes"]:
            counted = _count(admin, namespace, action, chosen)
            if given["dry_run"]:
                remote.output.document(counted)
                remote.output.line(f"{_of(counted).matched} items match")
                return
            count = _of(counted).matched
            if not count:
                remote.output.document(counted)
                note("no item matches: nothing was done")
                return
            items_max = min(items_max or count, count)
            click.confirm(f"{path} {namespace}: {count} items match, really?", abort=True, err=True)
        job_id = new_bulk_job_id()
        note(f"begins job {job_id}; foqs job cancel {namespace} {job_id} ends it")
        job = admin.create_bulk_job(
            namespace,
            action,
            chosen,
            # The time of the answer to the question is not part of the delay.
            deliver_after_ms=None if delay_ms is None else round(_now_s() * 1000) + delay_ms,
            items_max=items_max,
            all_items=action is BulkAction.DELETE and chosen == EVERYTHING,
            items_per_second_max=given["items_per_second_max"],
            detail=path,
            job_id=job_id,
        )
        if given["wait"]:
            job = _until_over(admin, namespace, job)
    _show(remote, job)
    if given["wait"] and job.state is not JobState.SUCCEEDED:
        leave(Exit.PARTIAL)


def _count(admin: AdminClient, namespace: str, action: BulkAction, chosen: ItemFilter) -> Job:
    """Count the items that the action would change."""
    if action is BulkAction.REDRIVE:
        chosen = _of_dead(chosen)
    path = click.get_current_context().command_path
    job = admin.create_bulk_job(namespace, BulkAction.COUNT, chosen, detail=f"counts for {path}")
    job = _until_over(admin, namespace, job)
    if job.state is not JobState.SUCCEEDED:
        raise InvalidArgumentError(f"job {job.id}, which counts, is {job.state.name}: nothing was done")
    return job


def _of_dead(chosen: ItemFilter) -> ItemFilter:
    return replace(chosen, states=(ItemState.DEAD,))


def _until_over(admin: AdminClient, namespace: str, job: Job) -> Job:
    """Return the job once it does not run, and print its progress meanwhile."""
    polls_count = 0
    while job.state is JobState.RUNNING:
        _pause(POLL_S)
        job = admin.get_job(namespace, job.id)
        polls_count += 1
        if polls_count % POLLS_PER_LINE == 0 and job.state is JobState.RUNNING:
            note(_progress(job))
    return job


def _of(job: Job) -> BulkState:
    if job.bulk is None:
        raise InvalidArgumentError(f"job {job.id} is no bulk job: see foqs spark status")
    return job.bulk


def _progress(job: Job) -> str:
    state = _of(job)
    action = state.work.action
    text = (
        f"{job.state.name.lower()}: looked at {state.examined:,} of about {state.of_items:,}, {state.matched:,} match"
    )
    if action is not BulkAction.COUNT:
        text += f", {state.done:,} {_DONE[action]}"
    if state.waiting_shards:
        text += f"; waits for {', '.join(f'shard {one}' for one in state.waiting_shards)}"
    return text + (f"; {state.error}" if state.error else "")


def _show(remote: Remote, job: Job) -> None:
    state = _of(job)
    chosen = state.work.filter
    conditions = {
        field.name: value
        for field in fields(ItemFilter)
        if (value := getattr(chosen, field.name)) != getattr(EVERYTHING, field.name)
    }
    remote.output.document(job)
    remote.output.table(
        ["KEY", "VALUE"],
        (
            ("id", job.id),
            ("namespace", job.namespace_name),
            ("state", job.state.name.lower()),
            ("action", state.work.action.name.lower()),
            ("undoes", state.work.undoes or None),
            *[(name, _text(name, value)) for name, value in conditions.items()],
            ("filter", "has texts, which need READ" if state.hides_texts else None),
            ("deliver_after", time_of(state.work.deliver_after_ms) if state.work.deliver_after_ms else None),
            ("items_max", state.work.items_max or None),
            ("items_per_second_max", job.items_per_second_max or None),
            ("created", time_of(job.created_at_ms)),
            ("updated", time_of(job.updated_at_ms)),
            ("examined", f"{state.examined} of about {state.of_items}"),
            ("matched", state.matched),
            ("done", f"at least {state.done}" if state.is_recounted else state.done),
            ("skipped", state.skipped),
            ("shards", f"{state.shards_done} of {state.shards}"),
            ("waiting_shards", ", ".join(map(str, state.waiting_shards)) or None),
            ("error", state.error or None),
            ("detail", job.detail or None),
        ),
    )


def _text(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(one.name.lower() if isinstance(one, ItemState) else str(one) for one in value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(time_of(value)) if name.endswith("_ms") and isinstance(value, int) else str(value)


@click.group()
def job() -> None:
    """Show, pause, resume, cancel and undo the jobs that hosts do; list all jobs."""


@job.command()
@click.argument("namespace")
@click.argument("job_id", metavar="JOB")
@click.option("--watch", is_flag=True, help="Print its progress until it ends or pauses.")
@remote_command
def show(remote: Remote, namespace: str, job_id: str, watch: bool) -> None:
    """Show the bulk job JOB of NAMESPACE: its filter, its state and its counts.

    Hosts write the counts every 2 s. `done` is "at least" after a host died in the midst: items that were in work then,
    and do not match any more, count as done. Texts of the filter are shown to those with READ.
    """
    with remote.admin() as admin:
        found = admin.get_job(namespace, job_id)
        if watch:
            note(_progress(found))
            found = _until_over(admin, namespace, found)
    _show(remote, found)


def _set_state(remote: Remote, namespace: str, job_id: str, state: JobState) -> None:
    with remote.admin() as admin:
        _show(remote, admin.update_job(namespace, job_id, state=state))


@job.command()
@click.argument("namespace")
@click.argument("job_id", metavar="JOB")
@remote_command
def pause(remote: Remote, namespace: str, job_id: str) -> None:
    """Let the bulk job JOB of NAMESPACE stop, within 2 s, until `foqs job resume`."""
    _set_state(remote, namespace, job_id, JobState.PAUSED)


@job.command()
@click.argument("namespace")
@click.argument("job_id", metavar="JOB")
@remote_command
def resume(remote: Remote, namespace: str, job_id: str) -> None:
    """Resume the paused bulk job JOB of NAMESPACE."""
    _set_state(remote, namespace, job_id, JobState.RUNNING)


@job.command()
@click.argument("namespace")
@click.argument("job_id", metavar="JOB")
@remote_command
def cancel(remote: Remote, namespace: str, job_id: str) -> None:
    """End the bulk job JOB of NAMESPACE within 2 s. Items that it has changed stay so."""
    _set_state(remote, namespace, job_id, JobState.CANCELLED)


@job.command()
@click.argument("namespace")
@click.argument("job_id", metavar="JOB")
@remote_command
def undo(remote: Remote, namespace: str, job_id: str) -> None:
    """Bury the items again that the redrive JOB of NAMESPACE has delayed with --in, before that time is over.

    The dead letters have their old reasons, and died now. JOB is cancelled if it still runs.
    """
    undo_id = new_bulk_job_id()
    note(f"begins job {undo_id}")
    with remote.admin() as admin:
        made = admin.undo_bulk_job(namespace, job_id, job_id=undo_id)
        made = _until_over(admin, namespace, made)
    _show(remote, made)
    if made.state is not JobState.SUCCEEDED:
        leave(Exit.PARTIAL)


job.add_command(list_jobs, "list")
job.add_command(update_job, "update")
