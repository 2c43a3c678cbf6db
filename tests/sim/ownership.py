"""Hosts' ways to a shard, and what all-knowing eyes see of them: nobody alive is put out, nobody asks in vain."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foqs.model.census import Census, CensusAnswer
from foqs.model.cluster import HostRow, ShardRow, ShardUse, host_name_of
from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.shard_place import EpochAsk, EpochGiven
from foqs.model.slots import SlotTable
from foqs.shard.port import ShardImage, Tenure, Transaction, TransactionResult
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess
from foqs.testing.fake_namespaces import FakeNamespaces, NamespaceTables
from foqs.testing.fake_sessions import FakeSessions
from foqs.testing.fake_store import FakeStore
from tests.sim.loads import tables_with_job
from tests.sim.loop import current_process

if TYPE_CHECKING:
    from tests.sim.world import World


_DEFAULTS = NamespaceSettings(lease_ms_default=500)
"""The lease of production would outlast a run."""
_STEPS_BEFORE_THE_LOCK = 10
"""To look at the schema and to make a session may take long, and the last owner goes on meanwhile."""


@dataclass
class Tenures:
    """Which processes have had which shards."""

    session_owners: dict[tuple[str, int], str] = field(default_factory=dict)
    """Ids of processes by name of a server and number of a session."""
    served: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By process and shard, the epoch and the number of the last transaction that it saw committed there."""


class MetaTables:
    def __init__(
        self, namespaces: list[Namespace], slots: SlotTable, ids: random.Random, now_ms: Callable[[], int]
    ) -> None:
        self.tables = NamespaceTables(
            {namespace.name: namespace for namespace in namespaces}, max(namespace.number for namespace in namespaces)
        )
        self.tables.jobs = tables_with_job()
        self.tables.slots = slots
        self.ids = ids
        self.problems: list[str] = []
        """Why its server could lose what it acknowledged."""
        self.hosts: dict[str, HostRow] = {}
        self.sessions = FakeSessions(now_ms)
        self.away_count = 0
        """Of the outages that it has now."""
        self.cut_off: dict[str, float] = {}
        """By host, until when it alone could not reach it; infinity while it cannot."""
        self.replays: list[tuple[int, int]] = []
        """When hosts that did not reach it let in how many items without tokens."""


