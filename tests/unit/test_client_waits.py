"""Calls of a blocking client that wait for items: they leave room for others, also after any signal."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from foqs.client.client_errors import ClientClosedError
from foqs.client.flows import Call, Flow
from foqs.client.queue_items import Item
from foqs.client.retry import Repeat, RetryPolicy
from foqs.client.sync import Client
from foqs.client.sync.late import LateAnswers
from foqs.client.sync.monitor import Monitor, Places
from tests.support.client_host import HostThread, running_host
from tests.support.interrupting import interrupted_everywhere
from tests.support.waiting import PATIENCE_S, until_soon

NS = "ns"
ONCE = RetryPolicy(deadline_ms=0)
LONG_MS = 20_000


@pytest.fixture
def host() -> Iterator[HostThread]:
    with running_host() as host:
        yield host


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def begin_wait(threads: ThreadPoolExecutor, client: Client, host: HostThread) -> Future[list[Item]]:
    """Have a thread wait for items, and return once the host knows."""
    known_count = len(host.queue.long_polls)
    waiting = threads.submit(client.dequeue, NS, "nothing", wait_ms=LONG_MS)
    until_soon(lambda: len(host.queue.long_polls) > known_count or waiting.done())
    assert not waiting.done()
    return waiting


# --- who gets a place ---


def test_calls_that_wait_for_items_leave_the_last_place_and_go_behind_all_others(threads: ThreadPoolExecutor) -> None:
    places = Places(2, Monitor())
    assert places.take("wait", 0, is_wait=True)
    assert not places.take("another wait", 0, is_wait=True)
    places.leave("another wait")
    assert places.take("call", 0)
    patient = threads.submit(places.take, "patient", PATIENCE_S, is_wait=True)
    until_soon(lambda: "patient" in places._patient)
    later = threads.submit(places.take, "later", PATIENCE_S)
    until_soon(lambda: places.is_wanted)
    places.leave("wait")
    assert later.result(PATIENCE_S)
    places.leave("call")
    assert places.free_count == 1
    assert not patient.done()
    places.leave("later")
    assert patient.result(PATIENCE_S)
    places.leave("patient")
    assert places.free_count == 2


def test_the_only_place_is_for_waits_too_and_whoever_else_wants_it_says_so_under_the_lock() -> None:
    lock = Monitor()
    places = Places(1, lock)
    told: list[bool] = []
    assert places.take("wait", 0, is_wait=True)
    assert not places.take("another wait", 0, is_wait=True, on_full=lambda: told.append(lock.is_held()))
    assert told == []
    assert not places.take("call", 0, on_full=lambda: told.append(lock.is_held() and places.is_wanted))
    assert told == [True]
    places.leave("call")
    assert not places.is_wanted


def test_no_place_is_gone_after_an_exception_at_any_line_of_taking_waiting_and_leaving() -> None:
    lock = Monitor()
    places = Places(2, lock)
    holders = [("a", True), ("b", False), ("c", True), ("d", False)]

    def work() -> None:
        for name, is_wait in holders:
            places.take(name, 0, is_wait=is_wait, on_full=lambda: None)
        for name, _ in holders:
            places.leave(name)

    for where in interrupted_everywhere(work):
        lock.drop()
        for name, _ in holders:
            places.leave(name)
        assert (places.free_count, places._waiting, places._patient) == (2, {}, {}), where


# --- what that means for calls ---


def test_the_wait_with_the_only_connection_ends_when_another_call_needs_it(
    host: HostThread, threads: ThreadPoolExecutor
) -> None:
    with Client(host.address, connections_max=1, retry=ONCE) as client:
        for _ in range(3):
            waiting = begin_wait(threads, client, host)
            assert client.ack(NS, ["0-1.1"], return_errors=True), "on a connection that can send"
            assert waiting.result(PATIENCE_S) == []


def test_a_wait_that_is_sent_when_another_call_wants_the_only_connection_already_ends_at_once(
    host: HostThread, threads: ThreadPoolExecutor
) -> None:
    with Client(host.address, connections_max=1, retry=ONCE) as client:
        pool = client._pool
        take, enqueues = pool._take, []

        def take_late(*arguments: Any) -> Any:
            if not enqueues:
                enqueues.append(threads.submit(client.enqueue, NS, "t", b"x"))
                until_soon(lambda: pool._places.is_wanted)
            return take(*arguments)

        pool._take = take_late  # type: ignore[method-assign]
        assert threads.submit(client.dequeue, NS, "nothing", wait_ms=LONG_MS).result(PATIENCE_S) == []
        assert enqueues[0].result(PATIENCE_S)


def test_waits_leave_one_of_several_connections_to_others_and_go_on(
    host: HostThread, threads: ThreadPoolExecutor
) -> None:
    with Client(host.address, connections_max=2, retry=ONCE) as client:
        first = begin_wait(threads, client, host)
        second = threads.submit(client.dequeue, NS, "nothing", wait_ms=LONG_MS)
        until_soon(lambda: client._pool._places._patient)
        assert client.ack(NS, ["0-1.1"], return_errors=True)
        assert len(host.queue.long_polls) == 1
        assert not first.done()
        assert not second.done()
        client.close()
        for waiting in (first, second):
            with pytest.raises(ClientClosedError):
                waiting.result(PATIENCE_S)


def test_closing_ends_a_wait_that_has_a_connection_and_is_not_sent_yet(
    host: HostThread, threads: ThreadPoolExecutor
) -> None:
    with Client(host.address, connections_max=2, retry=ONCE) as client:
        client.enqueue(NS, "t", b"x")
        (connection,) = client._pool._idle
        send, closing = connection.send, []

        def send_late(*arguments: Any) -> Any:
            closing.append(threads.submit(client.close))
            until_soon(lambda: client._pool._is_closing)
            return send(*arguments)

        connection.send = send_late  # type: ignore[method-assign]
        with pytest.raises(ClientClosedError):
            client.dequeue(NS, "t", wait_ms=LONG_MS)
        closing[0].result(PATIENCE_S)
    until_soon(lambda: not host.queue.leased)


@pytest.mark.parametrize("connections_max", [1, 2])
def test_after_an_exception_at_any_line_of_a_wait_nothing_is_gone(host: HostThread, connections_max: int) -> None:
    with Client(host.address, connections_max=connections_max) as client:
        pool = client._pool
        for where in interrupted_everywhere(lambda: client.dequeue(NS, "nothing", wait_ms=1)):
            pool.late.close()
            assert not pool.late._open, where
            assert pool._places.free_count == connections_max, where
            assert not pool._busy, where
            assert client.enqueue(NS, "t", b"x", deadline_ms=int(PATIENCE_S * 1_000)), where


def test_what_ends_the_wait_of_another_call_may_be_cut_off_at_any_line(
    host: HostThread, threads: ThreadPoolExecutor
) -> None:
    with Client(host.address, connections_max=1) as client:
        pool = client._pool
        waits: list[Future[list[Item]]] = []

        def call() -> None:
            waits.append(begin_wait(threads, client, host))
            client.ack(NS, ["0-1.1"], return_errors=True)

        for where in interrupted_everywhere(call):
            assert client.enqueue(NS, "t", b"x", deadline_ms=int(PATIENCE_S * 1_000)), where
            assert waits.pop().result(PATIENCE_S) == [], where
            assert (pool._places.free_count, pool._busy) == (1, {}), where


# --- responses that come late ---


class _Connection:
    """One on which a response comes, once."""

    def __init__(self) -> None:
        self.is_closed = False

    def late_response(self, call: Call, wait_ms: int) -> Any:
        return None if self.is_closed else "items"

    def close(self) -> None:
        self.is_closed = True


def test_a_response_is_given_back_once_however_its_handing_over_was_cut_off() -> None:
    late, given_back = LateAnswers(), []

    def give_back(response: Any) -> Flow[None]:
        given_back.append(response)
        return (one for one in ())

    late.run = lambda flow: None
    connections: list[Any] = [_Connection()]
    call = Call("dequeue", None, Repeat.ALWAYS, late=give_back)
    for where in interrupted_everywhere(lambda: late.take(connections[-1], call)):
        late._changed.drop()
        assert late.take(connections[-1], call), where
        late.close()
        assert given_back == ["items"], where
        assert not late._open, where
        assert connections[-1].is_closed, where
        given_back.clear()
        connections.append(_Connection())
