"""The log of an outage: told when it begins and once a minute, not with each attempt that fails."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model import limits

LOSS_LOG_MS = limits.MINUTE_MS
"""A host that waits for a shard or the meta database says so this often, and when the reason is another one."""


class Outage:
    """The failures of one thing that is tried again and again; `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._reason: str | None = None
        self._told_s = 0.0

    def is_to_be_told(self, reason: str) -> bool:
        """Note a failure. Returns whether it is news, as each reason is and what was told LOSS_LOG_MS ago."""
        now_s = self._now_s()
        if reason == self._reason and now_s - self._told_s < LOSS_LOG_MS / 1000:
            return False
        self._reason, self._told_s = reason, now_s
        return True

    def has_ended(self) -> bool:
        """Note a success. Returns whether it failed before."""
        reason, self._reason = self._reason, None
        return reason is not None
