"""Bad bytes in the midst of good ones: what a connection owes to the calls before them."""

from __future__ import annotations

import random

import pytest

from tests.support.bad_frames import GOOD
from tests.support.front_door import dequeue_request, run, world
from tests.support.thrift_bytes import frame, u32

pytestmark = pytest.mark.timeout(60)


def test_a_frame_that_the_peer_leaves_unfinished_is_counted_and_closed() -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            await client.send_bytes(frame(GOOD)[:-1])
            client.end_sending()
            assert await client.is_closed()
            assert w.counts.errors == ["truncated"]

    run(main)


def test_a_bad_frame_behind_good_ones_closes_and_cancels_what_runs() -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
            await w.queue.long_poll_began.wait()
            await client.send_bytes(u32(0))
            assert await client.is_closed()
            await w.queue.long_poll_cancelled.wait()

    run(main)


def test_flipped_bytes_are_closed_or_answered() -> None:
    chance = random.Random(20)

    async def main() -> None:
        async with world() as w:
            answers = 0
            for _ in range(300):
                data = bytearray(GOOD)
                data[chance.randrange(len(data))] = chance.randrange(256)
                async with w.connect() as client:
                    await client.send_bytes(frame(bytes(data)))
                    client.end_sending()
                    answers += not await client.is_closed()
            assert 0 < answers < 300
            assert await w.is_healthy()

    run(main)
