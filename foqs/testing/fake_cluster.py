"""The hosts, the cluster and the shards of a meta database in memory.

They do the work of foqs.storage.meta.meta_hosts, meta_cluster and meta_shards on dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.cluster_secret import ClusterSecret
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from foqs.model.secret import Secret
from foqs.model.shard_place import FOUND_NOTHING, EpochAsk, EpochGiven, FoundShard, nobody_is_dead
from foqs.storage.meta.meta_hosts import EndedSessions
from foqs.storage.meta.meta_shards import Relocation, check_place, check_unparked, gated, not_known
from foqs.testing.fake_meta_tables import ClusterTables, Reach


class FakeHosts:
    """The table of hosts."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def beat(self, host: HostRow) -> list[HostRow]:
        hosts = self._reach().hosts
        hosts[host.id] = host
        return list(hosts.values())

    def beating(self, *, elsewhere: bool) -> list[str]:
        self._reach()
        return []

    def forget(self, name: str) -> None:
        self._reach()

    def sweep(self) -> int:
        self._reach()
        return 0

    def end_sessions(self, process_id: str) -> EndedSessions:
        return EndedSessions(self._reach().sessions.end_of(process_id), 0)

    def remove(self, host_id: str) -> None:
        self._reach().hosts.pop(host_id, None)


class FakeCluster:
    """The name and the id of the cluster."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @property
    def _cluster(self) -> ClusterTables:
        return self._reach().tables.cluster

    def agree_on_name(self, cluster: str) -> None:
        self._cluster.name = self._cluster.name or cluster
        if self._cluster.name != cluster:
            raise InvalidArgumentError(f"cluster is {cluster!r} here, and {self._cluster.name!r} on other hosts")

    def id(self, found: bytes) -> bytes:
        self._cluster.id = self._cluster.id or found
        return self._cluster.id

    def make_id(self) -> bytes:
        # Differs from the id of an earlier database, and is the same in every run.
        return self.id(self._reach().now_ms().to_bytes(16, "big"))


class FakeSecrets:
    """The secret of the cluster, and the next one."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def keep(self, proposed: Secret) -> None:
        cluster = self._reach().tables.cluster
        cluster.secret = cluster.secret or proposed.reveal()

    def read(self) -> ClusterSecret | None:
        cluster = self._reach().tables.cluster
        if not cluster.secret:
            return None
        return ClusterSecret(Secret(cluster.secret), Secret(cluster.next_secret) if cluster.next_secret else None)


