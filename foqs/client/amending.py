"""Reduction of settlements that the host refuses; without it the items would be redelivered at once.

A namespace can have lower limits than the service for delays and metadata, and its limits can change while a worker
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.leases import BaseLeasedItem
from foqs.client.queue_items import Nack
from foqs.client.retry import Repeat
from foqs.client.settling import log
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError
from foqs.wire import codec as wire

NackLimits = tuple[int, int]
"""Longest delay in milliseconds, and most bytes of metadata."""
NOTHING_ALLOWED: NackLimits = (0, -1)
"""Limits within which no host refuses a nack."""


def nack_limits(terms: Terms, namespace: str) -> Flow[NackLimits]:
    """Return the limits of the namespace, or NOTHING_ALLOWED if they are unavailable."""
    request = wire.structs.GetNamespaceRequest(name=namespace)
    try:
        found = yield from call_flow(terms, Call("getNamespace", request, Repeat.READ))
    except FoqsError:
        return NOTHING_ALLOWED
    return found.settings.delay_ms_max, found.settings.metadata_bytes_max


def refused_places(outcome: PositionErrors | Exception, count: int) -> list[int]:
    """Return the positions of a batch that would be refused again if they were sent unchanged."""
    errors = outcome if isinstance(outcome, dict) else dict.fromkeys(range(count), outcome)
    return [place for place, error in sorted(errors.items()) if isinstance(error, InvalidArgumentError | TooLargeError)]


def amended(item: BaseLeasedItem, nack: Nack, allowed: NackLimits, error: object) -> Nack:
    """Return the nack reduced to these limits, and log the parts left out. A nack within the limits is unchanged."""
    delay_ms_max, metadata_bytes_max = allowed
    left_out = []
    delay_ms, metadata = nack.delay_ms, nack.metadata
    if delay_ms > delay_ms_max:
        left_out.append(f"delayed by {delay_ms_max} ms instead of {delay_ms} ms")
        delay_ms = delay_ms_max
    if metadata is not None and (size := _bytes_of(metadata)) > metadata_bytes_max:
        left_out.append("without its new metadata" + (f" of {size} bytes" if size < inf else ", which is gone"))
        metadata = None
    if not left_out:
        return nack
    log.warning("item %s of topic %s is returned %s: %s", item.id, item.topic, " and ".join(left_out), error)
    return Nack(nack.receipt, delay_ms, metadata, nack.release, nack.dead_letter, nack.reason)


def _bytes_of(metadata: Any) -> float:
    """Return the size of metadata in bytes, or infinity if it is unreadable, such as a released memoryview."""
    try:
        return memoryview(metadata).nbytes
    except (TypeError, ValueError):
        return inf


def merged(
    outcome: PositionErrors | Exception, places: Sequence[int], again: PositionErrors | Exception
) -> PositionErrors | Exception:
    """Return the outcome of a batch after some or all of its places were sent again."""
    if not isinstance(outcome, dict):
        return again  # The batch failed as a whole, so all of it was sent again.
    errors: dict[int, Any] = {place: error for place, error in outcome.items() if place not in places}
    for at, place in enumerate(places):
        error = again.get(at) if isinstance(again, dict) else again
        if error is not None:
            errors[place] = error
    return errors
