"""The hosts and shards of a meta database in memory: foqs.storage.meta.meta_cluster on dictionaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from foqs.model.shard_place import FOUND_NOTHING, EpochAsk, EpochGiven, FoundShard, nobody_is_dead
from foqs.storage.meta.meta_cluster import not_known
from foqs.storage.meta.meta_places import check_place
from foqs.storage.meta.meta_sessions import EndedSessions
from foqs.testing.fake_sessions import FakeSessions


@dataclass(slots=True)
class ClusterTables:
    """The committed rows of the cluster's shards."""

    shards: dict[int, ShardRow] = field(default_factory=dict)
    name: str = ""
    secret: bytes = b""
    id: bytes = b""

    @property
    def epochs(self) -> dict[int, int]:
        """The last epoch of each shard that was not removed."""
        return {row.shard_id: row.epoch for row in self.shards.values() if row.use is not ShardUse.REMOVED}

    def shard(self, shard_id: int) -> ShardRow:
        """The row of the shard, or the row before the first write."""
        return self.shards.get(shard_id) or ShardRow(shard_id, 0, "", 0, "", ShardUse.SERVING, "", "", "", 0)


class FakeCluster(ABC):
    """A subclass provides the tables."""

    @property
    @abstractmethod
    def _cluster(self) -> ClusterTables:
        """The content of the database. Raises UnavailableError while it is unreachable."""

    @property
    @abstractmethod
    def _hosts(self) -> dict[str, HostRow]:
        """The rows of hosts. Raises UnavailableError while the database is unreachable."""

    @property
    @abstractmethod
    def _sessions(self) -> FakeSessions:
        """The database's sessions in transactions."""

    @abstractmethod
    def _now_ms(self) -> int:
        """The clock of the database's server."""

    def beat(self, host: HostRow) -> list[HostRow]:
        hosts = self._hosts
        hosts[host.id] = host
        return list(hosts.values())

    def hosts_beating(self, *, elsewhere: bool) -> list[str]:
        assert self._hosts is not None
        return []

    def forget_hosts(self, name: str) -> None:
        assert self._hosts is not None

    def agree_on_name(self, cluster: str) -> None:
        self._cluster.name = self._cluster.name or cluster
        if self._cluster.name != cluster:
            raise InvalidArgumentError(f"cluster is {cluster!r} here, and {self._cluster.name!r} on other hosts")

    def sweep_hosts(self) -> int:
        assert self._hosts is not None
        return 0

    def end_sessions(self, process_id: str) -> EndedSessions:
        assert self._hosts is not None
        return EndedSessions(self._sessions.end_of(process_id), 0)

    def cluster_secret(self, proposed: bytes) -> bytes:
        self._cluster.secret = self._cluster.secret or proposed
        return self._cluster.secret

    def cluster_id(self, found: bytes) -> bytes:
        self._cluster.id = self._cluster.id or found
        return self._cluster.id

    def make_cluster_id(self) -> bytes:
        # Differs from the id of an earlier database, and is the same in every run.
        return self.cluster_id(self._now_ms().to_bytes(16, "big"))

    def remove_host(self, host_id: str) -> None:
        self._hosts.pop(host_id, None)

    def take_shard_epoch(
        self,
        shard_id: int,
        owner: str,
        now_ms: int,
        at_least: int,
        found: FoundShard = FOUND_NOTHING,
        *,
        is_renewal: bool = False,
        is_dead: Callable[[str, int], bool] = nobody_is_dead,
    ) -> EpochGiven:
        before = self._cluster.shards.get(shard_id)
        check_place(shard_id, owner, EpochAsk(found, at_least, is_renewal), before, is_dead)
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

    def shard_owner(self, shard_id: int) -> str | None:
        row = self._cluster.shards.get(shard_id)
        return None if row is None else row.owner

    def ask_for_shards(self, by_owner: Mapping[int, str], heir: str) -> None:
        for shard_id, owner in by_owner.items():
            row = self._cluster.shard(shard_id)
            if row.owner == owner:
                self._cluster.shards[shard_id] = row._replace(moving_to=heir)

    def decline_shards(self, by_heir: Mapping[int, str], owner: str) -> None:
        for shard_id, heir in by_heir.items():
            row = self._cluster.shard(shard_id)
            if (row.owner, row.moving_to) == (owner, heir):
                self._cluster.shards[shard_id] = row._replace(moving_to="")

    def list_shards(self) -> list[ShardRow]:
        return [row for _, row in sorted(self._cluster.shards.items())]

    def adopt_shards(self, places: Mapping[int, str], tier: str) -> dict[int, int]:
        there = {row.place: row.shard_id for row in self.list_shards() if row.place and row.use is not ShardUse.REMOVED}
        taken: dict[int, int] = {}
        for shard_id, place in sorted(places.items()):
            if there.setdefault(place, shard_id) != shard_id:
                taken[shard_id] = there[place]
                continue
            row = self._cluster.shard(shard_id)
            if not row.place:
                self._cluster.shards[shard_id] = row._replace(place=place, tier=tier, changed_at_ms=self._now_ms())
        return taken

    def add_shard(self, shard_id: int, place: str, tier: str) -> ShardRow:
        row = self._cluster.shard(shard_id)
        others = {row.place: row.shard_id for row in self.list_shards() if row.use is not ShardUse.REMOVED}
        if others.get(place, shard_id) != shard_id:
            raise InvalidArgumentError(f"shard {others[place]} is at {place}")
        is_new = shard_id not in self._cluster.shards
        if not is_new and (row.use is not ShardUse.REMOVED or row.place not in ("", place)):
            raise AlreadyExistsError(f"shard {shard_id} exists already")
        added = row._replace(
            place=place, tier=tier, use=ShardUse.SERVING, pinned_to="", changed_at_ms=self._now_ms()
        )  # fmt: skip
        self._cluster.shards[shard_id] = added
        return added

    def update_shard(self, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None) -> ShardRow:
        row = self._cluster.shards.get(shard_id)
        if row is None or row.use is ShardUse.REMOVED:
            raise not_known(shard_id)
        changed = row._replace(
            use=row.use if use is None else use,
            pinned_to=row.pinned_to if pinned_to is None else pinned_to,
            tier=row.tier if tier is None else tier,
            changed_at_ms=self._now_ms(),
        )
        self._cluster.shards[shard_id] = changed
        return changed

    def remove_shard(self, shard_id: int, epoch: int) -> None:
        row = self._cluster.shards.get(shard_id)
        if row is None or row.use is not ShardUse.DRAINING or row.epoch != epoch:
            raise UnavailableError(f"shard {shard_id} has another owner now", nothing_done=True)
        self._cluster.shards[shard_id] = row._replace(use=ShardUse.REMOVED, moving_to="", pinned_to="")
