"""What a host remembers of jobs while calls of them, or writes of what it counted, are under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.contract.requests import EnqueueRequest, NewItem
from foqs.host.admission.hosted_jobs import HostedJob, Jobs
from foqs.host.verbs.job_calls import JobEnqueues
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import InvalidArgumentError, OverloadedError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import EVERYBODY
from foqs.storage.meta.meta_jobs import JobCounts, JobKey, JobView
from tests.support.waiting import PATIENCE_S

NAMESPACE = Namespace(1, "jobs", NamespaceSettings(), 1)
ITEMS = [NewItem()] * 10
CONTEXT = CallContext("t", principal=EVERYBODY)


class Meta:
    """Every job has a record. While `gate` is closed a write stands still, and then it fails."""

    def __init__(self) -> None:
        self.written: dict[JobKey, JobCounts] = {}
        self.rates: dict[str, int] = {}
        self.gate: threading.Event | None = None
        self.is_at_gate = threading.Event()

    def count(
        self, host: str, started_at_ms: int, counts: Mapping[JobKey, JobCounts], asked: Collection[JobKey]
    ) -> dict[JobKey, JobView]:
        if self.gate is not None:
            gate, self.gate = self.gate, None
            self.is_at_gate.set()
            assert gate.wait(PATIENCE_S)
            raise UnavailableError("away")
        self.written |= counts
        return {
            key: JobView(self.rates.get(key.id, 0), 1, self.written.get(key, JobCounts())) for key in {*counts, *asked}
        }


class World:
    """A host's jobs on a clock moved by hand, and its enqueues, which stand still while `gate` is closed."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meta = Meta()
        self.jobs = Jobs(self.meta, "host", 1, lambda: self.now_s)  # type: ignore[arg-type]
        namespaces: Any = SimpleNamespace(serving=lambda _: NAMESPACE)
        self.enqueues = JobEnqueues(namespaces, self.jobs, self._work, lambda *_: None)
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_working = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None

    async def _work(self, *_: object) -> EnqueueResult:
        self.is_working.set()
        await self.gate.wait()
        self.meanwhile()
        return EnqueueResult(["1-1"] * len(ITEMS))

    def enqueue(self, job_id: str) -> asyncio.Task[EnqueueResult]:
        return asyncio.create_task(self._enqueue(job_id))

    async def _enqueue(self, job_id: str) -> EnqueueResult:
        return await self.enqueues.enqueue(CONTEXT, EnqueueRequest("jobs", ITEMS, True, job_id))

    def grow_old(self) -> None:
        self.now_s += 2 * limits.JOB_IDLE_MS / 1000

    def written(self, job_id: str) -> int:
        return self.meta.written[JobKey(1, job_id)].items


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """It has room for one job."""
    monkeypatch.setattr(limits, "JOBS_PER_HOST_MAX", 1)
    world = World()
    await world.jobs.start()
    try:
        yield world
    finally:
        await world.jobs.stop()


async def test_a_job_makes_room_for_another_one_once_it_was_idle_for_long(world: World) -> None:
    await world.enqueue("first")
    await world.jobs.write(JobKey(1, "first"))
    with pytest.raises(OverloadedError):
        await world.enqueue("second")
    world.grow_old()
    await world.enqueue("second")
    assert world.written("first") == 10


async def test_a_call_that_lasts_longer_than_a_job_may_be_idle_is_counted(world: World) -> None:
    world.gate.clear()
    call = world.enqueue("first")
    await world.is_working.wait()
    await world.jobs.write(JobKey(1, "first"))
    world.grow_old()
    try:
        with pytest.raises(OverloadedError):
            await world.enqueue("second")
    finally:
        world.gate.set()
        await call
    await world.jobs.write_all()
    assert world.written("first") == 10


async def test_what_a_write_under_way_could_not_write_is_written_later_however_old_it_is(world: World) -> None:
    await world.enqueue("first")
    gate = world.meta.gate = threading.Event()
    write = asyncio.create_task(world.jobs.write(JobKey(1, "first")))
    assert await asyncio.to_thread(world.meta.is_at_gate.wait, PATIENCE_S)
    world.grow_old()
    try:
        with pytest.raises(OverloadedError):
            await world.enqueue("second")
    finally:
        gate.set()
        await write
    await world.jobs.write_all()
    assert world.written("first") == 10


async def test_what_was_admitted_without_a_rate_gives_nothing_back_to_one_that_was_set_since(world: World) -> None:
    """Else a call that was never counted would make room for another one."""
    await world.enqueue("load")
    [job] = world.jobs._by_key.values()

    def refuse_all() -> None:
        job.rate.change(10, 0.0)
        world.jobs.admit(job, 50)
        raise InvalidArgumentError("no")

    world.meanwhile = refuse_all
    with pytest.raises(InvalidArgumentError):
        await world.enqueue("load")
    assert wait_ms(job) == 5_000 - limits.JOB_BURST_MS


def wait_ms(job: HostedJob) -> int:
    return job.rate.admit(1, 0.0)
