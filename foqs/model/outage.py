"""The log of an outage: one entry when it begins and one a minute, not one for each failed attempt."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model import limits

LOSS_LOG_MS = limits.MINUTE_MS
"""How often a host that waits for a shard or the meta database logs each reason."""


class Outage:
    """The failures of one action that is repeated; `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logged_s: dict[str, float] = {}
        """The time at which each reason was logged, within the last LOSS_LOG_MS. Two reasons can alternate, twice a
        second.
        """
        self._has_failed = False

    def is_to_be_logged(self, reason: str) -> bool:
        """Note a failure. Returns True if its reason was not logged within the last LOSS_LOG_MS."""
        now_s = self._now_s()
        self._has_failed = True
        self._logged_s = {logged: at_s for logged, at_s in self._logged_s.items() if now_s - at_s < LOSS_LOG_MS / 1000}
        if reason in self._logged_s:
            return False
        self._logged_s[reason] = now_s
        return True

    def has_ended(self) -> bool:
        """Note a success. Returns True if it failed before."""
        has_failed, self._has_failed = self._has_failed, False
        self._logged_s.clear()
        return has_failed
