"""The calls of a write to the service: before its tasks start, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient, Client
from foqs.model.calls import ShardMap
from foqs.model.errors import FoqsError, InvalidArgumentError, PermissionDeniedError, UnavailableError
from foqs.model.jobs import Job, JobState
from foqs.model.namespace import DedupWhenAway, NamespaceSettings
from foqs.spark import record, rejects
from foqs.spark.credentials import in_options
from foqs.spark.driver_output import note
from foqs.spark.options import CONTENT, FAIL, draw_job_id
from foqs.spark.plan import WritePlan
from foqs.spark.record import AWAY

CALL_TIMEOUT_MS = 10_000
"""Timeout of one attempt of a call before or after the job, in milliseconds."""
PATIENCE_MS = 10_000
"""Longest time that such calls are repeated, in milliseconds. It is short, so that a wrong address is reported soon."""
RECORD_PATIENCE_MS = 3_000
"""Longest wait of a micro-batch for the record of its stream, in milliseconds; its rows do not need the record."""
CALLS_PER_SECOND_MIN = 10
"""Least calls a second of a job with a rate. It makes its calls small enough for this, so that no task waits long
for its turn.
"""


def prepare(plan: WritePlan) -> WritePlan:
    """Ask for the namespace, make the job's record and complete the plan of a batch.

    Raises FoqsError for each problem that would make the tasks fail.
    """
    options = plan.options
    options.credentials.check_files()
    settings, found_map = _asked(plan, PATIENCE_MS)
    warnings = _checked(plan, settings, found_map)
    job_id = options.job_id or options.drawn_job_id or draw_job_id()
    with admin_client(plan) as admin:
        job = record.take(options, job_id, admin)
    named = replace(plan, job_id=job_id, run_id=_run_id(job_id, job), has_record=job is not None)
    return _completed(named, settings, found_map, warnings)


def prepare_stream(plan: WritePlan) -> WritePlan:
    """Do the same for a micro-batch of a stream, which waits for hosts as long as its calls do."""
    options = plan.options
    options.credentials.check_files()
    try:
        settings, found_map = _asked(plan, min(PATIENCE_MS, options.retry_timeout_ms))
    except AWAY as error:
        if options.retry_timeout_ms <= PATIENCE_MS:
            raise
        wait_s = options.retry_timeout_ms / 1000
        note(f"{error.message}; the stream waits for up to {wait_s:,.0f} s")
        settings, found_map = _asked(plan, options.retry_timeout_ms)
    warnings = _checked(plan, settings, found_map)
    if options.dedup == CONTENT:
        warnings.append(
            "dedup=content: a micro-batch that is repeated with another number of partitions is enqueued twice; keep "
            "it when the query is started again, or use dedup=key"
        )
    with admin_client(plan, RECORD_PATIENCE_MS) as admin:
        has_record = record.take_for_stream(options, admin)
    return _completed(replace(stream_named(plan), has_record=has_record), settings, found_map, warnings)


def stream_named(plan: WritePlan) -> WritePlan:
    """The plan of a micro-batch for its commit. It asks no host, so that Spark does not fail here."""
    job_id = plan.options.job_id
    return replace(plan, job_id=job_id or "", has_record=job_id is not None)


def _asked(plan: WritePlan, patience_ms: int) -> tuple[NamespaceSettings, ShardMap]:
    options = plan.options
    try:
        with admin_client(plan, patience_ms) as admin:
            settings = admin.get_namespace(options.namespace).settings
        return settings, _shard_map(plan, patience_ms)
    except UnavailableError as error:
        found_map = in_options(error.message)
        raise UnavailableError(f"no host of addresses={options.addresses} answers: {found_map}") from error
    except PermissionDeniedError as error:
        raise PermissionDeniedError(in_options(error.message)) from error


def _checked(plan: WritePlan, settings: NamespaceSettings, found_map: ShardMap) -> list[str]:
    """Return the reasons for weaker promises of the write. Raises InvalidArgumentError for options that the service
    rules out.
    """
    warnings = _check_settings(plan, settings, found_map)
    if plan.options.rejected_rows_path is not None:
        rejects.check_directory(plan.options.rejected_rows_path)
    return warnings


def _completed(plan: WritePlan, settings: NamespaceSettings, found_map: ShardMap, warnings: list[str]) -> WritePlan:
    for warning in warnings:
        note(f"warning: {warning}")
    return replace(
        plan,
        options=replace(plan.options, batch_items=_call_items_max(plan, settings)),
        begin_ms=time.time_ns() // 1_000_000,
        key_spread=found_map.key_spread or 1,
        shard_by_slot=tuple(found_map.shard_by_slot),
        warnings=tuple(warnings),
    )


def _run_id(job_id: str, job: Job | None) -> str:
    """The job's id with the time of its record.

    A record can be dropped, to make room for others, before the job's ids are forgotten. Without the time, another load
    of the same name would then get the ids of the first one, and lose its rows.
    """
    return job_id if job is None else f"{job_id}@{job.created_at_ms}"


def _shard_map(plan: WritePlan, patience_ms: int) -> ShardMap:
    """The shard map for the namespace of the write. It is empty for rows without ids, which have no fixed shard."""
    if not plan.has_ids:
        return ShardMap(0, (), [])
    options = plan.options
    retry = RetryPolicy(deadline_ms=patience_ms)
    credentials = options.credentials.client_arguments()
    with Client(options.addresses, timeout_ms=CALL_TIMEOUT_MS, retry=retry, **credentials) as client:
        return client.shard_map(options.namespace)


def _window_ms(settings: NamespaceSettings, found_map: ShardMap) -> int:
    """Longest age of remembered ids, in milliseconds: the namespace's setting, or less if too many ids came since."""
    return settings.dedup_ms if found_map.dedup_window_ms is None else min(settings.dedup_ms, found_map.dedup_window_ms)


