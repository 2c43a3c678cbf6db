"""The Thrift server: one port or two, all services, framed strict binary Thrift."""

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
from foqs.transport.entrance import CallersOf, Entrance
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


def _fitting(bounds: TransportLimits, *, has_peer_port: bool) -> TransportLimits:
    """Return the bounds with as many connections as the process is allowed; at most a quarter are for hosts."""
    for_hosts = bounds.peer_connections_max if has_peer_port else 0
    wanted = bounds.connections_max + for_hosts
    allowed = allowed_connections(wanted)
    if allowed == wanted:
        return bounds
    for_hosts = min(for_hosts, max(1, allowed // 4))
    for_clients = max(1, min(bounds.connections_max, allowed - for_hosts))
    _log.warning("connections_max_lowered", connections_max=bounds.connections_max, allowed=for_clients)
    return replace(bounds, connections_max=for_clients, peer_connections_max=for_hosts)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ThriftServer(Service):
    """Serves the verbs that `call` does on TCP ports; `address` and `port` as in `bind`, port 0 takes a free one.

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
        peer_port: int | None = None,
        peer_tls: PortTls | None = None,
        has_older_hosts: Callable[[], bool] = lambda: False,
    ) -> None:
        """Calls are scheduled by the namespaces that this host knows: see FairScheduler.

        Without `identities` it knows no principal and is open to everybody, as a host whose access is open. `check`
        raises PermissionDeniedError as `call` does. `tokens_without_tls` takes tokens over plain connections, too. All
        connections are plain without `tls`. `note_refusal` takes each refused sign-in, for the audit.

        `is_living_peer` is true of a host that may still call as one of the cluster, once it has proven to be one by
        the secret with this id.

        With a `peer_port`, hosts call that one, by `peer_tls`, and nobody else is served there. Then the verbs between
        hosts are unknown on `port`, but while `has_older_hosts` is true, for hosts that know no other port.
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
        self._peer_port = peer_port
        self._peer_tls = peer_tls
        self._has_older_hosts = has_older_hosts
        self._handshakes: list[Handshakes] = []
        """One for each port with TLS."""
        self._bounds = bounds or TransportLimits()
        self._table: ConnectionTable | None = None
        self._listeners: list[Listener] = []
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The bound port; the requested one before `start`."""
        return self._port

    @property
    def peer_port(self) -> int | None:
        """The same for the port of hosts; None if they use the other one."""
        return self._peer_port

    @property
    def handshakes_waiting(self) -> int:
        """TLS handshakes that wait for their turn."""
        return sum(handshakes.waiting_count for handshakes in self._handshakes)

    async def _start(self) -> None:
        codec = Codec()
        bounds = _fitting(self._bounds, has_peer_port=self._peer_port is not None)
        verbs = Verbs(self._call, self._is_living_peer, codec, request_ids(self._wall_ms()), self._check)
        callers = [CallersOf.EVERYBODY] if self._peer_port is None else [CallersOf.CLIENTS, CallersOf.HOSTS]
        entrances = [self._entrance_of(some, bounds) for some in callers]
        self._table = table = ConnectionTable(verbs, codec, self._metrics, bounds, self._namespaces, entrances)
        for entrance, tls in zip(entrances, (self._tls, self._peer_tls), strict=False):
            turns_away = partial(table.turns_away, entrance)
            self._listeners.append(Listener(table.loop, self._connections_of(table, entrance, tls), turns_away))
        self._port = await self._listeners[0].open(self._address, self._port)
        if self._peer_port is not None:
            self._peer_port = await self._listeners[1].open(self._address, self._peer_port)
        self._sweep_later(table)

    def _entrance_of(self, callers: CallersOf, bounds: TransportLimits) -> Entrance:
        now_s, is_for_hosts = asyncio.get_running_loop().time, callers is CallersOf.HOSTS
        sign_ins = SignIns(
            self._identities, self._wall_ms, now_s, bounds,
            tokens_without_tls=self._tokens_without_tls, is_for_hosts=is_for_hosts, note_refusal=self._note_refusal,
        )  # fmt: skip
        return Entrance(bounds, sign_ins, callers, self._has_older_hosts)

    def _connections_of(
        self, table: ConnectionTable, entrance: Entrance, tls: PortTls | None
    ) -> Callable[[], asyncio.Protocol]:
        """Return the maker of the protocol of an accepted socket."""
        if tls is None:
            return lambda: Connection(table, entrance)
        handshakes = Handshakes(table.loop, time.perf_counter)
        self._handshakes.append(handshakes)
        answer_plain = partial(answer_without_tls, table.codec) if tls.is_required else None
        door = TlsDoor(handshakes, tls.context, answer_plain, self._metrics.handshake_ended)
        return lambda: TlsLayer(Connection(table, entrance), door)

    async def _close_listeners(self) -> None:
        """Accept no more connections, and wait until accepted sockets are connections."""
        for listener in self._listeners:
            listener.close()
        for listener in self._listeners:
            await listener.wait_closed()

    async def _drain(self) -> None:
        """Refuse new calls with OVERLOADED, finish those in flight, send their answers, and part from the clients."""
        table = self._table
        assert table is not None
        table.calls.draining = True
        await self._close_listeners()
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
        await self._close_listeners()
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
