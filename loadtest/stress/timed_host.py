"""`foqs` whose event loop is timed: at SIGUSR1 it says how long its longest callback took since the last time.

The loop is asyncio's own, since uvloop lets nobody time its callbacks.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from foqs.cli import running
from foqs.cli.main import main
from loadtest.stress.holds import Holds
from tests.support.faults.programs import HostProgram

COMMAND = (sys.executable, "-m", "loadtest.stress.timed_host")


def take_hold(host: HostProgram, number: int) -> tuple[float, str]:
    """Ask a host that was started so for the `number`th time, from 1: milliseconds of CPU, and what took them."""
    host.signal(signal.SIGUSR1)
    told = f"longest hold {number}: "
    milliseconds, _, what = host.wait_for_line(told).partition(told)[2].strip().partition(" ")
    return float(milliseconds), what


def _run(work: Coroutine[Any, Any, None]) -> None:
    loop, numbers = Holds(), count(1)

    def tell(*_: object) -> None:
        held_ms, what = loop.take()
        print(f"longest hold {next(numbers)}: {held_ms:.3f} {what}", flush=True)

    signal.signal(signal.SIGUSR1, tell)
    with loop.timed(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    with patch.object(running, "uvloop", SimpleNamespace(run=_run)):
        main()