def admin_client(plan: WritePlan, patience_ms: int | None = None) -> AdminClient:
    retry = RetryPolicy(deadline_ms=PATIENCE_MS if patience_ms is None else patience_ms)
    credentials = plan.options.credentials.client_arguments()
    return AdminClient(plan.options.addresses, timeout_ms=CALL_TIMEOUT_MS, retry=retry, **credentials)


def finish(plan: WritePlan, state: JobState | None, rows_count: int | None, detail: str) -> None:
    """Store the end of the job in its record. A failure is printed, not raised, because the rows are not affected."""
    if not plan.has_record:
        return
    try:
        with admin_client(plan) as admin:
            record.store_end(plan.options, plan.job_id, admin, state, rows_count, detail)
    except FoqsError as error:
        note(f"the record of job {plan.job_id} does not know of its end: {error.message}")


def finish_aborted(plan: WritePlan, state: JobState | None, detail: str, knows_why: Callable[[Job], bool]) -> None:
    """Store in the job's record that the job was aborted, unless the record has the reason: Spark aborts after a
    failed commit too.
    """
    if not plan.has_record:
        return
    try:
        with admin_client(plan) as admin:
            if not knows_why(admin.get_job(plan.options.namespace, plan.job_id)):
                record.store_end(plan.options, plan.job_id, admin, state, None, detail)
    except FoqsError as error:
        note(f"the record of job {plan.job_id} does not know of its end: {error.message}")


def short_window(plan: WritePlan, window_ms: int, needed_ms: int, need: str) -> str | None:
    """The warning that ids are remembered for less time than needed. None if they are not, or rows have no ids."""
    if not plan.has_ids or window_ms >= needed_ms:
        return None
    return (
        f"dedup ids of namespace {plan.options.namespace} are remembered for {window_ms / 1000:,.0f} s, and {need} "
        f"{needed_ms / 1000:,.0f} s: a row that is repeated later may be enqueued twice; raise dedup_ids and dedup_ms "
        "of the namespace, dedup_ids to twice the rows of a job"
    )


def window_after(plan: WritePlan) -> str | None:
    """The warning at the end of a job that ids of its first rows can be forgotten. None if not; another text if
    unknown.
    """
    if not plan.has_ids:
        return None
    try:
        with admin_client(plan) as admin:
            settings = admin.get_namespace(plan.options.namespace).settings
        window_ms = _window_ms(settings, _shard_map(plan, PATIENCE_MS))
    except FoqsError as error:
        return f"nobody can tell for how long dedup ids were remembered: {error.message}"
    elapsed_ms = time.time_ns() // 1_000_000 - plan.begin_ms
    return short_window(plan, window_ms, elapsed_ms, "the job took")


def _call_items_max(plan: WritePlan, settings: NamespaceSettings) -> int:
    """Most rows of a call. A larger call would be refused each time, or wait longer than necessary."""
    options = plan.options
    most = min(options.batch_items, settings.batch_items_max, settings.enqueues_per_minute_max)
    if options.items_per_second_max is not None:
        most = min(most, max(1, options.items_per_second_max // CALLS_PER_SECOND_MIN))
    return most


def _check_settings(plan: WritePlan, settings: NamespaceSettings, found_map: ShardMap) -> list[str]:
    """Return the reasons for weaker promises. Raises InvalidArgumentError for options that the namespace rules out."""
    options = plan.options
    warnings = []
    short = short_window(plan, _window_ms(settings, found_map), options.retry_timeout_ms, "retryTimeoutMs is")
    if short is not None and options.on_short_window == FAIL:
        raise InvalidArgumentError(short)
    if short is not None:
        warnings.append(short)
    if plan.has_ids and settings.dedup_when_away is DedupWhenAway.ACCEPT:
        warnings.append(
            f"dedup_when_away of namespace {options.namespace} is ACCEPT: a row that is repeated while the shard of "
            "its id is away may be enqueued twice; set it to REFUSE"
        )
    if options.spread_over_ms > settings.delay_ms_max:
        raise InvalidArgumentError(
            f"spreadOverMs {options.spread_over_ms} is more than the namespace {options.namespace} lets items be "
            f"delayed: {settings.delay_ms_max} (its delay_ms_max)"
        )
    return warnings
