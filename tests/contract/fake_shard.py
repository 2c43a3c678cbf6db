"""The contract on foqs.testing.fake_store: what the simulation stands on is what MySQL does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from foqs.model import limits
from foqs.model.cluster import ShardIdentity
from foqs.model.shard_place import EpochAsk, EpochGiven
from foqs.shard.port import Store
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.testing.fake_reader import FakeReader
from foqs.testing.fake_server import FakeServer, Fate, Faults
from foqs.testing.fake_slot_source import FakeSlotSource
from foqs.testing.fake_store import FakeStore, fake_identity
from tests.contract.owner import SHARD_ID, MetaId
from tests.support.cut_reads import Cut


class FakeShard:
    """Implements tests.contract.owner.ContractShard."""

    def __init__(self) -> None:
        self.dead_owners: set[str] = set()
        self.epochs: list[int] = []
        self.on_epoch: Callable[[], None] | None = None
        self.meta = MetaId()
        self._server = FakeServer(SHARD_ID, lambda: time.time_ns() // 1_000_000)

    def store(self, owner: str) -> FakeStore:
        packs = PackIndex(PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
        return FakeStore(
            self._server,
            "lock",
            owner,
            self._take_epoch,
            lambda owner, epoch: owner in self.dead_owners,
            packs,
            self.meta.as_seen(),
        )

    def reader(self, store: Store) -> AbstractContextManager[FakeReader]:
        assert isinstance(store, FakeStore)
        return closing(FakeReader(self._server, store.packs))

    def source(self) -> AbstractContextManager[FakeSlotSource]:
        return closing(FakeSlotSource(self._server))

    def cut(self, store: Store) -> None:
        self._server.kill_sessions()

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        return self._refusing(Fate.LOST_AFTER)

    def deadlock(self, key: int) -> AbstractContextManager[None]:
        return self._refusing(Fate.DEADLOCK)

    def row_locked(self, store: Store, key: int) -> AbstractContextManager[None]:
        return self._refusing(Fate.FAILED)

    @contextmanager
    def _refusing(self, fate: Fate) -> Iterator[None]:
        faults = _Once(fate)
        self._server.faults = faults
        yield
        assert not faults.coming
        self._server.faults = Faults()

    @contextmanager
    def cut_reads(self, rows_max: int, at: int | None = None) -> Iterator[Cut]:
        cut, reads = Cut(rows_max, at), self._server.reads
        reads.rows_max, reads.is_cut = rows_max, lambda: cut.is_due(rows_max + 1)
        yield cut
        reads.rows_max = None

    def set_epoch(self, epoch: int) -> None:
        self._server.tables.writer.epoch = epoch

    def set_identity(self, identity: ShardIdentity) -> None:
        self._server.tables.identity = identity

    def identity(self) -> ShardIdentity | None:
        return fake_identity(self._server)

    def _take_epoch(self, ask: EpochAsk) -> EpochGiven:
        if self.on_epoch is not None:
            self.on_epoch()
        self.epochs.append(max([ask.at_least, *self.epochs]) + 1)
        return EpochGiven(self.epochs[-1], None)


class _Once(Faults):
    def __init__(self, fate: Fate) -> None:
        self.coming = [fate]

    def fate(self) -> Fate:
        return self.coming.pop() if self.coming else Fate.DONE
