"""The condition of a host for a supervisor or a load balancer: its liveness, readiness and start.

Each answer is None when all is well, and otherwise the reason in words. Thread-safe, and independent of the event loop
because that is possibly blocked.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.background.service import ServiceState
from foqs.host.metrics.pulse import Pulse
from foqs.host.shards.shards import Shards
from foqs.model import limits


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
