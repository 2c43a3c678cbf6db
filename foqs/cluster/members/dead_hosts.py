"""The cleanup of the meta database after dead hosts: sessions that hold locks, and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from foqs.background.outage_log import OutageLog
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import HOSTS_SWEEP_MS, META_SILENT_MS_MAX
from foqs.storage.meta.meta_hosts import MetaHosts

_log = structlog.get_logger(__name__)


class DeadHosts:
    """Ends the sessions of dead hosts, once for each death, and sweeps old rows.

    One thread reports the dead, and another one tidies up.
    """

    def __init__(self, hosts: MetaHosts, is_dead: Callable[[str], bool], now_s: Callable[[], float]) -> None:
        """`is_dead` returns True if a process is dead at that moment; `now_s` is a monotonic clock."""
        self._hosts = hosts
        self._is_dead = is_dead
        self._now_s = now_s
        self._left: set[str] = set()
        """The dead hosts whose sessions must be ended."""
        self._swept_s = now_s()
        self._outage = OutageLog(now_s, "dead_hosts_not_tidied")

    def found(self, dead: Collection[str]) -> None:
        """Note these processes, which have just been found dead."""
        # Replaced, never changed, because another thread can be using it.
        self._left = self._left | set(dead)

    def tidy(self) -> None:
        """Do the pending work. Blocks. Failed work is tried again at the next call."""
        try:
            for host_id in sorted(self._left):
                self._end_sessions(host_id)
                self._left = self._left - {host_id}
            if self._now_s() - self._swept_s >= HOSTS_SWEEP_MS / 1000:
                if count := self._hosts.sweep():
                    _log.info("host_rows_swept", count=count)
                self._swept_s = self._now_s()
            self._outage.worked()
        except UnavailableError as error:
            self._outage.failed(error)

    def _end_sessions(self, host_id: str) -> None:
        # It can have sent a heartbeat meanwhile.
        if not self._is_dead(host_id):
            return
        ended = self._hosts.end_sessions(host_id)
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
