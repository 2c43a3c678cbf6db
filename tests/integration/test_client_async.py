from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable
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


def with_host(scenario: Callable[[FakeQueue, str], Awaitable[None]]) -> None:
    """Run a scenario beside a host on the same loop; nothing may be left running after it."""

    async def main() -> None:
        queue = FakeQueue()
        server = ThriftServer(queue.call, address="127.0.0.1", port=0, namespaces=queue, metrics=Mock())
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario(queue, f"127.0.0.1:{server.port}")
        finally:
            await server.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(main())


def with_peer(
    scenario: Callable[[foqs.AsyncClient], Awaitable[None]],
    *scripts: Callable[[Peer], None],
) -> None:
    """Run a scenario with a client of one connection, whose host plays the scripts."""

    async def main(address: str) -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            foqs.AsyncClient(address, connections_max=1, timeout_ms=PATIENCE_MS, retry=ONCE) as client,
        ):
            await scenario(client)

    with scripted_peer(*scripts) as address:
        asyncio.run(main(address))


async def names(client: foqs.AsyncClient, prefix: str = "") -> list[str]:
    return [stats.topic async for stats in client.topics("ns", prefix)]


def answer(peer: Peer, seqid: int, topic: str) -> None:
    stats = S.TopicStats(topic, 1, 0, 0, 0, 0, 0)
    response = S.ActiveTopicsResponse(topics=[stats], next_page_token="")
    peer.answer("getActiveTopics", seqid, response)


def test_an_item_lives_from_enqueue_to_ack() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncClient(address) as client:
            item_id = await client.enqueue("ns", "t", b"payload")
            [item] = await client.dequeue("ns", [("t", 5)])
            assert (item.id, item.payload) == (item_id, b"payload")
            assert await client.extend("ns", [item], 60_000) == {}
            assert await client.nack("ns", item) == {}
            [item] = await client.dequeue("ns", "t")
            assert await client.release("ns", [item]) == {}
            [item] = await client.dequeue("ns", "t")
            assert await client.ack("ns", [item]) == {}
            with pytest.raises(foqs.StaleLeaseError):
                await client.ack("ns", item)
            with pytest.raises(foqs.UnknownNamespaceError):
                await client.enqueue("nowhere", "t", b"")

    with_host(scenario)


def test_batches_in_flight_together_bring_every_item_once_in_the_order_of_its_id() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncClient(address, batch_items_max=10) as client:
            news = [foqs.NewItem("t", b"%d" % number) for number in range(95)]
            result = await client.enqueue_many("ns", news, bulk=True, calls_in_flight=4, deadline_ms=PATIENCE_MS)
            assert not result.errors
            items = {item.id: item.payload for item in await client.dequeue("ns", "t", 100)}
            assert [items[item_id] for item_id in result.ids] == [new.payload for new in news]

    with_host(scenario)


def test_tasks_share_calls_and_connections() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncClient(address, connections_max=2) as client:
            ids = await asyncio.gather(*(client.enqueue("ns", "t", b"%d" % n) for n in range(500)))
            assert len(set(ids)) == 500
            result = await client.enqueue_many("ns", [foqs.NewItem("u", b"")] * 2_500)
            assert len(set(result.ids)) == 2_500
            assert len(client._pool._connections) <= 2

    with_host(scenario)


def test_a_long_poll_holds_up_no_other_call() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncClient(address, connections_max=1) as client:
            polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=30_000))
            await queue.long_poll_began.wait()
            item_id = await client.enqueue("ns", "t", b"")
            assert [item.id for item in await polling] == [item_id]

    with_host(scenario)


def test_close_ends_calls_in_flight_and_later_ones() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        client = foqs.AsyncClient(address)
        polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=30_000))
        await queue.long_poll_began.wait()
        await client.close()
        with pytest.raises(foqs.ClientClosedError):
            await polling
        with pytest.raises(foqs.ClientClosedError):
            await client.enqueue("ns", "t", b"")
        await client.close()

    with_host(scenario)


def test_every_administrative_verb_is_answered() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncAdminClient(address) as admin, foqs.AsyncClient(address) as client:
            assert (await admin.create_namespace("orders", attempts_max=3)).settings.attempts_max == 3
            assert (await admin.update_namespace("orders", attempts_max=4)).settings.attempts_max == 4
            assert (await admin.get_namespace("orders")).name == "orders"
            assert [namespace.name async for namespace in admin.list_namespaces()] == ["ns", "orders"]
            await admin.delete_namespace("orders")
            item_id = await client.enqueue("ns", "t", b"p")
            assert [item.payload for item in (await admin.peek_items("ns", "t")).items] == [b"p"]
            assert (await admin.get_item("ns", item_id)).id == item_id
            assert isinstance(await admin.delete_items("ns", item_id, return_errors=True), dict)
            assert (await admin.list_dead_letters("ns", "t")).next_page_token == ""
            assert (await admin.redrive_dead_letters("ns", "t", ["1-1"], return_errors=True)).count >= 0
            assert (await admin.purge_dead_letters("ns", "t", return_errors=True)).count >= 0
            assert (await admin.host_status()).shards[0].epoch == 3

    with_host(scenario)


def test_answers_find_their_calls_in_whatever_order_they_come() -> None:
    def reverse(peer: Peer) -> None:
        calls = [peer.next_call() for _ in range(3)]
        for _, seqid, request in reversed(calls):
            answer(peer, seqid, f"answer to {request.prefix}")

    async def scenario(client: foqs.AsyncClient) -> None:
        answers = await asyncio.gather(*(names(client, prefix) for prefix in "abc"))
        assert answers == [["answer to a"], ["answer to b"], ["answer to c"]]

    with_peer(scenario, reverse)


