"""An asyncio event loop in virtual time, with processes that can be stopped and killed, and threads that are none.

Time jumps to the next timer when nothing is ready. Every delay comes from the seed, so a run is repeated by it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType, GeneratorType
from typing import Any

_TASKS_KEPT_MIN = 256
_END_S_MAX = 60.0


class ProcessState(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    """As by SIGSTOP: nothing of it runs, its timers go by."""
    KILLED = "killed"


class Process:
    """Everything that was started in `context`, or by what was started there, belongs to this process."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.state = ProcessState.RUNNING
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self.threads: list[VirtualThread] = []
        self._loop = loop
        self._parked: list[asyncio.Handle] = []
        self.resumed_s = -math.inf

    def stop(self) -> None:
        self.state = ProcessState.STOPPED

    def resume(self) -> None:
        self.state = ProcessState.RUNNING
        self.resumed_s = self._loop.time()
        parked, self._parked = self._parked, []
        self._loop.make_ready(parked)

    def kill(self) -> None:
        self.state = ProcessState.KILLED
        self._parked = []

    def park(self, handle: asyncio.Handle) -> None:
        if self.state is ProcessState.STOPPED:
            self._parked.append(handle)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    return _PROCESS.get()


class VirtualThread:
    """One worker of an executor: its jobs run one after the other, each after a delay, answered after another one."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self._loop = loop
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._sent: Callable[[], None] | None = None
        self._dead = False

    def submit(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._dead:
            future.cancel()
            return future
        self._jobs.append((work, future))
        if len(self._jobs) == 1:
            self._start()
        return future

    def hurry(self) -> None:
        """Do the job under way at once; its answer takes its time."""
        sent, self._sent = self._sent, None
        if sent is not None:
            sent()

    def die(self, *, hurry: bool) -> None:
        """Its process is gone; with `hurry` the job under way was sent before."""
        self._dead = True
        while len(self._jobs) > 1:
            self._jobs.pop()
        if hurry:
            self.hurry()
        self._sent = None

    def _start(self) -> None:
        work, future = self._jobs[0]
        self._step(work, future)

    def _step(
        self, work: Callable[[], Any], future: asyncio.Future[Any], delays_s: tuple[float, float] | None = None
    ) -> None:
        """Do it after a while; a generator is a job of several steps, which returns what the job gives.

        A step may yield in how many seconds the next one comes.
        """
        there_s, back_s = self._loop.latency(self.name) if delays_s is None else delays_s

        def send() -> None:
            self._sent = None
            answer: Callable[[], None]
            try:
                result = work()
                if isinstance(result, GeneratorType):
                    result = _Steps(result)
                if isinstance(result, _Steps):
                    steps = result
                    # What was drawn for the way back of the first step is that of the last one.
                    self._step(steps.go_on, future, None if steps.delay_s is None else (steps.delay_s, back_s))
                    return
            except Exception as error:
                answer = _failing(future, error)
            else:
                answer = _answering(future, result)
            self._loop.call_later(back_s, self._finish, answer)

        self._sent = send
        self._loop.call_later(there_s, self._send, send)

    def _send(self, send: Callable[[], None]) -> None:
        """Do the job, unless it was done in a hurry."""
        if self._sent is send:
            send()

    def _finish(self, answer: Callable[[], None]) -> None:
        self._jobs.popleft()
        if not self._dead:  # Nobody is there who would handle an error.
            answer()
        if self._jobs:
            self._start()


class _Steps:
    """A job of several steps."""

    def __init__(self, steps: Generator[float | None, None, Any]) -> None:
        self._steps = steps
        self.delay_s: float | None = None
        """In how many seconds the next step comes; None where it is drawn."""

    def go_on(self) -> Any:
        """Do the next step, and return this, or what the job gives."""
        try:
            self.delay_s = next(self._steps)
        except StopIteration as end:
            return end.value
        return self


class _Handle(asyncio.Handle):
    """As its base, made in one step: a run makes tens of thousands."""

    __slots__ = ()

    def __init__(self, callback: Any, args: tuple[Any, ...], loop: VirtualLoop, context: Context | None) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        """As its base, but the loop counts no cancelled timers, and its debug mode is off."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Task(asyncio.Task[Any]):
    """Sets of tasks are gone through in the order of their hashes: by number that is the same in each run of a seed.

    By address, as of other tasks, it would be another one in each process.
    """

    def __init__(self, number: int, coroutine: Any, loop: VirtualLoop, context: Context | None) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def _answering(future: asyncio.Future[Any], result: Any) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_result(result)


