"""Looks at the host all the time, past the clients' network: what it serves since when, and its memory."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

from foqs import AdminClient
from foqs.client.retry import RetryPolicy
from foqs.model.errors import FoqsError
from loadtest.chaos.room import Room
from tests.histories.history import now_ns
from tests.support.faults.own_thread import OwnThread

_LOOK_EVERY_S = 0.05
_ANSWER_MS_MAX = 1_000
_SILENT_MS_MAX = 500


class Monitor(OwnThread):
    """`rss_mib_max`: the most memory that any host had."""

    def __init__(self, room: Room) -> None:
        super().__init__("monitor")
        self.rss_mib_max = 0.0
        self._room = room
        self._seen: list[tuple[int, frozenset[int]]] = []
        """When the host was asked, and which shards it then served in health."""

    def served_at_ms(self, shards: frozenset[int], after_ms: int) -> int | None:
        """The first time after this when the host served all of them; None when it never did."""
        first = bisect_left(self._seen, after_ms, key=lambda seen: seen[0])
        return next((at_ms for at_ms, served in self._seen[first:] if shards <= served), None)

    def away(self, shards: frozenset[int]) -> list[tuple[int, int]]:
        """(start, end) of the times when the host did not say that it serves all of them in health, or did not answer.

        A busy machine has such times too, without a fault.
        """
        times = [(at_ms, shards <= served) for at_ms, served in self._seen]
        return [
            (start_ms, end_ms)
            for (start_ms, start_served), (end_ms, end_served) in pairwise(times)
            if not (start_served and end_served) or end_ms - start_ms > _SILENT_MS_MAX
        ]

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            with AdminClient(
                self._room.host_address,
                timeout_ms=_ANSWER_MS_MAX,
                connect_timeout_ms=_ANSWER_MS_MAX,
                retry=RetryPolicy(deadline_ms=0),
            ) as admin:
                self._look_on(admin)

    def _look_on(self, admin: AdminClient) -> None:
        """Until the host does not answer; then a new connection is due."""
        while not self._stopped.wait(_LOOK_EVERY_S):
            asked_at_ms = now_ns() // 1_000_000
            try:
                shards = admin.host_status().shards
            except FoqsError:
                return
            self._seen.append((asked_at_ms, frozenset(shard.shard_id for shard in shards if shard.state == "owned")))
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        host = self._room.host
        if host is None:
            return
        try:
            status = Path(f"/proc/{host.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return  # It was killed this moment.
        lines = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in lines:
            self.rss_mib_max = max(self.rss_mib_max, int(lines["VmRSS"].split()[0]) / 1024)
