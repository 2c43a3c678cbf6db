"""A program that ends with a client, a consumer or an iterator open ends at once, and as it was about to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.client_host import HostThread, running_host
from tests.support.waiting import PATIENCE_S

BLOCKING = """
import sys, threading
from foqs import Client, NewItem
client = Client(sys.argv[1])
client.enqueue("ns", "t", b"x")
"""
ASYNCIO = """
import asyncio, sys
from foqs import AsyncClient
async def begin():
    client = AsyncClient(sys.argv[1])
    await client.enqueue("ns", "t", b"x")
    return client
"""
FIRST = "items = iter(client.consume('ns', 't')); item = next(items)"
PROGRAMS = {
    "client": (BLOCKING, 0),
    "topics": (BLOCKING + "topics = client.topics('ns'); next(topics)", 0),
    "consumer": (BLOCKING + FIRST, 0),
    "consumer with an ack on its way": (BLOCKING + FIRST + "; item.ack()", 0),
    "exit within a loop": (BLOCKING + "for item in client.consume('ns', 't'): sys.exit(3)", 3),
    "exit beside a loop": (BLOCKING + FIRST + "; sys.exit(3)", 3),
    "thread that consumes": (
        BLOCKING
        + "begun = threading.Event()\n"
        + "def work():\n    for item in client.consume('ns', ['t', 'none'], wait_ms=30_000): begun.set()\n"
        + "threading.Thread(target=work, daemon=True).start(); begun.wait()",
        0,
    ),
    "thread that enqueues many": (
        BLOCKING
        + "begun, never = threading.Event(), threading.Event()\n"
        + "def some():\n    yield NewItem('t', b''); begun.set(); never.wait()\n"
        + "work = lambda: client.enqueue_many('ns', some(), calls_in_flight=2)\n"
        + "threading.Thread(target=work, daemon=True).start(); begun.wait()",
        0,
    ),
    "asyncio consumer": (
        ASYNCIO
        + "async def main():\n    global kept\n    client = await begin()\n"
        + "    kept = client, client.consume('ns', 't').__aiter__()\n    await kept[1].__anext__()\n"
        + "asyncio.run(main())",
        0,
    ),
    "asyncio consumer that waits": (
        ASYNCIO
        + "async def main():\n    client = await begin()\n    begun = asyncio.Event()\n    async def work():\n"
        + "        async for item in client.consume('ns', 't', wait_ms=30_000): begun.set()\n"
        + "    task = asyncio.create_task(work())\n    await begun.wait()\n"
        + "asyncio.run(main())",
        0,
    ),
}


@pytest.fixture(scope="module")
def host() -> Iterator[HostThread]:
    with running_host() as host:
        yield host


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_at_once_with_what_it_has_left_open(host: HostThread, name: str) -> None:
    """A program that waits for its threads in vain does not end at all."""
    text, code = PROGRAMS[name]
    ended = subprocess.run(
        [sys.executable, "-c", text, host.address], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