def _failing(future: asyncio.Future[Any], error: Exception) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_exception(error)


class VirtualLoop(asyncio.BaseEventLoop):
    """`latency(thread name)` gives the seconds from a job's submission to its effect, and from there to its answer.

    `lateness()` is by how many seconds a timer comes late.
    """

    def __init__(self, latency: Callable[[str], tuple[float, float]], lateness: Callable[[], float]) -> None:
        super().__init__()
        self.latency = latency
        self.steps_count = 0
        self.failures: list[dict[str, Any]] = []
        """What nobody handled."""
        self._lateness = lateness
        self._now_s = 0.0
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        """A heap of them; two floats are sooner compared than two timers are."""
        self._queue: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        self._threads: dict[Executor | None, VirtualThread] = {}
        self._tasks: list[tuple[asyncio.Task[Any], Process | None]] = []
        self._tasks_kept_max = _TASKS_KEPT_MIN
        self._tasks_count = 0
        # Tasks and futures ask for these so often that they are functions of C here.
        self.get_debug = bool  # type: ignore[method-assign]
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._at(self._now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._at(when, callback, args, context)

    def _at(self, when: float, callback: Any, args: tuple[Any, ...], context: Context | None) -> asyncio.TimerHandle:
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        when += self._lateness()
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, timer))
        return timer

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        thread = self._threads.get(executor)
        if thread is None:
            name = str(getattr(executor, "_thread_name_prefix", ""))
            thread = self._threads[executor] = VirtualThread(self, name)
            process = current_process()
            if process is not None:
                process.threads.append(thread)
        return thread.submit(partial(func, *args))

    def make_ready(self, handles: list[asyncio.Handle]) -> None:
        self._queue.extend(handles)

    def end_tasks(self) -> None:
        """Cancel all that is left, of killed processes too, and let it end."""
        self.run_until_complete(self._end_tasks())

    async def _end_tasks(self) -> None:
        left, self._tasks = [entry for entry in self._tasks if not entry[0].done()], []
        for task, process in left:
            if process is not None:
                process.state = ProcessState.RUNNING
            if task is not asyncio.current_task():
                task.cancel()
        for task, _ in left:
            coroutine = task.get_coro()
            if isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) == CORO_CREATED:
                coroutine.close()  # Its process was killed before the first step.
        others = [task for task, _ in left if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=_END_S_MAX)

    def _make_task(self, loop: VirtualLoop, coroutine: Any, context: Context | None = None) -> asyncio.Task[Any]:
        self._tasks_count += 1
        task = _Task(self._tasks_count, coroutine, loop, context)
        self._tasks.append((task, current_process() if context is None else context.get(_PROCESS)))
        if len(self._tasks) > self._tasks_kept_max:
            self._tasks = [entry for entry in self._tasks if not entry[0].done()]
            self._tasks_kept_max = max(_TASKS_KEPT_MIN, 2 * len(self._tasks))
        return task

    def _run_once(self) -> None:
        """Run until somebody stops the loop; that is what runs of its base come to, with fewer calls."""
        timers, queue, running = self._timers, self._queue, ProcessState.RUNNING
        while True:
            while timers and timers[0][1]._cancelled:
                heapq.heappop(timers)
            if not queue and not self._stopping:  # type: ignore[attr-defined]
                if not timers:
                    raise RuntimeError("nothing will ever happen again")
                self._now_s = max(self._now_s, timers[0][0])
            now_s = self._now_s
            while timers and timers[0][0] <= now_s:
                queue.append(heapq.heappop(timers)[1])
            for _ in range(len(queue)):
                handle = queue.popleft()
                if handle._cancelled:
                    continue
                context: Context = handle._context  # type: ignore[attr-defined]
                process = context.get(_PROCESS)
                if process is not None and process.state is not running:
                    process.park(handle)
                    continue
                self.steps_count += 1
                try:
                    context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"{handle} failed", "exception": error, "handle": handle})
            if self._stopping:  # type: ignore[attr-defined]
                return

    # What BaseEventLoop asks of a loop with sockets.

    def _write_to_self(self) -> None:
        return None

    def _process_events(self, event_list: object) -> None:
        return None
