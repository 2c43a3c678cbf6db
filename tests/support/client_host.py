"""Hosts for client tests: the front door before a fake queue, in a thread, and a peer that plays a script."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from unittest.mock import Mock

from foqs import NotSentError, OutcomeUnknownError
from foqs.contract import requests as of
from foqs.model.calls import CallContext, Delivery, PositionErrors
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.reasons import WhyNone
from foqs.transport.server import ThriftServer
from foqs.wire import codec as wire
from foqs.wire.frames import scan_call
from tests.support.fake_queue import FakeQueue
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, longer

T = TypeVar("T")


class WatchedQueue(FakeQueue):
    """Says which leases were extended and what came back how."""

    def __init__(self) -> None:
        super().__init__()
        self.extended = threading.Event()
        self.extended_receipts: list[str] = []
        self.begun: list[str] = []
        self.nacks: list[of.Nack] = []
        self.asked_counts: list[int] = []

    async def dequeue(self, context: CallContext, request: of.DequeueRequest) -> list[Delivery] | WhyNone:
        self.asked_counts.append(sum(demand.count or 0 for demand in request.topics))
        return await super().dequeue(context, request)

    async def extend_lease(self, context: CallContext, request: of.ExtendRequest) -> PositionErrors:
        errors = await super().extend_lease(context, request)
        self.begun += request.begun or ()
        self.extended_receipts += request.receipts
        if request.receipts:
            self.extended.set()
        return errors

    async def nack(self, context: CallContext, request: of.NackRequest) -> PositionErrors:
        self.nacks += request.nacks
        return {p: e for p, n in enumerate(request.nacks) if (e := self._nacked(n)) is not None}

    def _nacked(self, nack: of.Nack) -> FoqsError | None:
        held = self.leased.pop(nack.receipt, None)
        return None if held else StaleLeaseError("lost")


class HostThread:
    """A front door on its own loop in its own thread, so that blocking clients can call it."""

    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue
        self.loop = asyncio.new_event_loop()
        self.server = ThriftServer(queue.call, address="127.0.0.1", port=0, namespaces=queue, metrics=Mock())
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-host")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the host's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def start(self) -> None:
        self._thread.start()
        self.call(self.server.start())

    def stop(self) -> None:
        self.call(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextmanager
def running_host(queue: FakeQueue | None = None) -> Iterator[HostThread]:
    host = HostThread(queue or FakeQueue())
    host.start()
    try:
        yield host
    finally:
        host.stop()


class Peer:
    """One connection of a `scripted_peer`: reads whole calls, writes what the script wants."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._codec = wire.Codec()
        self._read = sock.makefile("rb")

    def next_call(self) -> tuple[str, int, Any]:
        """Method, seqid and request. EOFError when the client closed."""
        header = self._read.read(4)
        if len(header) < 4:
            raise EOFError
        data = self._read.read(int.from_bytes(header))
        name, seqid, body = scan_call(data, 0, len(data))
        method = wire.METHODS_BY_NAME_BYTES[name]
        return method.name, seqid, self._codec.decode_request(method, data[body:])

    def answer(self, method: str, seqid: int, response: Any) -> None:
        self._socket.sendall(self._codec.encode_reply(wire.METHODS[method], response, seqid))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait_for_close(self) -> None:
        """Return when the client closed the connection."""
        while self._socket.recv(65_536):
            continue

    def close(self) -> None:
        self._read.close()
        self._socket.close()


def times_out(client: Any, call: Callable[[], object]) -> str:
    """Do the call with a timeout in which it is sent and not answered, and return what the client says of it.

    A machine that is busy needs a longer one to send it.
    """
    for timeout_ms in longer(50):
        client._terms.timeout_ms = timeout_ms
        with suppress(NotSentError):
            try:
                call()
            except OutcomeUnknownError as error:
                client._terms.timeout_ms = PATIENCE_MS
                return error.message
            raise AssertionError("it was answered")
    raise AssertionError("it was never sent")


async def times_out_async(client: Any, call: Callable[[], Awaitable[object]]) -> str:
    """The same with asyncio."""
    for timeout_ms in longer(50):
        client._terms.timeout_ms = timeout_ms
        with suppress(NotSentError):
            try:
                await call()
            except OutcomeUnknownError as error:
                client._terms.timeout_ms = PATIENCE_MS
                return error.message
            raise AssertionError("it was answered")
    raise AssertionError("it was never sent")


def _accept(listener: socket.socket) -> socket.socket:
    """The next connection on which something is said."""
    while True:
        sock, _ = listener.accept()
        sock.settimeout(PATIENCE_S)
        if sock.recv(1, socket.MSG_PEEK):
            return sock
        sock.close()


@contextmanager
def scripted_peer(*scripts: Callable[[Peer], None]) -> Iterator[str]:
    """Serve one connection with each script, one after the other; yields the address."""
    failures: list[BaseException] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE_S)

    def serve() -> None:
        try:
            for script in scripts:
                peer = Peer(_accept(listener))
                try:
                    script(peer)
                finally:
                    peer.close()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=serve, name="test-peer")
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(PATIENCE_S)
        listener.close()
    assert not failures, failures
    assert not thread.is_alive()


def refused_address() -> str:
    """An address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"
