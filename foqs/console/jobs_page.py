"""The pages of jobs: those of a namespace, and one with its progress."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage, checked_namespace, namespace_url
from foqs.console.command_lines import command
from foqs.console.texts import moment
from foqs.model.bulk_work import BulkAction, is_bulk_job
from foqs.model.calls import ItemState
from foqs.model.item_filter import EVERYTHING, ItemFilter
from foqs.model.jobs import Job, JobState

JOBS_MAX: Final = 100
_TONES: Final = {
    JobState.RUNNING: "info", JobState.SUCCEEDED: "ok", JobState.FAILED: "bad", JobState.PAUSED: "warn",
    JobState.CANCELLED: "",
}  # fmt: skip
_DONE: Final = {
    BulkAction.COUNT: "counted", BulkAction.DELETE: "deleted", BulkAction.REDRIVE: "redriven",
    BulkAction.UNDO: "buried again",
}  # fmt: skip


async def jobs_page(asked: Asked) -> ConsolePage:
    """Make the page of a namespace's jobs, the newest first."""
    namespace = checked_namespace(asked)
    page = await asked.session.viewer.admin.list_jobs(namespace, JOBS_MAX)
    rows = [
        {"job": one, "look": _TONES[one.state], "kind": "bulk" if is_bulk_job(one.id) else "load",
         "url": namespace_url(namespace, f"jobs/{one.id}")}
        for one in page.jobs
    ]  # fmt: skip
    values: dict[str, Any] = {
        "rows": rows, "is_cut": bool(page.next_page_token), "cli": command("foqs", "job", "list", namespace)
    }  # fmt: skip
    return ConsolePage("jobs.html", f"Jobs of {namespace}", "jobs", values, {"jobs": page.jobs})


async def job_page(asked: Asked) -> ConsolePage:
    """Make the page of one job."""
    namespace, job_id = checked_namespace(asked), asked.query.get("job_id", "")
    job = await asked.session.viewer.admin.get_job(namespace, job_id)
    shows = "show" if is_bulk_job(job.id) else "status"
    words = ("job", shows) if is_bulk_job(job.id) else ("spark", shows)
    values = {**job_values(job, asked.now_ms), "acts": asked.acts, "cli": command("foqs", *words, namespace, job.id)}
    return ConsolePage("job.html", f"Job {job.id}", "jobs", values, {"job": job})


def job_values(job: Job, now_ms: int) -> dict[str, Any]:
    """Return the progress of a job for its page and for the dialog of an action."""
    bulk = job.bulk
    action = bulk.work.action if bulk else None
    of_items = max(bulk.work.items_max, bulk.matched) if bulk and bulk.work.items_max else 0
    done = bulk.matched if bulk and action is BulkAction.COUNT else bulk.done if bulk else job.items_count
    undo_ms = bulk.work.deliver_after_ms - now_ms if bulk and action is BulkAction.REDRIVE else 0
    return {
        "job": job,
        "bulk": bulk,
        "look": _TONES[job.state],
        "action": action.name.lower() if action is not None else "",
        "done_word": _DONE[action] if action is not None else "stored",
        "done": done,
        "of_items": of_items,
        "share": min(100, round(100 * done / of_items)) if of_items else 100 if job.state.is_over else 0,
        "undo_ms": max(0, undo_ms),
        "is_over": job.state.is_over,
        "is_paused": job.state is JobState.PAUSED,
        "conditions": conditions(bulk.work.filter) if bulk else [],
    }


def conditions(chosen: ItemFilter) -> list[tuple[str, str]]:
    """Return the conditions of a filter in words."""
    found = []
    for field in fields(ItemFilter):
        value = getattr(chosen, field.name)
        if value == getattr(EVERYTHING, field.name):
            continue
        name = field.name.removesuffix("_ms").replace("_", " ")
        if isinstance(value, tuple):
            text = ", ".join([one.name.lower() if isinstance(one, ItemState) else str(one) for one in value])
        elif isinstance(value, bytes):
            text = value.decode(errors="backslashreplace")
        else:
            text = moment(value) + " UTC" if field.name.endswith("_ms") else str(value)
        found.append((name, text))
    return found
