"""Enqueue of encoded items. It returns only counts, because a bulk load does not keep the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.client.encoded import Bytes, EncodedItems
from foqs.client.entries import Verb, batch_flow
from foqs.client.flows import Call, Flow, Terms
from foqs.client.retry import Repeat
from foqs.model.calls import PositionErrors
from foqs.model.errors import InternalError
from foqs.wire import codec as wire


@dataclass(slots=True)
class EncodedResult:
    """Outcome of one enqueue: the number of items stored now, how many of these existed before, and the errors."""

    stored_count: int = 0
    duplicates_count: int = 0
    errors: PositionErrors = field(default_factory=dict)


def enqueue_encoded(
    terms: Terms, namespace: str, items: EncodedItems, job_id: str | None = None
) -> Flow[EncodedResult]:
    """Enqueue up to one batch on the bulk lane, and repeat the positions that allow it.

    It repeats after an unknown outcome as well: an item with a dedup id is then stored once, any other item possibly
    twice.
    """
    result = EncodedResult()

    def make_call(pending: Sequence[Bytes], repeated: bool) -> Call:
        encoded = pending if isinstance(pending, EncodedItems) else EncodedItems.of(pending)
        request = wire.structs.EnqueueRequest(namespace_name=namespace, bulk=True, job_id=job_id)
        return Call("enqueue", request, Repeat.ALWAYS, encoded=encoded)

    def take(response: Any, places: Sequence[int]) -> Mapping[int, Any] | None:
        ids = response.ids or ()
        if len(ids) != len(places):
            raise InternalError(f"the host answered {len(ids)} ids for {len(places)} items")
        result.stored_count += len(ids) - ids.count("")
        result.duplicates_count += len(response.duplicates or ())
        return response.errors  # type: ignore[no-any-return]

    result.errors = yield from batch_flow(terms, Verb(make_call, take), items)
    return result
