"""Bad bytes in the midst of good ones: what a connection owes to the calls before them."""

from __future__ import annotations

import pytest

from foqs.transport.bounds import TransportLimits
from foqs.wire.codec import METHODS, ApplicationError
from foqs.wire.frames import FrameTimes
from tests.support.bad_frames import GOOD
from tests.support.front_door import dequeue_request, until, world
from tests.support.loops import on_uvloop
from tests.support.thrift_bytes import frame, u32


@on_uvloop
async def test_a_frame_that_the_peer_leaves_unfinished_is_counted_and_closed() -> None:
    async with world() as w, w.connect() as client:
        await client.send_bytes(frame(GOOD)[:-1])
        client.end_sending()
        assert await client.is_closed()
        assert w.counts.errors == ["truncated"]


HEAD_BYTES = 12 + len(b"enqueue")


@pytest.mark.parametrize("first_bytes", [1, 4, 6, 8, HEAD_BYTES - 5, HEAD_BYTES - 1, HEAD_BYTES, len(GOOD)])
@on_uvloop
async def test_a_client_without_frames_is_told_to_use_them(first_bytes: int) -> None:
    """However the bytes of its call come: a socket that is not buffered sends one field after the other."""

    async with world() as w, w.connect() as client:
        await client.send_bytes(GOOD[:first_bytes])
        if first_bytes < HEAD_BYTES:
            await until(lambda: [connection.buffered_bytes for connection in w.connections()] == [first_bytes])
        await client.send_bytes(GOOD[first_bytes:])
        reply = await client.receive_unframed()
        assert isinstance(reply.error, ApplicationError)
        assert "TFramedTransport" in str(reply.error)
        assert (reply.method, reply.seqid) == (METHODS["enqueue"], 7)
        assert w.counts.errors == ["frame_length"]
        assert not w.queue.ready["ns", "topic"]
        assert await w.is_healthy()


@on_uvloop
async def test_a_client_without_frames_that_sends_half_a_head_is_closed_at_the_deadline_of_its_first_frame() -> None:
    async with (
        world(TransportLimits(frame_times=FrameTimes(first_frame_ms_max=50), sweep_ms=5)) as w,
        w.connect() as client,
    ):
        await client.send_bytes(GOOD[: HEAD_BYTES - 1])
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


@on_uvloop
async def test_a_message_without_a_frame_amid_frames_is_no_mistake_of_the_transport() -> None:
    async with world() as w, w.connect() as client:
        await client.send_bytes(frame(GOOD))
        assert (await client.receive()).error is None
        await client.send_bytes(GOOD)
        assert await client.is_closed()
        assert w.counts.errors == ["frame_length"]


@on_uvloop
async def test_a_bad_frame_behind_good_ones_closes_and_cancels_what_runs() -> None:
    async with world() as w, w.connect() as client:
        client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
        await w.queue.long_poll_began.wait()
        await client.send_bytes(u32(0))
        assert await client.is_closed()
        await w.queue.long_poll_cancelled.wait()
