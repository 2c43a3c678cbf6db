"""Peers whose calls fail only with FoqsError, even after a defect.

The errors of calls to other hosts are judged in many places, each of which knows the errors of the contract. An
exception of any other kind would pass them all, and fail a call that this host could have done without that peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import structlog

from foqs.cluster.routing.peer_table import Peer, PeerTable
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.outage import Outage

_log = structlog.get_logger(__name__)


_REASON_SHOWN_MAX = 200


class GuardedPeers:
    """Implements foqs.cluster.routing.peer_table.PeerTable on another one. It owns the record of the defects that were
    logged.
    """

    def __init__(self, peers: PeerTable, now_s: Callable[[], float]) -> None:
        """`now_s` is a monotonic clock."""
        self._peers = peers
        self._defects = Outage(now_s)

    def get(self, host_id: str, address: str) -> Peer:
        return cast(Peer, _GuardedPeer(self._peers.get(host_id, address), self._failed))

    def keep(self, host_ids: set[str]) -> None:
        self._peers.keep(host_ids)

    @property
    def calls_total(self) -> Mapping[tuple[str, ...], int]:
        return self._peers.calls_total

    def states(self) -> Mapping[str, int]:
        return self._peers.states()

    async def stop(self) -> None:
        await self._peers.stop()

    def _failed(self, host_id: str, verb: str, cause: Exception) -> UnavailableError:
        """Return the error of a call whose outcome is unknown."""
        reason = f"{type(cause).__name__}: {cause}"[:_REASON_SHOWN_MAX]
        if self._defects.is_to_be_told(f"{host_id} {verb} {type(cause).__name__}"):
            _log.error("peer_call_failed", peer=host_id, verb=verb, error=reason, exc_info=cause)
        return UnavailableError(f"the call {verb} to host {host_id} has failed ({reason})")


class _GuardedPeer:
    """Implements foqs.cluster.routing.peer_table.Peer: each verb calls the same one of the peer behind it."""

    __slots__ = ("_failed", "_peer", "host_id")

    def __init__(self, peer: Peer, failed: Callable[[str, str, Exception], UnavailableError]) -> None:
        self._peer = peer
        self._failed = failed
        self.host_id = peer.host_id

    async def call(self, context: CallContext, verb: str, request: Any) -> Any:
        try:
            return await self._peer.call(context, verb, request)
        except FoqsError:
            raise
        except Exception as cause:
            raise self._failed(self.host_id, verb, cause) from cause

    def __getattr__(self, message: str) -> Callable[..., Awaitable[Any]]:
        tell: Callable[..., Awaitable[Any]] = getattr(self._peer, message)

        async def guarded(*arguments: Any) -> Any:
            try:
                return await tell(*arguments)
            except FoqsError:
                raise
            except Exception as cause:
                raise self._failed(self.host_id, message, cause) from cause

        return guarded
