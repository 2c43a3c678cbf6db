"""Where an asyncio client may be used: in one event loop, and it says so elsewhere instead of hanging."""

from __future__ import annotations

import asyncio
import threading

import pytest

import foqs
from foqs.testing import MemoryQueue
from tests.support.waiting import PATIENCE_S

NS = "default"


def test_an_asyncio_client_says_so_when_it_is_used_in_another_loop(queue: MemoryQueue) -> None:
    client = queue.async_client()

    async def enqueue() -> str:
        return await client.enqueue(NS, "t", b"")

    async def use_elsewhere() -> BaseException:
        with pytest.raises(foqs.ClientClosedError) as raised:
            await asyncio.wait_for(enqueue(), PATIENCE_S)
        return raised.value

    async def at_once() -> list[BaseException]:
        await enqueue()
        errors: list[BaseException] = []
        other = threading.Thread(target=lambda: errors.append(asyncio.run(use_elsewhere())))
        other.start()
        await asyncio.to_thread(other.join)
        await enqueue()
        return errors

    (error,) = asyncio.run(at_once())
    assert "the event loop that used it first, which is another one" in str(error)
    assert "has been closed: make a client in each loop" in str(asyncio.run(use_elsewhere()))
    with pytest.raises(foqs.ClientClosedError, match="close it there"):
        asyncio.run(client.close())


def test_an_asyncio_client_that_was_closed_may_be_closed_again_in_another_loop(queue: MemoryQueue) -> None:
    client = queue.async_client()

    async def use() -> None:
        async with client:
            await client.enqueue(NS, "t", b"")

    asyncio.run(use())
    asyncio.run(client.close())
