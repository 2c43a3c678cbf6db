"""What is left out of a settlement that the host refuses: otherwise the item would come back at once.

A namespace may allow less than the service: shorter delays, less metadata, and both may change while a worker runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.items import Nack
from foqs.client.leases import BaseLeasedItem
from foqs.client.retry import Repeat
from foqs.client.settling import log
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError
from foqs.wire import codec as wire

NackLimits = tuple[int, int]
"""The longest delay in milliseconds, and the most bytes of metadata."""
NOTHING_ALLOWED: NackLimits = (0, -1)
"""What certainly is refused nowhere."""


def nack_limits(terms: Terms, namespace: str) -> Flow[NackLimits]:
    """Return what the namespace allows; nothing if nobody tells."""
    request = wire.structs.GetNamespaceRequest(name=namespace)
    try:
        found = yield from call_flow(terms, Call("getNamespace", request, Repeat.READ))
    except FoqsError:
        return NOTHING_ALLOWED
    return found.settings.delay_ms_max, found.settings.metadata_bytes_max


def refused_places(outcome: PositionErrors | Exception, count: int) -> list[int]:
    """Return the positions of a batch that fail again however often they are sent as they are."""
    errors = outcome if isinstance(outcome, dict) else dict.fromkeys(range(count), outcome)
    return [place for place, error in sorted(errors.items()) if isinstance(error, InvalidArgumentError | TooLargeError)]


def amended(item: BaseLeasedItem, nack: Nack, allowed: NackLimits, error: object) -> Nack:
    """Return the nack within these limits, and log what is left out of it. One that is within them stays as it is."""
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
    log.warning("item %s of topic %s is given back %s: %s", item.id, item.topic, " and ".join(left_out), error)
    return Nack(nack.receipt, delay_ms, metadata, nack.release, nack.dead_letter)


def _bytes_of(metadata: Any) -> float:
    """How long metadata is; more than anything where it cannot be read any more, such as a view that was released."""
    try:
        return memoryview(metadata).nbytes
    except (TypeError, ValueError):
        return inf


def merged(
    outcome: PositionErrors | Exception, places: Sequence[int], again: PositionErrors | Exception
) -> PositionErrors | Exception:
    """Return the outcome of a batch of which some places, or all of them, were sent again."""
    if not isinstance(outcome, dict):
        return again  # It failed as a whole, and so all of it was sent again.
    errors: dict[int, Any] = {place: error for place, error in outcome.items() if place not in places}
    for at, place in enumerate(places):
        error = again.get(at) if isinstance(again, dict) else again
        if error is not None:
            errors[place] = error
    return errors
