"""The condition of a host for a supervisor or a load balancer: its liveness, readiness and start.

Each answer is None when all is well, and otherwise the reason in words. Thread-safe, and independent of the event loop
because that is possibly blocked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from foqs.background.service import ServiceState
from foqs.host.metrics.meters import Distribution
from foqs.host.shards.shards import Shards
from foqs.model import limits


class Pulse:
    """Measures the beats of an event loop, and how late they come.

    `clock` gives monotonic seconds, the same on every thread; an event loop's own clock does not guarantee that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_s = clock()
        self.lags = Distribution()
        """Lateness of each beat, in seconds."""

    async def pause(self, pause_ms: int) -> None:
        """Yield to the loop for `pause_ms`, then beat."""
        due_s = self._clock() + pause_ms / 1000
        await asyncio.sleep(pause_ms / 1000)
        self.beat(due_s)

    def beat(self, due_s: float) -> None:
        """Note a beat that was due at `due_s`."""
        self._beaten_s = self._clock()
        self.lags.observe(max(0.0, self._beaten_s - due_s))

    @property
    def silent_ms(self) -> int:
        """Time since the last beat, or since the pulse was made, in milliseconds."""
        return int((self._clock() - self._beaten_s) * 1000)


class Condition:
    """The condition of one host. `state` returns the state of the host's service."""

    def __init__(self, pulse: Pulse, shards: Shards, state: Callable[[], ServiceState]) -> None:
        self._pulse = pulse
        self._shards = shards
        self._state = state
        self._has_started = False

    def not_live(self) -> str | None:
        """Return the reason to restart the process, or None."""
        silent_ms = self._pulse.silent_ms
        if silent_ms > limits.LOOP_SILENCE_MS_MAX:
            return f"the event loop has not turned for {silent_ms} ms; allowed are {limits.LOOP_SILENCE_MS_MAX}"
        return None

    def not_ready(self) -> str | None:
        """Return the reason to send no calls here, or None."""
        problem = self.not_live() or self.not_started()
        if problem is not None:
            return problem
        if self._state() is not ServiceState.RUNNING:
            return "the host is draining" if self._state() is ServiceState.DRAINING else "the host has stopped"
        writers = list(self._shards.writers.values())
        owned = [writer for writer in writers if writer.shard is not None]
        if any(writer.health.healthy for writer in owned):
            return None
        return f"none of the {len(writers)} shards is healthy here: {len(owned)} owned, see `foqs host-status`"

    def not_started(self) -> str | None:
        """Return the reason why the host has not started to serve; None forever once it has."""
        self._has_started = self._has_started or self._state() in (ServiceState.RUNNING, ServiceState.DRAINING)
        return None if self._has_started else "the host is starting"
