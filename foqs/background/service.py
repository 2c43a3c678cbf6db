"""The common form of all background services.

After river's start/stop contract: a service can be stopped without having been started, and stopped twice. drain()
finishes accepted work and takes nothing new; stop() ends at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import Callable
from enum import Enum

from foqs.background.tasks import Tasks
from foqs.model.errors import FoqsError


class ServiceState(Enum):
    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Service(ABC):
    """Override `_start`, `_drain` and `_stop`; `name` names its threads and tasks.

    `_tasks` are stopped before `_stop` is called.
    """

    def __init__(self, name: str, failed: Callable[[FoqsError], None] | None = None) -> None:
        """`failed` gets the FoqsErrors of its tasks, which are defects without it."""
        self.name = name
        self.state = ServiceState.NEW
        self._tasks = Tasks(name, failed)
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once the service works. Raises the error that prevents it; then no thread or task is left."""
        assert self.state is ServiceState.NEW, f"{self.name} was started before"
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        if self.state is ServiceState.NEW:  # Another caller can have stopped it meanwhile.
            self.state = ServiceState.RUNNING

    async def drain(self) -> None:
        """Take no new work, and return once all accepted work is done, or its time limit has passed."""
        if self.state is ServiceState.RUNNING:
            self.state = ServiceState.DRAINING
            await self._drain()

    async def stop(self) -> None:
        """End now. Every thread and task of the service has ended when this returns.

        A cancelled caller only stops waiting: the service ends all the same, and another stop waits for that.
        """
        if self._ending is None or self._ending.cancelled():
            self.state = ServiceState.STOPPED
            self._ending = asyncio.create_task(self._end(), name=f"{self.name}-stop")
        elif self._ending.done():
            return
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._tasks.stop()
        await self._stop()

    async def _start(self) -> None:
        return None

    async def _drain(self) -> None:
        return None

    async def _stop(self) -> None:
        return None
