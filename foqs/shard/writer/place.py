"""The server on which this process has a shard: what it has told the others of it, and what was lost with another one.

docs/decisions/0046-one-place-of-a-shard.md.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.model import limits
from foqs.model.cluster import ShardRow
from foqs.model.shard_place import Remembered, lost_by_memory, lost_by_row
from foqs.shard.port import ShardImage
from foqs.shard.writer.listener import TransactionMeter

LEAVE_SERVER_MS = 2 * limits.SECOND_MS
"""An owner that has had no session with its server for so long tells the others, who may take the shard elsewhere."""

_log = structlog.get_logger(__name__)


class ShardPlace:
    """`Ownership` owns it and tells it what becomes of the shard's sessions; it counts what was lost."""

    def __init__(self, shard_id: int, meter: TransactionMeter, now_s: Callable[[], float]) -> None:
        self.server = ""
        """The server on which the shard was opened, or opened again."""
        self.is_left = False
        """The others may have heard that they may take the shard: only a new epoch makes it this process's again."""
        self.epoch = 0
        """That of the last tenure of which it is not known what was lost; 0 for none."""
        self.told_number = 0
        """The number of the last transaction that the others were told of."""
        self.lost_count = 0
        """The transactions that were lost while this process had the shard, or before it took it."""
        self._shard_id = shard_id
        self._meter = meter
        self._now_s = now_s
        self._without_session_s: float | None = now_s()

    @property
    def is_to_leave(self) -> bool:
        """There was no session for so long that others may take the shard on another server."""
        since_s = self._without_session_s
        return since_s is not None and self._now_s() - since_s >= LEAVE_SERVER_MS / 1000

    def leave(self) -> None:
        """Before the others are told, who may hear it whatever the teller hears."""
        self.is_left = True

    def told(self, number: int) -> None:
        """The others know of the transactions up to this one."""
        self.told_number = max(self.told_number, number)

    def has_no_session(self) -> None:
        if self._without_session_s is None:
            self._without_session_s = self._now_s()

    def opening(self) -> None:
        """The shard is taken anew: with a new epoch if the others were told that it can be."""
        self.is_left = False

    def has_session(self, server: str) -> None:
        """The shard is served on this server, and nobody was told of another one since."""
        self.server, self.is_left, self._without_session_s = server, False, None

    def renewed(self, epoch: int, number: int) -> None:
        """The shard goes on under a later epoch, and the others were told of the transactions up to this one."""
        self.epoch, self.told_number = epoch, number

    def opened(self, image: ShardImage, committed_number: int) -> None:
        """The shard was taken over; `committed_number` is of the last transaction that this process had seen before."""
        given, found = image.given, image.found
        lost = 0
        if given is not None:
            lost = lost_by_row(given.before, found)
            if self.epoch:
                mine = Remembered(self.epoch, committed_number, self.told_number)
                lost += lost_by_memory(given.before, found, mine)
        self.renewed(image.epoch, image.transaction_number)
        self._report(lost)

    def taken(self, row: ShardRow | None, committed_number: int) -> None:
        """Another one has the shard, by the row of the meta database: count once what it lacks on another server.

        It may have left that, or never have served the shard: then the next opening counts.
        """
        self.is_left = True
        if row is None or not row.server or not self.epoch or row.epoch <= self.epoch:
            return
        mine, self.epoch = Remembered(self.epoch, committed_number, self.told_number), 0
        self._report(lost_by_memory(row, None, mine))

    def _report(self, lost: int) -> None:
        if lost:
            self.lost_count += lost
            self._meter.lost(self._shard_id, lost)
            _log.error("shard_went_back", shard=self._shard_id, lost_transactions=lost)
