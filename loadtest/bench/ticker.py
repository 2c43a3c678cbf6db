"""The clock of an open loop: events at their times, whatever else the process does."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from random import Random
from types import TracebackType
from typing import Self

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = os.O_NONBLOCK, os.O_CLOEXEC, 1
_S_NS = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


def evenly(first_ns: int, interval_ns: float, end_ns: int) -> Iterator[int]:
    """`first_ns`, `first_ns + interval_ns`, ..., before `end_ns`."""
    number = 0
    while (time_ns := first_ns + int(number * interval_ns)) < end_ns:
        yield time_ns
        number += 1


def at_random(first_ns: int, mean_interval_ns: float, end_ns: int, rng: Random) -> Iterator[int]:
    """Times before `end_ns` that know nothing of each other, as those of many users do: a Poisson process."""
    time_ns = float(first_ns)
    while (time_ns := time_ns + rng.expovariate(1 / mean_interval_ns)) < end_ns:
        yield int(time_ns)


class Ticker:
    """Calls `due(time_ns)` at each of these times, which ascend; then `done()`.

    A timerfd of the kernel: the timers of an event loop are rounded up to whole milliseconds, which is as long as
    what is measured with them. After a stall all that became due meanwhile comes at once, each with its own time.
    """

    def __init__(self, times_ns: Iterator[int], due: Callable[[int], None], done: Callable[[], None]) -> None:
        self._times_ns = times_ns
        self._due, self._done = due, done
        self._next_ns: int | None = None
        self._file = -1

    def __enter__(self) -> Self:
        self._file = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        asyncio.get_running_loop().add_reader(self._file, self._on_time)
        self._next_ns = next(self._times_ns, None)
        # There may be none at all, and what is due at no time is done at once.
        self._wake_at(time.monotonic_ns() if self._next_ns is None else self._next_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _on_time(self) -> None:
        os.read(self._file, 8)
        now_ns = time.monotonic_ns()
        while self._next_ns is not None and self._next_ns <= now_ns:
            time_ns, self._next_ns = self._next_ns, next(self._times_ns, None)
            self._due(time_ns)
        if self._next_ns is None:
            self._stop()
            self._done()
        else:
            self._wake_at(self._next_ns)

    def _wake_at(self, time_ns: int) -> None:
        once = _Itimerspec(_timespec(0), _timespec(time_ns))
        if _libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, ctypes.byref(once), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _stop(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1


def _timespec(time_ns: int) -> _Timespec:
    return _Timespec(*divmod(time_ns, _S_NS))
