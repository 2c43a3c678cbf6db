"""Bulk jobs: their work, the part of each shard, and the sums of these. Pure: the meta database keeps the values."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from foqs.model import limits
from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError, OverloadedError
from foqs.model.item_filter import EVERYTHING, ItemFilter

ID_BYTES: Final = 10
"""Random bytes in the id of a bulk job."""
RUNNING_PER_NAMESPACE_MAX: Final = 10
RUNNING_MAX: Final = 100
STOPPED_MAX: Final = 100
"""Jobs in the cluster that have stopped with a page in work, of a shard that nobody serves, for which hosts still look.
Further ones are left."""
WORK_BYTES_MAX: Final = 32 * limits.KIB
"""Bytes of the definition of a job, as it is stored."""
ERROR_BYTES_MAX: Final = 512
"""Bytes of the error of a part or of a job, as it is stored."""
MOVED_MS_MAX: Final = 1 * limits.SECOND_MS
"""The most by which the time of a delayed redrive is taken to be moved, when its call is repeated."""
RUN_RETRY_MS: Final = 5 * limits.SECOND_MS
"""The retry_after_ms of a job that finds too many others."""
_ID = re.compile(rf"bulk-[0-9a-f]{{{2 * ID_BYTES}}}", re.ASCII)
_UNLEASED = (ItemState.READY, ItemState.DELAYED, ItemState.DEAD)


class BulkAction(IntEnum):
    """The change that a bulk job makes to each item that matches."""

    COUNT = 0
    DELETE = 1
    REDRIVE = 2
    UNDO = 7
    """Bury items again that another job has redriven with a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWork:
    """The definition of a bulk job.

    deliver_after_ms: the time until which redriven items are delayed; 0 for none.
    items_max: the most items that can be taken up; 0 for no limit.  undoes: the id of the job that UNDO is about.
    """

    filter: ItemFilter = EVERYTHING
    action: BulkAction = BulkAction.COUNT
    deliver_after_ms: int = 0
    items_max: int = 0
    undoes: str = ""

    @property
    def states(self) -> frozenset[ItemState]:
        """The states of the items that match."""
        if self.action is BulkAction.REDRIVE:
            return frozenset([ItemState.DEAD])
        if self.action is BulkAction.UNDO:
            return frozenset([ItemState.DELAYED])
        return frozenset(self.filter.states or _UNLEASED)

    def text(self) -> str:
        """Return the definition as it is stored. Raises InvalidArgumentError if it is too long."""
        values = {**asdict(self), "filter": _kept(self.filter)}
        text = json.dumps({name: value for name, value in values.items() if value}, default=_encoded)
        if len(text.encode()) > WORK_BYTES_MAX:
            raise InvalidArgumentError(
                f"the definition of the job has {len(text.encode())} bytes, and the limit is {WORK_BYTES_MAX}: name "
                "fewer topics or ids, or make several jobs"
            )
        return text


def _kept(chosen: ItemFilter) -> dict[str, Any]:
    """Return the conditions that are set."""
    values = {field.name: getattr(chosen, field.name) for field in fields(ItemFilter)}
    return {name: value for name, value in values.items() if value != getattr(EVERYTHING, name)}


def _encoded(value: object) -> object:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


