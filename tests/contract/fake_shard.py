"""The contract on foqs.testing.fake_store: what the simulation stands on is what MySQL does."""

from __future__ import annotations

import time

from foqs.shard.runner import Store
from foqs.testing.fake_server import FakeServer
from foqs.testing.fake_store import FakeStore
from tests.contract.owner import SHARD_ID


class FakeShard:
    """Implements tests.contract.owner.ContractShard."""

    def __init__(self) -> None:
        self.dead_owners: set[str] = set()
        self.epochs: list[int] = []
        self._server = FakeServer(SHARD_ID, lambda: time.time_ns() // 1_000_000)

    def store(self, owner: str) -> FakeStore:
        return FakeStore(self._server, "lock", owner, self._take_epoch, self.dead_owners.__contains__)

    def cut(self, store: Store) -> None:
        self._server.kill_sessions()

    def set_epoch(self, epoch: int) -> None:
        self._server.tables.writer.epoch = epoch

    def _take_epoch(self, at_least: int) -> int:
        self.epochs.append(max([at_least, *self.epochs]) + 1)
        return self.epochs[-1]