class FakeShards:
    """The table of shards."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @property
    def _cluster(self) -> ClusterTables:
        return self._reach().tables.cluster

    def take_epoch(
        self,
        shard_id: int,
        owner: str,
        now_ms: int,
        at_least: int,
        found: FoundShard = FOUND_NOTHING,
        *,
        is_renewal: bool = False,
        place: str = "",
        is_dead: Callable[[str, int], bool] = nobody_is_dead,
    ) -> EpochGiven:
        before = self._cluster.shards.get(shard_id)
        check_place(shard_id, owner, EpochAsk(found, at_least, is_renewal, place), before, is_dead)
        row = self._cluster.shard(shard_id)
        epoch, number = max(row.epoch, at_least) + 1, found.transaction_number
        self._cluster.shards[shard_id] = row._replace(
            epoch=epoch, owner=owner, owned_since_ms=now_ms, moving_to="", server=found.server, first_number=number,
            last_number=number,
        )  # fmt: skip
        return EpochGiven(epoch, before)

    def raise_epochs(
        self, owner: str, epochs: Mapping[int, int], now_ms: int, servers: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        for shard_id, epoch in epochs.items():
            row = self._cluster.shard(shard_id)
            raised = row._replace(epoch=epoch, owner=owner, server=servers.get(shard_id, ""))
            self._cluster.shards[shard_id] = raised if epoch > row.epoch else row

    def leave_servers(self, owner: str, left: Mapping[int, tuple[int, int]]) -> list[int]:
        noted = self.note_numbers(owner, left)
        for shard_id in noted:
            self._cluster.shards[shard_id] = self._cluster.shard(shard_id)._replace(server="")
        return noted

    def note_numbers(self, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
        rows = {shard_id: self._cluster.shard(shard_id) for shard_id in numbers}
        noted = [at for at, (epoch, _) in numbers.items() if (rows[at].owner, rows[at].epoch) == (owner, epoch)]
        for shard_id in noted:
            last_number = max(rows[shard_id].last_number, numbers[shard_id][1])
            self._cluster.shards[shard_id] = rows[shard_id]._replace(last_number=last_number)
        return noted

    def owner(self, shard_id: int) -> str | None:
        row = self._cluster.shards.get(shard_id)
        return None if row is None else row.owner

    def ask_for(self, by_owner: Mapping[int, str], heir: str) -> None:
        for shard_id, owner in by_owner.items():
            row = self._cluster.shard(shard_id)
            if row.owner == owner:
                self._cluster.shards[shard_id] = row._replace(moving_to=heir)

    def decline(self, by_heir: Mapping[int, str], owner: str) -> None:
        for shard_id, heir in by_heir.items():
            row = self._cluster.shard(shard_id)
            if (row.owner, row.moving_to) == (owner, heir):
                self._cluster.shards[shard_id] = row._replace(moving_to="")

    def read_all(self) -> list[ShardRow]:
        return [row for _, row in sorted(self._cluster.shards.items())]

    def adopt(self, places: Mapping[int, str], tier: str) -> dict[int, int]:
        there = {row.place: row.shard_id for row in self.read_all() if row.place and row.use is not ShardUse.REMOVED}
        taken: dict[int, int] = {}
        for shard_id, place in sorted(places.items()):
            if there.setdefault(place, shard_id) != shard_id:
                taken[shard_id] = there[place]
                continue
            row = self._cluster.shard(shard_id)
            if not row.place:
                self._cluster.shards[shard_id] = row._replace(
                    place=place, tier=tier, changed_at_ms=self._reach().now_ms()
                )
        return taken

    def add(self, shard_id: int, place: str, tier: str) -> ShardRow:
        row = self._cluster.shard(shard_id)
        others = {row.place: row.shard_id for row in self.read_all() if row.use is not ShardUse.REMOVED}
        if others.get(place, shard_id) != shard_id:
            raise InvalidArgumentError(f"shard {others[place]} is at {place}")
        is_new = shard_id not in self._cluster.shards
        if not is_new and (row.use is not ShardUse.REMOVED or row.place not in ("", place)):
            raise AlreadyExistsError(f"shard {shard_id} exists already")
        added = row._replace(
            place=place, tier=tier, use=ShardUse.SERVING, pinned_to="", changed_at_ms=self._reach().now_ms()
        )  # fmt: skip
        self._cluster.shards[shard_id] = added
        return added

    def update(self, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None) -> ShardRow:
        row = self._cluster.shards.get(shard_id)
        if row is None or row.use is ShardUse.REMOVED:
            raise not_known(shard_id)
        check_unparked(row, use)
        changed = row._replace(
            use=row.use if use is None else use,
            pinned_to=row.pinned_to if pinned_to is None else pinned_to,
            tier=row.tier if tier is None else tier,
            moving_to="" if use is ShardUse.PARKED else row.moving_to,
            changed_at_ms=self._reach().now_ms(),
        )
        self._cluster.shards[shard_id] = changed
        return changed

    def relocate(self, shard_id: int, place: str, relocation: Relocation) -> ShardRow:
        others = {row.place: row.shard_id for row in self.read_all() if row.use is not ShardUse.REMOVED}
        row = self._cluster.shards.get(shard_id)
        relocation.check(row, shard_id, place, others)
        assert row is not None
        changed = row._replace(place=place, is_relocated=True, changed_at_ms=self._reach().now_ms())
        self._cluster.shards[shard_id] = changed
        return changed

    def remove(self, shard_id: int, epoch: int) -> None:
        row = self._cluster.shards.get(shard_id)
        if row is None or row.use is not ShardUse.DRAINING or row.epoch != epoch:
            raise UnavailableError(f"shard {shard_id} has another owner now", nothing_done=True)
        for gate in self._reach().tables.gates:
            if shard_id in (gate.from_shard, gate.to_shard):
                raise gated(shard_id, gate.slot, gate.from_shard, gate.to_shard)
        self._cluster.shards[shard_id] = row._replace(use=ShardUse.REMOVED, moving_to="", pinned_to="")
