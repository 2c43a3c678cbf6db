"""What the asyncio client has of its own: one connection for many calls, and its pool.

What it has in common with the blocking client, which is made of it, is held by test_client_sync.py; and all verbs on
real hosts by test_call_*.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

import foqs
from foqs.transport.server import ThriftServer
from foqs.wire import codec as wire
from tests.support.client_host import Peer, refused_address, running_host, scripted_peer, times_out_async
from tests.support.fake_queue import FakeQueue
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, longer

ONCE = foqs.RetryPolicy(deadline_ms=0)
S = wire.structs


@asynccontextmanager
async def beside_host() -> AsyncIterator[tuple[FakeQueue, str]]:
    """A host on the same loop and its address; nothing may be left running after it."""
    queue = FakeQueue()
    server = ThriftServer(queue.call, address="127.0.0.1", port=0, namespaces=queue, metrics=Mock())
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield queue, f"127.0.0.1:{server.port}"
    finally:
        await server.stop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


@asynccontextmanager
async def at_peer(*scripts: Callable[[Peer], None]) -> AsyncIterator[foqs.AsyncClient]:
    """A client of one connection, whose host plays the scripts."""
    with scripted_peer(*scripts) as address:
        async with (
            asyncio.timeout(PATIENCE_S),
            foqs.AsyncClient(address, connections_max=1, timeout_ms=PATIENCE_MS, retry=ONCE) as client,
        ):
            yield client


async def names(client: foqs.AsyncClient, prefix: str = "") -> list[str]:
    return [stats.topic async for stats in client.topics("ns", prefix)]


def answer(peer: Peer, seqid: int, topic: str) -> None:
    stats = S.TopicStats(topic, 1, 0, 0, 0, 0, 0)
    response = S.ActiveTopicsResponse(topics=[stats], next_page_token="")
    peer.answer("getActiveTopics", seqid, response)


def fresh(peer: Peer) -> None:
    _, seqid, _ = peer.next_call()
    answer(peer, seqid, "fresh")


async def test_tasks_share_calls_and_connections() -> None:
    async with beside_host() as (_, address), foqs.AsyncClient(address, connections_max=2) as client:
        ids = await asyncio.gather(*(client.enqueue("ns", "t", b"%d" % n) for n in range(500)))
        assert len(set(ids)) == 500
        result = await client.enqueue_many("ns", [foqs.NewItem("u", b"")] * 2_500)
        assert len(set(result.ids)) == 2_500
        assert len(client._pool._connections) <= 2


async def test_a_long_poll_holds_up_no_other_call() -> None:
    async with beside_host() as (queue, address), foqs.AsyncClient(address, connections_max=1) as client:
        polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=30_000))
        await queue.long_poll_began.wait()
        item_id = await client.enqueue("ns", "t", b"")
        assert [item.id for item in await polling] == [item_id]


async def test_close_ends_calls_in_flight_and_later_ones() -> None:
    async with beside_host() as (queue, address):
        client = foqs.AsyncClient(address)
        polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=30_000))
        await queue.long_poll_began.wait()
        await client.close()
        with pytest.raises(foqs.ClientClosedError):
            await polling
        with pytest.raises(foqs.ClientClosedError):
            await client.enqueue("ns", "t", b"")
        await client.close()


async def test_answers_find_their_calls_in_whatever_order_they_come() -> None:
    def reverse(peer: Peer) -> None:
        calls = [peer.next_call() for _ in range(3)]
        for _, seqid, request in reversed(calls):
            answer(peer, seqid, f"answer to {request.prefix}")

    async with at_peer(reverse) as client:
        answers = await asyncio.gather(*(names(client, prefix) for prefix in "abc"))
    assert answers == [["answer to a"], ["answer to b"], ["answer to c"]]


async def test_a_timed_out_call_retires_the_connection_without_harm_to_the_others() -> None:
    def hold(peer: Peer) -> None:
        _, of_dequeue, _ = peer.next_call()
        polls.set()
        _, of_topics, _ = peer.next_call()
        retired.wait(PATIENCE_S)
        answer(peer, of_topics, "too late")
        peer.answer("dequeue", of_dequeue, S.DequeueResponse(items=[]))
        peer.wait_for_close()

    polls, retired = threading.Event(), threading.Event()
    async with at_peer(hold, fresh) as client:
        polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=20_000))
        assert await asyncio.to_thread(polls.wait, PATIENCE_S)
        message = await times_out_async(client, lambda: names(client))
        assert re.search(r"no answer from 127\.0\.0\.1:\d+ within \d+ ms", message)
        retired.set()
        assert await polling == []
        assert await names(client) == ["fresh"]


def of_no_call(peer: Peer) -> None:
    _, seqid, _ = peer.next_call()
    answer(peer, seqid + 1, "stranger")
    peer.wait_for_close()


def of_another_method(peer: Peer) -> None:
    _, seqid, _ = peer.next_call()
    peer.answer("ack", seqid, S.BatchResponse(errors={}))
    peer.wait_for_close()


def garbage(peer: Peer) -> None:
    for _ in range(3):
        peer.next_call()
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.wait_for_close()


def the_end(peer: Peer) -> None:
    peer.next_call()


@pytest.mark.parametrize(
    ("what_comes", "calls_count", "told"),
    [
        (of_no_call, 1, "which no call has"),
        (of_another_method, 1, "speaks of ack"),
        (garbage, 3, ""),
        (the_end, 1, r"connection to 127\.0\.0\.1:\d+ broke"),
    ],
)
async def test_a_connection_that_breaks_leaves_every_call_on_it_with_an_unknown_outcome(
    what_comes: Callable[[Peer], None], calls_count: int, told: str
) -> None:
    async with at_peer(what_comes) as client:
        failures = await asyncio.gather(*(names(client) for _ in range(calls_count)), return_exceptions=True)
    for failure in failures:
        assert isinstance(failure, foqs.OutcomeUnknownError)
        assert re.search(told, str(failure))


async def test_after_an_application_error_no_new_call_goes_on_the_connection() -> None:
    def broken(peer: Peer) -> None:
        (_, first, _), (_, second, _) = peer.next_call(), peer.next_call()
        peer.send(wire.Codec().encode_application_error(b"getActiveTopics", 6, "defect 17", first))
        answer(peer, second, "answered")
        peer.wait_for_close()

    async with at_peer(broken, fresh) as client:
        first, second = await asyncio.gather(names(client), names(client), return_exceptions=True)
        assert isinstance(first, foqs.InternalError)
        assert second == ["answered"]
        assert await names(client) == ["fresh"]


async def test_the_answer_to_a_cancelled_call_is_dropped_and_the_connection_goes_on() -> None:
    def patient(peer: Peer) -> None:
        _, first, _ = peer.next_call()
        asked.set()
        _, second, _ = peer.next_call()
        answer(peer, first, "to the cancelled")
        answer(peer, second, "to the other")

    asked = threading.Event()
    async with at_peer(patient) as client:
        cancelled = asyncio.create_task(names(client))
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await names(client) == ["to the other"]


async def test_a_call_ends_at_its_deadline_and_not_at_the_timeout_of_an_attempt() -> None:
    def silent(peer: Peer) -> None:
        peer.next_call()
        peer.wait_for_close()

    async with at_peer(silent) as client:
        for deadline_ms in longer(60):
            began_s = time.monotonic()
            with pytest.raises((foqs.OutcomeUnknownError, foqs.NotSentError)) as ended:
                await client.ack("ns", "a.1", deadline_ms=deadline_ms)
            took_s = time.monotonic() - began_s
            if ended.type is foqs.OutcomeUnknownError:
                break
    assert ended.type is foqs.OutcomeUnknownError, "it was never sent"
    assert deadline_ms / 1_200 < took_s < PATIENCE_S / 2


async def test_an_address_that_refuses_is_passed_over_and_when_all_do_nothing_was_done() -> None:
    async with beside_host() as (_, address):
        async with foqs.AsyncClient([refused_address(), address], random=lambda: 0.0, retry=ONCE) as client:
            assert await client.enqueue("ns", "t", b"")
        async with foqs.AsyncClient(refused_address(), retry=ONCE) as client:
            with pytest.raises(foqs.NotSentError, match="no connection"):
                await client.enqueue("ns", "t", b"")


async def test_a_host_that_does_nothing_is_left_for_the_next_one_and_makes_room_for_it() -> None:
    async with beside_host() as (owner, address):
        with running_host() as standby:
            standby.queue.failure = foqs.UnavailableError("a standby", retry_after_ms=60_000, nothing_done=True)
            settings: dict[str, Any] = {"random": lambda: 0.0, "retry": ONCE, "connections_max": 1}
            async with foqs.AsyncClient([standby.address, address], **settings) as client:
                await client.enqueue("ns", "t", b"x")
                assert standby.queue.ready["ns", "t"], "it is asked first"
                for _ in range(3):
                    assert await asyncio.gather(*[names(client) for _ in range(5)]) == [[]] * 5
                assert [str(connection.address) for connection in client._pool._connections] == [address]
                owner.failure = standby.queue.failure
                with pytest.raises(foqs.UnavailableError):
                    await names(client)
                standby.queue.failure = None
                assert await names(client) == ["t"]
