"""The steps of an action: its dialog, the count of its items, the act itself, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foqs.console.action_table import offered
from foqs.console.asked import Asked, ConsolePage, checked_namespace, namespace_url
from foqs.console.bulk_actions import Selection, begin_count, counted_offer
from foqs.console.jobs_page import job_values
from foqs.console.offers import Offer
from foqs.model.errors import FoqsError, InvalidArgumentError
from foqs.model.jobs import JobState


@dataclass(frozen=True, slots=True)
class _Counting:
    """A selection that a job counts now."""

    selection: Selection
    job_id: str


async def action_page(asked: Asked) -> ConsolePage:
    """Make the dialog of an action. Nothing is changed by it."""
    offer = await offered(asked, asked.query.get("action", ""))
    token = asked.session.offer(offer, asked.now_ms)
    if isinstance(offer, Selection):
        return _step("count", offer.words, {"selection": offer, "token": token, "command": offer.command()})
    return _offer_step(offer, token, "")


async def taken_up(asked: Asked, inputs: Mapping[str, str]) -> ConsolePage:
    """Do the action whose token is among the inputs. The token is used up, also by a failure."""
    value = asked.session.take(inputs.get("token", ""), asked.now_ms)
    if value is None:
        raise InvalidArgumentError(
            "this button was pressed before, or is older than 15 minutes: nothing was done; open the dialog again"
        )
    if not asked.allows_actions:
        raise InvalidArgumentError("this console is read only: nothing was done")
    admin = asked.session.viewer.admin
    if isinstance(value, Selection):
        job = await begin_count(admin, value)
        return await _counted(asked, _Counting(value, job.id))
    if isinstance(value, _Counting):
        return await _counted(asked, value)
    assert isinstance(value, Offer), "nothing else is offered"
    try:
        done = await value.take_up(admin, inputs, asked.now_ms)
    except InvalidArgumentError as error:
        return _offer_step(value, asked.session.offer(value, asked.now_ms), error.message)
    if done.job is not None:
        namespace = done.job.namespace_name
        return _progress_step(asked, namespace, job_values(done.job, asked.now_ms), done.message)
    asked.session.message = done.message
    return _step("done", "Done", {"message": done.message, "back": value.back})


async def progress_page(asked: Asked) -> ConsolePage:
    """Make the progress of a job for the dialog of its action."""
    namespace, job_id = checked_namespace(asked), asked.query.get("job_id", "")
    job = await asked.session.viewer.admin.get_job(namespace, job_id)
    return _progress_step(asked, namespace, job_values(job, asked.now_ms), "")


async def _counted(asked: Asked, counting: _Counting) -> ConsolePage:
    """Make the dialog with the count, or say how far the count has come."""
    selection = counting.selection
    job = await asked.session.viewer.admin.get_job(selection.namespace, counting.job_id)
    if job.state is JobState.RUNNING:
        values = {"selection": selection, "token": asked.session.offer(counting, asked.now_ms)}
        return _step("counting", selection.words, {**values, **job_values(job, asked.now_ms)})
    if job.state is not JobState.SUCCEEDED or job.bulk is None:
        raise InvalidArgumentError(f"the job that counts is {job.state.name.lower()}: nothing was done")
    if not job.bulk.matched:
        return _step("none", selection.words, {"selection": selection, "back": selection.back})
    offer = counted_offer(selection, job.bulk.matched)
    return _offer_step(offer, asked.session.offer(offer, asked.now_ms), "")


def failed_step(error: FoqsError) -> ConsolePage:
    """Make the dialog of an action that has failed."""
    return _step("failed", "Not done", {"error": error.message})


def _offer_step(offer: Offer, token: str, error: str) -> ConsolePage:
    return _step("offer", offer.title, {"offer": offer, "token": token, "error": error})


def _progress_step(asked: Asked, namespace: str, values: dict[str, Any], message: str) -> ConsolePage:
    url = namespace_url(namespace, f"jobs/{values['job'].id}")
    return _step("progress", "Progress", {**values, "message": message, "job_url": url, "acts": asked.acts,
                                          "job_namespace": namespace})  # fmt: skip


def _step(step: str, heading: str, values: dict[str, Any]) -> ConsolePage:
    return ConsolePage("act.html", heading, "", {"step": step, "heading": heading, "is_live": False, **values})
