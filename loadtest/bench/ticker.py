"""The clock of an open loop: events at their times, whatever else the process does."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = os.O_NONBLOCK, os.O_CLOEXEC, 1
_S_NS = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class Ticker:
    """Calls `due(time_ns)` for `first_ns`, `first_ns + interval_ns`, ..., until `end_ns`; then `done()`.

    A timerfd of the kernel: the timers of an event loop are rounded up to whole milliseconds, which is as long as
    what is measured with them. After a stall all that became due meanwhile comes at once, each with its own time.
    """

    def __init__(
        self, first_ns: int, interval_ns: float, end_ns: int, due: Callable[[int], None], done: Callable[[], None]
    ) -> None:
        self._first_ns, self._interval_ns, self._end_ns = first_ns, interval_ns, end_ns
        self._due, self._done = due, done
        self._count = 0
        self._file = -1

    def __enter__(self) -> Self:
        self._file = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        times = _Itimerspec(_timespec(int(self._interval_ns)), _timespec(self._first_ns))
        if _libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, ctypes.byref(times), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        asyncio.get_running_loop().add_reader(self._file, self._on_time)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _on_time(self) -> None:
        os.read(self._file, 8)
        now_ns = time.monotonic_ns()
        while (time_ns := self._first_ns + int(self._count * self._interval_ns)) <= now_ns:
            if time_ns >= self._end_ns:
                self._stop()
                self._done()
                return
            self._count += 1
            self._due(time_ns)

    def _stop(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1


def _timespec(time_ns: int) -> _Timespec:
    return _Timespec(*divmod(time_ns, _S_NS))
