"""An event loop with a manual clock, which runs inside of any thread or other event loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any


class ManualLoop(asyncio.BaseEventLoop):
    """Has no sockets, threads or waits. The jobs of executors are run at once in the calling thread.

    `MemoryHost` owns it and calls `turn` and `move_to`, one thread at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.defects: list[BaseException] = []
        """The unhandled errors, oldest first."""
        self._now_s = 0.0
        self._timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._handles: Any = self._ready  # type: ignore[attr-defined]
        self.set_exception_handler(self._note_defect)

    def time(self) -> float:
        return self._now_s

    def next_timer_s(self) -> float | None:
        """The time of the next timer, or None."""
        timers = self._timers
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        return timers[0].when() if timers else None

    def move_to(self, now_s: float) -> None:
        """Move the clock to `now_s` unless it is later already. Run the timers that are due, and all handles that
        follow.
        """
        self._now_s = max(self._now_s, now_s)
        while (when_s := self.next_timer_s()) is not None and when_s <= self._now_s:
            self._handles.append(heapq.heappop(self._timers))
            self.turn()

    def turn(self) -> None:
        """Run the ready handles, and those they make ready, until only timers are left."""
        with self._running():
            while self._handles:
                handle = self._handles.popleft()
                if not handle.cancelled():
                    handle._run()
        if self.defects:
            raise self.defects.pop(0)

    def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as if by a handle of this loop."""
        with self._running():
            return work(*arguments)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Replace the caller's running loop and task, because asyncio knows one of each per thread."""
        outer = asyncio._get_running_loop()
        swap = getattr(asyncio.tasks, "_swap_current_task", None)
        task = swap(outer, None) if swap is not None and outer is not None else None
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)
            if swap is not None and task is not None:
                swap(outer, task)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _note_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.defects.append(error if isinstance(error, BaseException) else RuntimeError(context["message"]))

    # The interface that BaseEventLoop expects of a loop with sockets.

    def _write_to_self(self) -> None:
        return None

    def _process_events(self, event_list: object) -> None:
        return None
