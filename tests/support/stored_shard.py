"""A shard on a fake server, as its owner's store reads and writes it: each transaction at once, without a loop."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model import limits
from foqs.model.shard_place import EpochGiven
from foqs.shard.port import ShardImage, Transaction, TransactionResult
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.testing.fake_server import FakeServer
from foqs.testing.fake_store import FakeStore
from foqs.testing.fake_tables import Tables
from tests.support.identities import some_cluster


class StoredShard:
    """What hosts one after the other leave of a shard; a change of what is not there is an error."""

    def __init__(self, shard_id: int, clock: Callable[[], int], steady_ms: int) -> None:
        """`clock` is that of the server; `steady_ms` is what the steady clock said last."""
        self.server = FakeServer(shard_id, clock, strict=True)
        self.server.tables.writer.steady_ms = steady_ms
        self.packs = PackIndex(PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
        self._store = FakeStore(
            self.server,
            "lock",
            "host",
            lambda ask: EpochGiven(ask.at_least + 1, None),
            lambda owner, epoch: False,
            self.packs,
            some_cluster(),
        )

    @property
    def tables(self) -> Tables:
        return self.server.tables

    def open(self) -> ShardImage:
        """Take the shard over, under the next epoch."""
        return self._store.open()

    def apply(self, transaction: Transaction) -> TransactionResult:
        """Commit it."""
        return self._store.run_at_once(transaction)
