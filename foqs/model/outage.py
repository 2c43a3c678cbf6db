"""The log of an outage: told when it begins and once a minute, not with each attempt that fails."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model import limits

LOSS_LOG_MS = limits.MINUTE_MS
"""A host that waits for a shard or the meta database says so this often, for each reason."""


class Outage:
    """The failures of one thing that is tried again and again; `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._told_s: dict[str, float] = {}
        """When each reason was told, within the last LOSS_LOG_MS: two of them may come in turns, twice a second."""
        self._has_failed = False

    def is_to_be_told(self, reason: str) -> bool:
        """Note a failure. Returns whether it is news, as each reason is and what was told LOSS_LOG_MS ago."""
        now_s = self._now_s()
        self._has_failed = True
        self._told_s = {told: at_s for told, at_s in self._told_s.items() if now_s - at_s < LOSS_LOG_MS / 1000}
        if reason in self._told_s:
            return False
        self._told_s[reason] = now_s
        return True

    def has_ended(self) -> bool:
        """Note a success. Returns whether it failed before."""
        has_failed, self._has_failed = self._has_failed, False
        self._told_s.clear()
        return has_failed
