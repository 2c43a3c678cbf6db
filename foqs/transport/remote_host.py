"""Another host of the cluster as this one sees it: the verbs of the contract, done there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import structlog

from foqs.background.tasks import Tasks
from foqs.contract import requests as of
from foqs.contract.verbs import VERBS
from foqs.model import calls, limits
from foqs.model.calls import CallContext, DeadLettersResult, EnqueueResult, PositionErrors
from foqs.model.errors import FoqsError, UnavailableError, error_for_code
from foqs.transport.peer_connection import PeerConnection

_log = structlog.get_logger(__name__)


class RemoteHost:
    """Implements what foqs.cluster.peers.peer_table.Peer asks, over the wire.

    Results are the decoded structs where they have the attributes of the classes of `foqs.model.calls`.
    """

    def __init__(
        self,
        host_id: str,
        connect: Callable[[], Any],
        calls_total: Counter[tuple[str, ...]],
        tasks: Tasks,
    ) -> None:
        """`connect` is a coroutine function that returns an open PeerConnection. Raises UnavailableError.

        `calls_total` counts verbs with their outcomes; `tasks` are those that give late items back.
        """
        self.host_id = host_id
        self._connect = connect
        self._calls_total = calls_total
        self._tasks = tasks

    async def call(self, context: CallContext, verb: str, request: Any) -> Any:
        """Have the verb done by that host. Raises UnavailableError if there is no response."""
        outcome, wait_ms, late = "unknown", 0, None
        if verb == "dequeue":
            wait_ms, late = request.wait_ms, partial(self._came_late, context, request.namespace_name)
        try:
            connection: PeerConnection = await self._connect()
            lane = crc32(context.caller.encode())
            response = await connection.call(verb, request, lane, limits.CALL_MS_MAX + wait_ms, late)
            outcome = "ok"
        except FoqsError as error:
            if not isinstance(error, UnavailableError):
                outcome = "refused"
            elif error.nothing_done:
                outcome = "not_done"
            raise
        finally:
            self._calls_total[verb, outcome] += 1
        read = _RESULTS.get(VERBS[verb].result)
        return response if read is None else read(self.host_id, request, response)

    def _came_late(self, context: CallContext, namespace_name: str, response: Any) -> None:
        """Nobody waits for these items any more: that host may give them to others."""
        if response.items:
            nacks = [of.Nack(item.receipt, release=True, unseen=True) for item in response.items]
            self._tasks.spawn(self._release_late(context, namespace_name, nacks), f"give-back-{self.host_id}")

    async def _release_late(self, context: CallContext, namespace_name: str, nacks: Sequence[of.Nack]) -> None:
        try:
            errors = await self.call(context, "nack", of.NackRequest(namespace_name, nacks))
        except FoqsError as error:
            errors = dict.fromkeys(range(len(nacks)), error)
        if errors:
            first = next(iter(errors.values()))
            _log.warning("pull_not_given_back", peer=self.host_id, count=len(errors), error=str(first))


def _errors(response: dict[int, Any] | None) -> PositionErrors:
    """Items that are wrong in the same way share one error, as they did there."""
    if not response:
        return {}
    known: dict[tuple[int, str], FoqsError] = {}
    errors: PositionErrors = {}
    for position, error in response.items():
        key = (error.code, error.message)
        if key not in known:
            known[key] = error_for_code(error.code, error.message or "", error.retry_after_ms, error.nothing_done)
        errors[position] = known[key]
    return errors


def _enqueue_result(host_id: str, request: of.EnqueueRequest, response: Any) -> EnqueueResult:
    items_count, duplicates = len(request.items), response.duplicates or []
    if len(response.ids) != items_count or any(not 0 <= position < items_count for position in duplicates):
        raise UnavailableError(
            f"host {host_id} responded for {len(response.ids)} items, and was sent {items_count}: their "
            "outcome is unknown, enqueue them again if they may be there twice"
        )
    return EnqueueResult(response.ids, _errors(response.errors), duplicates)


_RESULTS: dict[Any, Callable[[str, Any, Any], Any]] = {
    EnqueueResult: _enqueue_result,
    list[calls.Delivery]: lambda host_id, request, response: response.items,
    PositionErrors: lambda host_id, request, response: _errors(response.errors),
    DeadLettersResult: lambda host_id, request, response: DeadLettersResult(response.count, _errors(response.errors)),
}
"""How to read a response, by the type of the result; others are the result as they are."""
