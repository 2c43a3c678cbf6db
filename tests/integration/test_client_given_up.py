"""Waits for items that are given up: whatever comes late is given back, and the host learns that the wait is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

import foqs
from foqs.model.errors import InvalidArgumentError
from foqs.transport.server import ThriftServer
from foqs.wire import codec as wire
from tests.support.client_host import Peer, WatchedQueue, running_host, scripted_peer, times_out, times_out_async
from tests.support.waiting import PATIENCE_S, longer

ONCE = foqs.RetryPolicy(deadline_ms=0)
S = wire.structs


def items(*receipts: str) -> Any:
    return S.DequeueResponse([S.Item(receipt[0], receipt, "t", 0, b"x", b"", 0, 0, 0, 1) for receipt in receipts])


def told_back(request: Any) -> list[tuple[str, bool, bool]]:
    return [(nack.receipt, nack.release, nack.unseen) for nack in request.nacks]


class Host:
    """The script of a peer: a dequeue hangs, and `late` says what comes of it; then it takes what comes back."""

    def __init__(self, late: Callable[[Peer, int], None], *, is_old: bool = False) -> None:
        self._late = late
        self._is_old = is_old
        self.asked = threading.Event()
        self.gave_up = threading.Event()
        self.calls: list[str] = []
        self.given_back: list[tuple[str, bool, bool]] = []
        self.back = threading.Event()

    def script(self, peer: Peer) -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                self._answer(peer, *peer.next_call())

    def _answer(self, peer: Peer, method: str, seqid: int, request: Any) -> None:
        self.calls.append(method)
        if method == "dequeue" and not self.asked.is_set():
            self.asked_seqid = seqid
            self.asked.set()
            if self._is_old or request.wait_ms == 0:
                assert self.gave_up.wait(PATIENCE_S)
                self._late(peer, seqid)
        elif method == "dequeue":
            peer.answer("dequeue", seqid, items())
        elif method == "endWait" and not self._is_old:
            assert request.seqid == self.asked_seqid
            self._late(peer, self.asked_seqid)
            peer.answer("endWait", seqid, S.EndWaitResponse())
        elif method == "nack" and self._is_old and any(nack.unseen for nack in request.nacks):
            codec = wire.Codec()
            peer.send(codec.encode_error(wire.METHODS["nack"], InvalidArgumentError("unseen is set"), seqid))
        elif method == "nack":
            peer.answer("nack", seqid, S.BatchResponse({}))
            self.given_back += told_back(request)
            self.back.set()


async def given_back(host: Host) -> list[tuple[str, bool, bool]]:
    assert await asyncio.to_thread(host.back.wait, PATIENCE_S), host.calls
    return host.given_back


def late_item(peer: Peer, seqid: int) -> None:
    peer.answer("dequeue", seqid, items("a.1", "b.1"))


BOTH = [("a.1", True, True), ("b.1", True, True)]


class Blocking:
    """The scripts of two connections of a blocking client: what comes late on the first one, and what comes back."""

    def __init__(self, frame: bytes, cut: int = 0) -> None:
        """`cut` bytes of the frame come before the client has given up."""
        self.asked, self.back = threading.Event(), threading.Event()
        self.told: list[tuple[str, bool, bool]] = []
        self._frame, self._cut = frame, cut

    def late(self, peer: Peer) -> None:
        """The end of what the client sends tells the host that the wait is over, whatever it knows."""
        peer.next_call()
        self.asked.set()
        peer.send(self._frame[: self._cut])
        with pytest.raises(EOFError):
            peer.next_call()
        peer.send(self._frame[self._cut :])

    def takes_back(self, peer: Peer) -> None:
        method, seqid, request = peer.next_call()
        assert method == "nack"
        self.told += told_back(request)
        peer.answer("nack", seqid, S.BatchResponse({}))
        self.back.set()


def dequeued(*receipts: str) -> bytes:
    """The response to the first call of a connection."""
    return wire.Codec().encode_reply(wire.METHODS["dequeue"], items(*receipts), 1)


async def test_what_comes_for_a_cancelled_dequeue_is_given_back_unseen_and_the_host_is_told() -> None:
    host = Host(late_item)
    with scripted_peer(host.script) as address:
        async with foqs.AsyncClient(address, connections_max=1, retry=ONCE) as client:
            waiting = asyncio.create_task(client.dequeue("ns", "t", 2, wait_ms=20_000))
            await asyncio.to_thread(host.asked.wait, PATIENCE_S)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await given_back(host) == BOTH
            assert await client.dequeue("ns", "t") == [], "the connection goes on"
    assert host.calls == ["dequeue", "endWait", "nack", "dequeue"]


async def until_asked(host: Host, call: Awaitable[object]) -> None:
    """Give the call as much time as it takes to ask the host."""

    async def end(limit: asyncio.Timeout) -> None:
        await asyncio.to_thread(host.asked.wait, PATIENCE_S)
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        ending = asyncio.create_task(end(limit))
        await call
    await ending


async def test_a_loop_that_polls_with_a_timeout_of_its_own_loses_nothing() -> None:
    host = Host(late_item)
    with scripted_peer(host.script) as address:
        async with foqs.AsyncClient(address, connections_max=1, retry=ONCE) as client:
            with pytest.raises(TimeoutError):
                await until_asked(host, client.dequeue("ns", "t", 2, wait_ms=20_000))
    assert host.given_back == BOTH, "also when the client is closed at once"


async def test_an_older_host_that_knows_nothing_of_it_gets_its_items_back_all_the_same() -> None:
    host = Host(late_item, is_old=True)
    with scripted_peer(host.script) as address:
        async with foqs.AsyncClient(address, connections_max=1, retry=ONCE) as client:
            waiting = asyncio.create_task(client.dequeue("ns", "t", 2, wait_ms=20_000))
            await asyncio.to_thread(host.asked.wait, PATIENCE_S)
            waiting.cancel()
            await asyncio.wait([waiting])
            host.gave_up.set()
            assert await given_back(host) == [("a.1", True, None), ("b.1", True, None)]


async def test_what_comes_after_a_timeout_of_the_client_is_given_back() -> None:
    host = Host(late_item)
    with scripted_peer(host.script, host.script) as address:
        async with foqs.AsyncClient(address, connections_max=1, retry=ONCE) as client:
            await times_out_async(client, lambda: client.dequeue("ns", "t"))
            host.gave_up.set()
            assert await given_back(host) == BOTH


async def test_a_response_that_is_here_when_its_caller_is_cancelled_is_given_back() -> None:
    """The task is woken by its response and cancelled in one turn of the loop, in either order."""
    for cancel_first in (False, True):
        host = Host(late_item)
        with scripted_peer(host.script) as address:
            async with foqs.AsyncClient(address, connections_max=1, retry=ONCE) as client:
                waiting = asyncio.create_task(client.dequeue("ns", "t", 2))
                await asyncio.to_thread(host.asked.wait, PATIENCE_S)
                (connection,) = client._pool._connections
                received = connection.data_received

                def both(
                    data: bytes, received: Any = received, first: bool = cancel_first, task: Any = waiting
                ) -> None:
                    if first:
                        task.cancel()
                    received(data)
                    if not first:
                        task.cancel()

                connection.data_received = both  # type: ignore[method-assign]
                host.gave_up.set()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert await given_back(host) == BOTH, cancel_first


async def test_closing_a_client_gives_back_what_is_on_its_way_to_those_who_wait() -> None:
    host = Host(late_item)
    with scripted_peer(host.script) as address:
        client = foqs.AsyncClient(address, connections_max=1, retry=ONCE)
        waiting = asyncio.create_task(client.dequeue("ns", "t", 2, wait_ms=20_000))
        await asyncio.to_thread(host.asked.wait, PATIENCE_S)
        await client.close()
        with pytest.raises(foqs.ClientClosedError):
            await waiting
    assert host.given_back == BOTH


async def test_a_connection_that_is_open_for_late_responses_alone_is_closed_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("foqs.client.aio.connections.LATE_MS_MAX", 10)
    closed = threading.Event()

    def silent(peer: Peer) -> None:
        peer.next_call()
        peer.wait_for_close()
        closed.set()

    with scripted_peer(silent) as address:
        client = foqs.AsyncClient(address, connections_max=1, retry=ONCE)
        await times_out_async(client, lambda: client.dequeue("ns", "t"))
        assert await asyncio.to_thread(closed.wait, PATIENCE_S)
        await client.close()


def test_what_comes_after_a_blocking_call_has_timed_out_is_given_back() -> None:
    peers = Blocking(dequeued("a.1", "b.1"))
    with scripted_peer(peers.late, peers.takes_back) as address, foqs.Client(address, retry=ONCE) as client:
        times_out(client, lambda: client.dequeue("ns", "t", 2))
        assert peers.back.wait(PATIENCE_S)
    assert peers.told == BOTH


@pytest.mark.parametrize("cut", [2, 30])
def test_a_response_that_had_come_in_part_is_read_to_its_end(cut: int) -> None:
    peers = Blocking(dequeued("a.1"), cut)
    with scripted_peer(peers.late, peers.takes_back) as address, foqs.Client(address, retry=ONCE) as client:
        times_out(client, lambda: client.dequeue("ns", "t", 2))
    assert peers.told == [("a.1", True, True)], "closing waits until it is given back"


def test_closing_a_blocking_client_gives_back_what_is_on_its_way_to_those_who_wait() -> None:
    peers = Blocking(dequeued("a.1", "b.1"))
    with scripted_peer(peers.late, peers.takes_back) as address, ThreadPoolExecutor(1) as threads:
        client = foqs.Client(address, retry=ONCE)
        waiting = threads.submit(client.dequeue, "ns", "t", 2, wait_ms=20_000)
        assert peers.asked.wait(PATIENCE_S)
        client.close()
        assert isinstance(waiting.exception(PATIENCE_S), foqs.ClientClosedError)
    assert peers.told == BOTH


async def test_the_front_door_ends_a_wait_at_once_and_gives_the_next_item_to_others() -> None:
    queue = WatchedQueue()
    server = ThriftServer(queue.call, address="127.0.0.1", port=0, namespaces=queue, metrics=Mock())
    await server.start()
    try:
        async with foqs.AsyncClient(f"127.0.0.1:{server.port}", connections_max=1) as client:
            waiting = asyncio.create_task(client.dequeue("ns", "t", wait_ms=20_000))
            async with asyncio.timeout(PATIENCE_S):
                await queue.long_poll_began.wait()
                waiting.cancel()
                await queue.long_poll_cancelled.wait()
            await client.enqueue("ns", "t", b"x")
            (item,) = await client.dequeue("ns", "t", wait_ms=20_000)
            assert item.attempt == 1
    finally:
        await server.stop()
    assert queue.nacks == []


def test_a_blocking_client_that_gives_up_ends_the_wait_at_the_front_door() -> None:
    with running_host() as host, foqs.Client(host.address, retry=ONCE) as client:
        for timeout_ms in longer(100):
            client._terms.timeout_ms = timeout_ms - 20_000  # For a call that waits 20 s.
            with pytest.raises((foqs.OutcomeUnknownError, foqs.NotSentError)):
                client.dequeue("ns", "t", wait_ms=20_000)
            if host.queue.long_poll_began.is_set():
                break
        host.call(asyncio.wait_for(host.queue.long_poll_cancelled.wait(), PATIENCE_S))
