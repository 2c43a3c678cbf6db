"""What a write with PySpark asks of the service before its tasks start, over a socket. It needs no session."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from foqs.client.sync import AdminClient
from foqs.contract.requests import CreateJobRequest
from foqs.model.calls import CallContext
from foqs.model.errors import AlreadyExistsError, FoqsError, InvalidArgumentError, OverloadedError, UnavailableError
from foqs.model.jobs import Job, JobState
from foqs.model.principal import EVERYBODY
from foqs.spark import preparation
from foqs.spark.jobs import enqueue
from foqs.spark.plan import WritePlan, plan_write
from foqs.spark.sender import Sent
from foqs.spark.source import FoqsDataSource
from foqs.spark.writer import SentMessage
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
        plan = self.plan(**options)
        return preparation.prepare_stream(plan) if is_stream else preparation.prepare(plan)

    def job(self, job_id: str) -> Job:
        return self.queue.jobs["ns", job_id]

    def change(self, job_id: str, **changes: Any) -> None:
        self.queue.jobs["ns", job_id] = replace(self.job(job_id), **changes)

    def make(self, job_id: str, **changes: Any) -> None:
        asyncio.run(self.queue.create_job(CallContext("t", principal=EVERYBODY), CreateJobRequest("ns", job_id)))
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


# ---- a stream, whose micro-batches each ask anew ----


def test_a_stream_makes_its_record_once_and_asks_for_it_then(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.prepare(is_stream=True, jobId="stream")
    monkeypatch.setattr(FakeQueue, "create_job", refuse(UnavailableError("nobody may lock all records each time")))
    again = world.prepare(is_stream=True, jobId="stream")
    assert (first.has_record, again.has_record) == (True, True)
    assert not world.prepare(is_stream=True).has_record


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_stream_that_goes_on_runs_whatever_its_record_said(world: Service, state: JobState) -> None:
    world.make("stream", state=state)
    assert world.prepare(is_stream=True, jobId="stream").has_record
    assert world.job("stream").state is JobState.RUNNING


def test_the_rate_of_a_stream_is_that_of_its_option_and_else_stays_what_an_operator_has_set(world: Service) -> None:
    world.make("stream", items_per_second_max=7)
    world.prepare(is_stream=True, jobId="stream")
    assert world.job("stream").items_per_second_max == 7
    world.prepare(is_stream=True, jobId="stream", maxItemsPerSecond="200")
    assert world.job("stream").items_per_second_max == 200


def test_the_rate_of_a_job_that_is_written_again_is_that_of_its_options(
    world: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    world.make("load", items_per_second_max=7)
    world.prepare(jobId="load", maxItemsPerSecond="200")
    assert world.job("load").items_per_second_max == 200
    world.prepare(jobId="load")
    assert world.job("load").items_per_second_max == 0
    assert "its rate was 200 items per second, and is no limit now" in capsys.readouterr().err


def refuse(error: FoqsError) -> Callable[..., Any]:
    async def call(*_: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("away", [UnavailableError("the meta database is away"), OverloadedError("too many calls")])
@pytest.mark.parametrize("rate", [{}, {"maxItemsPerSecond": "5"}])
def test_the_rows_of_a_stream_go_on_while_nobody_can_read_its_record(
    world: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    away: FoqsError,
    rate: dict[str, str],
) -> None:
    """Hosts count for the job meanwhile, and those that know its rate keep it."""
    monkeypatch.setattr(preparation, "RECORD_PATIENCE_MS", 1)
    monkeypatch.setattr(FakeQueue, "get_job", refuse(away))
    assert world.prepare(is_stream=True, jobId="stream", **rate).has_record
    assert f"the record of job stream was not read, and its rows go on: {away.message}" in capsys.readouterr().err


def test_the_rows_of_a_stream_go_on_without_a_record_that_nobody_can_make(
    world: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeQueue, "create_job", refuse(UnavailableError("away")))
    assert not world.prepare(is_stream=True, jobId="stream").has_record
    assert "job stream has no record for now, and its rows go on uncounted: " in capsys.readouterr().err


def test_the_rows_of_a_stream_go_on_while_nobody_can_change_its_record(
    world: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.make("stream", state=JobState.FAILED)
    monkeypatch.setattr(FakeQueue, "update_job", refuse(UnavailableError("away")))
    assert world.prepare(is_stream=True, jobId="stream").has_record
    assert "the record of job stream was not changed, and its rows go on: " in capsys.readouterr().err


def test_a_job_whose_id_was_drawn_goes_on_without_a_record_while_nobody_can_make_one(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a jobId or a rate does not: its record says what was done, and keeps the rate."""
    monkeypatch.setattr(FakeQueue, "create_job", refuse(UnavailableError("the meta database is away")))
    plan = world.prepare()
    assert (plan.has_record, plan.run_id) == (False, plan.job_id)
    for options in ({"jobId": "load"}, {"maxItemsPerSecond": "5"}):
        with pytest.raises(UnavailableError, match="the meta database is away"):
            world.prepare(**options)