def work_of(text: str | bytes) -> BulkWork:
    """Return the definition that was stored as this text. Conditions of a later version raise InvalidArgumentError.

    A host that does not know a condition must not do the work without it.
    """
    values = json.loads(text)
    conditions = values.pop("filter", {})
    if unknown := {*conditions} - {field.name for field in fields(ItemFilter)}:
        raise InvalidArgumentError(f"the job has conditions that this host does not know: {', '.join(sorted(unknown))}")
    for name in ("metadata_contains", "payload_contains"):
        if name in conditions:
            conditions[name] = base64.b64decode(conditions[name])
    for name in ("topics", "ids"):
        conditions[name] = tuple(conditions.get(name, ()))
    conditions["states"] = tuple(map(ItemState, conditions.get("states", ())))
    try:
        values["action"] = BulkAction(values.get("action", BulkAction.COUNT))
    except ValueError as error:
        raise InvalidArgumentError(f"the job has an action that this host does not know: {error}") from error
    return BulkWork(filter=ItemFilter(**conditions), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPart:
    """The part of one shard. The owner of the shard with the latest epoch writes it.

    version: grows with each write, which must have read the last one, so that no late write undoes another.
    as_of_ms: the time at which it began, on the shard's clock; 0 before.  to_key: the last key of then.
    after_key: the work up to it is done, but for page_keys and later_keys.  page_to, page_keys: the end of the page in
    work, and its items that were taken up; 0 and empty between two pages.  later_keys: items that match and could not
    be changed when the walk came to them, for which it comes again; they are not taken up.  of_items: about the number
    of items to look at.
    """

    shard_id: int
    epoch: int = 0
    version: int = 0
    as_of_ms: int = 0
    to_key: int = 0
    after_key: int = 0
    page_to: int = 0
    page_keys: tuple[int, ...] = ()
    later_keys: tuple[int, ...] = ()
    of_items: int = 0
    examined: int = 0
    matched: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    is_done: bool = False
    is_recounted: bool = False
    error: str = ""


class PartBeginning(NamedTuple):
    """The facts with which the owner of a shard begins its part."""

    as_of_ms: int
    to_key: int
    of_items: int


class PartAnswer(NamedTuple):
    """The answer to the report of a part."""

    part: BulkPart | None = None
    """The part as it is written; None without the job, or if another write came between."""
    is_running: bool = False
    granted_count: int = 0
    """Items of the wanted page that can be taken up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState:
    """The state of a bulk job: the sums of its parts. `foqs.model.jobs.Job` has the rest."""

    work: BulkWork
    examined: int = 0
    matched: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    error: str = ""
    of_items: int = 0
    waiting_shards: Sequence[int] = ()
    is_recounted: bool = False
    shards_done: int = 0
    shards: int = 0
    hides_texts: bool = False
    """True if the filter has texts that the caller cannot read."""


def bulk_job_id(random_bytes: bytes) -> str:
    """Return the id of a bulk job."""
    return f"bulk-{random_bytes.hex()}"


def is_bulk_job(job_id: object) -> bool:
    """Return True for the id of a bulk job."""
    return isinstance(job_id, str) and _ID.fullmatch(job_id) is not None


def check_bulk_id(job_id: object) -> str:
    """Return the id, or raise InvalidArgumentError."""
    if not is_bulk_job(job_id):
        raise InvalidArgumentError(
            f"job id {job_id!r:.80} is none of a bulk job: use bulk- and {2 * ID_BYTES} hex digits by chance"
        )
    assert isinstance(job_id, str)
    return job_id


def check_room(running: Sequence[int], number: int) -> None:
    """Raise OverloadedError if a job of this namespace cannot run beside those of `running` namespaces."""
    mine = running.count(number)
    for count, most, where in ((mine, RUNNING_PER_NAMESPACE_MAX, "the namespace"), (len(running), RUNNING_MAX, "all")):
        if count >= most:
            raise OverloadedError(
                f"{count} bulk jobs run in {where}, and the limit is {most}: nothing was done; wait until one has "
                "ended, or cancel one",
                retry_after_ms=RUN_RETRY_MS,
            )


def is_repeat(stored: BulkWork, wanted: BulkWork) -> bool:
    """Return True if a stored definition is that of a wanted job: an own time and the filter of an UNDO are made."""
    if stored.action is not wanted.action or stored.items_max != wanted.items_max or stored.undoes != wanted.undoes:
        return False
    if stored.action is BulkAction.UNDO:
        return True
    moved_ms = stored.deliver_after_ms - wanted.deliver_after_ms
    return stored.filter == wanted.filter and 0 <= moved_ms <= MOVED_MS_MAX


def taken(part: BulkPart, epoch: int, beginning: PartBeginning) -> BulkPart | None:
    """Return the part as the owner of this epoch continues it, or None if a later owner has it."""
    if part.epoch > epoch:
        return None
    part = replace(part, epoch=epoch, version=part.version + 1, error="")
    return part if part.as_of_ms else replace(part, **beginning._asdict())


def granted(work: BulkWork, parts: Iterable[BulkPart], wanted_count: int) -> int:
    """Return the number of items that can be taken up beside those that all parts have."""
    if not work.items_max:
        return wanted_count
    return max(0, min(wanted_count, work.items_max - sum([part.matched for part in parts])))


def with_page(part: BulkPart, keys: Sequence[int], page_to: int, granted_count: int) -> BulkPart:
    """Return a part with the next page in work: the first items of `keys`, and all keys up to `page_to` if all were."""
    taken_up = tuple(keys[:granted_count])
    if not taken_up:
        return part
    end = page_to if granted_count == len(keys) else taken_up[-1]
    later = without(part.later_keys, taken_up)
    return replace(part, page_to=end, page_keys=taken_up, later_keys=later, matched=part.matched + granted_count)


def without(keys: Sequence[int], others: Collection[int]) -> tuple[int, ...]:
    """Return the keys that are not among the others, in their order."""
    left_out = frozenset(others)
    return tuple(key for key in keys if key not in left_out)


def progress(part: BulkPart) -> BulkPart:
    """Return a part without its owner, its version and its error: two reports of the same work are equal."""
    return replace(part, epoch=0, version=0, error="")


def given_back(part: BulkPart, keys: Collection[int]) -> BulkPart:
    """Return a part that comes later to some items of its page, which were not changed."""
    later = tuple(sorted({*part.later_keys, *keys}))
    left = without(part.page_keys, keys)
    return replace(part, later_keys=later, page_keys=left, matched=part.matched - len(part.page_keys) + len(left))


def behind_page(part: BulkPart) -> BulkPart:
    """Return a part whose walk is behind the page in work; the page stays in work while items of it are in doubt."""
    page_to = max(part.page_keys, default=0)
    return replace(part, after_key=max(part.after_key, part.page_to), page_to=page_to)


def state_of(
    work: BulkWork, parts: Mapping[int, BulkPart], waiting: Iterable[int], error: str, *, is_over: bool
) -> BulkState:
    """Return the sums of all parts. `waiting` are the shards whose parts nobody works on."""
    errors = [f"shard {part.shard_id}: {part.error}" for part in parts.values() if part.error]
    names = ("examined", "matched", "done", "skipped", "failed", "of_items")
    sums = {name: sum([getattr(part, name) for part in parts.values()]) for name in names}
    return BulkState(
        work=work,
        **sums,
        error=error or ("" if is_over or not errors else errors[0]),
        waiting_shards=sorted(waiting),
        is_recounted=any(part.is_recounted for part in parts.values()),
        shards_done=sum(part.is_done for part in parts.values()),
        shards=len(parts),
    )


def without_texts(state: BulkState) -> BulkState:
    """Return a state without the texts of its filter, which are those of items."""
    hidden = state.work.filter.without_texts()
    if hidden == state.work.filter:
        return state
    return replace(state, work=replace(state.work, filter=hidden), hides_texts=True)


def too_many(work: BulkWork) -> str:
    """Return the reason why a job with items_max has paused."""
    return (
        f"more items match than items_max, which is {work.items_max}: all up to there are done; count anew, cancel "
        "this job, and make another one"
    )


def undoing(job_id: str, undone: BulkWork, now_ms: int) -> BulkWork:
    """Return the work of the UNDO of a job. Raises InvalidArgumentError if it cannot be undone any more."""
    until_ms = undone.deliver_after_ms
    if undone.action is not BulkAction.REDRIVE or not until_ms:
        raise InvalidArgumentError(
            f"job {job_id} cannot be undone: only a redrive with a deliver_after_ms can, until that time"
        )
    if until_ms <= now_ms:
        raise InvalidArgumentError(
            f"job {job_id} cannot be undone any more: its items are delivered since {now_ms - until_ms} ms"
        )
    return BulkWork(filter=ItemFilter(deliver_after_ms=until_ms), action=BulkAction.UNDO, undoes=job_id)


def parts_to_undo(parts: Mapping[int, BulkPart]) -> list[BulkPart]:
    """Return the parts of an UNDO: the keys that the redrive has come to, with the page in work."""
    return [
        BulkPart(
            shard_id=part.shard_id, as_of_ms=part.as_of_ms, to_key=max(part.after_key, part.page_to), of_items=part.done
        )
        for part in parts.values()
        if part.as_of_ms
    ]


def free_time(wanted_ms: int, used: Collection[int]) -> int:
    """Return the first time from `wanted_ms` on that is not used."""
    while wanted_ms in used:
        wanted_ms += 1
    return wanted_ms
