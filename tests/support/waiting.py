"""Waiting for what a host does in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long a test waits for what has to come: it comes at once, unless the machine does very much else."""
PATIENCE_MS = 60_000


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Return when it holds: after how many seconds that was."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


def until_true(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Return when it holds, for threads."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, "it did not happen in time"
        time.sleep(0.05)
