"""Hosts' ways to a shard, and what all-knowing eyes see of them: nobody alive is put out, nobody asks in vain."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.model.census import Census, CensusAnswer
from foqs.model.cluster import ShardRow, ShardUse, host_name_of
from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.shard_place import EpochAsk, EpochGiven, Tenure
from foqs.model.slot_gates import GateState, SlotGate
from foqs.model.slots import SlotMove, SlotTable
from foqs.shard.port import ShardImage, Transaction, TransactionResult
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess
from foqs.testing.fake_censuses import FakeSlots
from foqs.testing.fake_cluster import FakeShards
from foqs.testing.fake_gates import FakeGates
from foqs.testing.fake_meta import FakeMeta
from foqs.testing.fake_meta_tables import MetaDatabase
from foqs.testing.fake_meta_tables import MetaTables as Tables
from foqs.testing.fake_namespaces import FakeNamespaces
from foqs.testing.fake_quotas import FakeQuotas
from foqs.testing.fake_store import FakeStore
from tests.sim.in_flight import SimPermits
from tests.sim.loads import tables_with_job
from tests.sim.loop import current_process
from tests.sim.lost_reports import LossyBulk

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
    parked: set[int] = field(default_factory=set)
    """The shards that were ever parked."""


class MetaTables(MetaDatabase):
    def __init__(
        self, namespaces: list[Namespace], slots: SlotTable, ids: random.Random, now_ms: Callable[[], int]
    ) -> None:
        by_name = {namespace.name: namespace for namespace in namespaces}
        tables = Tables(by_name, max(namespace.number for namespace in namespaces), jobs=tables_with_job(), slots=slots)
        super().__init__(now_ms, ids, tables)
        self.away_count = 0
        self.loses_bulk_answer: Callable[[], bool] = lambda: False
        """Says if the answer to a report of a bulk job gets lost."""
        """Of the outages that it has now."""
        self.cut_off: dict[str, float] = {}
        """By host, until when it alone could not reach it; infinity while it cannot."""
        self.replays: list[tuple[int, int]] = []
        """When hosts that did not reach it let in how many items without tokens."""


class SimNamespaces(FakeNamespaces):
    def __init__(self, world: World, meta: FakeMeta) -> None:
        super().__init__(meta.reach, meta.censuses, meta.slots, meta.jobs, meta.policies, meta.groups, meta.access)
        self._world = world

    def finish_creation(
        self, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        return super().finish_creation(census, name, _with_short_leases(settings), now_ms)

    def recover(self, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int) -> Namespace:
        return super().recover(number, name, former_name, _with_short_leases(settings), now_ms)

    def update(self, name: str, changes: object) -> Namespace:
        changed = super().update(name, changes)
        self._world.tiers.has_namespace(changed.number, changed.settings.tier)
        return changed

    def finish_deletion(self, census: Census, name: str) -> list[int]:
        missing = super().finish_deletion(census, name)
        if not missing:
            self._world.deleted(census.namespace, name)
        return missing

    def _insert(self, namespace: Namespace) -> Namespace:
        self._world.slots.created(namespace)
        self._world.tiers.has_namespace(namespace.number, namespace.settings.tier)
        return super()._insert(namespace)


class SimShards(FakeShards):
    def __init__(self, world: World, meta: FakeMeta) -> None:
        super().__init__(meta.reach)
        self._world = world

    def update(self, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None) -> ShardRow:
        changed = super().update(shard_id, use, pinned_to, tier)
        self._world.tiers.has_shard(shard_id, changed.tier)
        return changed


class SimSlots(FakeSlots):
    def __init__(self, world: World, meta: FakeMeta, host_name: str) -> None:
        super().__init__(meta.reach, meta.censuses)
        self._world = world
        self._host_name = host_name

    def make(self, answers: Sequence[CensusAnswer]) -> None:
        super().make(answers)
        self._world.slots.saw(self._reach().tables.slots, "the meta database")

    def restore(self, table: SlotTable) -> None:
        self._world.slots.saw(table, self._host_name)
        super().restore(table)


class SimGates(FakeGates):
    def __init__(self, world: World, meta: FakeMeta) -> None:
        super().__init__(meta.reach)
        self._world = world

    def make(self, move: SlotMove, held: Collection[int]) -> None:
        before = self._reach().tables.gates
        super().make(move, held)
        self._count("gates made by moves", before)
        chained = {gate.slot for gate in before if gate.to_shard == move.from_shard}
        self._world.counts["gates behind other gates"] += len(chained.intersection(move.slots))

    def ask(self, shard_id: int, epoch: int, slots: Collection[int]) -> None:
        before = self._reach().tables.gates
        super().ask(shard_id, epoch, slots)
        self._count("gates asked for by earlier shards", before)

    def advance(self, shard_id: int, epoch: int, gates: Sequence[SlotGate], state: GateState) -> None:
        super().advance(shard_id, epoch, gates, state)
        self._world.counts[f"gates that became {state.name}"] += len(gates)

    def end(self, shard_id: int, epoch: int, gates: Sequence[SlotGate]) -> None:
        count = len(self._reach().tables.gates)
        super().end(shard_id, epoch, gates)
        self._world.counts["gates that ended"] += count - len(self._reach().tables.gates)

    def _count(self, what: str, before: tuple[SlotGate, ...]) -> None:
        self._world.counts[what] += len(self._reach().tables.gates) - len(before)


class SimQuotas(FakeQuotas):
    def __init__(self, world: World, meta: FakeMeta, host_name: str, process_id: str) -> None:
        super().__init__(meta.reach, process_id)
        self._world = world
        self._host_name = host_name

    def ask(self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False) -> Any:
        """What tests.sim.loop.VirtualThread goes through, as the answers at its end."""
        return self._world.meta_locks.asking(self._host_name, self.asking(host_name, asks, waits=waits))


def sim_meta(world: World, process_id: str) -> FakeMeta:
    """The meta database, as one host reaches it."""
    process = current_process()
    assert process is not None, "only hosts have one"
    host_name = process.name

    def reach() -> MetaTables:
        meta = world.meta
        if meta.away_count or meta.cut_off.get(host_name, 0.0) > world.loop.time():
            raise UnavailableError("the meta database does not answer")
        return meta

    meta = FakeMeta(reach, process_id)
    meta.shards = SimShards(world, meta)
    meta.slots = SimSlots(world, meta, host_name)
    meta.gates = SimGates(world, meta)
    meta.namespaces = SimNamespaces(world, meta)
    meta.bulk = LossyBulk(meta.bulk, partial(_loses, world))  # type: ignore[assignment]
    meta.quotas = SimQuotas(world, meta, host_name, process_id)
    if world.in_flight.is_there:
        meta.permits = SimPermits(world, meta.reach)
    return meta


def _loses(world: World) -> bool:
    return world.meta.loses_bulk_answer()


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
        # Who has left a parked shard has forgotten it, because its database can be another one by then.
        is_its_place = is_its_place and self._shard_id not in self._world.tenure_book.parked
        if (is_as_left or is_as_handed_on) and not ask.is_renewal and is_its_place:
            self._world.complain(f"P11: {self._owner} needs a new epoch for shard {self._shard_id}, which it left so")
        given = self._give_epoch(ask)
        if not ask.is_renewal:
            # Until the shard is open, this owner has left it under no epoch.
            self._had_epoch = -1
            self._world.tenure_book.served.pop((self._owner, self._shard_id), None)
        return given

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
