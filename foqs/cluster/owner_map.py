"""Who serves each shard of the cluster, as far as this host knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from foqs.cluster.view import ClusterView
from foqs.model.cluster import ShardUse


class ShardOwner(NamedTuple):
    """Who took the last epoch of a shard that is known here."""

    shard_id: int
    epoch: int
    host_id: str
    """The process; it may have ended since."""
    address: str
    """Where clients and peers reach it; empty while that is not known, or it has ended."""
    is_moving: bool = False
    """It is about to go to another host: who calls now may have to try again soon."""


class OwnerMap:
    """The owner of each shard; what is told of a later epoch wins, whoever tells it.

    `Sharing` tells it what the meta database says, a second late at most. Whoever knows better sooner may do so as
    well: an owner that has just opened a shard, or refuses a call for one that it has lost. Routing asks it.
    """

    def __init__(self) -> None:
        self._owners: dict[int, ShardOwner] = {}
        self._changed: dict[int, asyncio.Event] = {}

    def get(self, shard_id: int) -> ShardOwner | None:
        """None for a shard that nobody has ever had, or that was removed."""
        return self._owners.get(shard_id)

    @property
    def owners(self) -> dict[int, ShardOwner]:
        """All of them, by shard."""
        return dict(self._owners)

    def learn(self, news: Iterable[ShardOwner]) -> None:
        """Take what is as new as what is known, or newer."""
        for new in news:
            old = self._owners.get(new.shard_id)
            if old is None or new.epoch >= old.epoch:
                self._owners[new.shard_id] = new
                if old is None or new.epoch > old.epoch:
                    self._changed.pop(new.shard_id, asyncio.Event()).set()

    def look(self, view: ClusterView) -> None:
        """Take what the meta database says, which alone knows of removed shards."""
        news = []
        for row in view.shards.values():
            if row.use is ShardUse.REMOVED:
                self._owners.pop(row.shard_id, None)
            elif row.owner:
                host = view.hosts.get(row.owner)
                address = host.address if host is not None else ""
                news.append(ShardOwner(row.shard_id, row.epoch, row.owner, address, bool(row.moving_to)))
        self.learn(news)

    async def moved(self, shard_id: int, epoch: int) -> ShardOwner:
        """Return the owner of the shard once it has a later epoch than this one. The caller bounds the wait."""
        while (owner := self._owners.get(shard_id)) is None or owner.epoch <= epoch:
            await self._changed.setdefault(shard_id, asyncio.Event()).wait()
        return owner
