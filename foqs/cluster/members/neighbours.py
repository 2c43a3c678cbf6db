"""Conflicts between this host and other running ones, for its log; each is logged by both hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from foqs.model.cluster import HostRow, host_name_of
from foqs.model.outage import Outage

_log = structlog.get_logger(__name__)


class Neighbours:
    """The other hosts that beat while this one watches. A row left behind by a dead process does not count.

    So a single host that was killed and restarted has no neighbour.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is a monotonic clock."""
        self._beats: dict[str, int] = {}
        """The number of the last heartbeat of each other host."""
        self._running: set[str] = set()
        """The others that have sent a heartbeat since they were first seen."""
        self._silence = Outage(now_s)
        self._sharing = Outage(now_s)

    def saw(
        self, me: HostRow, hosts: Collection[HostRow], is_dead: Callable[[str], bool], *, is_listening: bool
    ) -> None:
        """Check the rows of all hosts after a heartbeat; `is_listening` is True if this host's address is final."""
        others = {row.id: row for row in hosts if row.id != me.id}
        self._running = {
            host_id
            for host_id, row in others.items()
            if (host_id in self._running or self._beats.get(host_id, row.beat_number) != row.beat_number)
            and not is_dead(host_id)
        }
        self._beats = {host_id: row.beat_number for host_id, row in others.items()}
        running = [others[host_id] for host_id in sorted(self._running)]
        self._log_silence(running if is_listening and not me.address else [])
        name = host_name_of(me.id)
        self._log_namesakes(name, [row for row in running if host_name_of(row.id) == name])

    def _log_silence(self, running: Collection[HostRow]) -> None:
        """Log that this host publishes no address although these other hosts would need it."""
        names = [host_name_of(row.id) for row in running if not row.is_leaving]
        if not names:
            self._silence.has_ended()
        elif self._silence.is_to_be_logged(" ".join(names)):
            _log.error(
                "address_not_told",
                others=names,
                problem="this host listens on every address of its machine, so others do not know how to reach it, "
                "and calls that need it fail there: set advertise_address to its name or address",
            )

    def _log_namesakes(self, name: str, running: Collection[HostRow]) -> None:
        """Log other processes that have this host's name. A starting process has no address yet."""
        others = [f"{row.id} at {row.address}" if row.address else row.id for row in running]
        if not others:
            self._sharing.has_ended()
        elif self._sharing.is_to_be_logged(" ".join(others)):
            _log.error("host_name_shared", host_name=name, others=others)
