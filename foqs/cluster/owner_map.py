"""The owners of the cluster's shards, as far as this host knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import NamedTuple

from foqs.cluster.view import ClusterView
from foqs.model.cluster import HostRow, ShardUse


class ShardOwner(NamedTuple):
    """The host that took the last epoch of a shard, as far as it is known here."""

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

    `Sharing` tells it what the meta database says, a second late at most, and `OwnerNews` what the owners say as
    soon as they have opened a shard. Routing asks it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is a monotonic clock."""
        self._now_s = now_s
        self._owners: dict[int, ShardOwner] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._news = asyncio.Event()
        """Set, and replaced by another one, when something is learned that was not known."""
        self.version = 0
        """It grows with everything that is learned."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something is learned that was not known."""
        self.on_hosts: Callable[[Mapping[str, str], Set[str]], None] = lambda addresses, leaving: None
        """Called with the addresses of the living hosts, by their ids, and with those that leave, when either changed.
        """
        self._hosts: tuple[Mapping[str, str], Set[str]] = ({}, frozenset())
        self.living: Mapping[str, HostRow] = {}
        """The hosts that live as far as this one knows, by id, itself included."""
        self._beats: Mapping[str, tuple[int, float]] = {}
        """The last beat of each of them, and when it was seen for the first time."""

    def get(self, shard_id: int) -> ShardOwner | None:
        """None for a shard that nobody has ever had, or that was removed."""
        return self._owners.get(shard_id)

    @property
    def owners(self) -> dict[int, ShardOwner]:
        """All of them, by shard."""
        return dict(self._owners)

    def learn(self, news: Iterable[ShardOwner]) -> None:
        """Take what is as new as what is known, or newer."""
        has_news = False
        for new in news:
            old = self._owners.get(new.shard_id)
            if (old is None or new.epoch >= old.epoch) and new != old:
                self._owners[new.shard_id] = new
                has_news = True
                if old is None or new.epoch > old.epoch:
                    self._changed.pop(new.shard_id, asyncio.Event()).set()
        if has_news:
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        told, self._news = self._news, asyncio.Event()
        told.set()
        self.on_change()

    def look(self, view: ClusterView) -> None:
        """Take what the meta database says, which alone knows of removed shards."""
        news = []
        for row in view.shards.values():
            if row.use is ShardUse.REMOVED:
                if self._owners.pop(row.shard_id, None) is not None:
                    self._tell()
            elif row.owner:
                host = view.hosts.get(row.owner)
                address = host.address if host is not None else ""
                news.append(ShardOwner(row.shard_id, row.epoch, row.owner, address, bool(row.moving_to)))
        self.learn(news)
        self._note_hosts(view.hosts)
        addresses = {host.id: host.address for host in view.hosts.values() if host.address}
        hosts = (addresses, frozenset([host_id for host_id in addresses if view.is_leaving(host_id)]))
        if hosts != self._hosts:
            self._hosts = hosts
            self.on_hosts(*hosts)

    def _note_hosts(self, hosts: Mapping[str, HostRow]) -> None:
        now_s, before = self._now_s(), self._beats
        self.living = hosts
        self._beats = {
            host_id: known if (known := before.get(host_id)) is not None and known[0] == number else (number, now_s)
            for host_id, number in ((host.id, host.beat_number) for host in hosts.values())
        }

    def beat_age_ms(self, host_id: str) -> int:
        """How long ago this host saw a heartbeat of one that lives: it is as old as the last round that was answered
        while nobody can be heard.
        """
        _, seen_s = self._beats.get(host_id, (0, self._now_s()))
        return max(0, round((self._now_s() - seen_s) * 1000))

    async def moved(self, shard_id: int, epoch: int) -> ShardOwner:
        """Return the owner of the shard once it has a later epoch than this one. The caller bounds the wait."""
        while (owner := self._owners.get(shard_id)) is None or owner.epoch <= epoch:
            await self._changed.setdefault(shard_id, asyncio.Event()).wait()
        return owner

    def has_others(self, me: str) -> bool:
        """Whether any other host has a shard or is about to get one, as far as it is known."""
        return any((owner.host_id != me and owner.address) or owner.is_moving for owner in self._owners.values())

    async def news(self, timeout_s: float) -> None:
        """Return when something is learned that was not known, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