class FakeMeta(FakeNamespaces):
    """The meta database, as one host reaches it."""

    def __init__(self, world: World, process_id: str) -> None:
        super().__init__(world.meta.ids)
        process = current_process()
        assert process is not None, "only hosts have one"
        self._host_name = process.name
        self._process_id = process_id
        self._world = world

    @property
    def _tables(self) -> NamespaceTables:
        self._touch()
        return self._world.meta.tables

    def _now_ms(self) -> int:
        return self._world.now_ms()

    def finish_creation(
        self, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        return super().finish_creation(census, name, _with_short_leases(settings), now_ms)

    def recover_namespace(
        self, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace:
        return super().recover_namespace(number, name, former_name, _with_short_leases(settings), now_ms)

    def update_namespace(self, name: str, changes: object) -> Namespace:
        changed = super().update_namespace(name, changes)
        self._world.tiers.has_namespace(changed.number, changed.settings.tier)
        return changed

    def update_shard(self, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None) -> ShardRow:
        changed = super().update_shard(shard_id, use, pinned_to, tier)
        self._world.tiers.has_shard(shard_id, changed.tier)
        return changed

    def _insert(self, namespace: Namespace) -> Namespace:
        self._world.slots.created(namespace)
        self._world.tiers.has_namespace(namespace.number, namespace.settings.tier)
        return super()._insert(namespace)

    def _make_slots(self, answers: Sequence[CensusAnswer]) -> None:
        super()._make_slots(answers)
        self._world.slots.saw(self._tables.slots, "the meta database")

    def restore_slots(self, table: SlotTable) -> None:
        self._world.slots.saw(table, self._host_name)
        super().restore_slots(table)

    def finish_deletion(self, census: Census, name: str) -> list[int]:
        missing = super().finish_deletion(census, name)
        if not missing:
            self._world.deleted(census.namespace, name)
        return missing

    def check_durable(self) -> list[str]:
        self._touch()
        return list(self._world.meta.problems)

    @property
    def _hosts(self) -> dict[str, HostRow]:
        self._touch()
        return self._world.meta.hosts

    @property
    def _sessions(self) -> FakeSessions:
        self._touch()
        return self._world.meta.sessions

    def ask_quotas(self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False) -> Any:
        """What tests.sim.loop.VirtualThread goes through, as the answers at its end."""
        return self._world.meta_locks.asking(self._host_name, self.asking(host_name, asks, waits=waits))

    def close(self) -> None:
        return None

    def _touch(self) -> None:
        meta = self._world.meta
        if meta.away_count or meta.cut_off.get(self._host_name, 0.0) > self._world.loop.time():
            raise UnavailableError("the meta database does not answer")


def _with_short_leases(settings: NamespaceSettings) -> NamespaceSettings:
    return replace(settings, lease_ms_default=_DEFAULTS.lease_ms_default)


class SteppingStore(FakeStore):
    """Opening takes time, so that others may come between its steps."""

    def __init__(
        self,
        world: World,
        access: ShardAccess,
        take_epoch: Callable[[EpochAsk], EpochGiven],
        is_dead: Callable[[str, int], bool],
        packs: PackIndex,
    ) -> None:
        network = ThreadPoolExecutor(1, f"shard-{access.shard_id}-network")
        server = world.servers[access.shard_id]
        super().__init__(
            server, access.lock_name, access.owner, self._epoch_in_need, is_dead, packs, access.cluster, network
        )
        self._world = world
        self._shard_id = access.shard_id
        self._chance = random.Random(f"{world.seed} {access.owner} {access.shard_id}")
        self._give_epoch = take_epoch
        self._had_epoch = -1
        """The last one that it served the shard with."""
        self._seen_number = 0
        """Of the last transaction that it saw committed."""
        self.asked_s = 0.0
        """When the last transaction began."""

    def open(self, tenure: Tenure | None = None) -> Any:
        """What tests.sim.loop.VirtualThread goes through, as the image at its end."""
        return self.opening(tenure)

    def opening(self, tenure: Tenure | None) -> Generator[None, None, ShardImage]:
        for _ in range(self._chance.choice([0, _STEPS_BEFORE_THE_LOCK])):
            yield
        image = yield from super().opening(tenure)
        self._had_epoch, self._seen_number = image.epoch, image.transaction_number
        return image

    def renew_epoch(self) -> int:
        self._had_epoch = super().renew_epoch()
        return self._had_epoch

    def _epoch_in_need(self, ask: EpochAsk) -> EpochGiven:
        had_epoch, seen_number = self._world.tenure_book.served.get((self._owner, self._shard_id), (-1, 0))
        found = ask.found
        is_as_left = found.epoch == self._had_epoch and found.transaction_number >= self._seen_number
        is_as_handed_on = found.epoch == had_epoch and found.transaction_number >= seen_number
        row = self._world.meta.tables.cluster.shards.get(self._shard_id)
        # On another server, and once it has left its own, it may be others'.
        is_its_place = row is None or row.server == found.server
        if (is_as_left or is_as_handed_on) and not ask.is_renewal and is_its_place:
            self._world.complain(f"P11: {self._owner} needs a new epoch for shard {self._shard_id}, which it left so")
        return self._give_epoch(ask)

    async def run(self, transaction: Transaction) -> TransactionResult:
        self.asked_s = self._world.loop.time()
        return await super().run(transaction)

    def _run(self, transaction: Transaction, plan: PackPlan) -> TransactionResult:
        result = super()._run(transaction, plan)
        self._seen_number = transaction.number
        self._world.tenure_book.served[self._owner, self._shard_id] = self.epoch, transaction.number
        return result

    def _connect(self) -> None:
        self.close()
        self._server = self._world.server_of(host_name_of(self._owner), self._shard_id)
        super()._connect()
        assert self._session is not None
        self._world.tenure_book.session_owners[self._server.name, self._session.number] = self._owner

    def _kill(self, session_number: int) -> None:
        victim = self._world.tenure_book.session_owners[self._server.name, session_number]
        if victim != self._owner and self._world.is_surely_alive(victim):
            self._world.complain(f"{self._owner} puts {victim} out of shard {self._shard_id}, and that one lives")
        super()._kill(session_number)
