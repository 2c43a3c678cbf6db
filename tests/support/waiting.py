"""Waiting for what a host does in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a test waits for what has to come: it comes at once, unless the machine does very much else."""
PATIENCE_MS = 60_000
PROGRAM_S_MAX = 500.0
"""How long a program may run that a test waits for: less than the test itself may take."""


def longer(first_ms: int) -> tuple[int, int, int]:
    """Times for three tries to do something before a time is over: a busy machine needs a longer one."""
    return first_ms, 5 * first_ms, 25 * first_ms


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Return when it holds: after how many seconds that was."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


async def eventually(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Read again and again, and return the first value that holds."""
    began_s = time.monotonic()
    while not holds(value := await read()):
        assert time.monotonic() - began_s < PATIENCE_S, f"it did not happen in time: {value}"
        await asyncio.sleep(0.01)
    return value


def until_true(condition: Callable[[], object], patience_s: float = PATIENCE_S, *, pause_s: float = 0.05) -> None:
    """Return when it holds, for threads."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        time.sleep(pause_s)


def until_given(call: Callable[[], T], *not_yet: type[Exception]) -> T:
    """Call until it raises none of these, and return what it gives."""
    began_s = time.monotonic()
    while True:
        try:
            return call()
        except not_yet:
            assert time.monotonic() - began_s < PATIENCE_S, "it did not happen in time"
        time.sleep(0.05)


def until_soon(condition: Callable[[], object]) -> None:
    """The same for what comes within milliseconds, and again and again."""
    until_true(condition, pause_s=0.001)
