"""Books of permits, as the meta database keeps them: the real one, and the one in memory, which does the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.model.cluster import ShardUse
from foqs.model.namespace import NamespaceSettings
from foqs.model.permit_book import PermitAsk, ShardAsk
from foqs.model.policy_book import NamedChange
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_permits import key_of, topic_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta

TOPIC = (7, "calls/ünn")


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.database), "memory"])
def meta(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield memory_meta(lambda: 1_700_000_000_000)
    else:
        with closing(MetaStore(request.getfixturevalue("meta_url"))) as store:
            yield store


def asks(
    meta: Any, *shards: ShardAsk, limit: int = 3, topic: tuple[int, str] = TOPIC, version: int = 0
) -> dict[int, int]:
    return dict(meta.permits.ask({topic: PermitAsk(limit, shards, version)})[topic].permits)


def test_shards_share_the_permits_of_a_book_and_wait_in_it(meta: Any) -> None:
    assert asks(meta, ShardAsk(1, 5, 0, 0, 2)) == {1: 2}
    assert meta.permits.waited()[0] == {}
    assert asks(meta, ShardAsk(2, 1, 0, 0, 4)) == {2: 1}
    books, now_ms = meta.permits.waited()
    assert {topic: sorted(book.shards) for topic, book in books.items()} == {TOPIC: [1, 2]}
    assert (books[TOPIC].needy_count(3, now_ms), books[TOPIC].share(3)) == (0, 1)
    assert asks(meta, ShardAsk(1, 5, 1, 1, 0), ShardAsk(3, 1, 0, 0, 0)) == {1: 1, 3: 0}
    assert asks(meta, ShardAsk(2, 1, 1, 1, 4)) == {2: 2}
    assert asks(meta, ShardAsk(1, 4, 0, 0, 0)) == {}, "an earlier owner"
    assert asks(meta, ShardAsk(1, 6, 9, 1, 0), ShardAsk(2, 1, 0, 0, 0)) == {1: 1, 2: 0}
    assert asks(meta, ShardAsk(1, 6, 0, 0, 0)) == {1: 0}
    assert meta.permits.waited()[0] == {}


def test_a_book_has_the_leases_of_a_shard_even_beyond_the_limit(meta: Any) -> None:
    assert asks(meta, ShardAsk(1, 5, 0, 4, 1), limit=2) == {1: 4}
    assert asks(meta, ShardAsk(2, 1, 0, 0, 1), limit=2) == {2: 0}
    assert asks(meta, ShardAsk(1, 5, 0, 1, 0), limit=2) == {1: 1}
    assert asks(meta, ShardAsk(2, 1, 0, 0, 1), limit=2) == {2: 1}


def test_an_owner_that_renews_its_epoch_keeps_its_permits_and_a_new_owner_has_what_it_uses(meta: Any) -> None:
    assert asks(meta, ShardAsk(1, 5, 0, 0, 3)) == {1: 3}
    assert asks(meta, ShardAsk(1, 7, 2, 1, 0, since_epoch=5)) == {1: 2}
    assert asks(meta, ShardAsk(1, 8, 2, 1, 0, since_epoch=5)) == {1: 2}
    assert asks(meta, ShardAsk(1, 7, 2, 1, 0, since_epoch=5)) == {}, "the epoch before"
    assert asks(meta, ShardAsk(1, 9, 2, 1, 0, since_epoch=9)) == {1: 1}


def test_a_removed_shard_has_no_permits_until_it_is_added_again(meta: Any) -> None:
    for shard_id in (1, 2):
        meta.shards.add(shard_id, f"place-{shard_id}", "")
    epoch = meta.shards.take_epoch(1, "host", 0, 0).epoch
    assert asks(meta, ShardAsk(1, epoch, 0, 0, 3)) == {1: 3}
    assert asks(meta, ShardAsk(2, 1, 0, 0, 3)) == {2: 0}
    meta.shards.update(1, ShardUse.DRAINING, None, None)
    meta.shards.remove(1, epoch)
    assert asks(meta, ShardAsk(2, 1, 0, 0, 2)) == {2: 2}
    assert asks(meta, ShardAsk(1, epoch, 3, 0, 0)) == {1: 0}, "an ask that was late"
    meta.shards.add(1, "place-1", "")
    epoch = meta.shards.take_epoch(1, "host", 0, 0).epoch
    assert asks(meta, ShardAsk(1, epoch, 0, 1, 3)) == {1: 1}


def test_a_host_that_knows_former_policies_gets_no_further_permits(meta: Any) -> None:
    census = meta.namespaces.begin_creation("jobs")
    number = meta.namespaces.finish_creation(census, "jobs", NamespaceSettings(), 1).number
    for limit in (9, 2):
        meta.policies.set("jobs", [NamedChange("t", False, SimpleNamespace(in_flight_max=limit))])
        versions = {one.number: one.policies_version for one in meta.namespaces.read().namespaces}
        topic, version = (number, "t"), versions[number]
        if limit == 9:
            former_version = version
            assert asks(meta, ShardAsk(1, 1, 0, 0, 3), limit=9, topic=topic, version=version) == {1: 3}
    assert asks(meta, ShardAsk(1, 1, 3, 3, 5), limit=9, topic=topic, version=former_version) == {1: 3}
    assert asks(meta, ShardAsk(1, 1, 1, 1, 0), limit=9, topic=topic, version=former_version) == {1: 1}, "it gives back"
    assert asks(meta, ShardAsk(2, 1, 0, 0, 5), limit=9, topic=topic, version=former_version) == {2: 0}
    assert asks(meta, ShardAsk(2, 1, 0, 0, 5), limit=2, topic=topic, version=version) == {2: 1}


def test_a_deleted_namespace_leaves_no_book(meta: Any) -> None:
    census = meta.namespaces.begin_creation("jobs")
    number = meta.namespaces.finish_creation(census, "jobs", NamespaceSettings(), 1).number
    for topic in ((number, "t"), (number + 1, "t")):
        asks(meta, ShardAsk(1, 1, 0, 0, 3), topic=topic)
        asks(meta, ShardAsk(2, 1, 0, 0, 3), topic=topic)
    census = meta.namespaces.begin_deletion("jobs")
    assert meta.namespaces.finish_deletion(census, "jobs") == []
    assert list(meta.permits.waited()[0]) == [(number + 1, "t")]


@pytest.mark.database
def test_statements_read_by_their_keys(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as store, store._sessions.transaction() as connection:
        for at in range(500):
            connection.exec_driver_sql(sql.MAKE_PERMITS.format("(%s, '', 0)"), (key_of((1, f"t{at}")),))
        connection.exec_driver_sql("ANALYZE TABLE permit").all()
        keys = tuple(key_of((1, f"t{at}")) for at in range(3))
        statements: list[tuple[str, tuple[Any, ...], str]] = [
            (sql.LOCK_PERMITS.format("%s, %s, %s"), keys, "PRIMARY"),
            (sql.FIND_PERMITS.format("%s, %s, %s"), keys, "PRIMARY"),
            (sql.DELETE_PERMITS, (keys[0],), "PRIMARY"),
            (sql.READ_WAITED, (10,), "waited"),
        ]
        for statement, arguments, index in statements:
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", arguments).mappings().all()
            # The estimate counts rows of other tests that are deleted and not purged yet.
            assert [(row["key"], int(row["rows"]) < 50) for row in rows] == [(index, True)], statement


def test_a_key_has_its_namespace_and_its_topic() -> None:
    assert topic_of(key_of(TOPIC)) == TOPIC
    assert key_of((1, "\xff")) < key_of((2, ""))
