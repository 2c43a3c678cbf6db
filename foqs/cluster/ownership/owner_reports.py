"""Reports of opened shards to all hosts at once, so that no call waits until the meta database is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.peers.courier import Courier, CourierBounds
from foqs.cluster.peers.guarded_peers import GuardedPeer
from foqs.model import limits
from foqs.model.cluster import OpenedShard

BOUNDS = CourierBounds(kept_max=100_000, message_max=1_000, answer_ms_max=1 * limits.SECOND_MS, retry_ms=500)
ANNOUNCE_REPEAT_MS = 1_500
"""The pause between reports until the meta database confirms them here; others believe each only for a while."""


class OwnerReports(Service):
    """Reports the shards that this host has opened to the owner map here and on all other living hosts.

    The meta database has the same facts, but is read once a second, and can be unavailable at that moment. A host that
    cannot be reached gets the report once it can, for as long as it lives. The report of a single host is believed for
    a few seconds, so it is repeated while the meta database does not answer. This object owns the pending reports.
    """

    def __init__(
        self,
        me: str,
        peer: Callable[[str], GuardedPeer],
        owners: OwnerMap,
        now_s: Callable[[], float],
        serves: Callable[[int], bool] = lambda shard_id: True,
    ) -> None:
        """`peer` returns a living host by its id, and raises UnavailableError for any other one. `now_s` is the time of
        the event loop. `serves` returns True if this host still has a shard.
        """
        super().__init__("owner-reports")
        self._me = me
        self._peer = peer
        self._owners = owners
        self._addresses: Mapping[str, str] = {}
        self._receivers: Set[str] = frozenset()
        """The hosts that get reports."""
        self._courier = Courier(self._tasks, self._announce, BOUNDS, lambda: OutageLog(now_s, "owners_not_told"), max)
        """The epochs of shards by shard."""
        self._serves = serves
        self._unconfirmed: dict[int, int] = {}
        """The epochs of the shards of this host that it has not read in the meta database yet."""
        self._is_repeating = False

    def members(self, addresses: Mapping[str, str], leaving: Set[str]) -> None:
        """Set the living hosts and their addresses. New ones have read the meta database; leaving ones are skipped."""
        self._addresses = addresses
        self._receivers = addresses.keys() - leaving - {self._me}
        self._courier.keep(self._receivers)

    def opened(self, shard: OpenedShard) -> None:
        """Report that this host serves the shard from now on."""
        if address := self._addresses.get(self._me):
            self._owners.note([ShardOwner(shard.shard_id, shard.epoch, self._me, address)])
        self._report_all(shard)
        self._unconfirmed[shard.shard_id] = shard.epoch
        if not self._is_repeating:
            self._is_repeating = True
            self._tasks.spawn(self._repeat(), f"{self.name}-again")

    def _report_all(self, shard: OpenedShard) -> None:
        for host_id in sorted(self._receivers):
            self._courier.put(host_id, shard.shard_id, shard.epoch)

    async def _announce(self, host_id: str, epochs: Mapping[int, int]) -> None:
        await self._peer(host_id).announce([OpenedShard(*shard) for shard in epochs.items()])

    async def _repeat(self) -> None:
        """Repeat the reports that the meta database does not confirm yet, while this host has the shards."""
        while self._unconfirmed:
            await asyncio.sleep(ANNOUNCE_REPEAT_MS / 1000)
            for shard_id, epoch in list(self._unconfirmed.items()):
                on_record = self._owners.on_record(shard_id)
                if (on_record is not None and on_record.epoch >= epoch) or not self._serves(shard_id):
                    del self._unconfirmed[shard_id]
                else:
                    self._report_all(OpenedShard(shard_id, epoch))
        self._is_repeating = False

    def reported(self, host_id: str, opened: Sequence[OpenedShard]) -> None:
        """Take another host's report of opened shards. A host whose address is unknown here is ignored."""
        if (address := self._addresses.get(host_id)) and host_id != self._me:
            self._owners.claim(host_id, address, opened)
