"""What dead hosts leave behind in the meta database: sessions that hold locks, and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import HOSTS_SWEEP_MS, META_SILENT_MS_MAX
from foqs.model.outage import Outage
from foqs.storage.meta import MetaStore

_log = structlog.get_logger(__name__)


class DeadHosts:
    """Ends the sessions of hosts that are dead, once each time that they are found so, and sweeps old rows.

    One thread finds the dead, another one tidies up.
    """

    def __init__(self, meta: MetaStore, is_dead: Callable[[str], bool], now_s: Callable[[], float]) -> None:
        """`is_dead` tells of a process whether it is dead at that moment, and `now_s` is a monotonic clock."""
        self._meta = meta
        self._is_dead = is_dead
        self._now_s = now_s
        self._left: set[str] = set()
        """The dead whose sessions are to be ended."""
        self._swept_s = now_s()
        self._outage = Outage(now_s)

    def found(self, dead: Collection[str]) -> None:
        """These processes are dead, and were not a moment ago."""
        # Replaced, never changed: another thread may be at it.
        self._left = self._left | set(dead)

    def tidy(self) -> None:
        """Do what is to be done now. Blocks. What fails is tried again the next time."""
        try:
            for host_id in sorted(self._left):
                self._end_sessions(host_id)
                self._left = self._left - {host_id}
            if self._now_s() - self._swept_s >= HOSTS_SWEEP_MS / 1000:
                if count := self._meta.sweep_hosts():
                    _log.info("host_rows_swept", count=count)
                self._swept_s = self._now_s()
            self._outage.has_ended()
        except UnavailableError as error:
            if self._outage.is_to_be_told(str(error)):
                _log.warning("dead_hosts_not_tidied", error=str(error))

    def _end_sessions(self, host_id: str) -> None:
        # It may have beaten meanwhile.
        if not self._is_dead(host_id):
            return
        ended = self._meta.end_sessions(host_id)
        if ended.ended_count:
            _log.info("meta_sessions_ended", host=host_id, count=ended.ended_count)
        if ended.denied_count:
            _log.warning(
                "meta_sessions_not_ended",
                host=host_id,
                count=ended.denied_count,
                problem="they are another user's, and this host's user must not KILL them: let all hosts use one user "
                f"for the meta database. The server ends them when they were silent for {META_SILENT_MS_MAX} ms",
            )
