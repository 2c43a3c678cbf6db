"""The owners of the cluster's shards, as far as this host knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_claims import Known, OwnerClaims, ShardOwner
from foqs.model.cluster import HostRow, OpenedShard, ShardUse

__all__ = ["OwnerMap", "ShardOwner"]


class OwnerMap:
    """The owner of each shard, as recorded in the meta database or claimed by the owner itself a moment ago.

    `Sharing` passes it the records of the meta database, a second late at most, and `OwnerReports` the claims of owners
    as soon as they have opened a shard. A claim is believed for CLAIM_MS unless the meta database confirms it. Routing
    asks this map.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        me: str = "",
        follow_hosts: Callable[[Mapping[str, str], Set[str]], None] = lambda addresses, leaving: None,
    ) -> None:
        """`now_s` is a monotonic clock, `me` the id of this host.

        `follow_hosts` is called with the addresses of the living hosts, by id, and the ids of the leaving ones, if
        either changes.
        """
        self._me = me
        self._now_s = now_s
        self._owners: dict[int, ShardOwner] = {}
        """The owners believed now."""
        self._known: dict[int, Known] = {}
        """The existing shards as recorded in the meta database."""
        self._claims = OwnerClaims(now_s)
        self._changed: dict[int, asyncio.Event] = {}
        self._change = asyncio.Event()
        """Set, and replaced by another one, when a believed owner changes."""
        self.version = 0
        """It grows with every such change."""
        self.is_alone = True
        """True if no other host has a shard or is about to get one, as far as this one knows."""
        self._follow_hosts = follow_hosts
        self._hosts: tuple[Mapping[str, str], Set[str]] = ({}, frozenset())
        self.living: Mapping[str, HostRow] = {}
        """The living hosts by id, as far as this one knows, itself included."""
        self.parked: Set[int] = frozenset()
        """The parked shards of the cluster. Their items exist, and calls for them wait for no owner."""
        self.has_older_hosts = False
        """True if a host lives whose build knows no addresses for peers alone."""
        self._beats: Mapping[str, tuple[int, float]] = {}
        """The number of the last heartbeat of each living host, and the time at which it was first seen."""

    def get(self, shard_id: int) -> ShardOwner | None:
        """Return the believed owner, or None if the shard has never had one or was removed."""
        if self._claims.are_due:
            self._lapse()
        return self._owners.get(shard_id)

    def on_record(self, shard_id: int) -> ShardOwner | None:
        """Return the owner recorded in the meta database, regardless of claims."""
        known = self._known.get(shard_id)
        return known.owner if known is not None else None

    @property
    def owners(self) -> dict[int, ShardOwner]:
        """The believed owners by shard."""
        if self._claims.are_due:
            self._lapse()
        return dict(self._owners)

    @property
    def claims(self) -> OwnerClaims:
        """The claims of hosts that the meta database does not confirm yet."""
        return self._claims

    def note(self, owners: Iterable[ShardOwner]) -> None:
        """Take owners that are certain, each unless a later epoch is believed."""
        self._believe(self._claims.note(owners, self._owners))

    def claim(self, host_id: str, address: str, opened: Iterable[OpenedShard]) -> None:
        """Take the claim of another host, which listens at this address, to have opened shards, within bounds."""
        owners = [ShardOwner(shard_id, epoch, host_id, address) for shard_id, epoch in opened]
        self._believe(self._claims.claim(owners, self._known))

    def disowned(self, shard_id: int, host_id: str) -> None:
        """Drop a host's claim to a shard, at once, because the host itself denies it."""
        if self._claims.disowned(shard_id, host_id):
            self._believe([shard_id])

    def _lapse(self) -> None:
        self._believe(self._claims.lapse(self._known))

    def _believe(self, shard_ids: Iterable[int]) -> None:
        """Choose the believed owners of these shards again."""
        has_changed = False
        for shard_id in shard_ids:
            old, new = self._owners.get(shard_id), self._claims.best(shard_id, self.on_record(shard_id))
            if new == old:
                continue
            has_changed = True
            if new is None:
                del self._owners[shard_id]
                continue
            self._owners[shard_id] = new
            if old is None or new.epoch > old.epoch:
                self._changed.pop(shard_id, asyncio.Event()).set()
        if has_changed:
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        self.is_alone = not self._has_others()
        before, self._change = self._change, asyncio.Event()
        before.set()

    def refresh(self, view: ClusterView) -> None:
        """Take the records of the meta database, even if they have less than before; only they show removed shards."""
        known: dict[int, Known] = {}
        for row in view.shards.values():
            if row.use is ShardUse.REMOVED:
                continue
            owner = None
            if row.owner:
                host = view.hosts.get(row.owner)
                address = host.address if host is not None else ""
                owner = ShardOwner(row.shard_id, row.epoch, row.owner, address, bool(row.moving_to))
            known[row.shard_id] = Known(row.epoch, owner)
        self.parked = {row.shard_id for row in view.shards.values() if row.use is ShardUse.PARKED}
        shard_ids = dict.fromkeys([*self._owners, *known])
        before, self._known = self._known, known
        self._claims.refresh(known, before, view.hosts.keys())
        self._believe(shard_ids)
        self._note_hosts(view.hosts)
        addresses = {host.id: host.address for host in view.hosts.values() if host.address}
        hosts = (addresses, frozenset([host_id for host_id in addresses if view.is_leaving(host_id)]))
        if hosts != self._hosts:
            self._hosts = hosts
            self._follow_hosts(*hosts)

    def _note_hosts(self, hosts: Mapping[str, HostRow]) -> None:
        now_s, before = self._now_s(), self._beats
        self.living = hosts
        self.has_older_hosts = any(host.peer_address is None for host in hosts.values())
        self._beats = {
            host_id: known if (known := before.get(host_id)) is not None and known[0] == number else (number, now_s)
            for host_id, number in ((host.id, host.beat_number) for host in hosts.values())
        }

    def beat_age_ms(self, host_id: str) -> int:
        """Return the time since this host first saw the last heartbeat of a living host, in ms.

        It keeps growing while no round is answered.
        """
        _, seen_s = self._beats.get(host_id, (0, self._now_s()))
        return max(0, round((self._now_s() - seen_s) * 1000))

    async def moved(self, shard_id: int, epoch: int) -> ShardOwner:
        """Return the owner of the shard once it has a later epoch than this one. The caller bounds the wait."""
        while (owner := self.get(shard_id)) is None or owner.epoch <= epoch:
            await self._changed.setdefault(shard_id, asyncio.Event()).wait()
        return owner

    def _has_others(self) -> bool:
        return any((owner.host_id != self._me and owner.address) or owner.is_moving for owner in self._owners.values())

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when a believed owner changes, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._change.wait()
