"""A host in memory that goes on by one step of its event loop at a time, with a list of its services and lanes."""

from __future__ import annotations

import asyncio
import gc
import heapq
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from structlog.testing import capture_logs

from foqs.background.lane import Lane
from foqs.background.service import Service, ServiceState
from foqs.testing import memory_host
from foqs.testing.manual_loop import ManualLoop
from foqs.testing.memory_host import MemoryHost

STEPS_MAX = 20_000
SECONDS_MAX = 60.0


class StepLoop(ManualLoop):
    """Runs one handle at a time. A job of an executor is done two handles later, as if by a thread."""

    def step(self) -> None:
        """Run the next handle, or else the next timer."""
        if not self._handles:
            when_s = self.next_timer_s()
            assert when_s is not None, "nothing will ever happen again"
            self._now_s = max(self._now_s, when_s)
            self._handles.append(heapq.heappop(self._timers))
        with self._running():
            handle = self._handles.popleft()
            if not handle.cancelled():
                handle._run()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()
        assert executor is None or not executor._shutdown, "a lane has ended"  # type: ignore[attr-defined]
        self.call_soon(self.call_soon, _work_into, done, func, args)
        return done


def _work_into(done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Do the work, also if nobody waits for it any more, as a thread does."""
    try:
        result = func(*args)
    except Exception as error:
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)


class Watch:
    """The services and lanes that were made, and what was said of them."""

    def __init__(self) -> None:
        self.services: list[Service] = []
        self.lanes: list[Lane] = []
        self.logs: list[Any] = []

    def problems(self, loop: asyncio.AbstractEventLoop) -> Iterator[str]:
        """What is left of the services after their end."""
        for service in self.services:
            if service.state not in (ServiceState.STOPPED, ServiceState.NEW) or len(service._tasks):
                yield f"{service.name} is {service.state.value} and has {len(service._tasks)} tasks"
        for lane in self.lanes:
            if not lane._executor._shutdown:
                yield f"lane {lane._executor._thread_name_prefix} has not ended"
        for task in asyncio.all_tasks(loop):
            yield f"task {task.get_name()} is left: {task}"
        for log in self.logs:
            if log["event"] in ("host_defect", "shard_defect"):
                yield f"{log['event']}: {log}"


class SteppedHost(MemoryHost):
    """It is not started yet."""

    loop: StepLoop

    def __init__(self, watch: Watch, shard_count: int = 2) -> None:
        with patch.object(memory_host, "ManualLoop", StepLoop):
            super().__init__(shard_count)
        self.watch = watch
        assert isinstance(self._loop, StepLoop)
        self.loop = self._loop
        self.host = self._host

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()

    @property
    def _server(self) -> Any:
        return SimpleNamespace(connect=lambda: None)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.call(self.loop.create_task, work)
        return task

    def go(self, steps_count: int) -> None:
        for _ in range(steps_count):
            self.loop.step()

    def until_done(self, task: asyncio.Task[None]) -> int:
        """Return the number of steps."""
        until_s = self.loop.time() + SECONDS_MAX
        for count in range(STEPS_MAX):
            if task.done():
                return count
            assert self.loop.time() < until_s, f"{task.get_name()} takes more than {SECONDS_MAX} s"
            self.loop.step()
        raise AssertionError("too many steps")


@contextmanager
def stepped_host() -> Iterator[SteppedHost]:
    """Make a host, and watch what it makes."""
    watch = Watch()
    init_service, init_lane = Service.__init__, Lane.__init__

    def service(self: Service, *arguments: Any) -> None:
        init_service(self, *arguments)
        watch.services.append(self)

    def lane(self: Lane, *arguments: Any) -> None:
        init_lane(self, *arguments)
        watch.lanes.append(self)

    with (
        patch.object(Service, "__init__", service),
        patch.object(Lane, "__init__", lane),
        capture_logs() as watch.logs,
    ):
        one = SteppedHost(watch)
        try:
            yield one
        finally:
            one.loop.close()


@contextmanager
def all_awaited() -> Iterator[None]:
    """Fail if a coroutine that is made inside is never awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []
