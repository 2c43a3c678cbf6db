"""The answer to an ack is lost on the way: what was done is not called lost, by neither client nor worker."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.aio.worker import AsyncWorker
from foqs.client.client_errors import OutcomeUnknownError
from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy
from foqs.client.sync import Client
from foqs.model.errors import StaleLeaseError
from tests.support.faults.proxy import Cut, CuttingProxy
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

CUTS = [Cut.LATE, Cut.ABRUPT]


@contextmanager
def proxy_to(host):
    with CuttingProxy(lambda: socket.create_connection(("127.0.0.1", host.host.port))) as proxy:
        yield proxy


async def leased(host, count: int):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * count)
    return await host.client.dequeue("jobs", "t", count, lease_ms=60_000, wait_ms=20_000)


@pytest.mark.parametrize("how", CUTS)
async def test_the_repeat_of_an_ack_that_was_done_is_done(host, how):
    items = await leased(host, 3)
    with proxy_to(host) as proxy:
        async with AsyncClient(f"127.0.0.1:{proxy.port}") as client:
            proxy.arm(how)
            assert await client.ack("jobs", items[:2]) == {}
            assert not proxy.is_armed()
        with Client(f"127.0.0.1:{proxy.port}") as blocking:
            proxy.arm(how)
            assert await asyncio.to_thread(blocking.ack, "jobs", items[2]) == {}
            assert not proxy.is_armed()
    assert host.items_stored() == 0


@pytest.mark.parametrize("how", CUTS)
async def test_of_an_item_that_is_there_the_repeat_says_that_its_lease_was_lost(host, how):
    lost, held = await leased(host, 2)
    assert await host.client.release("jobs", [lost]) == {}
    with proxy_to(host) as proxy:
        async with AsyncClient(f"127.0.0.1:{proxy.port}") as client:
            proxy.arm(how)
            errors = await client.ack("jobs", [lost, held], return_errors=True)
            assert not proxy.is_armed()
    assert [(position, type(error)) for position, error in errors.items()] == [(0, StaleLeaseError)]
    assert host.items_stored() == 1


async def test_an_ack_that_may_not_be_repeated_is_of_unknown_outcome(host):
    (item,) = await leased(host, 1)
    with proxy_to(host) as proxy:
        async with AsyncClient(f"127.0.0.1:{proxy.port}", retry=RetryPolicy(deadline_ms=0)) as client:
            proxy.arm(Cut.LATE)
            with pytest.raises(OutcomeUnknownError):
                await client.ack("jobs", item)


async def test_a_worker_counts_what_it_acked_though_the_answer_was_lost(host):
    with proxy_to(host) as proxy:
        async with AsyncClient(f"127.0.0.1:{proxy.port}") as client, asyncio.timeout(PATIENCE_S):

            async def handle(item):
                proxy.arm(Cut.LATE)

            worker = AsyncWorker(client, "jobs", "t", handle, concurrency=1)
            running = asyncio.create_task(worker.run())
            await host.client.enqueue("jobs", "t", b"x")
            while not worker.stats.acked + worker.stats.lease_lost + worker.stats.unsettled:
                await host.client.dequeue("jobs", "other", wait_ms=50)
            assert not proxy.is_armed()
            worker.stop()
            await running
    assert (worker.stats.acked, worker.stats.lease_lost, worker.stats.unsettled) == (1, 0, 0)
    assert host.items_stored() == 0
