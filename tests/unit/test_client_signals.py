"""The handler of a signal may raise anywhere in a blocking client: the client goes on as if nothing had been."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy
from foqs.client.sync import Client
from foqs.client.sync.monitor import Flag, Monitor, Places, closed_gate, open_gate
from foqs.model import access_tokens
from foqs.model.errors import ErrorCode, FoqsError
from tests.support.client_host import HostThread, running_host
from tests.support.deep import deep_but
from tests.support.interrupting import Interrupted, interrupted_everywhere
from tests.support.scripted_pools import ScriptedClient, enqueue_all, item_error
from tests.support.waiting import PATIENCE_S, until_soon

pytestmark = [pytest.mark.deep]

NS = "ns"
TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
LANE: Any = (NS, False, None, -1, ())


@pytest.fixture(scope="module")
def host() -> Iterator[HostThread]:
    with running_host() as host:
        yield host


def is_free_in_another_thread(lock: Any) -> bool:
    with ThreadPoolExecutor(1) as threads:
        free = threads.submit(lock.acquire, timeout=0).result(PATIENCE_S)
        return bool(free) and threads.submit(lock.release).result(PATIENCE_S) is None


def check_clean(client: Client, where: str) -> None:
    queues, pool = client._coalescer._queues, client._pool
    pool.late.close()
    assert not pool.late._open, f"a response is waited for without end after {where}"
    assert not queues._lanes, f"a lane is in flight after {where}"
    assert (queues._waiting_count, queues._waiting_bytes) == (0, 0), where
    assert pool._places.free_count == client.options.connections_max, f"a place is gone after {where}"
    assert not pool._busy, f"a connection is gone after {where}"
    assert len(pool._idle) <= client.options.connections_max, where
    for lock in (pool._changed, pool.late._changed, client._coalescer._room):
        assert is_free_in_another_thread(lock), f"a lock is held after {where}"


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(FoqsError):
        call()


VERBS: dict[str, Callable[[Client], object]] = {
    "enqueue": lambda client: client.enqueue(NS, "t", b"x"),
    "enqueue_with_id": lambda client: client.enqueue(NS, "t", b"x", dedup_id="d"),
    "enqueue_many": lambda client: client.enqueue_many(NS, [NewItem("t", b"x")] * 3),
    "dequeue": lambda client: client.dequeue(NS, "t"),
    "ack": lambda client: client.ack(NS, ["0-1.1"], return_errors=True),
    "nack": lambda client: client.nack(NS, ["0-1.1"], return_errors=True),
    "extend": lambda client: client.extend(NS, ["0-1.1"], 5_000, return_errors=True),
    "an error of the host": lambda client: refused(lambda: client.enqueue("nowhere", "t", b"")),
    "an error of a position": lambda client: refused(lambda: client.enqueue(NS, "t", bytes(20_000))),
}


def test_after_an_exception_at_any_line_of_a_refused_sign_in_no_connection_is_left(host: HostThread) -> None:
    calls_before = len(host.queue.contexts)
    with Client(host.address, token=TOKEN, retry=RetryPolicy(deadline_ms=0)) as client:
        for where in interrupted_everywhere(lambda: refused(lambda: client.enqueue(NS, "t", b"x"))):
            check_clean(client, where)
            assert not client._pool._idle, where
    assert len(host.queue.contexts) == calls_before


@pytest.mark.parametrize("verb", deep_but((), VERBS, list(VERBS)[1:]))
def test_after_an_exception_at_any_line_of_a_call_nothing_is_in_flight_and_the_next_call_works(
    host: HostThread, verb: str
) -> None:
    with Client(host.address, connections_max=2) as client:
        client.enqueue(NS, "t", b"before")
        for where in interrupted_everywhere(lambda: VERBS[verb](client)):
            check_clean(client, where)
            assert client.enqueue(NS, "t", b"after", deadline_ms=int(PATIENCE_S * 1_000)), where
            check_clean(client, where)


def test_the_same_holds_while_there_is_no_connection_yet(host: HostThread) -> None:
    clients: list[Client] = []

    def call() -> None:
        clients.append(Client(host.address, connections_max=1))
        clients[-1].enqueue(NS, "t", b"x")

    for where in interrupted_everywhere(call):
        if clients:
            client = clients.pop()
            if hasattr(client, "_coalescer"):
                check_clean(client, where)
                assert client.enqueue(NS, "t", b"x", deadline_ms=int(PATIENCE_S * 1_000)), where
                client.close()
    clients.pop().close()


def test_the_same_holds_where_no_host_can_be_reached() -> None:
    with Client("127.0.0.1:1", retry=RetryPolicy(deadline_ms=0)) as client:
        for where in interrupted_everywhere(lambda: refused(lambda: client.enqueue(NS, "t", b""))):
            check_clean(client, where)


def test_the_same_holds_between_the_repetitions_of_an_enqueue() -> None:
    told: list[bool] = []

    def answer(method: str, request: Any) -> Any:
        told.append(not told)
        if told[-1]:
            return enqueue_all(request, {0: item_error(ErrorCode.OVERLOADED)})
        told.clear()
        return enqueue_all(request)

    with ScriptedClient(answer) as client:
        client.pool.goes_on.set()
        for where in interrupted_everywhere(lambda: client.enqueue(NS, "t", b"")):
            check_clean(client, where)
            told.clear()


def test_those_who_wait_behind_an_interrupted_leader_are_served_or_told() -> None:
    """One waits in the lane when the call of the interrupted thread is answered, and one shares that call."""
    outcomes: list[Any] = []

    def follow(client: ScriptedClient, topic: str) -> None:
        try:
            outcomes.append(client.enqueue(NS, topic, b""))
        except FoqsError as error:
            outcomes.append(error)

    def answer(method: str, request: Any) -> Any:
        topics = [item.topic for item in request.items]
        if "led" in topics and len(followers) < 1:
            followers.append(threading.Thread(target=follow, args=(client, "behind")))
            followers[0].start()
            waiting = client._coalescer._queues
            until_soon(lambda: waiting._waiting_count or waiting._lanes.get(LANE) is None)
        return enqueue_all(request)

    followers: list[threading.Thread] = []
    with ScriptedClient(answer) as client:
        for where in interrupted_everywhere(lambda: client.enqueue(NS, "led", b"")):
            for follower in followers:
                follower.join(PATIENCE_S)
                assert not follower.is_alive(), f"nobody leads after {where}"
            assert outcomes == ["behind"] * len(followers), where
            check_clean(client, where)
            followers.clear()
            outcomes.clear()


def test_an_heir_that_is_interrupted_before_its_call_hands_it_on_with_all_that_it_carried() -> None:
    """It had taken the items of others, of which nothing was sent: they are in the next call."""
    sent: list[list[str]] = []

    def answer(method: str, request: Any) -> Any:
        sent.append([item.topic for item in request.items])
        return enqueue_all(request)

    with ScriptedClient(answer) as client, ThreadPoolExecutor(1) as threads:
        coalescer = client._coalescer
        queues = coalescer._queues
        heir = queues.pending(NewItem("heir", b""), None)
        with coalescer._room:
            queues.add(LANE, heir)
        other = threads.submit(client.enqueue, NS, "other", b"")
        until_soon(lambda: queues._waiting_count == 2)
        with coalescer._room:
            heir.give_up_at_ms += 10**6
            assert [one.item.topic for one in queues.take(LANE, heir)] == ["heir", "other"]
        coalescer._let_go(LANE, heir, Interrupted())
        assert other.result(PATIENCE_S) == "other"
    assert sent == [["other"]]


def test_a_monitor_is_free_after_an_exception_at_any_line_of_a_wait() -> None:
    monitor = Monitor()
    notified = 0

    def predicate() -> bool:
        nonlocal notified
        notified += 1
        for gate in monitor._gates:
            open_gate(gate)
        return notified % 3 == 0

    def wait() -> None:
        with monitor:
            monitor.wait_for(predicate, 0.001)

    for where in interrupted_everywhere(wait):
        monitor.drop()
        assert not monitor._gates, where
        assert is_free_in_another_thread(monitor), where


def test_a_flag_that_is_waited_for_is_free_after_an_exception_at_any_line() -> None:
    flag = Flag()
    for where in interrupted_everywhere(lambda: flag.wait(0.001)):
        assert is_free_in_another_thread(flag._changed), where
    flag.set()
    assert flag.wait(0)


def test_a_place_that_was_given_to_who_has_gone_goes_to_the_next() -> None:
    places = Places(1, Monitor())
    first, gone, last = object(), object(), object()
    assert places.take(first, 0)
    assert not places.take(gone, 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(places.take, last, PATIENCE_S)
        until_soon(lambda: last in places._waiting)
        places.leave(gone)
        assert not waiting.done()
        places.leave(first)
        assert waiting.result(PATIENCE_S)
    places.leave(last)
    places.leave(last)
    assert places.free_count == 1


def test_a_gate_lets_one_through_however_often_it_is_opened() -> None:
    gate = closed_gate()
    open_gate(gate)
    open_gate(gate)
    assert gate.acquire(timeout=0)
    assert not gate.acquire(timeout=0)
