"""The verb createBulkJob: the checks of a filter and of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foqs.contract import requests as of
from foqs.contract.permissions import reads_items
from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.model import ids, limits
from foqs.model.bulk_work import BulkAction, BulkWork, check_bulk_id, without_texts
from foqs.model.calls import CallContext, ItemState
from foqs.model.errors import InvalidArgumentError, TooLargeError, shown
from foqs.model.item_filter import CONTENT_BYTES_MAX, ERROR_BYTES_MAX, IDS_MAX, TOPICS_MAX, ItemFilter
from foqs.model.jobs import Job, check_job_id, checked_changes
from foqs.model.namespace import Namespace

_ACTIONS = frozenset(BulkAction)
_STATES = frozenset(ItemState)
_PRIORITY_MIN, _PRIORITY_MAX = -(1 << 31), (1 << 31) - 1
_ATTEMPTS_MAX = (1 << 31) - 1
_TIMES = ("enqueued_after_ms", "enqueued_before_ms", "died_after_ms", "died_before_ms", "deliver_after_ms")


class BulkCalls:
    """The verb that makes bulk jobs; `foqs.host.verbs.job_calls.JobCalls` has the others on jobs."""

    def __init__(self, namespaces: Namespaces, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` is the time of day."""
        self._namespaces = namespaces
        self._wall_ms = wall_ms

    async def create_bulk_job(self, context: CallContext, request: of.CreateBulkJobRequest) -> Job:
        namespace = self._namespaces.get(request.namespace_name)
        job_id, rate, detail = check_bulk_id(request.id), request.items_per_second_max or 0, request.detail or ""
        checked_changes(None, rate, None, detail)
        work = checked_work(request.bulk, self._wall_ms(), namespace.settings.delay_ms_max)
        work.text()
        self._namespaces.require_durable()
        job = await self._namespaces.calls.run(lambda meta: meta.bulk.create(namespace, job_id, rate, detail, work))
        return shown_job(context, namespace, job)


def shown_job(context: CallContext, namespace: Namespace, job: Job) -> Job:
    """Return a job as its caller can see it: the texts of a filter are those of items, which need READ."""
    if job.bulk is None or reads_items(context, namespace.name, namespace.number):
        return job
    return replace(job, bulk=without_texts(job.bulk))


def checked_work(given: of.BulkWork, now_ms: int, delay_ms_max: int) -> BulkWork:
    """Return the checked definition of a job. Raises InvalidArgumentError and TooLargeError."""
    if given.action not in _ACTIONS:
        named = ", ".join(f"{one.name} ({one.value})" for one in BulkAction)
        raise InvalidArgumentError(f"action {shown(given.action)} is not one of {named}")
    action = BulkAction(given.action)
    chosen = checked_filter(given.filter)
    until_ms, undoes = given.deliver_after_ms or 0, given.undoes or ""
    if until_ms and action is not BulkAction.REDRIVE:
        raise InvalidArgumentError(f"deliver_after_ms is for REDRIVE, and the action is {action.name}: leave it out")
    if until_ms:
        arguments.check_range("deliver_after_ms", until_ms, now_ms, now_ms + delay_ms_max)
    if action is BulkAction.REDRIVE and chosen.states not in ((), (ItemState.DEAD,)):
        raise InvalidArgumentError("REDRIVE is of dead letters alone: leave states out, or name DEAD")
    if (action is BulkAction.UNDO) != bool(undoes):
        raise InvalidArgumentError(f"undoes {undoes!r:.80} is for UNDO alone, and the action is {action.name}")
    if undoes:
        check_job_id(undoes)
        if chosen != ItemFilter():
            raise InvalidArgumentError("UNDO is of all that the job has redriven: leave the filter empty")
    all_items = given.all_items or False
    if all_items and (action is not BulkAction.DELETE or chosen != ItemFilter()):
        raise InvalidArgumentError("all_items is for a DELETE without any condition: leave it out")
    if action is BulkAction.DELETE and chosen == ItemFilter() and not all_items:
        raise InvalidArgumentError(
            "the filter of a DELETE has no condition, so it would delete all items of the namespace: say which items, "
            "or set all_items if it is to be all"
        )
    items_max = arguments.check_range("items_max", given.items_max or 0, 0, limits.NEVER_MS)
    return BulkWork(filter=chosen, action=action, deliver_after_ms=until_ms, items_max=items_max, undoes=undoes)


def checked_filter(given: of.ItemFilter | None) -> ItemFilter:
    """Return a checked filter. Raises InvalidArgumentError and TooLargeError."""
    if given is None:
        return ItemFilter()
    for name in ("topics", "ids", "states"):
        if getattr(given, name) is not None and not getattr(given, name):
            raise InvalidArgumentError(f"{name} is given and empty, which no item matches: leave it out for all items")
    topics, prefix, named = given.topics or (), given.topic_prefix or "", given.ids or ()
    arguments.check_batch("topics", len(topics), TOPICS_MAX)
    for topic in [*topics, *([prefix] if prefix else [])]:
        arguments.check_topic(topic)
    if prefix and topics:
        raise InvalidArgumentError("topics and topic_prefix exclude each other: name the topics, or how they begin")
    arguments.check_batch("ids", len(named), IDS_MAX)
    for one in named:
        if ids.parse(one)[2]:
            raise InvalidArgumentError(f"{shown(one)} is a receipt: give the id of the item, which is before ':'")
    states = given.states or ()
    arguments.check_batch("states", len(states), len(ItemState) * len(ItemState))
    for state in states:
        if state not in _STATES:
            raise InvalidArgumentError(
                f"state {shown(state)} is none of {', '.join(f'{s.name}={s.value}' for s in ItemState)}"
            )
    for name in _TIMES:
        _check_optional(given, name, 0, limits.NEVER_MS)
    for name in ("priority_min", "priority_max"):
        _check_optional(given, name, _PRIORITY_MIN, _PRIORITY_MAX)
    for name in ("attempts_min", "attempts_max"):
        _check_optional(given, name, 0, _ATTEMPTS_MAX)
    error, metadata, payload = given.error_contains or "", given.metadata_contains or b"", given.payload_contains or b""
    for name, size, most in (
        ("error_contains", len(error.encode(errors="replace")), ERROR_BYTES_MAX),
        ("metadata_contains", len(metadata), CONTENT_BYTES_MAX),
        ("payload_contains", len(payload), CONTENT_BYTES_MAX),
    ):
        if size > most:
            raise TooLargeError(f"{name} of {size} bytes is over the limit of {most}: look for a shorter part")
    plain = {name: getattr(given, name) for name in (*_TIMES, *_NUMBERS)}
    return ItemFilter(
        topics=tuple(dict.fromkeys(topics)),
        topic_prefix=prefix,
        states=tuple(sorted({ItemState(state) for state in states})),
        error_contains=error,
        metadata_contains=metadata,
        payload_contains=payload,
        ids=tuple(dict.fromkeys(named)),
        **plain,
    )


_NUMBERS = ("priority_min", "priority_max", "attempts_min", "attempts_max")


def _check_optional(given: of.ItemFilter, name: str, low: int, high: int) -> None:
    value = getattr(given, name)
    if value is not None:
        arguments.check_range(name, value, low, high)
