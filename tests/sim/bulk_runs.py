"""Clusters in which bulk jobs run while hosts are killed and the meta database is away.

A run of its own kind, without the histories of clients. It reads the tables of all shards, and holds jobs against:

K1 A job that has ended has changed each item that matched when it was made, and no other one.
K2 The counts of a job are those of the items that it has changed, also after hosts were killed in the midst.
K3 A job changes no more items than its items_max, and just as many if more match.
K4 Two seconds after a pause or a cancel was answered, a job changes nothing.
K5 An undo brings back all that its redrive has delayed, with the old reasons, and nothing else.
K6 As long as no host dies, no item is in doubt, and the count of items that were looked at is exact, also if the job
   has paused, the meta database was away, or answers to reports were lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.client.bulk_jobs import bulk_request
from foqs.client.queue_items import NewItem
from foqs.model.bulk_work import BulkAction, BulkState, BulkWork, bulk_job_id
from foqs.model.calls import Delivery
from foqs.model.errors import AlreadyExistsError, FoqsError
from foqs.model.item_filter import ItemFilter
from foqs.model.jobs import Job, JobState
from tests.histories.history import make_payload, uid_of
from tests.sim.caller import NAMESPACE
from tests.sim.clients import SimNack
from tests.sim.cluster import ClusterWorld
from tests.sim.host import SimHost
from tests.sim.loop import ProcessState
from tests.sim.run import Outcome, run_seed

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor

_BASE_SEED = 13
"""A run of it has no faults but those of the script, and hosts of one tier."""
_TOPIC = "buried"
_WANTED, _OTHER = "timeout of the bank", "no such card"
_ITEMS_MAX = 120
_PATIENCE_S = 3.0
_WELL_S_MAX = 10.0
_JOB_S_MAX = 90.0
_FOLLOWED_S = 2.0


class _Death(NamedTuple):
    """A dead letter as it is stored."""

    at_ms: int
    reason: str


def run_bulk(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""

    async def script(world: ClusterWorld) -> None:
        await BulkRun(world, random.Random(f"{seed}/bulk")).run()

    outcome = run_seed(_BASE_SEED, is_cluster=True, script=script, verbose=verbose)
    return replace(outcome, seed=seed, kinds=("bulk",))


class BulkRun:
    """An operator with a job, kills, and what all-knowing eyes see of the dead letters."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        # The history of clients knows nothing of these items.
        world.stored = list  # type: ignore[method-assign]
        self._number = 0
        self._faults_until_s = 0.0
        self._is_meta_away = False
        self._killed_count = 0
        self._was_disturbed = False
        """True after a fault, for which the two seconds of a pause do not hold."""

    async def run(self) -> None:
        world = self._world
        share, losses = self._chance.choice([0.0, 0.0, 0.05, 0.3]), random.Random(self._chance.random())
        world.meta.loses_bulk_answer = lambda: losses.random() < share
        for _ in range(self._chance.choice([1, 2, 3])):
            world.start_host()
        await self._until(self._is_well, "all shards have owners")
        await self._bury(self._chance.randint(5, _ITEMS_MAX))
        await self._try_a_job()
        for host in list(world.ready):
            await world.drain_host(host)

    async def _try_a_job(self) -> None:
        before = self._deaths()
        wanted = {uid for uid, death in before.items() if _WANTED in death.reason}
        work = self._draw(len(wanted))
        job_id = bulk_job_id(self._chance.randbytes(10))
        rate = self._chance.choice([10, 10, 40, 150, 1_000])
        job = await self._make(job_id, work, rate)
        faults = asyncio.ensure_future(self._disturb())
        job = await self._operate(job, wanted, before)
        faults.cancel()
        self._world.meta.away_count -= self._is_meta_away
        self._is_meta_away = False
        await self._until(self._is_well, "all shards have owners")
        self._world.counts[f"bulk jobs that ended as {job.state.name}"] += 1
        self._world.counts["bulk jobs that were recounted"] += _of(job).is_recounted
        self._check(job, work, wanted, before)
        if work.deliver_after_ms:
            await self._undo(job, before)

    def _draw(self, wanted_count: int) -> BulkWork:
        action = self._chance.choice([BulkAction.COUNT, BulkAction.DELETE, BulkAction.REDRIVE, BulkAction.REDRIVE])
        items_max = self._chance.randint(1, max(1, wanted_count)) if self._chance.random() < 0.3 else 0
        delayed = action is BulkAction.REDRIVE and self._chance.random() < 0.7
        until_ms = self._world.meta.now_ms() + 10 * 60_000 if delayed else 0
        chosen = ItemFilter(topics=(_TOPIC,), error_contains="timeout")
        return BulkWork(filter=chosen, action=action, items_max=items_max, deliver_after_ms=until_ms)

    # ---- the operator ----

    async def _make(self, job_id: str, work: BulkWork, rate: int) -> Job:
        request = bulk_request(NAMESPACE, job_id, work, rate, "")

        async def create(door: FakeDoor) -> Any:
            try:
                return await door.admin.create_bulk_job(
                    NAMESPACE, job_id, items_per_second_max=rate, detail="", bulk=request.bulk
                )
            except AlreadyExistsError:
                return await door.admin.get_job(NAMESPACE, job_id)

        made: Job = await self._must(create)
        return made

    async def _operate(self, job: Job, wanted: set[str], before: dict[str, _Death]) -> Job:
        """Pause, resume or cancel it on the way, and return the record of the end."""
        until_s = self._world.loop.time() + _JOB_S_MAX
        plan = self._chance.choice(["", "pause", "pause", "cancel"])
        at_s = self._world.loop.time() + self._chance.uniform(0.2, 2.0)
        while self._world.loop.time() < until_s:
            await asyncio.sleep(0.1)
            found: Job | None = await self._try(partial(_get, job.id), None)
            if found is None:
                continue
            job = found
            if job.state is not JobState.RUNNING:
                return await self._at_rest(job)
            if plan and self._world.loop.time() > at_s:
                state = JobState.PAUSED if plan == "pause" else JobState.CANCELLED
                plan = ""
                job = await self._stop(job, state, before)
                if job.state is JobState.CANCELLED:
                    return await self._at_rest(job)
        self._world.complain(f"the job has not ended within {_JOB_S_MAX} s: {job}")
        return job

    async def _stop(self, job: Job, state: JobState, before: dict[str, _Death]) -> Job:
        """Stop the job, hold K4 against it, and resume it if it has only paused."""
        found: Job | None = await self._try(
            lambda door: door.admin.update_job(NAMESPACE, job.id, state=int(state)), None
        )
        if found is None or found.state is not state:
            return job
        self._was_disturbed = self._is_meta_away
        await asyncio.sleep(_FOLLOWED_S)
        first = self._changed(before)
        await asyncio.sleep(1.0)
        if self._changed(before) != first and not self._was_disturbed:
            self._world.complain(f"K4: job is {state.name} for 3 s, and {len(first)} changes became more")
        self._world.counts["bulk jobs stopped"] += 1
        if "items_max" in _of(found).error:
            return found  # It had paused by itself, at its most items, and is not resumed.
        if state is JobState.PAUSED:
            await self._must(lambda door: door.admin.update_job(NAMESPACE, job.id, state=int(JobState.RUNNING)))
        return replace(found, state=JobState.RUNNING) if state is JobState.PAUSED else found

    async def _at_rest(self, job: Job) -> Job:
        """The record once all hosts have reported the work of before its end."""
        self._faults_until_s = 0.0
        await asyncio.sleep(_FOLLOWED_S + 3.0)
        found: Job = await self._must(partial(_get, job.id))
        return found

    async def _undo(self, job: Job, before: dict[str, _Death]) -> None:
        changed = self._changed(before)
        work = BulkWork(action=BulkAction.UNDO, undoes=job.id)
        undo = await self._make(bulk_job_id(self._chance.randbytes(10)), work, 1_000)
        until_s = self._world.loop.time() + _JOB_S_MAX
        while undo.state is JobState.RUNNING and self._world.loop.time() < until_s:
            await asyncio.sleep(0.2)
            undo = await self._must(partial(_get, undo.id))
        self._world.counts["bulk jobs undone"] += 1
        after = self._deaths()
        if {uid: death.reason for uid, death in after.items()} != {uid: death.reason for uid, death in before.items()}:
            self._world.complain(f"K5: {len(before)} were dead before the redrive, and {len(after)} after its undo")
        moved = {uid for uid, death in after.items() if before.get(uid) != death}
        if moved != changed or _of(undo).done != len(changed) or undo.state is not JobState.SUCCEEDED:
            self._world.complain(f"K5: {len(changed)} were redriven, {len(moved)} buried again, counted {_of(undo)}")

    # ---- what has to hold ----

    def _check(self, job: Job, work: BulkWork, wanted: set[str], before: dict[str, _Death]) -> None:
        changed, state = self._changed(before), _of(job)
        if not self._killed_count:
            self._check_certain(job, before)
        if changed - wanted:
            self._world.complain(f"K1: {len(changed - wanted)} items were changed that do not match")
        if work.action is BulkAction.COUNT:
            if changed:
                self._world.complain(f"K1: a count has changed {len(changed)}")
            if job.state is JobState.SUCCEEDED and state.matched != len(wanted):
                self._world.complain(f"K2: counted {state.matched}, and {len(wanted)} match")
            return
        if job.state is JobState.SUCCEEDED and changed != wanted:
            self._world.complain(f"K1: {len(wanted)} match, and {len(changed)} were changed: {job.state.name} {state}")
        if (state.done, state.skipped, state.failed, state.matched) != (len(changed), 0, 0, len(changed)):
            self._world.complain(f"K2: {len(changed)} were changed, and the job says {state}")
        if work.items_max and len(changed) > work.items_max:
            self._world.complain(f"K3: {len(changed)} were changed, and {work.items_max} is the most")
        if job.state is JobState.PAUSED and len(changed) != work.items_max:
            self._world.complain(f"K3: paused behind {len(changed)} items, and {work.items_max} is the most")

    def _check_certain(self, job: Job, before: dict[str, _Death]) -> None:
        state = _of(job)
        if state.is_recounted:
            self._world.complain(f"K6: no host was killed, and items were in doubt: {state}")
        if job.state is JobState.SUCCEEDED and state.examined != len(before):
            self._world.complain(f"K6: {state.examined} items were looked at, and there were {len(before)}")
        self._world.counts["bulk jobs without kills"] += 1

    def _deaths(self) -> dict[str, _Death]:
        """The dead letters of all shards."""
        found = {}
        for server in self._world.servers.values():
            for row in server.tables.items.values():
                if row.lane < 0:
                    reason = (row.death_reason or b"").decode()
                    found[uid_of(row.content.payload)] = _Death(row.due_at, reason)
        return found

    def _changed(self, before: dict[str, _Death]) -> set[str]:
        after = self._deaths()
        return {uid for uid, death in before.items() if after.get(uid) != death}

    # ---- faults ----

    async def _disturb(self) -> None:
        world = self._world
        self._faults_until_s = world.loop.time() + 20
        for _ in range(self._chance.choice([0, 1, 2, 4])):
            await asyncio.sleep(self._chance.uniform(0.2, 2.5))
            if world.loop.time() > self._faults_until_s:
                return
            self._was_disturbed = True
            if self._chance.random() < 0.3:
                world.meta.away_count += 1
                self._is_meta_away = True
                await asyncio.sleep(self._chance.uniform(0.1, 1.5))
                world.meta.away_count -= 1
                self._is_meta_away = False
                continue
            host = self._pick()
            if host is not None:
                world.kill_host(host)
                self._killed_count += 1
                world.counts["hosts of bulk jobs killed"] += 1
                world.start_host()

    # ---- items ----

    async def _bury(self, count: int) -> None:
        """Make dead letters with two reasons, and some items of other kinds."""
        items = []
        for _ in range(count):
            self._number += 1
            items.append(NewItem(_TOPIC, make_payload(f"{NAMESPACE}:buried-{self._number}", 40)))
        for first in range(0, count, 10):
            await self._must(partial(_put, items[first : first + 10]))
        demand = SimpleNamespace(topic=_TOPIC, count=20, group=None)
        until_s = self._world.loop.time() + 60
        while len(self._deaths()) < count and self._world.loop.time() < until_s:
            taken: list[Delivery] = await self._try(lambda door: door.queue.dequeue(NAMESPACE, [demand], 5_000, 50), [])
            nacks = [
                SimNack(item.receipt, dead_letter=True, reason=self._chance.choice([_WANTED, _OTHER])) for item in taken
            ]
            if nacks:
                await self._try(partial(_nack, nacks), None)
        await asyncio.sleep(0.1)  # The job begins in a later millisecond.

    # ---- calls ----

    def _is_well(self) -> bool:
        owners = self._world.owners()
        return bool(self._world.ready) and all(len(names) == 1 for names in owners.values())

    def _pick(self) -> SimHost | None:
        ready = [host for host in self._world.ready if host.process.state is ProcessState.RUNNING]
        return self._chance.choice(ready) if ready else None

    async def _try(self, work: Callable[[FakeDoor], Awaitable[Any]], failed: Any) -> Any:
        host = self._pick()
        if host is None:
            return failed
        try:
            return await self._world.send(host, work, _PATIENCE_S)
        except FoqsError:
            return failed

    async def _must(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        for _ in range(200):
            done = await self._try(work, None)
            if done is not None:
                return done
            await asyncio.sleep(0.1)
        raise AssertionError("a call of an operator failed 200 times")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = self._world.loop.time() + _WELL_S_MAX
        while not condition():
            if self._world.loop.time() > until_s:
                self._world.complain(f"not within {_WELL_S_MAX} s: {what}; {self._world.owners()}")
                return
            await asyncio.sleep(0.05)


async def _put(items: list[NewItem], door: FakeDoor) -> Any:
    return await door.queue.enqueue(NAMESPACE, items, False)


async def _nack(nacks: list[SimNack], door: FakeDoor) -> Any:
    return await door.queue.nack(NAMESPACE, nacks)


async def _get(job_id: str, door: FakeDoor) -> Any:
    return await door.admin.get_job(NAMESPACE, job_id)


def _of(job: Job) -> BulkState:
    assert job.bulk is not None
    return job.bulk
