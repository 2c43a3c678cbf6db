"""A real shard store beside any host, for tests of what a store does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from foqs.model import limits
from foqs.model.shard_place import EpochGiven
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess, ShardStore
from tests.contract.owner import opened
from tests.support.identities import some_cluster


@contextmanager
def open_store(url: str) -> Iterator[ShardStore]:
    """The owner of shard 0; every take-over gets the next epoch."""
    access = ShardAccess(shard_id=0, url=url, lock_name="lock", owner="host", cluster=some_cluster())
    packs = PackIndex(PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
    with closing(
        ShardStore(access, lambda ask: EpochGiven(ask.at_least + 1, None), lambda owner, epoch: False, packs)
    ) as store:
        opened(store)
        yield store
