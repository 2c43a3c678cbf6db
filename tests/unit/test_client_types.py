"""What mypy says of programs that use the client: right ones pass, and each mistake is found where it is made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PROGRAM_S_MAX

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from functools import partial

import foqs


def plain(item: foqs.LeasedItem) -> None:
    item.extend(lease=timedelta(minutes=1))
    item.nack(delay=timedelta(seconds=1))


async def asynchronous(item: foqs.AsyncLeasedItem) -> None:
    await item.extend()
    item.release()


def delegating(item: foqs.AsyncLeasedItem) -> Awaitable[None]:
    return asynchronous(item)


async def of_a_blocking_item(item: foqs.LeasedItem) -> None: ...
def of_an_async_item(item: foqs.AsyncLeasedItem) -> None: ...
def truthful(item: foqs.LeasedItem) -> bool: return True


def blocking(client: foqs.Client, admin: foqs.AdminClient) -> None:
    foqs.Worker(client, "ns", "t", plain, concurrency=4, drain=timedelta(seconds=5)).run()
    foqs.Worker(client, "ns", ["t"], lambda item: None).run()
    foqs.Worker(client, "ns", "t", of_a_blocking_item)  # error: arg-type
    foqs.Worker(client, "ns", "t", asynchronous)  # error: arg-type
    foqs.Worker(client, "ns", "t", of_an_async_item)  # error: arg-type
    foqs.Worker(client, "ns", "t", truthful)  # error: arg-type
    foqs.Worker(client, "ns", "t", plain, concurency=4)  # error: call-arg
    foqs.Worker(client, "ns", "t", plain, lease_ms=timedelta(seconds=1))  # error: arg-type
    foqs.Client("h:1", timeout=timedelta(seconds=1), retry=foqs.RetryPolicy(deadline=timedelta(0)))
    foqs.Client("h:1", time_out_ms=5)  # error: call-arg
    client.enqueue("ns", "t", b"", deliver_after=datetime.now(UTC), deadline_ms=500)
    client.enqueue("ns", "t", b"", delay=5)  # error: arg-type
    client.enqueue("ns", "t", "text")  # error: arg-type
    client.dequeue("ns", {"t": 5}, wait=timedelta(seconds=1), lease_ms=5_000)
    client.ack("ns", client.dequeue("ns", "t"), return_errors=True)
    client.ack("ns", "a.1", return_error=True)  # error: call-arg
    admin.create_namespace("ns", attempts_max=3, lease_default=timedelta(minutes=1))
    admin.create_namespace("ns", attempts=3)  # error: call-arg
    admin.update_namespace("ns", enqueue_paused=True)
    for item in client.consume("ns", "t", lease=timedelta(minutes=1)):
        item.ack()


async def on_asyncio(client: foqs.AsyncClient) -> None:
    await foqs.AsyncWorker(client, "ns", "t", asynchronous, prefetch_count=0).run()
    await foqs.AsyncWorker(client, "ns", "t", delegating).run()
    await foqs.AsyncWorker(client, "ns", "t", partial(asynchronous)).run()
    foqs.AsyncWorker(client, "ns", "t", of_an_async_item)  # error: arg-type
    foqs.AsyncWorker(client, "ns", "t", plain)  # error: arg-type
    foqs.AsyncWorker(client, "ns", "t", asynchronous, lease=5)  # error: arg-type
    foqs.AsyncClient("h:1", connection_max=5)  # error: call-arg
    stats: list[foqs.TopicStats] = [topic async for topic in client.topics("ns")]
    result: foqs.EnqueueResult = await client.enqueue_many("ns", [foqs.NewItem("t", b"", ttl=timedelta(days=1))])
    async for item in client.consume("ns", "t"):
        item.ack()
"""


def test_mypy_finds_each_mistake_in_a_program_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    arguments = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, str(program)],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=PROGRAM_S_MAX,
        check=False,
    )
    found = {(int(line), code) for line, code in re.findall(r"^\S+:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)}
    marked = {
        (number, mark[1])
        for number, line in enumerate(_PROGRAM.splitlines(), 1)
        if (mark := re.search(r"# error: ([\w-]+)$", line))
    }
    assert len(marked) > 12
    assert found == marked, done.stdout + done.stderr
