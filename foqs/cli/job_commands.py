"""`foqs spark status`, `jobs` and `update`: the records of jobs. They need neither Spark nor Java."""

from __future__ import annotations

import time

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import time_of
from foqs.cli.remote import Remote, remote_command
from foqs.model import limits
from foqs.model.jobs import Job, JobState

WATCH_EVERY_S = 2.0
"""Interval at which hosts write their counts, in seconds."""
_pause = time.sleep


@click.command()
@click.argument("namespace")
@click.argument("job")
@click.option("--watch", is_flag=True, help="Show it again every 2 s until it has ended.")
@remote_command
def status(remote: Remote, namespace: str, job: str, watch: bool) -> None:
    """Show the record of JOB of NAMESPACE: its state, its rate and its counts.

    Hosts write their counts every 2 s. The last counts of a killed host are lost, so more items may be stored than were
    counted, never fewer. A job that could not report its end stays RUNNING until `foqs spark update` sets its state.
    The number of rows is what the job itself reported at its end.
    """
    with remote.admin() as admin:
        found = admin.get_job(namespace, job)
        if not watch:
            _show(remote, found)
            return
        before: Job | None = None
        while True:
            remote.output.json_line(found)
            remote.output.line(_progress(found, before))
            if found.state is not JobState.RUNNING:
                return
            _pause(WATCH_EVERY_S)
            before, found = found, admin.get_job(namespace, job)


@click.command()
@click.argument("namespace")
@click.option("--limit", type=WholeNumber(1, limits.JOBS_PER_NAMESPACE_MAX), default=100, show_default=True)
@click.option("--watch", is_flag=True, help="Show them again every 2 s until Ctrl-C.")
@remote_command
def jobs(remote: Remote, namespace: str, limit: int, watch: bool) -> None:
    """List the jobs of NAMESPACE, the newest first."""
    with remote.admin() as admin:
        while True:
            found = admin.list_jobs(namespace, limit).jobs
            if watch:
                remote.output.json_line(found)
            else:
                remote.output.document(found)
            remote.output.table(
                ["JOB", "STATE", "ITEMS", "DUPLICATES", "REJECTED", "ROWS", "ITEMS/S MAX", "CREATED", "UPDATED"],
                map(_row, found),
            )
            if not watch:
                return
            _pause(WATCH_EVERY_S)
            remote.output.line("")


@click.command()
@click.argument("namespace")
@click.argument("job")
@click.option(
    "--items-per-second-max",
    type=WholeNumber(0, limits.JOB_ITEMS_PER_SECOND_MAX),
    metavar="NUMBER",
    help="The rate of the whole job from now on; 0 is no limit.",
)
@click.option(
    "--state",
    type=click.Choice(["running", "succeeded", "failed"]),
    help="The final state of a job that could not report it itself.",
)
@click.option("--detail", help="A text for people.")
@remote_command
def update(
    remote: Remote, namespace: str, job: str, items_per_second_max: int | None, state: str | None, detail: str | None
) -> None:
    """Change the record of JOB of NAMESPACE; options not given leave it unchanged. The job itself continues."""
    if items_per_second_max is None and state is None and detail is None:
        raise click.UsageError("name at least one thing to change")
    with remote.admin() as admin:
        changed = admin.update_job(
            namespace,
            job,
            state=None if state is None else JobState[state.upper()],
            items_per_second_max=items_per_second_max,
            detail=detail,
        )
    _show(remote, changed)


def _show(remote: Remote, job: Job) -> None:
    remote.output.document(job)
    remote.output.table(
        ["KEY", "VALUE"],
        (
            ("id", job.id),
            ("namespace", job.namespace_name),
            ("state", job.state.name.lower()),
            ("created", time_of(job.created_at_ms)),
            ("updated", time_of(job.updated_at_ms)),
            ("items_per_second_max", job.items_per_second_max or None),
            ("items", job.items_count),
            ("duplicates", job.duplicates_count),
            ("rejected", job.rejected_count),
            ("rows", job.rows_count or None),
            ("detail", job.detail or None),
        ),
    )


def _row(job: Job) -> tuple[object, ...]:
    return (
        job.id,
        job.state.name.lower(),
        job.items_count,
        job.duplicates_count,
        job.rejected_count,
        job.rows_count or None,
        job.items_per_second_max or None,
        time_of(job.created_at_ms),
        time_of(job.updated_at_ms),
    )


def _progress(job: Job, before: Job | None) -> str:
    """One line of progress, with the speed between the two records if both times are known."""
    text = (
        f"{time_of(job.updated_at_ms)}  {job.state.name.lower()}: {job.items_count:,} items, "
        f"{job.duplicates_count:,} duplicates, {job.rejected_count:,} rejected"
    )
    elapsed_ms = 0 if before is None else job.updated_at_ms - before.updated_at_ms
    if before is not None and elapsed_ms > 0:
        done_count = job.items_count + job.duplicates_count - before.items_count - before.duplicates_count
        text += f", {done_count * 1000 / elapsed_ms:,.0f}/s"
    return text
