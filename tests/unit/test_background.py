"""Tasks and threads have an owner, which ends them; what it repeats goes on after a failure."""

from __future__ import annotations

import ast
import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.background.tasks import Tasks
from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.testing.manual_loop import ManualLoop
from tests.support.sources import parsed
from tests.support.waiting import PATIENCE_S

_ROOT = Path(__file__).parents[2]
_SERVER = ["background", "cluster", "host", "shard", "storage", "transport"]
_TASKS = {
    "foqs/background/service.py": "the end of a service, which no caller cancels",
    "foqs/background/tasks.py": "Tasks itself",
    "foqs/transport/call_table.py": "a task for each call, which its call keeps: a callback would cost as much again",
}
"""The files that make tasks, and for what."""


def _called(names: set[str]) -> Iterator[str]:
    files = [path for room in _SERVER for path in (_ROOT / "foqs" / room).rglob("*.py")]
    for path in [*files, *(_ROOT / "foqs").glob("*.py")]:
        for node in ast.walk(parsed(path)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in names:
                yield str(path.relative_to(_ROOT))


def test_tasks_are_made_by_their_owners_tasks() -> None:
    assert set(_called({"create_task", "ensure_future", "TaskGroup"})) == _TASKS.keys()


def test_threads_of_calls_are_those_of_lanes() -> None:
    assert set(_called({"ThreadPoolExecutor"})) == {"foqs/background/lane.py"}


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


async def test_a_task_that_fails_is_logged_once_with_its_name_and_ends_no_other_one() -> None:
    tasks = Tasks("owner")
    other = tasks.spawn(asyncio.Event().wait(), "other")  # type: ignore[arg-type]

    async def fails() -> None:
        raise ZeroDivisionError

    with capture_logs() as logs:
        await asyncio.wait([tasks.spawn(fails()), tasks.spawn(fails(), "part")])
        await asyncio.sleep(0)
    assert [(entry["event"], entry["work"]) for entry in logs] == [("host_defect", "owner"), ("host_defect", "part")]
    assert not other.done()
    await tasks.stop()
    assert other.cancelled()
    assert len(tasks) == 0


async def test_foqs_errors_of_tasks_are_those_of_their_owner_if_it_takes_them() -> None:
    failed: list[Exception] = []
    tasks = Tasks("owner", failed.append)

    async def fails() -> None:
        raise UnavailableError("it is away")

    with capture_logs() as logs:
        await asyncio.wait([tasks.spawn(fails())])
        await asyncio.sleep(0)
    assert [str(error) for error in failed] == ["it is away"]
    assert logs == []


async def test_what_is_lent_fails_for_its_caller_alone() -> None:
    async def fails() -> None:
        raise UnavailableError("it is away")

    tasks = Tasks("owner")
    with capture_logs() as logs:
        with pytest.raises(UnavailableError):
            await tasks.lend(fails())
        tasks.lend(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await tasks.stop()
    assert logs == []


async def test_tasks_that_come_after_the_end_do_not_begin_and_warn_of_nothing() -> None:
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks = Tasks("owner")
        tasks.spawn(work(1))
        await tasks.stop()
        late = tasks.spawn(work(2))
        await asyncio.wait([late])
        gc.collect()
    assert begun == []
    assert late.cancelled()
    assert [str(one.message) for one in caught] == []


async def test_a_service_has_no_task_when_its_stop_is_called() -> None:
    class One(Service):
        left_count = -1

        async def _start(self) -> None:
            self._tasks.every(60_000, lambda: None)

        async def _stop(self) -> None:
            self.left_count = len(self._tasks)

    one = One("one")
    await one.start()
    await one.stop()
    assert one.left_count == 0


def _repeat(loop: ManualLoop, pause_ms: float, work: Callable[[], None]) -> Tasks:
    tasks = Tasks("owner")
    outage = OutageLog(loop.time, "quotas_away", "quotas_back")
    loop.call(tasks.repeat, lambda: asyncio.sleep(pause_ms / 1000), work, "", outage)
    loop.turn()
    return tasks


def test_an_outage_of_what_is_repeated_is_logged_once_a_minute_and_so_is_its_end(loop: ManualLoop) -> None:
    is_away = True

    def work() -> None:
        if is_away:
            raise UnavailableError("it is away")

    with capture_logs() as logs:
        tasks = _repeat(loop, 1_000, work)
        for _ in range(61):
            loop.move_to(loop.time() + 1)
        is_away = False
        for _ in range(5):
            loop.move_to(loop.time() + 1)
    assert [(entry["event"], entry.get("error")) for entry in logs] == [
        ("quotas_away", "it is away"),
        ("quotas_away", "it is away"),
        ("quotas_back", None),
    ]
    loop.call(loop.create_task, tasks.stop())
    loop.turn()
    assert len(tasks) == 0


def test_a_defect_of_what_is_repeated_ends_it_not(loop: ManualLoop) -> None:
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        raise ZeroDivisionError

    with capture_logs() as logs:
        tasks = _repeat(loop, 1_000, work)
        for _ in range(3):
            loop.move_to(loop.time() + 1)
    assert count == 3
    assert [entry["event"] for entry in logs] == ["host_defect"] * 3
    loop.call(loop.create_task, tasks.stop())
    loop.turn()


def test_a_pause_that_fails_is_one_all_the_same(loop: ManualLoop) -> None:
    count = 0

    def work() -> None:
        nonlocal count
        count += 1

    async def pause() -> None:
        raise ZeroDivisionError

    tasks = Tasks("owner")
    with capture_logs() as logs:
        loop.call(tasks.repeat, pause, work)
        loop.turn()
        for _ in range(2):
            loop.move_to(loop.time() + limits.HEARTBEAT_MS / 1000)
    assert count == 2
    assert {entry["work"] for entry in logs} == {"pause of owner"}
    loop.call(loop.create_task, tasks.stop())
    loop.turn()


async def test_calls_of_a_lane_run_one_after_the_other_on_its_thread() -> None:
    lane, done = Lane("lane"), []

    def work(number: int) -> str:
        done.append(number)
        return threading.current_thread().name

    names = await asyncio.gather(*[lane.run(lambda number=number: work(number)) for number in range(5)])  # type: ignore[misc]
    assert done == list(range(5))
    assert set(names) == {"lane_0"}
    await lane.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "lane_0"]


async def test_a_lane_that_ends_does_its_last_call_and_waits_for_nothing() -> None:
    is_free, is_closed = threading.Event(), threading.Event()
    lane = Lane("lane")
    hanging = lane.run(lambda: is_free.wait(PATIENCE_S))
    lane.end(is_closed.set)
    assert not is_closed.is_set()
    is_free.set()
    assert await hanging
    assert await asyncio.to_thread(is_closed.wait, PATIENCE_S)
