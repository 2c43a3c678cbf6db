"""The shards that the contract of a shard store is tested on: one factory each.

Another implementation joins by a fixture that returns its own `ContractShard` and a line in FACTORIES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from pymysql.constants import CR
from pymysql.err import OperationalError

import foqs
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.cluster import ShardIdentity
from foqs.model.shard_place import EpochAsk, EpochGiven
from foqs.shard.port import Store
from foqs.storage.sessions.session import connect
from foqs.storage.shard import shard_store
from foqs.storage.shard.identity import identity_at
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from foqs.storage.shard.shard_store import ShardAccess, ShardStore
from foqs.storage.shard.slot_source import SlotSource
from foqs.testing import MemoryQueue
from tests.contract.fake_shard import FakeShard
from tests.contract.owner import ContractShard, MetaId
from tests.contract.queue_world import NS, ONCE, World
from tests.support.cut_reads import Cut, cut_reads
from tests.support.other_session import deadlock, row_locked
from tests.support.running_host import host_beside

FACTORIES = [
    pytest.param("mysql_shard", marks=pytest.mark.database, id="mysql"),
    pytest.param("fake_shard", id="fake"),
]


class MysqlShard:
    SHARD_ID = 3
    LOCK_NAME = "contract.shard.3"

    def __init__(self, server: LocalServer, url: str) -> None:
        self.dead_owners: set[str] = set()
        self.epochs: list[int] = []
        self.on_epoch: Callable[[], None] | None = None
        self.meta = MetaId()
        self._server = server
        self._url = url
        self._stores: list[ShardStore] = []

    def store(self, owner: str) -> ShardStore:
        access = ShardAccess(
            shard_id=self.SHARD_ID, url=self._url, lock_name=self.LOCK_NAME, owner=owner, cluster=self.meta.as_seen()
        )
        packs = PackIndex(PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
        store = ShardStore(access, self._take_epoch, lambda owner, epoch: owner in self.dead_owners, packs)
        self._stores.append(store)
        return store

    def reader(self, store: ShardStore) -> AbstractContextManager[ShardReader]:
        return closing(ShardReader(self.SHARD_ID, self._url, store.packs))

    def source(self) -> AbstractContextManager[SlotSource]:
        return closing(SlotSource(self.SHARD_ID, self._url))

    def cut(self, store: Store) -> None:
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            cursor.execute("SELECT IS_USED_LOCK(%s)", (self.LOCK_NAME,))
            (holder,) = cursor.fetchone()
            cursor.execute(f"KILL {int(holder)}")

    @contextmanager
    def losing_answers(self, store: ShardStore) -> Iterator[None]:
        run_script = shard_store.run_script

        async def lose(session: Any, statements: list[str], *others: Any) -> Any:
            answers = await run_script(session, statements, *others)
            if statements[-1] == "COMMIT":
                raise OperationalError(CR.CR_SERVER_LOST, "the answer is lost")
            return answers

        with patch.object(shard_store, "run_script", lose):
            yield

    def deadlock(self, key: int) -> AbstractContextManager[None]:
        return deadlock(self._server, f"shard_{self.SHARD_ID}", key)

    @contextmanager
    def row_locked(self, store: ShardStore, key: int) -> Iterator[None]:
        store._rows("SET SESSION innodb_lock_wait_timeout = 1")
        with row_locked(self._server, f"shard_{self.SHARD_ID}", key):
            yield

    def cut_reads(self, rows_max: int, at: int | None = None) -> AbstractContextManager[Cut]:
        return cut_reads(rows_max, at)

    def set_epoch(self, epoch: int) -> None:
        with closing(connect(self._url)) as session, session.cursor() as cursor:
            cursor.execute("UPDATE writer SET epoch = %s", (epoch,))
            session.commit()

    def set_identity(self, identity: ShardIdentity) -> None:
        with closing(connect(self._url)) as session, session.cursor() as cursor:
            cursor.execute("REPLACE INTO identity VALUES (1, %s, %s)", identity)
            session.commit()

    def identity(self) -> ShardIdentity | None:
        return identity_at(self.SHARD_ID, self._url)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _take_epoch(self, ask: EpochAsk) -> EpochGiven:
        if self.on_epoch is not None:
            self.on_epoch()
        self.epochs.append(max([ask.at_least, *self.epochs]) + 1)
        return EpochGiven(self.epochs[-1], None)


@pytest.fixture
def mysql_shard(mysql_server: LocalServer, shard_urls: dict[int, str]) -> Iterator[MysqlShard]:
    shard = MysqlShard(mysql_server, shard_urls[MysqlShard.SHARD_ID])
    yield shard
    shard.close()


@pytest.fixture
def fake_shard() -> FakeShard:
    return FakeShard()


@pytest.fixture(params=FACTORIES)
def shard(request: pytest.FixtureRequest) -> ContractShard:
    contract_shard: ContractShard = request.getfixturevalue(request.param)
    return contract_shard


@pytest.fixture
def memory() -> Iterator[World]:
    with MemoryQueue(NS) as queue:
        yield World(queue.client(retry=ONCE), queue.admin(retry=ONCE), queue.client(retry=ONCE, idempotent=True))


@pytest.fixture
def host(meta_url: str, shard_urls: dict[int, str]) -> Iterator[World]:
    with (
        host_beside(meta_url, {0: shard_urls[0]}, NS) as address,
        foqs.Client(address, retry=ONCE) as client,
        foqs.AdminClient(address, retry=ONCE) as admin,
        foqs.Client(address, retry=ONCE, idempotent=True) as idempotent,
    ):
        yield World(client, admin, idempotent)


@pytest.fixture(params=["memory", pytest.param("host", marks=[pytest.mark.database, pytest.mark.deep])])
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(request.param)
    return found
