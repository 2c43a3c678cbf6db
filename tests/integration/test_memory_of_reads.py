"""What readers make a host keep: legal reads of a namespace whose items are larger than it allows now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.errors import ErrorCode, FoqsError
from foqs.model.limits import KIB, MIB
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.wire.codec import Reply, structs
from tests.support.databases import prepared_server
from tests.support.faults.cluster import wait_until_owned
from tests.support.faults.programs import HostProgram, free_port
from tests.support.raw_client import RawClient
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.database, pytest.mark.timeout(180), pytest.mark.alone]

NAMESPACE = "jobs"
TOPICS = [f"t{number:02d}" for number in range(60)]
DEAD = "dead"
DEAD_COUNT = 24
PEEKS = 150

SHARDS = 2
SPARE_BYTES = 48 * MIB
"""For code that runs for the first time, connections, and what the allocator keeps: after all calls no more is left."""
PAGES_BYTES = 2 * limits.PAGES_BYTES_MAX + SPARE_BYTES
"""Of pages: each as rows, and while it is put into a frame or was received as that too."""
TRANSACTION_BYTES = 2 * limits.TRANSACTION_CONTENTS_BYTES_MAX
"""As a session received it, and as rows."""
READS_BYTES = limits.PREFETCH_BYTES_MAX + SHARDS * TRANSACTION_BYTES + 2 * limits.DEQUEUE_ANSWER_BYTES_MAX + SPARE_BYTES
assert PEEKS * limits.PAGE_BYTES_MAX > PAGES_BYTES, "the test would hold however many pages were held"
assert len(TOPICS) * 4 * MIB > READS_BYTES, "the test would hold however much was read"


class Reader:
    """A host of its own process, the calls to it, and how much memory it ever had since it was asked last."""

    def __init__(self, program: HostProgram) -> None:
        self.program = program

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def begin(self) -> int:
        """What it has now; `peak_bytes` begins anew."""
        Path(f"/proc/{self.program.pid}/clear_refs").write_text("5")
        return self.resident_bytes()

    def peak_bytes(self) -> int:
        return self._status_bytes("VmHWM")

    async def calls(self, method: str, requests: Sequence[object]) -> list[Reply]:
        """All at once, each over a connection of its own; items are looked at and thrown away."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(RawClient.connect("127.0.0.1", self.program.port)) for _ in requests
            ]
            for client, request in zip(clients, requests, strict=True):
                client.send(method, request, 1)
            return await asyncio.gather(*[_without_payloads(client) for client in clients])

    def _status_bytes(self, name: str) -> int:
        lines = Path(f"/proc/{self.program.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * KIB


async def _without_payloads(client: RawClient) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        reply = await client.receive()
    for item in reply.response.items if reply.error is None else ():
        item.payload = b"%d" % len(item.payload)
    return reply


@pytest.fixture
def second_server(tmp_path: Path) -> Iterator[LocalServer]:
    with prepared_server(tmp_path / "second") as server:
        apply(server.url("shard"), SchemaKind.SHARD)
        yield server


@asynccontextmanager
async def reader(meta_url: str, shards: dict[int, str]) -> AsyncIterator[Reader]:
    """A new host, after 264 items of a MiB came to two shards, 24 of them died, and the limit became a KiB."""
    async with running_host(meta_url, shards, namespace=None) as running:
        await running.admin.create_namespace(
            NAMESPACE, payload_bytes_max=MIB, attempts_max=1, enqueues_per_minute_max=1_000_000
        )
        for first in range(0, DEAD_COUNT, 4):
            batches = [[NewItem(DEAD, b"d" * MIB)] for _ in range(first, first + 4)]
            await running.enqueue_on_all_shards(NAMESPACE, batches)
            receipts: list[str] = []
            while len(receipts) < 4:
                receipts += [one.receipt for one in await running.client.dequeue(NAMESPACE, DEAD, 4, wait_ms=20_000)]
            assert not await running.client.nack(NAMESPACE, receipts, dead_letter=True)
        for first in range(0, len(TOPICS), 2):
            batches = [[NewItem(topic, b"x" * MIB)] for topic in TOPICS[first : first + 2] for _ in range(4)]
            await running.enqueue_on_all_shards(NAMESPACE, batches)
        await running.admin.update_namespace(NAMESPACE, payload_bytes_max=KIB)
    program = HostProgram("reader", free_port(), meta_url, shards)
    try:
        await asyncio.to_thread(wait_until_owned, program.address)
        async with AsyncClient(program.address) as client:
            assert len([one async for one in client.topics(NAMESPACE)]) == len(TOPICS) + 1
        yield Reader(program)
    finally:
        program.close()


async def test_reads_of_large_items_take_no_more_memory_than_their_bounds_and_give_it_back(
    meta_url: str, shard_urls: dict[int, str], second_server: LocalServer
) -> None:
    async with reader(meta_url, {0: shard_urls[0], 1: second_server.url("shard")}) as host:
        peeks = [structs.PeekItemsRequest(NAMESPACE, TOPICS[n % len(TOPICS)], 1_000) for n in range(PEEKS)]
        dead_pages = [structs.ListDeadLettersRequest(NAMESPACE, DEAD, 1_000)] * PEEKS
        at_rest_bytes = host.begin()
        replies = await host.calls("peekItems", peeks)
        assert all(reply.response.items and reply.response.next_page_token for reply in replies)
        assert host.peak_bytes() - at_rest_bytes < PAGES_BYTES

        host.begin()
        replies = await host.calls("listDeadLetters", dead_pages)
        assert all(reply.response.items and reply.response.next_page_token for reply in replies)
        assert host.peak_bytes() - at_rest_bytes < PAGES_BYTES

        host.begin()
        second_server.pause()
        try:
            replies = await host.calls("peekItems", peeks)
        finally:
            second_server.resume()
        assert {error_code(reply) for reply in replies} == {ErrorCode.UNAVAILABLE}
        assert host.peak_bytes() - at_rest_bytes < PAGES_BYTES

        await asyncio.to_thread(wait_until_owned, host.program.address)
        await until(lambda: host.resident_bytes() - at_rest_bytes < SPARE_BYTES)  # the answers that nobody waits for
        host.begin()
        demands = [structs.TopicDemand(topic, 1_000) for topic in TOPICS]
        dequeues = [structs.DequeueRequest(NAMESPACE, demands, 600_000, 2_000) for _ in range(20)]
        brought_count = 0
        async with asyncio.timeout(PATIENCE_S):
            while brought_count * MIB <= READS_BYTES / 2:  # a busy machine needs several rounds
                replies = await host.calls("dequeue", dequeues)
                brought_count += sum(len(reply.response.items) for reply in replies)
        assert host.peak_bytes() - at_rest_bytes < READS_BYTES
        await until(lambda: host.resident_bytes() - at_rest_bytes < SPARE_BYTES)


def error_code(reply: Reply) -> ErrorCode | None:
    return reply.error.code if isinstance(reply.error, FoqsError) else None
