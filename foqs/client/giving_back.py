"""Gives back items whose callers no longer wait for them. No attempt is counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError
from foqs.wire import codec as wire

log = logging.getLogger("foqs.client")

LATE_MS_MAX = 5 * limits.SECOND_MS
"""Longest wait for a response after its caller has given up, in ms. The connection is not used for other calls."""
LATE_ON_CLOSE_MS_MAX = 1 * limits.SECOND_MS
"""Longest time that `close` of a client spends on such responses and on giving their items back, in ms."""
LATE_CONNECTIONS_MAX = 16
"""Most connections that stay open only for such responses."""


def release_late(terms: Terms, namespace: str, receipts: Sequence[str]) -> Flow[None]:
    """Give undelivered items back to the host. Failures are only logged, because the leases expire anyway."""
    try:
        try:
            response = yield from call_flow(terms, _nack(namespace, receipts, unseen=True))
        except InvalidArgumentError:  # An older host, which does not accept `unseen` from clients.
            response = yield from call_flow(terms, _nack(namespace, receipts, unseen=None))
    except FoqsError as error:
        log.warning("%d items that came too late were not released: %s", len(receipts), error)
        return
    if response.errors:
        first = next(iter(response.errors.values()))
        log.warning("%d items that came too late were not released: %s", len(response.errors), first.message)


def late_items(terms: Terms, namespace: str, response: Any) -> Flow[None] | None:
    """Return the flow for the late response of a dequeue, or None if it has no items."""
    receipts = [item.receipt for item in response.items or ()]
    return release_late(terms, namespace, receipts) if receipts else None


def end_wait(request: Any, seqid: int) -> Call:
    """Make the call that ends the wait of the dequeue with this seqid on the same connection."""
    request_to_end = wire.structs.EndWaitRequest(namespace_name=request.namespace_name, seqid=seqid)
    return Call("endWait", request_to_end, Repeat.READ)


def _nack(namespace: str, receipts: Sequence[str], *, unseen: bool | None) -> Call:
    nacks = [wire.structs.Nack(receipt=receipt, release=True, unseen=unseen) for receipt in receipts]
    return Call("nack", wire.structs.NackRequest(namespace_name=namespace, nacks=nacks), Repeat.UNLESS_UNKNOWN)
