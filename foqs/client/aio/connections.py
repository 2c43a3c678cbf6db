"""Connections for asyncio: many calls in flight on few connections, with responses matched to calls by seqid."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

from foqs.client.addresses import Address, AddressBook
from foqs.client.aio.late import AsyncLateAnswers
from foqs.client.client_errors import ClientClosedError, NotSentError, OutcomeUnknownError, check_process
from foqs.client.client_options import IDLE_REUSE_MS_MAX, OWNER_CONNECT_MS_MAX, Options, wall_ms
from foqs.client.dialogue import (
    BrokenDialogueError,
    Dialogue,
    FrameReader,
    SpeaksTlsError,
    leaves_connection_usable,
    outcome_of,
)
from foqs.client.flows import Call, Send, no_answer
from foqs.client.giving_back import LATE_MS_MAX, end_wait
from foqs.client.own_token import not_signed_in, renew_at_ms
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, OverloadedError, PermissionDeniedError, UnavailableError
from foqs.wire import codec as wire

CALLS_IN_FLIGHT_MAX = limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX
KEPT_SLOTS = 8
"""Call slots of each connection that are reserved for calls that do not wait for items."""


class AsyncClientConnection(asyncio.Protocol):
    """One socket with up to CALLS_IN_FLIGHT_MAX calls in flight; its `AsyncConnectionPool` opens and closes it.

    A timed-out call retires the connection: no new call is sent on it, and the other calls still get their responses.
    The host is asked to end the wait of a call whose caller gave up. Items of a late response, recognized by its seqid,
    are given back. Anything but a response to a call closes the connection at once.
    """

    def __init__(self, options: Options, address: Address, late: AsyncLateAnswers) -> None:
        self.address = address
        self._late = late
        self._takes: dict[int, Call] = {}
        """Calls with waiting callers whose responses must not be dropped."""
        self._given_up: dict[int, Call] = {}
        """Such calls whose callers have given up."""
        self._lingers: asyncio.TimerHandle | None = None
        """Set while the connection is open only for late responses: the timer that closes it."""
        self._clock_ms = options.clock_ms
        self._tls = options.tls
        self._is_answered = False
        """True once the host has answered a call."""
        self._dialogue = Dialogue()
        self._reader = FrameReader()
        self._waiting: dict[int, asyncio.Future[wire.Reply] | None] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._used_at_ms = options.clock_ms()
        self._renew_at_ms = math.inf
        self._retired = False
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()

    @property
    def in_flight_count(self) -> int:
        return len(self._waiting)

    @property
    def usable(self) -> bool:
        now_ms = self._clock_ms()
        idle_ms = 0 if self._waiting else now_ms - self._used_at_ms
        return not self._retired and idle_ms <= IDLE_REUSE_MS_MAX and now_ms < self._renew_at_ms

    async def sign_in(self, call: Call, timeout_ms: int) -> None:
        """Show the token of the client. Raises PermissionDeniedError, OutcomeUnknownError and NotSentError."""
        try:
            identity = await self.exchange(Send(call, timeout_ms))
        except InvalidArgumentError as error:
            raise not_signed_in(self.address, error) from error
        self._renew_at_ms = renew_at_ms(identity, wall_ms(), self._clock_ms())

    async def exchange(self, step: Send) -> Any:
        """Send the call and wait for its answer. The caller adds a timeout, which arrives as CancelledError."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None or self._retired:
            raise NotSentError("the connection was closed before the call was sent")
        call = step.call
        seqid, frame = self._dialogue.frame_of(call)
        future: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._waiting[seqid] = future
        if call.late is not None:
            self._takes[seqid] = call
        step.is_sent = True
        self._transport.write(frame)
        try:
            reply = await future
        except asyncio.CancelledError:
            self._give_up(seqid, call, future)
            raise
        finally:
            self._takes.pop(seqid, None)
        if not leaves_connection_usable(reply, call):
            self.retire()
        try:
            return outcome_of(reply, call)
        except BrokenDialogueError as error:
            raise OutcomeUnknownError(str(error)) from error

    def _give_up(self, seqid: int, call: Call, future: asyncio.Future[wire.Reply]) -> None:
        """Handle the end of the caller's wait for a response, which might have arrived already."""
        if seqid in self._waiting:
            self._waiting[seqid] = None
            if call.late is not None:
                self._given_up[seqid] = call
                self._late.expect()
                if call.wait_ms and self._transport is not None:
                    ending, frame = self._dialogue.frame_of(end_wait(call.request, seqid))
                    self._waiting[ending] = None
                    self._transport.write(frame)
        elif not future.cancelled() and future.exception() is None:
            self._late.came(call, future.result().response)
        if self._retired:
            self.retire()

    def give_up_waits(self) -> None:
        """End all waits for items, because the client is about to be closed."""
        for seqid, call in list(self._takes.items()):
            future = self._waiting.get(seqid)
            if future is not None and not future.done():
                future.set_exception(ClientClosedError("the client is closed"))
                self._give_up(seqid, call, future)

    def retire(self) -> None:
        """Take no new calls. Close once no caller waits for an answer."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._retired or any(self._waiting.values()):
            return
        if not self._given_up or (self._lingers is None and not self._late.may_linger()):
            self.break_off(None)
        elif self._lingers is None:
            self._lingers = asyncio.get_running_loop().call_later(LATE_MS_MAX / 1000, self.break_off, None)

    def break_off(self, error: Exception | None) -> None:
        """Close now. The outcome of every call in flight is unknown."""
        self._retired = True
        if self._lingers is not None:
            self._lingers.cancel()
            self._lingers = None
            self._late.lingers_no_more()
        self._late.lost(len(self._given_up))
        self._given_up.clear()
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future is not None and not future.done():
                future.set_exception(self._outcome(error))

    def _outcome(self, error: Exception | None) -> UnavailableError:
        """Make the error of a call in flight when the connection broke."""
        found: UnavailableError | None = None
        if isinstance(error, SpeaksTlsError):
            found = NotSentError(f"{self.address}: {error}")
        elif not self._is_answered:
            found = self._tls.refusal(self.address, error)
        if found is None:
            found = OutcomeUnknownError(
                f"the connection to {self.address} broke before the answer: {error or 'closed'}"
            )
        found.__cause__ = error
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.break_off(exc or ConnectionResetError("closed by the host"))
        self.lost.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._answered(self._dialogue.reply_in(message))
        except BrokenDialogueError as error:
            self.break_off(error)
        self._close_if_unused()

    def _answered(self, reply: wire.Reply) -> None:
        if reply.seqid not in self._waiting:
            raise BrokenDialogueError(f"an answer with seqid {reply.seqid}, which no call has")
        self._is_answered = True
        future = self._waiting.pop(reply.seqid)
        self._used_at_ms = self._clock_ms()
        if future is not None and not future.done():
            future.set_result(reply)
            return
        call = self._takes.get(reply.seqid)  # The caller is giving up at this moment.
        if reply.seqid in self._given_up:
            call = self._given_up.pop(reply.seqid)
            self._late.lost(1)
        if call is not None and reply.method is not None and reply.method.name == call.method:
            self._late.came(call, reply.response)


class AsyncConnectionPool:
    """The connections of one asyncio client, at most `connections_max`; the client owns it and closes it.

    A call is sent on the connection with the fewest calls in flight. A connection to a recently failed address is a
    last resort, and is replaced first.
    """

    def __init__(self, options: Options, book: AddressBook) -> None:
        self._options = options
        self._book = book
        self._connections: list[AsyncClientConnection] = []
        self._to_owners: dict[Address, AsyncClientConnection] = {}
        """Connections to the owners of shards, one for each host, in addition to the others."""
        self._connecting_to_owner = asyncio.Lock()
        self._closing: set[AsyncClientConnection] = set()
        self._slots = asyncio.Semaphore(options.connections_max * CALLS_IN_FLIGHT_MAX)
        self._slots_of_waits = asyncio.Semaphore(options.connections_max * (CALLS_IN_FLIGHT_MAX - KEPT_SLOTS))
        """Extra slots of the calls that wait for items, so that they never take the last slots."""
        self._connecting = asyncio.Lock()
        self._process_id = os.getpid()
        self.late = AsyncLateAnswers()
        self.closed = asyncio.Event()

    @property
    def calls_in_flight_max(self) -> int:
        """Most calls in flight of one `enqueue_many`."""
        return CALLS_IN_FLIGHT_MAX

    async def exchange(self, step: Send) -> Any:
        """Make one attempt of a call within `step.timeout_ms`, including the wait for a free slot."""
        sent_on: AsyncClientConnection | None = None
        try:
            waits = self._slots_of_waits if step.call.wait_ms else nullcontext()
            async with asyncio.timeout(step.timeout_ms / 1000), waits, self._slots:
                connection = await self._to_owner(step.owner) or await self._pick(step.avoided)
                sent_on = connection
                step.address = connection.address
                return await connection.exchange(step)
        except TimeoutError as error:
            if sent_on is None:
                raise NotSentError(
                    f"no connection of the client was free within {step.timeout_ms} ms: raise connections_max, or have "
                    "fewer calls in flight"
                ) from error
            sent_on.retire()
            if not step.is_sent:
                raise NotSentError(f"{sent_on.address} read nothing for {step.timeout_ms} ms") from error
            raise no_answer(step, sent_on.address) from error

    async def _to_owner(self, owner: Address | None) -> AsyncClientConnection | None:
        """Return the connection to the owner of the call's shard, or None if none is available at once."""
        if owner is None or self.closed.is_set() or not self._options.token.may_go_to(owner):
            return None
        for address in [at for at, connection in self._to_owners.items() if connection.lost.is_set()]:
            del self._to_owners[address]
        connection = self._to_owners.get(owner)
        if connection is not None and connection.usable:
            return connection if connection.in_flight_count < CALLS_IN_FLIGHT_MAX else None
        options = self._options
        if self._connecting_to_owner.locked() or self._book.is_cooling(owner, options.clock_ms()):
            return None
        if connection is not None:
            # Retire it before the wait for another one. If that wait is cancelled, nothing else would close it.
            del self._to_owners[owner]
            connection.retire()
            self._closing.add(connection)
        async with self._connecting_to_owner:
            return await self._connect_to_owner(owner)

    async def _connect_to_owner(self, owner: Address) -> AsyncClientConnection | None:
        options = self._options
        try:
            async with asyncio.timeout(min(options.connect_timeout_ms, OWNER_CONNECT_MS_MAX) / 1000):
                made = await self._open(owner)
        except (OSError, UnavailableError, OverloadedError, PermissionDeniedError):
            self._book.failed(owner, options.clock_ms())
            return None
        if self.closed.is_set():
            made.break_off(None)
            await made.lost.wait()
            raise ClientClosedError("the client is closed")
        self._to_owners[owner] = made
        return made

    async def _pick(self, avoided: Collection[Address]) -> AsyncClientConnection:
        connection = self._least_busy(avoided)
        if connection is not None and not (connection.in_flight_count and self._may_grow()):
            return connection
        async with self._connecting:
            connection = self._least_busy(avoided)
            if connection is not None and not (connection.in_flight_count and self._may_grow()):
                return connection
            try:
                return await self._connect(avoided)
            except NotSentError:
                if connection is not None:
                    return connection
                raise

    def _may_grow(self) -> bool:
        return len(self._connections) < self._options.connections_max

    def _least_busy(self, avoided: Collection[Address]) -> AsyncClientConnection | None:
        check_process(self._process_id)
        if self.closed.is_set():
            raise ClientClosedError("the client is closed")
        for connection in [c for c in self._connections if not c.usable]:
            self._retire(connection)
        self._closing = {connection for connection in self._closing if not connection.lost.is_set()}
        return self._least_busy_of(self._book.preferred(self._options.clock_ms(), avoided))

    def _least_busy_of(self, addresses: Collection[Address]) -> AsyncClientConnection | None:
        free = [c for c in self._connections if c.address in addresses and c.in_flight_count < CALLS_IN_FLIGHT_MAX]
        return min(free, key=lambda c: c.in_flight_count, default=None)

    def _retire(self, connection: AsyncClientConnection) -> None:
        self._connections.remove(connection)
        self._closing.add(connection)
        connection.retire()

    async def _connect(self, avoided: Collection[Address]) -> AsyncClientConnection:
        options = self._options
        preferred = self._book.preferred(options.clock_ms(), avoided)
        failures = []
        for address in self._book.candidates(options.clock_ms(), avoided):
            if address not in preferred and (connection := self._least_busy_of([address])):
                return connection
            try:
                async with asyncio.timeout(options.connect_timeout_ms / 1000):
                    connection = await self._open(address)
            except (OSError, UnavailableError, OverloadedError) as error:
                failures.append(f"{address}: {error or 'no connection in time'}")
                self._book.failed(address, options.clock_ms())
                if self.closed.is_set():
                    raise ClientClosedError("the client is closed") from error
                continue
            if self.closed.is_set():
                connection.break_off(None)
                await connection.lost.wait()
                raise ClientClosedError("the client is closed")
            for spare in [c for c in self._connections if c.address not in preferred]:
                if not self._may_grow():
                    self._retire(spare)
            self._connections.append(connection)
            return connection
        raise NotSentError("no connection: " + "; ".join(failures))

    async def _open(self, address: Address) -> AsyncClientConnection:
        """Make a connection, and sign in. The caller adds a timeout, and sees to failures."""
        options = self._options
        made = await self._connect_to(address)
        if options.token:
            self._closing.add(made)  # Closed with the client if that is closed meanwhile.
            try:
                await made.sign_in(options.token.call(), options.connect_timeout_ms)
            except BaseException:
                made.break_off(None)
                raise
            self._closing.discard(made)
        return made

    async def _connect_to(self, address: Address) -> AsyncClientConnection:
        """Make a connection, with TLS if the client speaks that. Raises OSError, NotSentError if TLS fails."""
        loop, tls = asyncio.get_running_loop(), self._options.tls
        factory = partial(AsyncClientConnection, self._options, address, self.late)
        if not tls:
            return (await loop.create_connection(factory, address.host, address.port))[1]
        # The CAs of a system take many ms to read.
        context = tls.context() if tls.is_loaded() else await asyncio.to_thread(tls.context)
        try:
            name = tls.name_at(address)
            _, made = await loop.create_connection(
                factory, address.host, address.port, ssl=context, server_hostname=name
            )
        except (ssl.SSLError, ConnectionAbortedError, ConnectionResetError, ValueError) as error:
            raise tls.failure(address, error) from error
        return made

    async def pause(self, pause_ms: int) -> None:
        """Wait between two attempts of a call. Raises ClientClosedError if the client is closed meanwhile."""
        try:
            await asyncio.wait_for(self.closed.wait(), pause_ms / 1000)
        except TimeoutError:
            return
        raise ClientClosedError("the client is closed")

    def give_up_waits(self) -> None:
        """End all waits for items, because the client is about to be closed."""
        for connection in [*self._connections, *self._to_owners.values(), *self._closing]:
            connection.give_up_waits()

    async def close(self) -> None:
        """Break off the calls in flight and wait until every socket is closed."""
        self.closed.set()
        connections = [*self._connections, *self._to_owners.values(), *self._closing]
        self._connections.clear()
        self._to_owners.clear()
        for connection in connections:
            connection.break_off(None)
        for connection in connections:
            await connection.lost.wait()
