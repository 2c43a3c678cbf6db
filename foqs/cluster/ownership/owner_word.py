"""An owner's reports on its shards through the meta database: a server that it lost, and the progress of a shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.tasks import Tasks
from foqs.cluster.members.membership import Membership
from foqs.cluster.members.view import ClusterView
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError
from foqs.model.shard_place import Tenure
from foqs.shard.state.engine import ShardState

NUMBERS_MS = 10 * limits.SECOND_MS
"""The pause between reports of the shards' progress, by which any host that notices a loss can count it."""

_Numbers = Mapping[int, tuple[int, int]]
"""The epoch and the number of the last transaction of each shard."""

_log = structlog.get_logger(__name__)


class PlacedWriter(Protocol):
    """The part of a shard's writer that is used here; foqs.shard.writer.shard_writer.ShardWriter is the real one."""

    @property
    def held(self) -> ShardState | None:
        """The shard while it is owned."""

    @property
    def is_to_leave_server(self) -> bool:
        """True if it has had no session with its server for a while."""

    def leave_server(self) -> int:
        """Prepare for other hosts to take the shard on another server. Returns the transaction number to report."""

    def number_to_report(self) -> int | None:
        """Return the number of the last transaction, or None if it is already reported."""

    def number_reported(self, number: int) -> None:
        """Note that the transactions up to this one are reported."""

    def doubt_epoch(self) -> None:
        """Note that other hosts might not know on which server the shard is served."""


class WrittenShards(Protocol):
    """The part of a host's shards that is used here; foqs.host.shards.shards.Shards is the real one."""

    @property
    def writers(self) -> Mapping[int, PlacedWriter]:
        """The writers of this host at any time."""

    def take_tenure(self, shard_id: int) -> Tenure | None:
        """Return and forget the tenure of a shard that this host has left, or None."""


class OwnerWord:
    """Checks each view of the cluster, which exists only while the meta database answers. The host owns it."""

    def __init__(self, shards: WrittenShards, membership: Membership, now_s: Callable[[], float]) -> None:
        """`now_s` is a monotonic clock."""
        self._shards = shards
        self._parked: dict[int, tuple[int, int]] = {}
        """The epochs and last transactions of parked shards that this host had, until the meta database has them."""
        self._membership = membership
        self._now_s = now_s
        self._numbers_s = now_s()
        self._tasks = Tasks("owner's word")
        """The word that is on its way, if one is."""
        self._outage = OutageLog(now_s, "owner_word_not_told")

    def refresh(self, view: ClusterView) -> None:
        """Send the due reports after a round, unless the last one is still on its way."""
        if len(self._tasks):
            return
        mine = {row.shard_id: row for row in view.shards.values() if row.owner == view.me}
        left: dict[int, tuple[int, int]] = {}
        for shard_id, row in mine.items():
            writer = self._shards.writers.get(shard_id)
            if writer is None or row.use is ShardUse.PARKED:
                continue  # The owner of a parked shard reports that it left only after its writer has stopped.
            if row.server and writer.is_to_leave_server:
                left[shard_id] = row.epoch, writer.leave_server()
            elif not row.server and (shard := writer.held) is not None and shard.epoch == row.epoch:
                writer.doubt_epoch()
        if left:
            _log.warning("server_left", shards=sorted(left))
        if parked := self._parked_of(view):
            _log.info("shards_parked", shards=sorted(parked))
        if left or parked:
            self._begin(left | parked, self._membership.leave_servers)
        elif self._now_s() - self._numbers_s >= NUMBERS_MS / 1000:
            self._numbers_s = self._now_s()
            if numbers := self._numbers():
                self._begin(numbers, self._membership.note_numbers)

    def _parked_of(self, view: ClusterView) -> dict[int, tuple[int, int]]:
        """Return the parked shards that this host was the last to have and has left, with their last transactions.

        This host forgets the tenures of all parked shards, because their databases can be others afterwards.
        """
        before, self._parked = self._parked, {}
        for row in view.shards.values():
            if row.use is not ShardUse.PARKED or row.shard_id in self._shards.writers:
                continue
            tenure = self._shards.take_tenure(row.shard_id)
            if row.owner == view.me and row.server:
                is_of_row = tenure is not None and tenure.epoch == row.epoch
                number = tenure.transaction_number if tenure is not None and is_of_row else row.last_number
                self._parked[row.shard_id] = before.get(row.shard_id, (row.epoch, number))
        return dict(self._parked)

    def _numbers(self) -> dict[int, tuple[int, int]]:
        writers = self._shards.writers.items()
        owned = [(at, writer, shard) for at, writer in writers if (shard := writer.held) is not None]
        reports = [(at, shard.epoch, writer.number_to_report()) for at, writer, shard in owned]
        return {at: (epoch, number) for at, epoch, number in reports if number is not None}

    def _begin(self, numbers: _Numbers, send: Callable[[_Numbers], Awaitable[list[int]]]) -> None:
        self._tasks.spawn(self._send(numbers, send))

    async def _send(self, numbers: _Numbers, send: Callable[[_Numbers], Awaitable[list[int]]]) -> None:
        """Send reports. A report that did not arrive is repeated, because the next round shows that it is missing."""
        try:
            for shard_id in await send(numbers):
                if (writer := self._shards.writers.get(shard_id)) is not None:
                    writer.number_reported(numbers[shard_id][1])
            self._outage.worked()
        except FoqsError as error:
            self._outage.failed(error)

    async def stop(self) -> None:
        """End the report under way, because the host has no shard any more."""
        await self._tasks.stop()
