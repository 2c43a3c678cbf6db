"""Waiting for what a host does in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool], patience_s: float = 10.0) -> float:
    """Return when it holds: after how many seconds that was."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


def until_true(condition: Callable[[], bool], patience_s: float = 10.0) -> None:
    """Return when it holds, for threads."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        time.sleep(0.05)
