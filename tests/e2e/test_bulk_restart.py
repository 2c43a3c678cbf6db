"""The Spark sender, without Spark, while its host ends and comes back: no row is lost, however the host went."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from foqs import Client
from foqs.spark.options import WriteOptions
from foqs.spark.plan import WritePlan
from foqs.spark.rejects import Attempt, Rejects
from foqs.spark.sender import Sender, Sent
from foqs.spark.task_client import TaskClient
from tests.e2e.conftest import StartHost
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.taking import deliveries

pytestmark = [pytest.mark.database, pytest.mark.deep]

BATCHES = 12
BATCH_ITEMS = 500
ENDS_BEFORE, BACK_BEFORE = 4, 6
"""The batches before which the host ends, and is there again: those between meet nobody."""
CALLS_IN_FLIGHT = 8
"""Above BACK_BEFORE, so that the sender asks for that batch while no call comes back."""


def kill(host: HostProgram) -> None:
    host.kill()


def end(host: HostProgram) -> None:
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.output


async def send_while(begin: Callable[[], HostProgram], go: Callable[[HostProgram], None]) -> Sent:
    """Send numbered rows through a host that goes and comes back on the way."""
    host = begin()
    options = WriteOptions(
        addresses=host.address,
        namespace=NAMESPACE,
        topic="bulk",
        batch_items=BATCH_ITEMS,
        calls_in_flight=CALLS_IN_FLIGHT,
        retry_timeout_ms=60_000,
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            if number == ENDS_BEFORE:
                go(host)
            elif number == BACK_BEFORE:
                begin()
            first = number * BATCH_ITEMS
            rows = [b"%d" % row for row in range(first, first + BATCH_ITEMS)]
            yield pa.record_batch({"payload": pa.array(rows, pa.binary())})

    plan = WritePlan(options=options)
    async with TaskClient(plan) as client:
        return await Sender(plan, plan.encoder("run", 0), client, Rejects(None, Attempt("run", 0, 0))).send(batches())


@pytest.mark.parametrize("go", [kill, end])
async def test_a_host_that_goes_and_comes_back_costs_the_sender_no_row(
    start_host: StartHost, go: Callable[[HostProgram], None]
) -> None:
    port = free_port()
    sent = await send_while(lambda: start_host("host-1", port), go)
    assert (sent.rows_count, sent.items_count, sent.refused_count) == (6_000, 6_000, 0)
    times: Counter[int] = Counter()
    with Client(f"127.0.0.1:{port}") as client:
        for items in deliveries(client, NAMESPACE, "bulk", BATCHES * BATCH_ITEMS):
            assert not client.ack(NAMESPACE, items)
            times.update(int(item.payload) for item in items)
    assert set(times) == set(range(BATCHES * BATCH_ITEMS))
    twice = {row // BATCH_ITEMS for row, count in times.items() if count > 1}
    assert max(times.values()) <= 2
    assert twice <= set(range(ENDS_BEFORE)), "only calls that were in flight when the host ended are of unknown outcome"
