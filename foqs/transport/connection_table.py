"""The connections of one server: their admission, their shared state, and their refusal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import structlog

from foqs.model import limits
from foqs.model.errors import ErrorCode
from foqs.model.peer_proof import PeerRefusedError
from foqs.transport.bounds import KnownNamespaces, TransportLimits, TransportMetrics
from foqs.transport.call_table import ServerCalls
from foqs.transport.entrance import Entrance
from foqs.transport.fair_scheduler import FairScheduler
from foqs.transport.partial_frames import PartialFrames
from foqs.transport.sign_ins import REFUSALS, SIGN_IN_CALLS
from foqs.transport.verb_table import Verbs
from foqs.wire.codec import Codec

if TYPE_CHECKING:
    from foqs.transport.connection import Connection

CONNECTIONS_PER_SWEEP_TURN = 100
"""Connections that one turn of the event loop checks. One that has to be closed counts as ten."""
HANG_UPS_PER_TURN_MAX = 5
"""Connections that one turn closes for breaches of the protocol."""

_log = structlog.get_logger(__name__)

_LOGGED_ERRORS_PER_SWEEP = 10
_COUNTED_ONLY = frozenset({REFUSALS, SIGN_IN_CALLS})
"""Breaches of callers that were refused before, whose tokens were logged then."""


class ConnectionTable:
    """The connections of a server, and their shared state. The server and its connections use it, on one event loop.

    It admits connections, holds them to their deadlines, and counts for metrics and the log. State shared by calls is
    in `calls`.
    """

    def __init__(
        self,
        verbs: Verbs,
        codec: Codec,
        metrics: TransportMetrics,
        bounds: TransportLimits,
        namespaces: KnownNamespaces,
        entrances: Sequence[Entrance],
    ) -> None:
        """Connections that name no entrance come through the first one."""
        self.loop = asyncio.get_running_loop()
        self.codec = codec
        self.metrics = metrics
        self.limits = bounds
        self.namespaces = namespaces
        self.connections: dict[Connection, None] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.scheduler = FairScheduler(self.loop, bounds.scheduling, perf_counter)
        self.entrances = entrances
        self.calls = ServerCalls(self.loop, self.scheduler, verbs, codec, metrics, bounds)
        self.partial_frames = PartialFrames(
            self.connections.keys(), bounds.partial_frame_bytes_max, bounds.partial_frame_bytes_per_address_max
        )
        self._to_hang_up: deque[Connection] = deque()
        self._errors_unlogged = 0
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP

    # --- admission ---

    def turns_away(self, entrance: Entrance, address: str) -> bool:
        """True if too many connections came through this entrance, in all or from this address, for one more."""
        if not (reason := entrance.too_many(address)):
            return False
        self.metrics.connection_refused(reason)
        self._log_refusal(address, reason, "too many connections")
        return True

    def admit(self, connection: Connection) -> bool:
        """Admit a new connection unless it is turned away."""
        if self.turns_away(connection.entrance, connection.address):
            return False
        self.connections[connection] = None
        connection.entrance.enter(connection.address)
        self.empty.clear()
        self.metrics.connection_opened()
        return True

    def leave(self, connection: Connection) -> None:
        """Remove an admitted connection that is lost."""
        del self.connections[connection]
        connection.entrance.leave(connection.address)
        if not self.connections:
            self.empty.set()
        self.metrics.connection_closed()

    # --- refusal ---

    def protocol_error(self, connection: Connection, reason: str, detail: str) -> None:
        """Count a breach of the protocol and log it, a few per sweep and never with the payload."""
        self.metrics.protocol_error(reason)
        if reason in _COUNTED_ONLY:
            self._errors_unlogged += 1
        else:
            self._log_refusal(connection.address, reason, detail)

    def peer_refused(self, connection: Connection, refusal: PeerRefusedError) -> None:
        """Count a caller that falsely claimed to be a host of the cluster, and log it, a few per sweep."""
        self.metrics.protocol_error("peer_refused")
        connection.entrance.sign_ins.refused(
            connection.address, f"{ErrorCode.PERMISSION_DENIED.name}, host: {refusal.reason}"
        )
        self._log_refusal(connection.address, refusal.reason, refusal.message, is_peer=True)

    def hang_up_soon(self, connection: Connection) -> None:
        """Close the connection soon, a few per turn, because thousands can break the protocol in one moment."""
        self._to_hang_up.append(connection)
        if len(self._to_hang_up) == 1:
            self.loop.call_soon(self._hang_up)

    def _hang_up(self) -> None:
        connections = [self._to_hang_up.popleft() for _ in range(min(HANG_UPS_PER_TURN_MAX, len(self._to_hang_up)))]
        if self._to_hang_up:
            self.loop.call_later(limits.CHORE_PAUSE_MS / 1000, self._hang_up)
        for connection in connections:
            connection.close()

    def sweep(self) -> Iterator[None]:
        """Hold every connection to its deadlines, and all together to the bound on unsent responses.

        Yields where the rest should wait for another turn of the event loop.
        """
        now = self.loop.time()
        unsent: list[tuple[int, Connection]] = []
        checks = 0
        for connection in list(self.connections):
            if checks >= CONNECTIONS_PER_SWEEP_TURN:
                yield
                checks, now = 0, self.loop.time()
            if connection not in self.connections:
                continue
            if waiting := connection.unsent_bytes():
                unsent.append((waiting, connection))
            checks += 1 if connection.check(now) else 10
        excess = sum(size for size, _ in unsent) - self.limits.unsent_bytes_max
        if excess > 0:
            for size, connection in sorted(unsent, key=lambda entry: entry[0], reverse=True):
                connection.refuse("unsent_bytes_max", "too many bytes of responses not taken in the host")
                excess -= size
                if excess <= 0:
                    break
        for entrance in self.entrances:
            entrance.sign_ins.end_second()
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP
        if self._errors_unlogged:
            _log.warning("further_connections_refused", count=self._errors_unlogged)
            self._errors_unlogged = 0

    def _log_refusal(self, address: str, reason: str, detail: str, *, is_peer: bool = False) -> None:
        if self._errors_to_log > 0:
            self._errors_to_log -= 1
            _log.warning(
                "peer_refused" if is_peer else "connection_refused", address=address, reason=reason, detail=detail
            )
        else:
            self._errors_unlogged += 1
