"""The Thrift server: one listener, both services, framed strict binary Thrift."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from foqs.background.service import Service
from foqs.contract.verbs import Call
from foqs.model import limits
from foqs.model.audit import AuditNote
from foqs.transport.bounds import Identities, KnownNamespaces, TransportLimits, TransportMetrics
from foqs.transport.connection import Connection
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.listener import Listener
from foqs.transport.sign_ins import OpenAccess, SignIns
from foqs.transport.tls.handshakes import Handshakes
from foqs.transport.tls.layer import PortTls, TlsDoor, TlsLayer
from foqs.transport.unframed import answer_without_tls
from foqs.transport.verb_table import Check, Verbs, request_ids
from foqs.wire.codec import Codec

FILES_BESIDE_CONNECTIONS = 1_024
"""Open files reserved for a host's databases and its log, out of those that the system allows."""

_log = structlog.get_logger(__name__)


def allowed_connections(wanted: int) -> int:
    """Return the part of `wanted` that fits the bound on open files, raising the process's own bound if possible.

    A listener without free files could neither accept connections nor turn them away.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, wanted + FILES_BESIDE_CONNECTIONS)
    files = max(soft, min(hard, wanted + FILES_BESIDE_CONNECTIONS))
    if files > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return max(1, min(wanted, files - FILES_BESIDE_CONNECTIONS))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ThriftServer(Service):
    """Serves the verbs that `call` does on a TCP port; `address` and `port` as in `bind`, port 0 takes a free one.

    Runs on uvloop or the standard event loop, within which every call is a task of its own: calls of one connection run
    side by side and are answered as they finish (see `Connection`). A call whose connection is lost is cancelled, so
    that a waiting dequeue takes nothing for a lost client.
    """

    def __init__(
        self,
        call: Call,
        *,
        address: str,
        port: int,
        namespaces: KnownNamespaces,
        metrics: TransportMetrics,
        is_living_peer: Callable[[str, str], bool] | None = None,
        identities: Identities | None = None,
        check: Check | None = None,
        wall_ms: Callable[[], int] = _wall_ms,
        note_refusal: Callable[[AuditNote], None] = lambda note: None,
        tokens_without_tls: bool = False,
        tls: PortTls | None = None,
        bounds: TransportLimits | None = None,
    ) -> None:
        """Calls are scheduled by the namespaces that this host knows: see FairScheduler.

        Without `identities` it knows no principal and is open to everybody, as a host whose access is open. `check`
        raises PermissionDeniedError as `call` does. `tokens_without_tls` takes tokens over plain connections, too. All
        connections are plain without `tls`. `note_refusal` takes each refused sign-in, for the audit.

        `is_living_peer` is true of a host that may still call as one of the cluster, once it has proven to be one by
        the secret with this id.
        """
        super().__init__("thrift-server")
        self._call = call
        self._address = address
        self._port = port
        self._namespaces = namespaces
        self._is_living_peer = is_living_peer or (lambda host_id, secret_id: False)
        self._metrics = metrics
        self._identities: Identities = identities or OpenAccess()
        self._check = check
        self._wall_ms = wall_ms
        self._note_refusal = note_refusal
        self._tokens_without_tls = tokens_without_tls
        self._tls = tls
        self._handshakes: Handshakes | None = None
        self._bounds = bounds or TransportLimits()
        self._table: ConnectionTable | None = None
        self._listener: Listener | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The bound port; the requested one before `start`."""
        return self._port

    @property
    def handshakes_waiting(self) -> int:
        """TLS handshakes that wait for their turn."""
        return 0 if self._handshakes is None else self._handshakes.waiting_count

    async def _start(self) -> None:
        codec = Codec()
        bounds = self._bounds
        allowed = allowed_connections(bounds.connections_max)
        if allowed < bounds.connections_max:
            _log.warning("connections_max_lowered", connections_max=bounds.connections_max, allowed=allowed)
            bounds = replace(bounds, connections_max=allowed)
        verbs = Verbs(self._call, self._is_living_peer, codec, request_ids(self._wall_ms()), self._check)
        sign_ins = SignIns(
            self._identities,
            self._wall_ms,
            asyncio.get_running_loop().time,
            bounds,
            tokens_without_tls=self._tokens_without_tls,
            note_refusal=self._note_refusal,
        )
        self._table = table = ConnectionTable(verbs, codec, self._metrics, bounds, self._namespaces, sign_ins)
        self._listener = Listener(table.loop, self._connections_of(table), table.turns_away)
        self._port = await self._listener.open(self._address, self._port)
        self._sweep_later(table)

    def _connections_of(self, table: ConnectionTable) -> Callable[[], asyncio.Protocol]:
        """Return the maker of the protocol of an accepted socket."""
        if self._tls is None:
            return lambda: Connection(table)
        self._handshakes = handshakes = Handshakes(table.loop, time.perf_counter)
        answer_plain = partial(answer_without_tls, table.codec) if self._tls.is_required else None
        door = TlsDoor(handshakes, self._tls.context, answer_plain, self._metrics.handshake_ended)
        return lambda: TlsLayer(Connection(table), door)

    async def _drain(self) -> None:
        """Refuse new calls with OVERLOADED, finish those in flight, send their answers, and part from the clients."""
        table, listener = self._table, self._listener
        assert table is not None
        assert listener is not None
        table.calls.draining = True
        listener.close()
        await listener.wait_closed()
        deadline = table.loop.time() + self._bounds.drain_ms_max / 1000
        await self._finish_calls(table, deadline)
        await self._part(table, deadline)
        if table.connections:
            _log.warning("connections_left_behind", count=len(table.connections))

    async def _finish_calls(self, table: ConnectionTable, deadline_s: float) -> None:
        """Return when no call waits or runs any more, or at the deadline."""
        while any(connection.calls.count for connection in table.connections):
            left_s = deadline_s - table.loop.time()
            if left_s <= 0:
                return
            if tasks := [task for connection in table.connections for task in connection.calls.tasks()]:
                await asyncio.wait(tasks, timeout=left_s)
            else:
                await asyncio.sleep(limits.CHORE_PAUSE_MS / 1000)

    async def _part(self, table: ConnectionTable, deadline_s: float) -> None:
        """Close each connection on which no call came for `part_ms`; return when all are closed, or at the deadline.

        A call that arrives on a connection just closed has an unknown outcome, though nothing was done. So a client
        that still sends is refused until it changes to another host by itself.
        """
        while table.connections and (left_s := deadline_s - table.loop.time()) > 0:
            refused_counts = {connection: connection.calls.refused_count for connection in table.connections}
            with suppress(TimeoutError):
                await asyncio.wait_for(table.empty.wait(), min(left_s, self._bounds.part_ms / 1000))
            for connection, refused_count in refused_counts.items():
                if not connection.calls.count and connection.calls.refused_count == refused_count:
                    connection.close()
        for connection in list(table.connections):
            connection.close()

    async def _stop(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        if self._table is not None:
            await self._abort_connections(self._table)

    async def _abort_connections(self, table: ConnectionTable) -> None:
        for connection in list(table.connections):
            connection.abort()
        bound_s = limits.CALL_CANCEL_MS_MAX / 1000
        if table.calls.cancelled:
            _, running = await asyncio.wait(list(table.calls.cancelled), timeout=bound_s)
            for call in running:
                _log.error("cancelled_call_not_ended", method=call.get_name())
        await asyncio.wait_for(table.empty.wait(), bound_s)

    def _sweep_later(self, table: ConnectionTable) -> None:
        self._sweep_timer = table.loop.call_later(self._bounds.sweep_ms / 1000, self._sweep, table, None)

    def _sweep(self, table: ConnectionTable, begun: Iterator[None] | None) -> None:
        sweep = table.sweep() if begun is None else begun
        goes_on = False
        try:
            goes_on = next(sweep, sweep) is None
        finally:  # The next sweep must come even after an error.
            if goes_on:
                pause_s = limits.CHORE_PAUSE_MS / 1000
                self._sweep_timer = table.loop.call_later(pause_s, self._sweep, table, sweep)
            else:
                self._sweep_later(table)
