"""What a write with PySpark asks of the service before its tasks start, over a socket. It needs no session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from foqs.client.sync import AdminClient
from foqs.model.calls import CallContext
from foqs.model.errors import AlreadyExistsError
from foqs.model.jobs import Job, JobState
from foqs.spark import service
from foqs.spark.plan import WritePlan, plan_write
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue

COLUMNS = [("topic", "string"), ("payload", "binary"), ("dedup_id", "string")]
ROWS = pa.record_batch({"topic": ["t"] * 3, "payload": pa.array([b"1", b"2", b"2"], pa.binary())})


class Service:
    """A host with a fake queue, and what writes ask of it."""

    def __init__(self, address: str, queue: FakeQueue) -> None:
        self.address = address
        self.queue = queue

    def plan(self, **options: str) -> WritePlan:
        given = {"addresses": self.address, "namespace": "ns", "dedup": "content", **options}
        return plan_write(given, COLUMNS if given["dedup"] == "key" else COLUMNS[:2])

    def prepare(self, *, is_stream: bool = False, **options: str) -> WritePlan:
        return service.prepare(self.plan(**options), is_stream=is_stream)

    def job(self, job_id: str) -> Job:
        return self.queue.jobs["ns", job_id]

    def change(self, job_id: str, **changes: Any) -> None:
        self.queue.jobs["ns", job_id] = replace(self.job(job_id), **changes)

    def make(self, job_id: str, **changes: Any) -> None:
        asyncio.run(self.queue.create_job(CallContext("t"), "ns", job_id, 0, ""))
        self.change(job_id, **changes)


@pytest.fixture
def world() -> Iterator[Service]:
    with background_host() as (address, queue):
        yield Service(address, queue)


def ids_of(plan: WritePlan) -> list[bytes]:
    ids = plan.encoder(plan.run_id, 0).encode(ROWS, 0).ids
    assert ids is not None
    found: list[bytes] = ids.to_pylist()
    return found


# ---- a jobId names one load ----


@pytest.mark.parametrize("dedup", ["content", "key", "none"])
def test_a_job_that_has_succeeded_is_not_written_again(world: Service, dedup: str) -> None:
    world.make("daily", state=JobState.SUCCEEDED, detail="3 items of 3 rows enqueued")
    with pytest.raises(AlreadyExistsError, match=r"job 'daily' .* has succeeded.* another jobId") as refused:
        world.prepare(jobId="daily", dedup=dedup)
    assert "foqs spark update ns daily --state running" in str(refused.value)
    assert world.job("daily").state is JobState.SUCCEEDED
    assert world.job("daily").detail == "3 items of 3 rows enqueued"


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED])
def test_a_job_that_has_not_succeeded_goes_on_with_the_same_ids(
    world: Service, state: JobState, capsys: pytest.CaptureFixture[str]
) -> None:
    first = world.prepare(jobId="daily")
    world.change("daily", state=state)
    again = world.prepare(jobId="daily")
    assert ids_of(first) == ids_of(again)
    assert world.job("daily").state is JobState.RUNNING
    assert "goes on with it, and rows that it has enqueued are not enqueued again" in capsys.readouterr().err


def test_a_job_whose_record_was_forgotten_shares_no_ids_with_the_next_one_of_its_name(world: Service) -> None:
    """Records make room for others, while the ids of their rows may be remembered still."""
    first = world.prepare(jobId="daily")
    world.queue.jobs.clear()
    world.make("other")  # So that the next record has another time.
    assert not {*ids_of(first)} & {*ids_of(world.prepare(jobId="daily"))}


def test_a_state_that_was_changed_back_lets_the_job_be_written_again(world: Service) -> None:
    world.make("daily", state=JobState.SUCCEEDED)
    with AdminClient(world.address) as admin:
        admin.update_job("ns", "daily", state=JobState.RUNNING)
    world.prepare(jobId="daily")
