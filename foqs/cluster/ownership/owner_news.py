"""Reports of opened shards to all hosts at once, so that no call waits until the meta database is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice
from typing import Protocol

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service, ServiceState
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.model import limits
from foqs.model.cluster import OpenedShard

ANNOUNCE_MS_MAX = 1 * limits.SECOND_MS
"""Timeout of a report to a host; it is then repeated."""
ANNOUNCE_RETRY_MS = 500
ANNOUNCE_REPEAT_MS = 1_500
"""The pause between reports until the meta database confirms them here; others believe each only for a while."""
SHARDS_PER_MESSAGE_MAX = 1_000

_log = structlog.get_logger(__name__)


class OwnerCalls(Protocol):
    """The other hosts as receivers of reports."""

    async def announce(self, host_id: str, opened: Sequence[OpenedShard]) -> None:
        """Report opened shards to a host; one of an older build ignores them. Raises FoqsError if it is unreachable."""


class OwnerNews(Service):
    """Reports the shards that this host has opened to the owner map here and on all other living hosts.

    The meta database has the same facts, but is read once a second, and can be unavailable at that moment. A host that
    cannot be reached gets the report once it can, for as long as it lives. The report of a single host is believed for
    a few seconds, so it is repeated while the meta database does not answer. This object owns the pending reports.
    """

    def __init__(
        self,
        me: str,
        hosts: OwnerCalls,
        owners: OwnerMap,
        now_s: Callable[[], float],
        serves: Callable[[int], bool] = lambda shard_id: True,
    ) -> None:
        """`now_s` is the time of the event loop, `serves` returns True if this host still has a shard."""
        super().__init__("owner-news")
        self._me = me
        self._hosts = hosts
        self._owners = owners
        self._now_s = now_s
        self._addresses: Mapping[str, str] = {}
        self._told: Set[str] = frozenset()
        """The hosts that get reports."""
        self._untold: dict[str, dict[int, int]] = {}
        """The epochs of the shards that each host is to be told of."""
        self._telling: set[str] = set()
        """The hosts that are being told."""
        self._serves = serves
        self._unconfirmed: dict[int, int] = {}
        """The epochs of the shards of this host that it has not read in the meta database yet."""
        self._is_repeating = False

    def members(self, addresses: Mapping[str, str], leaving: Set[str]) -> None:
        """Set the living hosts and their addresses. New ones have read the meta database; leaving ones are skipped."""
        self._addresses = addresses
        self._told = addresses.keys() - leaving - {self._me}
        for host_id in self._untold.keys() - self._told:
            del self._untold[host_id]

    def opened(self, shard: OpenedShard) -> None:
        """Report that this host serves the shard from now on."""
        if address := self._addresses.get(self._me):
            self._owners.learn([ShardOwner(shard.shard_id, shard.epoch, self._me, address)])
        if self.state is ServiceState.STOPPED:
            return  # Nothing would end the reports any more, nor close their connections.
        self._tell_all(shard)
        self._unconfirmed[shard.shard_id] = shard.epoch
        if not self._is_repeating:
            self._is_repeating = True
            self._tasks.spawn(self._repeat(), f"{self.name}-again")

    def _tell_all(self, shard: OpenedShard) -> None:
        for host_id in sorted(self._told):
            self._untold.setdefault(host_id, {})[shard.shard_id] = shard.epoch
            if host_id not in self._telling:
                self._telling.add(host_id)
                self._tasks.spawn(self._tell(host_id), f"{self.name}-{host_id}")

    async def _repeat(self) -> None:
        """Repeat the reports that the meta database does not confirm yet, while this host has the shards."""
        while self._unconfirmed:
            await asyncio.sleep(ANNOUNCE_REPEAT_MS / 1000)
            for shard_id, epoch in list(self._unconfirmed.items()):
                on_record = self._owners.on_record(shard_id)
                if (on_record is not None and on_record.epoch >= epoch) or not self._serves(shard_id):
                    del self._unconfirmed[shard_id]
                else:
                    self._tell_all(OpenedShard(shard_id, epoch))
        self._is_repeating = False

    def heard(self, host_id: str, opened: Sequence[OpenedShard]) -> None:
        """Take another host's report of opened shards. A host whose address is unknown here is ignored."""
        if (address := self._addresses.get(host_id)) and host_id != self._me:
            self._owners.claim(host_id, address, opened)

    async def _tell(self, host_id: str) -> None:
        try:
            outage = OutageLog(self._now_s, "owners_not_told")
            while untold := self._untold.get(host_id):
                some = [OpenedShard(*shard) for shard in islice(untold.items(), SHARDS_PER_MESSAGE_MAX)]
                try:
                    async with asyncio.timeout(ANNOUNCE_MS_MAX / 1000):
                        await self._hosts.announce(host_id, some)
                except Exception as error:  # The report is repeated after any error, for as long as the host lives.
                    reason = str(error) or f"it has not answered in time ({type(error).__name__})"
                    outage.failed(reason, peer=host_id)
                    await asyncio.sleep(ANNOUNCE_RETRY_MS / 1000)
                else:
                    for shard_id, epoch in some:
                        if untold.get(shard_id) == epoch:
                            del untold[shard_id]
        finally:
            self._telling.discard(host_id)
