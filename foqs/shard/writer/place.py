"""The server on which this process has a shard, the facts reported about it, and the transactions lost on another one.

docs/decisions/0046-one-place-of-a-shard.md.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.model import limits
from foqs.model.cluster import ShardRow
from foqs.model.shard_place import Remembered, lost_by_memory, lost_by_row
from foqs.shard.port import ShardImage
from foqs.shard.writer.shard_listener import TransactionMeter

LEAVE_SERVER_MS = 2 * limits.SECOND_MS
"""An owner without a session for this long reports that, and others can then take the shard on another server."""

_log = structlog.get_logger(__name__)


class ShardPlace:
    """The place of a shard's sessions, as `Ownership` reports them. It counts lost transactions."""

    def __init__(self, shard_id: int, meter: TransactionMeter, now_s: Callable[[], float]) -> None:
        self.server = ""
        """The server on which the shard was last opened."""
        self.is_left = False
        """True if others might know that they can take the shard, so that this process needs a new epoch for it."""
        self.epoch = 0
        """The epoch of the last tenure whose losses are unknown; 0 for none."""
        self.reported_number = 0
        """The number of the last reported transaction."""
        self.lost_count = 0
        """The transactions that were lost while this process had the shard, or before it took it."""
        self._shard_id = shard_id
        self._meter = meter
        self._now_s = now_s
        self._without_session_s: float | None = now_s()

    @property
    def is_to_leave(self) -> bool:
        """True if the session has been missing for long enough to let others take the shard on another server."""
        since_s = self._without_session_s
        return since_s is not None and self._now_s() - since_s >= LEAVE_SERVER_MS / 1000

    def leave(self) -> None:
        """Note that others will be notified; they can get the report even if it seems to fail."""
        self.is_left = True

    def reported(self, number: int) -> None:
        """Note that the transactions up to this one are reported."""
        self.reported_number = max(self.reported_number, number)

    def has_no_session(self) -> None:
        if self._without_session_s is None:
            self._without_session_s = self._now_s()

    def opening(self) -> None:
        """Note a new opening, with a new epoch if others were notified that they can take the shard."""
        self.is_left = False

    def has_session(self, server: str) -> None:
        """Note that the shard is served on this server, and that no later report names another one."""
        self.server, self.is_left, self._without_session_s = server, False, None

    def renewed(self, epoch: int, number: int) -> None:
        """Note that the shard continues under a later epoch, with the transactions up to this one reported."""
        self.epoch, self.reported_number = epoch, number

    def opened(self, image: ShardImage, committed_number: int) -> None:
        """Note a take-over; `committed_number` is the last transaction that this process had seen before."""
        given, found = image.given, image.found
        lost = 0
        if given is not None:
            lost = lost_by_row(given.before, found)
            if self.epoch:
                mine = Remembered(self.epoch, committed_number, self.reported_number)
                lost += lost_by_memory(given.before, found, mine)
        self.renewed(image.epoch, image.transaction_number)
        self._report(lost)

    def taken(self, row: ShardRow | None, committed_number: int) -> None:
        """Note that the meta database's row gives the shard to another process, and count once the transactions that it
        lacks there.

        If that one has left the shard, or never served it, the next opening counts.
        """
        self.is_left = True
        if row is None or not row.server or not self.epoch or row.epoch <= self.epoch:
            return
        mine, self.epoch = Remembered(self.epoch, committed_number, self.reported_number), 0
        self._report(lost_by_memory(row, None, mine))

    def _report(self, lost: int) -> None:
        if lost:
            self.lost_count += lost
            self._meter.lost(self._shard_id, lost)
            _log.error("shard_went_back", shard=self._shard_id, lost_transactions=lost)
