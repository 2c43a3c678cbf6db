"""The log lines of an outage: its failures, once a minute for each reason, and its end."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.model.outage import Outage

_log = structlog.get_logger(__name__)


class OutageLog:
    """Logs the failures of one action that is repeated."""

    __slots__ = ("_away", "_back", "_outage")

    def __init__(self, now_s: Callable[[], float], away: str, back: str = "") -> None:
        """`now_s` is a monotonic clock. `away` is the event of a failure, and `back` that of the end, if it has one."""
        self._outage = Outage(now_s)
        self._away = away
        self._back = back

    def failed(self, error: Exception | str, **fields: object) -> None:
        """Note a failure. `fields` are those of its event."""
        if self._outage.is_to_be_logged(str(error)):
            _log.warning(self._away, error=str(error), **fields)

    def worked(self) -> None:
        """Note a success."""
        if self._outage.has_ended() and self._back:
            _log.info(self._back)