def options_of_the_command(*arguments: str) -> dict[str, str]:
    """The options that `foqs spark enqueue` gives to the writer."""
    given = enqueue.enqueue.make_context("enqueue", ["--input", "x", "--format", "json", *arguments]).params
    return enqueue._writer_options(given)[0]


@pytest.mark.parametrize("refusal", [InvalidArgumentError("1000 jobs run"), UnavailableError("away")])
def test_a_job_of_the_command_whose_id_was_drawn_is_like_any_other_whose_id_was(
    world: Service, monkeypatch: pytest.MonkeyPatch, refusal: FoqsError
) -> None:
    required = ("--addresses", world.address, "--namespace", "ns", "--topic", "t", "--dedup", "none")
    drawn = options_of_the_command(*required)
    assert world.prepare(**drawn).job_id in {job_id for _, job_id in world.queue.jobs}, "its progress can be asked for"
    monkeypatch.setattr(FakeQueue, "create_job", refuse(refusal))
    plan = world.prepare(**options_of_the_command(*required))
    assert (plan.has_record, plan.run_id) == (False, plan.job_id)
    with pytest.raises(type(refusal)):
        world.prepare(**options_of_the_command(*required, "--job-id", "load"))


def fail_first(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The namespace cannot be asked for at first."""
    get_namespace, failures = FakeQueue.get_namespace, iter(range(count))

    async def get(self: FakeQueue, *arguments: Any) -> Any:
        if next(failures, None) is not None:
            raise UnavailableError("away")
        return await get_namespace(self, *arguments)

    monkeypatch.setattr(FakeQueue, "get_namespace", get)


def test_a_micro_batch_waits_for_hosts_as_long_as_its_calls_do_and_a_batch_does_not(
    world: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparation, "PATIENCE_MS", 1)
    fail_first(monkeypatch, 4)
    world.prepare(is_stream=True)
    assert "answers: away; the stream waits for up to 600 s" in capsys.readouterr().err
    fail_first(monkeypatch, 4)
    with pytest.raises(UnavailableError, match=r"no host of addresses=.* answers: away"):
        world.prepare()


def test_ids_of_the_content_of_a_stream_need_the_same_partitions_and_that_is_told(
    world: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "a micro-batch that is repeated with another number of partitions is enqueued twice"
    world.prepare(is_stream=True)
    assert told in capsys.readouterr().err
    world.prepare(is_stream=True, dedup="key")
    world.prepare(is_stream=True, dedup="none")
    world.prepare()
    assert told not in capsys.readouterr().err


def test_the_commit_of_a_micro_batch_asks_the_service_for_nothing_that_it_could_fail_by(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark makes one more writer for it, of the source that it has pickled for that."""
    monkeypatch.setattr(preparation, "PATIENCE_MS", 1)
    schema = StructType([StructField("topic", StringType()), StructField("payload", StringType())])
    for job in ({}, {"jobId": "stream"}):
        source = FoqsDataSource({"addresses": "127.0.0.1:1", "namespace": "ns", "dedup": "content", **job})
        writer = pickle.loads(pickle.dumps(source)).streamWriter(schema, False)
        writer.commit([SentMessage(Sent(rows_count=3, items_count=3))], 7)
        told = capsys.readouterr().err
        assert "3 items of 3 rows enqueued" in told
        assert ("the record of job stream does not know of its end" in told) == bool(job)
        writer.abort([None], 8)
        with pytest.raises(UnavailableError, match=r"no host of addresses=127.0.0.1:1 answers"):
            source.writer(schema, False)
