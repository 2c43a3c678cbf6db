"""The connection of one host to another: who is let in, what comes back, and what is known when nothing does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, patch

import pytest
from structlog.testing import capture_logs

from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import (
    OverloadedError,
    RateLimitedError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.principal import EVERYBODY
from foqs.model.secret import Secret
from foqs.transport import peers as peers_module
from foqs.wire.codec import METHODS, Codec, structs
from tests.support.asked import Asked
from tests.support.peer_world import SECRET, PeerWorld, peer_world
from tests.support.waiting import PATIENCE_S, eventually

CALLER = CallContext("10.0.0.1", principal=EVERYBODY)


def new_item(payload: bytes = b"x") -> Any:
    return structs.NewItem("t", payload)


def demands(count: int) -> list[Any]:
    return [structs.TopicDemand("t", count)]


async def test_calls_are_counted_by_what_is_known_of_them() -> None:
    async with peer_world() as at, asyncio.timeout(PATIENCE_S):
        at.secret = None
        with pytest.raises(UnavailableError):
            await Asked(at.remote().call, CALLER).ack("jobs", ["1-1:1"])
        assert at.peers.states() == {"connected": 0, "connecting": 0, "failed": 1}
        at.secret = SECRET
        await until_reached(at)
        assert at.peers.states() == {"connected": 1, "connecting": 0, "failed": 0}
        counts = at.peers.calls_total
        assert counts["ack", "not_done"] >= 1
        assert counts["ack", "refused"] == 1
        assert (await Asked(at.remote().call, CALLER).get_shard_map(None)).version == 1
        assert counts["getShardMap", "ok"] == 1
        assert sum(counts.values()) == counts["ack", "not_done"] + 2


async def until_reached(at: PeerWorld) -> None:
    """A peer that could not be reached is not tried again at once."""

    async def ack() -> object:
        try:
            return await Asked(at.remote().call, CALLER).ack("jobs", ["1-1:1"])
        except (UnavailableError, UnknownNamespaceError) as error:
            return error

    await eventually(ack, lambda outcome: isinstance(outcome, UnknownNamespaceError))


async def test_calls_are_done_there_and_the_host_knows_that_a_peer_asks() -> None:
    async with peer_world() as w:
        remote = w.remote()
        result = await Asked(remote.call, CALLER).enqueue("ns", [new_item(), structs.NewItem("t", None)], False)
        assert result.ids[0]
        assert [error.code.name for error in result.errors.values()] == ["INVALID_ARGUMENT"]
        (item,) = await Asked(remote.call, CALLER).dequeue("ns", demands(5), None, 0)
        assert item.id == result.ids[0]
        assert await Asked(remote.call, CALLER).ack("ns", [item.receipt, "no"]) != {}
        assert {context.peer for context in w.queue.contexts} == {"caller"}


async def test_an_error_of_the_peer_is_the_error_of_the_call() -> None:
    async with peer_world() as w:
        w.queue.failure = RateLimitedError("slow down", retry_after_ms=77)
        with pytest.raises(RateLimitedError) as told:
            await Asked(w.remote().call, CALLER).get_active_topics("ns", "", 10, "")
        assert told.value.retry_after_ms == 77


@pytest.mark.parametrize("secret", [Secret(b"another"), None])
async def test_a_host_that_does_not_know_the_secret_is_no_peer(secret: Secret | None) -> None:
    async with peer_world() as w:
        w.secret = secret
        with pytest.raises(UnavailableError) as told:
            await Asked(w.remote().call, CALLER).get_host_status()
        assert told.value.nothing_done


async def test_another_process_at_the_address_is_not_taken_for_the_peer() -> None:
    async with peer_world() as w:
        with pytest.raises(UnavailableError, match="host 'one before' is not here") as told:
            await Asked(w.remote("one before").call, CALLER).get_host_status()
        assert told.value.nothing_done
        assert not w.queue.contexts


async def test_the_outcome_is_unknown_when_the_connection_breaks_and_certain_when_nothing_was_sent() -> None:
    async with peer_world() as w:
        remote = w.remote()
        await Asked(remote.call, CALLER).get_host_status()
        w.queue.gate = asyncio.Event()
        calls = [asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)) for _ in range(3)]
        await w.queue.until_running(3)
        await w.server.stop()
        for call in calls:
            with pytest.raises(UnavailableError) as told:
                await call
            assert not told.value.nothing_done
        with pytest.raises(UnavailableError) as told:
            await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)
        assert told.value.nothing_done
        assert told.value.retry_after_ms


async def test_a_response_that_comes_too_late_is_dropped_and_the_connection_goes_on() -> None:
    async with peer_world() as w:
        remote = w.remote()
        await Asked(remote.call, CALLER).get_host_status()
        w.queue.gate = asyncio.Event()
        with patch.object(limits, "CALL_MS_MAX", 1), pytest.raises(UnavailableError) as told:
            await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)
        assert not told.value.nothing_done
        w.queue.gate.set()
        w.queue.gate = None
        connection = w.peers._links["callee"].connection
        assert (await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)).ids[0]
        assert w.peers._links["callee"].connection is connection


async def test_items_that_a_peer_hands_over_too_late_are_given_back_to_it() -> None:
    """Both when the time is over and when the caller has gone: nobody would get them before their leases end."""
    async with peer_world() as w, asyncio.timeout(PATIENCE_S):
        remote = w.remote()
        for cancels in (False, True):
            item_id = (await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)).ids[0]
            w.queue.dequeue_gate = asyncio.Event()
            asked_count = len(w.queue.contexts)
            with patch.object(limits, "CALL_MS_MAX", limits.CALL_MS_MAX if cancels else 1):
                call = asyncio.create_task(Asked(remote.call, CALLER).dequeue("ns", demands(1), None, 0))
                while len(w.queue.contexts) == asked_count:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                if cancels:
                    call.cancel()
                await asyncio.wait([call])
            w.queue.dequeue_gate.set()
            w.queue.dequeue_gate = None
            while not w.queue.nacks_count:  # noqa: ASYNC110
                await asyncio.sleep(0)
            w.queue.nacks_count = 0
            (item,) = await Asked(remote.call, CALLER).dequeue("ns", demands(1), None, 0)
            assert item.id == item_id
            assert await Asked(remote.call, CALLER).ack("ns", [item.receipt]) == {}


def reply_of(method: str, response: Any) -> Callable[[int], bytes]:
    return lambda seqid: Codec().encode_reply(METHODS[method], response, seqid)


WHOLE = reply_of("enqueue", structs.EnqueueResponse(["1-1"], {}, []))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(lambda seqid: b"\0\0\0\5hello", id="no message"),
        pytest.param(lambda seqid: WHOLE(seqid)[:-4] + b"\x0e" * 4, id="bad bytes"),
        pytest.param(reply_of("enqueue", structs.EnqueueResponse(errors={})), id="no ids"),
        pytest.param(reply_of("enqueue", structs.EnqueueResponse([""], {0: structs.ItemError()})), id="no code"),
        pytest.param(reply_of("ack", structs.BatchResponse({})), id="of another call"),
        pytest.param(lambda seqid: WHOLE(seqid + 1), id="of no call"),
    ],
)
async def test_what_is_no_response_leaves_the_outcome_unknown_and_ends_the_connection(
    reply: Callable[[int], bytes],
) -> None:
    async with peer_world() as w, asyncio.timeout(PATIENCE_S):
        remote = w.remote()
        w.queue.gate = asyncio.Event()
        for round_count in (1, 2):
            call = asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False))
            await w.queue.until_running(round_count)
            connection = w.peers._links["callee"].connection
            assert connection is not None
            with capture_logs() as logs:
                connection.data_received(reply(next(iter(connection._waiting))))
            with pytest.raises(UnavailableError) as told:
                await call
            assert not told.value.nothing_done
            assert connection.is_lost
            told_of = [entry["peer"] for entry in logs if entry["event"] == "peer_not_understood"]
            assert told_of == (["callee"] if round_count == 1 else []), "it is told once"
        w.queue.gate.set()
        assert (await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)).ids[0], "over another connection"


async def test_the_outcome_is_unknown_where_a_peer_could_not_respond_as_agreed() -> None:
    async with peer_world() as w, asyncio.timeout(PATIENCE_S):
        remote = w.remote()
        w.queue.gate = asyncio.Event()
        call = asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False))
        await w.queue.until_running(1)
        connection = w.peers._links["callee"].connection
        assert connection is not None
        seqid = next(iter(connection._waiting))
        connection.data_received(Codec().encode_application_error(b"enqueue", 6, "an internal error", seqid))
        with pytest.raises(UnavailableError, match="an internal error") as told:
            await call
        assert not told.value.nothing_done
        w.queue.gate.set()


@pytest.mark.parametrize(
    "result", [EnqueueResult([], {}, []), EnqueueResult(["1-1"], {}, [1])], ids=["ids", "duplicates"]
)
async def test_what_became_of_items_is_unknown_where_the_response_does_not_fit_them(result: EnqueueResult) -> None:
    async with peer_world() as w:
        with patch.object(w.queue, "enqueue", AsyncMock(return_value=result)), pytest.raises(UnavailableError) as told:
            await Asked(w.remote().call, CALLER).enqueue("ns", [new_item()], False)
        assert not told.value.nothing_done


async def test_there_is_a_bound_on_what_is_in_flight() -> None:
    async with peer_world() as w:
        remote = w.remote()
        w.queue.gate = asyncio.Event()
        with patch.object(limits, "CALLS_IN_FLIGHT_PER_PEER_MAX", 3):
            calls = [
                asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)) for _ in range(2)
            ]
            await w.queue.until_running(2)
            with pytest.raises(OverloadedError) as told:
                await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)
            assert told.value.retry_after_ms
            w.queue.gate.set()
            for call in calls:
                assert (await call).ids[0]


async def test_the_bound_counts_calls_that_wait_until_a_frozen_peer_reads_on() -> None:
    async with peer_world() as w:
        remote = w.remote()
        await Asked(remote.call, CALLER).get_host_status()
        connection = w.peers._links["callee"].connection
        assert connection is not None
        connection.pause_writing()
        with patch.object(limits, "CALLS_IN_FLIGHT_PER_PEER_MAX", 3):
            calls = [
                asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)) for _ in range(2)
            ]
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="2 calls"):
                await Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)
            connection.resume_writing()
            for call in calls:
                assert (await call).ids[0]


async def test_calls_that_waited_for_a_peer_to_read_on_fill_no_buffer_when_it_reads_a_little() -> None:
    async with peer_world() as w:
        remote = w.remote()
        await Asked(remote.call, CALLER).get_host_status()
        connection = w.peers._links["callee"].connection
        assert connection is not None
        sent: list[bytes] = []
        transport, connection._transport = connection._transport, cast(asyncio.Transport, SimpleNamespace())

        def write(frame: bytes) -> None:
            """It takes one frame, and is full."""
            sent.append(frame)
            connection.pause_writing()

        cast(Any, connection._transport).write = write
        connection.pause_writing()
        calls = [asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [new_item()], False)) for _ in range(5)]
        for sent_count in (1, 2):
            await asyncio.sleep(0)
            connection.resume_writing()
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(sent) == sent_count
        connection._transport = transport
        connection.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted([cast(UnavailableError, error).nothing_done for error in outcomes]) == [False] * 2 + [True] * 3


async def test_a_call_whose_peer_is_given_up_while_it_is_dialled_was_certainly_not_done() -> None:
    accepted = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    async with peer_world() as w, silent, asyncio.timeout(PATIENCE_S):
        remote = w.peers.get("dead", f"127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        call = asyncio.create_task(Asked(remote.call, CALLER).ack("ns", ["1-1:1"]))
        await accepted.wait()
        w.peers.keep({"callee"})
        with pytest.raises(UnavailableError) as told:
            await call
        assert told.value.nothing_done


async def test_a_connection_that_lies_idle_is_probed_and_a_dead_one_is_noticed_within_seconds() -> None:
    async with peer_world() as w:
        await Asked(w.remote().call, CALLER).get_host_status()
        connection = w.peers._links["callee"].connection
        assert connection is not None
        connected = connection._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000


async def test_many_callers_share_one_connection_with_more_calls_than_a_client_may_have() -> None:
    async with peer_world() as w:
        w.queue.gate = asyncio.Event()
        remote = w.remote()
        count = limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX * 2
        calls = [
            asyncio.create_task(
                Asked(remote.call, CallContext(f"10.0.0.{number}", principal=EVERYBODY)).enqueue(
                    "ns", [new_item()], False
                )
            )
            for number in range(count)
        ]
        await w.queue.until_running(count)
        w.queue.gate.set()
        for call in calls:
            assert (await call).ids[0]
        assert len(w.peers._links) == 1


async def test_a_peer_that_cannot_be_reached_is_not_dialled_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer_world() as w:
        await w.server.stop()
        dialled = 0
        create_connection = asyncio.get_running_loop().create_connection

        async def dial(*arguments: Any, **options: Any) -> Any:
            nonlocal dialled
            dialled += 1
            return await create_connection(*arguments, **options)

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", dial, raising=False)
        monkeypatch.setattr(peers_module, "CONNECT_RETRY_MS", 60_000)
        for _ in range(10):
            with pytest.raises(UnavailableError):
                await Asked(w.remote().call, CALLER).get_host_status()
        assert dialled == 1
