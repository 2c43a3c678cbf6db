"""The one shape of everything that runs in the background.

After river's start/stop contract: a service tolerates being stopped without having been started, and being
stopped twice. drain() finishes what was accepted and takes nothing new; stop() ends at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from enum import Enum


class ServiceState(Enum):
    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Service(ABC):
    """Override `_start`, `_drain` and `_stop`; `name` names its threads and tasks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ServiceState.NEW
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once the service works. Raises what keeps it from working; then nothing is left running."""
        assert self.state is ServiceState.NEW, f"{self.name} was started before"
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        self.state = ServiceState.RUNNING

    async def drain(self) -> None:
        """Take nothing new and return when all that was accepted is done, or its bound has passed."""
        if self.state is ServiceState.RUNNING:
            self.state = ServiceState.DRAINING
            await self._drain()

    async def stop(self) -> None:
        """End now. Every thread and task of the service is gone when this returns.

        Who is cancelled meanwhile only waits no more: the service ends all the same, and another stop waits for that.
        """
        if self._ending is None or self._ending.cancelled():
            self.state = ServiceState.STOPPED
            self._ending = asyncio.create_task(self._stop(), name=f"{self.name}-stop")
        elif self._ending.done():
            return
        await asyncio.shield(self._ending)

    async def _start(self) -> None:
        return None

    async def _drain(self) -> None:
        return None

    async def _stop(self) -> None:
        return None
