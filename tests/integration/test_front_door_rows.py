"""The 72 bad inputs, by the numbers of their rows: what each is answered, and that it harms nobody.

Bytes that are no good call are in tests/support/bad_frames.py, good calls with bad arguments in
test_front_door_row_calls.py; how peers misbehave is here, a function for each row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from foqs.model.errors import InternalError
from foqs.transport.bounds import TransportLimits
from foqs.wire.codec import UNKNOWN_METHOD, ApplicationError, structs
from foqs.wire.frames import FrameTimes
from tests.integration.test_front_door_row_calls import CALLS
from tests.support import bad_frames, thrift_bytes
from tests.support.bad_frames import BadFrame, Outcome, row_id
from tests.support.front_door import dequeue_request, enqueue_request, world
from tests.support.loops import on_uvloop, run
from tests.support.raw_client import codes_of
from tests.support.thrift_bytes import frame, message

NOT_HERE = {
    63: "TLS: client certificates",
    64: "TLS: versions and ciphers",
    65: "TLS: handshakes",
    66: "identity: what a principal may do",
}
"""Rows about TLS and identities: tests/attack has them, in test_tls.py, test_identities.py and
test_permissions_of_callers.py.
"""

SHORT_MS = 50

Behaviour = Callable[[], Awaitable[None]]
BEHAVIOURS: list[tuple[int, Behaviour]] = []


def behaviour(row: int) -> Callable[[Behaviour], Behaviour]:
    """Of a peer, at a server with a fake queue."""

    def register(check: Behaviour) -> Behaviour:
        BEHAVIOURS.append((row, check))
        return check

    return register


def test_every_row_is_here_or_left_out_for_a_reason() -> None:
    covered = {bad.row for bad in bad_frames.ALL} | {row for row, _ in BEHAVIOURS} | {row for row, _ in CALLS}
    assert covered | NOT_HERE.keys() == set(range(1, 73))
    assert covered & NOT_HERE.keys() == set()


@pytest.mark.parametrize("bad", bad_frames.ALL, ids=lambda bad: f"row {bad.row}: {bad.name}")
@on_uvloop
async def test_bytes_have_their_answer_and_harm_nobody(bad: BadFrame) -> None:
    async with world() as w, w.connect() as client:
        started_s = time.process_time()
        await client.send_bytes(bad.data)
        if bad.outcome is Outcome.CLOSED:
            assert await client.is_closed()
            assert len(w.counts.errors) == 1
        else:
            reply = await client.receive()
            assert reply.seqid == 7
            if bad.outcome is Outcome.UNKNOWN_METHOD:
                assert isinstance(reply.error, ApplicationError)
                assert reply.error.kind == UNKNOWN_METHOD
            elif bad.outcome is Outcome.OK:
                assert reply.response.ids == ["1-1"]
            else:
                assert codes_of(reply) in (bad.outcome, {0: bad.outcome})
            assert w.counts.errors == []
        assert time.process_time() - started_s < 1.0
        assert await w.is_healthy()
        assert bool(w.queue.ready["ns", "topic"]) is (bad.outcome is Outcome.OK)


@pytest.mark.parametrize(("row", "check"), BEHAVIOURS, ids=row_id)
def test_peers_have_their_answer(row: int, check: Behaviour) -> None:
    run(check)


@behaviour(6)
async def a_header_that_comes_too_slowly() -> None:
    async with (
        world(TransportLimits(frame_times=FrameTimes(header_ms_max=SHORT_MS), sweep_ms=5)) as w,
        w.connect() as client,
    ):
        await client.call("getHostStatus", structs.HostStatusRequest())
        await client.send_bytes(b"\0")
        assert await client.is_closed()
        assert w.counts.errors == ["header_deadline"]


@behaviour(7)
async def a_body_that_comes_too_slowly() -> None:
    """It never stands still."""
    bounds = TransportLimits(frame_times=FrameTimes(body_ms_min=SHORT_MS, body_bytes_per_ms_min=1_000), sweep_ms=5)
    async with world(bounds) as w, w.connect() as client:
        data = w.codec.encode_call("enqueue", enqueue_request(b"x" * 500), 1)
        for at in range(len(data)):
            await client.send_bytes(data[at : at + 1])
            if await client.closes_within(SHORT_MS / 1000 / 4):
                break
        else:
            raise AssertionError("the server took every byte")
        assert w.counts.errors == ["body_deadline"]
        assert not w.queue.ready


@behaviour(8)
async def a_connection_that_says_nothing() -> None:
    async with (
        world(TransportLimits(frame_times=FrameTimes(first_frame_ms_max=SHORT_MS), sweep_ms=5)) as w,
        w.connect() as client,
    ):
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


@behaviour(9)
async def more_connections_of_one_address_than_may_be() -> None:
    async with world(TransportLimits(connections_per_address_max=3)) as w, AsyncExitStack() as stack:
        first = [await stack.enter_async_context(w.connect()) for _ in range(3)]
        for client in first:
            await client.call("getHostStatus", structs.HostStatusRequest())
        for _ in range(20):
            async with w.connect() as another:
                assert await another.is_closed()
        assert w.counts.refused == ["connections_per_address_max"] * 20
        assert (await first[0].call("getHostStatus", structs.HostStatusRequest())).error is None
        first[1].reset()
        await w.until_open(2)
        assert await w.is_healthy()


@behaviour(10)
async def a_half_close_after_a_good_request() -> None:
    async with world() as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        client.send("enqueue", enqueue_request(b"last"), seqid=9)
        client.end_sending()
        await w.queue.until_running(1)
        w.queue.gate.set()
        assert (await client.receive()).response.ids == ["1-1"]
        assert await client.is_closed()


@behaviour(22)
async def a_method_name_is_escaped_in_the_log() -> None:
    with capture_logs() as logs:
        async with world() as w, w.connect() as client:
            await client.send_bytes(frame(message(thrift_bytes.STOP, name=b"\x1b[31m\r\n\xff")))
            assert await client.is_closed()
    (line,) = [entry["detail"] for entry in logs if entry["event"] == "connection_refused"]
    assert line.isprintable()
    assert "\\x1b[31m\\r\\n\\xff" in line


@behaviour(34)
async def a_good_message_cut_off_at_every_byte() -> None:
    good = bad_frames.GOOD
    async with world() as w:
        for size in range(1, len(good)):
            async with w.connect() as client:
                await client.send_bytes(frame(good[:size]))
                assert await client.is_closed(), size
        assert len(w.counts.errors) == len(good) - 1
        assert not w.queue.ready


@behaviour(35)
async def every_bit_of_a_good_message_flipped() -> None:
    """Every byte set to every value is in tests/unit/test_frame_scan.py, without the sockets."""
    good = bad_frames.GOOD
    answered = closed = 0
    async with world() as w:
        for at in range(len(good)):
            for bit in range(8):
                async with w.connect() as client:
                    bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
                    await client.send_bytes(frame(bad))
                    client.end_sending()
                    if await client.is_closed():
                        closed += 1
                    else:
                        answered += 1
        assert closed == len(w.counts.errors) > 0
        assert answered == len(w.counts.finished) > 0
        assert await w.is_healthy()


@behaviour(68)
async def ten_thousand_calls_sent_at_once() -> None:
    async with world(TransportLimits(calls_in_flight_max=8)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        frames = [w.codec.encode_call("enqueue", enqueue_request(b"p"), n) for n in range(10_000)]
        sending = asyncio.ensure_future(client.send_bytes(b"".join(frames)))
        await w.queue.until_running(8)
        assert await w.is_healthy()
        assert w.queue.calls_running == 8
        w.queue.gate.set()
        assert {(await client.receive()).seqid for _ in range(10_000)} == set(range(10_000))
        await sending


@behaviour(69)
async def a_call_behind_a_long_poll() -> None:
    async with world() as w, w.connect() as client:
        client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
        client.send("getHostStatus", structs.HostStatusRequest(), seqid=2)
        assert (await client.receive()).seqid == 2
        client.send("enqueue", enqueue_request(b"now"), seqid=3)
        replies = {reply.seqid: reply for reply in [await client.receive(), await client.receive()]}
        assert replies[1].response.items[0].payload == b"now"
        assert replies[3].response.ids == ["1-1"]


@behaviour(70)
async def a_defect_behind_a_verb() -> None:
    """It is answered with an id and without its text."""
    async with world() as w, w.connect() as client:
        for failure in (ZeroDivisionError("secret"), asyncio.CancelledError("secret")):
            w.queue.failure = failure
            with capture_logs() as logs:
                reply = await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))
            assert isinstance(reply.error, InternalError)
            assert "secret" not in reply.error.message
            (line,) = [line for line in logs if line["event"] == "call_failed"]
            assert line["caller"] == "127.0.0.1"
            assert line["request_id"] == reply.error.request_id
            assert reply.error.request_id in reply.error.message
            w.queue.failure = None
            assert (await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))).error is None
