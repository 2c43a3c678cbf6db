"""What becomes of items that nobody waits for any more: they are given back, and count as if they had never come."""

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
"""How long the response of a call is waited for whose caller has given up, on a connection that is used no more."""
LATE_ON_CLOSE_MS_MAX = 1 * limits.SECOND_MS
"""How long a client that is being closed waits for such responses, and until their items are given back."""
LATE_CONNECTIONS_MAX = 16
"""The most connections that stay open for such responses alone."""


def give_back(terms: Terms, namespace: str, receipts: Sequence[str]) -> Flow[None]:
    """Give deliveries back that have reached nobody. What fails is logged: their leases end by themselves."""
    try:
        try:
            response = yield from call_flow(terms, _nack(namespace, receipts, unseen=True))
        except InvalidArgumentError:  # An older host, which does not know `unseen` from clients.
            response = yield from call_flow(terms, _nack(namespace, receipts, unseen=None))
    except FoqsError as error:
        log.warning("%d items that came too late were not given back: %s", len(receipts), error)
        return
    if response.errors:
        first = next(iter(response.errors.values()))
        log.warning("%d items that came too late were not given back: %s", len(response.errors), first.message)


def late_items(terms: Terms, namespace: str, response: Any) -> Flow[None] | None:
    """Return what is to be done about the late response of a dequeue; None if it has no items."""
    receipts = [item.receipt for item in response.items or ()]
    return give_back(terms, namespace, receipts) if receipts else None


def end_wait(request: Any, seqid: int) -> Call:
    """Make the call that ends the wait of the dequeue that was sent with this seqid on the same connection."""
    told = wire.structs.EndWaitRequest(namespace_name=request.namespace_name, seqid=seqid)
    return Call("endWait", told, Repeat.READ)


def _nack(namespace: str, receipts: Sequence[str], *, unseen: bool | None) -> Call:
    nacks = [wire.structs.Nack(receipt=receipt, release=True, unseen=unseen) for receipt in receipts]
    return Call("nack", wire.structs.NackRequest(namespace_name=namespace, nacks=nacks), Repeat.UNLESS_UNKNOWN)