def test_a_timed_out_call_retires_the_connection_without_harm_to_the_others() -> None:
    def hold(peer: Peer) -> None:
        _, of_dequeue, _ = peer.next_call()
        polls.set()
        _, of_topics, _ = peer.next_call()
        retired.wait(PATIENCE_S)
        answer(peer, of_topics, "too late")
        peer.answer("dequeue", of_dequeue, S.DequeueResponse(items=[]))
        peer.wait_for_close()

    def fresh(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        answer(peer, seqid, "fresh")

    polls, retired = threading.Event(), threading.Event()

    async def scenario(client: foqs.AsyncClient) -> None:
        polling = asyncio.create_task(client.dequeue("ns", "t", wait_ms=20_000))
        assert await asyncio.to_thread(polls.wait, PATIENCE_S)
        message = await times_out_async(client, lambda: names(client))
        assert re.search(r"no answer from 127\.0\.0\.1:\d+ within \d+ ms", message)
        retired.set()
        assert await polling == []
        assert await names(client) == ["fresh"]

    with_peer(scenario, hold, fresh)


def test_an_answer_that_no_call_has_breaks_the_connection() -> None:
    def wrong(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        answer(peer, seqid + 1, "stranger")
        peer.wait_for_close()

    async def scenario(client: foqs.AsyncClient) -> None:
        with pytest.raises(foqs.OutcomeUnknownError, match="which no call has"):
            await names(client)

    with_peer(scenario, wrong)


def test_garbage_breaks_the_connection_for_every_call_on_it() -> None:
    def babble(peer: Peer) -> None:
        for _ in range(3):
            peer.next_call()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.wait_for_close()

    async def scenario(client: foqs.AsyncClient) -> None:
        failures = await asyncio.gather(*(names(client) for _ in range(3)), return_exceptions=True)
        assert [type(failure) for failure in failures] == [foqs.OutcomeUnknownError] * 3

    with_peer(scenario, babble)


def test_an_answer_to_another_method_breaks_the_connection() -> None:
    def wrong(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        peer.answer("ack", seqid, S.BatchResponse(errors={}))
        peer.wait_for_close()

    async def scenario(client: foqs.AsyncClient) -> None:
        with pytest.raises(foqs.OutcomeUnknownError, match="speaks of ack"):
            await names(client)

    with_peer(scenario, wrong)


def test_after_an_application_error_no_new_call_goes_on_the_connection() -> None:
    def broken(peer: Peer) -> None:
        (_, first, _), (_, second, _) = peer.next_call(), peer.next_call()
        peer.send(wire.Codec().encode_application_error(b"getActiveTopics", 6, "defect 17", first))
        answer(peer, second, "answered")
        peer.wait_for_close()

    def fresh(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        answer(peer, seqid, "fresh")

    async def scenario(client: foqs.AsyncClient) -> None:
        first, second = await asyncio.gather(names(client), names(client), return_exceptions=True)
        assert isinstance(first, foqs.InternalError)
        assert second == ["answered"]
        assert await names(client) == ["fresh"]

    with_peer(scenario, broken, fresh)


def test_the_answer_to_a_cancelled_call_is_dropped_and_the_connection_goes_on() -> None:
    def patient(peer: Peer) -> None:
        _, first, _ = peer.next_call()
        asked.set()
        _, second, _ = peer.next_call()
        answer(peer, first, "to the cancelled")
        answer(peer, second, "to the other")

    asked = threading.Event()

    async def scenario(client: foqs.AsyncClient) -> None:
        cancelled = asyncio.create_task(names(client))
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await names(client) == ["to the other"]

    with_peer(scenario, patient)


def test_a_lost_connection_leaves_calls_with_an_unknown_outcome() -> None:
    def lose(peer: Peer) -> None:
        peer.next_call()

    async def scenario(client: foqs.AsyncClient) -> None:
        with pytest.raises(foqs.OutcomeUnknownError, match=r"connection to 127\.0\.0\.1:\d+ broke"):
            await client.enqueue("ns", "t", b"")

    with_peer(scenario, lose)


def test_a_call_ends_at_its_deadline_and_not_at_the_timeout_of_an_attempt() -> None:
    def silent(peer: Peer) -> None:
        peer.next_call()
        peer.wait_for_close()

    async def scenario(client: foqs.AsyncClient) -> None:
        for deadline_ms in longer(60):
            began_s = time.monotonic()
            with pytest.raises((foqs.OutcomeUnknownError, foqs.NotSentError)) as ended:
                await client.ack("ns", "a.1", deadline_ms=deadline_ms)
            took_s = time.monotonic() - began_s
            if ended.type is foqs.OutcomeUnknownError:
                break
        assert ended.type is foqs.OutcomeUnknownError, "it was never sent"
        assert deadline_ms / 1_200 < took_s < PATIENCE_S / 2

    with_peer(scenario, silent)


def test_an_address_that_refuses_is_passed_over_and_when_all_do_nothing_was_done() -> None:
    async def scenario(queue: FakeQueue, address: str) -> None:
        async with foqs.AsyncClient([refused_address(), address], random=lambda: 0.0, retry=ONCE) as client:
            assert await client.enqueue("ns", "t", b"")
        async with foqs.AsyncClient(refused_address(), retry=ONCE) as client:
            with pytest.raises(foqs.NotSentError, match="no connection"):
                await client.enqueue("ns", "t", b"")

    with_host(scenario)


def test_a_host_that_does_nothing_is_left_for_the_next_one_and_makes_room_for_it() -> None:
    async def scenario(owner: FakeQueue, address: str) -> None:
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

    with_host(scenario)
