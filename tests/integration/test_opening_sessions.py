"""An opening of a shard that fails leaves no session on its server, whose snapshot would keep old rows there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from unittest.mock import Mock

import pytest

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.shard_place import EpochGiven
from foqs.shard.port import SessionLostError
from foqs.storage.shard import shard_store
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess, ShardStore
from tests.support.identities import some_cluster
from tests.support.waiting import until_true

pytestmark = pytest.mark.database
SHARD_ID = 2


@pytest.fixture
def store(shard_urls: Mapping[int, str]) -> Iterator[ShardStore]:
    access = ShardAccess(
        shard_id=SHARD_ID, url=shard_urls[SHARD_ID], lock_name="opening.shard", owner="one", cluster=some_cluster()
    )
    packs = PackIndex(PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
    with closing(
        ShardStore(access, lambda ask: EpochGiven(ask.at_least + 1, None), lambda owner, epoch: False, packs)
    ) as store:
        yield store


@pytest.fixture
def sessions_count(mysql_server: LocalServer) -> Iterator[Callable[[], int]]:
    """Sessions that are connected to the shard's database."""
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:

        def count() -> int:
            cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s", (f"shard_{SHARD_ID}",))
            return int(cursor.fetchall()[0][0])

        yield count


def test_an_opening_that_fails_after_its_snapshot_leaves_no_session(
    store: ShardStore, sessions_count: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_store, "read_image", Mock(side_effect=SessionLostError("its server is away")))
    with pytest.raises(SessionLostError):
        store.open()
    until_true(lambda: sessions_count() == 0)


def test_a_store_that_is_closed_before_the_count_leaves_no_session(
    store: ShardStore, sessions_count: Callable[[], int]
) -> None:
    image = store.open()
    assert sessions_count() == 2
    store.close()
    until_true(lambda: sessions_count() == 0)
    with pytest.raises(SessionLostError):
        image.count()


def test_a_count_goes_on_when_the_session_of_its_shard_is_lost(
    store: ShardStore, sessions_count: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = store.open()
    count_lanes = shard_store.count_lanes

    def lost(snapshot: object) -> object:
        store.close()
        return count_lanes(snapshot)

    monkeypatch.setattr(shard_store, "count_lanes", lost)
    assert image.count().lanes == []
    until_true(lambda: sessions_count() == 0)
