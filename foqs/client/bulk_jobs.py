"""Bulk jobs on the wire: filters and definitions to requests, and the state of a job from responses."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from foqs.model.bulk_work import ID_BYTES, BulkAction, BulkState, BulkWork, bulk_job_id
from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.model.item_filter import EVERYTHING, ItemFilter
from foqs.wire import codec as wire


def new_bulk_job_id() -> str:
    """Return an id for a bulk job, by chance."""
    return bulk_job_id(os.urandom(ID_BYTES))


def bulk_request(
    namespace: str, job_id: str, work: BulkWork, items_per_second_max: int, detail: str, *, all_items: bool = False
) -> Any:
    """Return the request of a bulk job; an empty id stands for a new one."""
    if not isinstance(work.filter, ItemFilter):
        raise InvalidArgumentError(f"filter {work.filter!r:.80} is no ItemFilter")
    return wire.structs.CreateBulkJobRequest(
        namespace_name=namespace,
        id=job_id or new_bulk_job_id(),
        items_per_second_max=items_per_second_max,
        detail=detail,
        bulk=wire.structs.BulkWork(
            filter=_wire_filter(work.filter),
            action=int(work.action),
            deliver_after_ms=work.deliver_after_ms or None,
            items_max=work.items_max or None,
            undoes=work.undoes or None,
            all_items=all_items or None,
        ),
    )


def _wire_filter(chosen: ItemFilter) -> Any:
    given = {field.name: getattr(chosen, field.name) for field in fields(ItemFilter)}
    set_ = {name: value for name, value in given.items() if value != getattr(EVERYTHING, name)}
    return wire.structs.ItemFilter(
        **{name: list(value) if isinstance(value, tuple) else value for name, value in set_.items()}
    )


def bulk_state(w: Any) -> BulkState:
    """Return the state of a bulk job from the wire. Unknown conditions and actions of a newer host are left out."""
    values = {field.name: getattr(w, field.name) for field in fields(BulkState)}
    known = {name: value for name, value in values.items() if value is not None}
    known["waiting_shards"] = list(w.waiting_shards or ())
    return BulkState(**{**known, "work": _work(w.work)})


def _work(w: Any) -> BulkWork:
    if w is None:
        return BulkWork()
    return BulkWork(
        filter=_filter(w.filter),
        action=BulkAction(w.action) if w.action in frozenset(BulkAction) else BulkAction.COUNT,
        deliver_after_ms=w.deliver_after_ms or 0,
        items_max=w.items_max or 0,
        undoes=w.undoes or "",
    )


def _filter(w: Any) -> ItemFilter:
    if w is None:
        return EVERYTHING
    values = {field.name: getattr(w, field.name) for field in fields(ItemFilter)}
    known = {name: value for name, value in values.items() if value is not None}
    for name in ("topics", "ids"):
        known[name] = tuple(known.get(name, ()))
    known["states"] = tuple(ItemState(one) for one in known.get("states", ()) if one in frozenset(ItemState))
    return ItemFilter(**known)
