from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import make_url

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.census import CensusAnswer
from foqs.model.cluster import ShardUse
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    OverloadedError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.namespace import DedupScope, Namespace, NamespaceSettings
from foqs.model.slots import NO_SLOTS, SlotTable, first_table
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import METADATA
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.databases import prepared_server
from tests.support.waiting import PATIENCE_S, until_true


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        yield meta


def query(server: LocalServer, url: str, statement: str) -> tuple[tuple[object, ...], ...]:
    with closing(server.connect(make_url(url).database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_the_tables_here_have_the_columns_of_the_schema(mysql_server: LocalServer, meta_url: str) -> None:
    for table in METADATA.sorted_tables:
        in_schema = [row[0] for row in query(mysql_server, meta_url, f"SHOW COLUMNS FROM {table.name}")]
        assert [column.name for column in table.columns] == in_schema


def test_a_namespace_comes_back_as_it_was_inserted(store: MetaStore) -> None:
    settings = NamespaceSettings(payload_bytes_max=7, enqueue_paused=True)
    created = store.namespaces.insert("Orders", settings, now_ms=123)
    assert (created.name, created.settings, created.created_at_ms) == ("Orders", settings, 123)
    assert store.namespaces.read().namespaces == [created]


def test_names_are_bytes_and_exist_once(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.namespaces.insert("A", NamespaceSettings(), 1)
    with pytest.raises(AlreadyExistsError):
        store.namespaces.insert("a", NamespaceSettings(), 1)
    with pytest.raises(InvalidArgumentError):
        store.namespaces.insert("a b", NamespaceSettings(), 1)
    assert [namespace.name for namespace in store.namespaces.read().namespaces] == ["A", "a"]


def test_the_number_of_a_deleted_namespace_never_comes_back(store: MetaStore) -> None:
    first = store.namespaces.insert("a", NamespaceSettings(), 1)
    assert store.namespaces.finish_deletion(store.namespaces.begin_deletion("a"), "a") == []
    assert store.namespaces.insert("a", NamespaceSettings(), 1).number > first.number


def test_an_update_changes_what_it_names_and_an_invalid_one_nothing(store: MetaStore) -> None:
    before = store.namespaces.insert("a", NamespaceSettings(attempts_max=3), 1)
    changed = store.namespaces.update("a", SimpleNamespace(dequeue_paused=True))
    assert changed == replace(before, settings=replace(before.settings, dequeue_paused=True))
    with pytest.raises(InvalidArgumentError):
        store.namespaces.update("a", SimpleNamespace(payload_bytes_max=5, attempts_max=0))
    assert store.namespaces.read().namespaces == [changed]


def test_updates_at_the_same_time_lose_none(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    changes = [
        {"attempts_max": 5},
        {"payload_bytes_max": 6},
        {"batch_items_max": 7},
        {"enqueue_paused": True},
    ]
    with ThreadPoolExecutor(len(changes)) as threads:
        list(threads.map(lambda change: store.namespaces.update("a", SimpleNamespace(**change)), changes))
    merged = {name: value for change in changes for name, value in change.items()}
    assert store.namespaces.read().namespaces[0].settings == NamespaceSettings(**merged)


def test_what_does_not_exist_is_unknown(store: MetaStore) -> None:
    with pytest.raises(UnknownNamespaceError):
        store.namespaces.update("a", SimpleNamespace())
    with pytest.raises(UnknownNamespaceError):
        store.namespaces.begin_deletion("a")


def answer(shard_id: int, epoch: int, items: int = 0, number_max: int = 0, slots_version: int = 0) -> CensusAnswer:
    return CensusAnswer(shard_id, epoch, items, number_max, slots_version)


def test_a_new_number_is_above_all_that_shards_have_seen(store: MetaStore) -> None:
    store.shards.take_epoch(1, "h1", 1, at_least=0)
    store.shards.take_epoch(2, "h2", 1, at_least=4)
    census = store.namespaces.begin_creation("a")
    assert store.namespaces.finish_creation(census, "a", NamespaceSettings(), 1) == [1, 2]
    store.censuses.answer(census, [answer(1, 1, number_max=7)])
    assert store.namespaces.finish_creation(census, "a", NamespaceSettings(), 1) == [2]
    store.censuses.answer(census, [answer(2, 5, number_max=30)])
    created = store.namespaces.finish_creation(census, "a", NamespaceSettings(), 1)
    assert created == store.namespaces.read().namespaces[0]
    assert created.number == 31
    assert store.namespaces.insert("b", NamespaceSettings(), 1).number == 32


def test_a_shard_that_never_had_an_owner_is_asked_too(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.shards.raise_epochs("h1", {1: 0, 2: 3}, 1)
    assert (store.shards.owner(1), store.shards.owner(2)) == ("", "h1")
    census = store.namespaces.begin_deletion("a")
    assert store.namespaces.finish_deletion(census, "a") == [1, 2]
    store.censuses.answer(census, [answer(1, 0), answer(2, 3)])
    assert store.namespaces.finish_deletion(census, "a") == []


def test_an_answer_of_an_owner_before_the_last_does_not_count(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.shards.take_epoch(1, "h1", 1, at_least=0)
    census = store.namespaces.begin_deletion("a")
    store.censuses.answer(census, [answer(1, 1)])
    store.shards.take_epoch(1, "h2", 1, at_least=0)
    assert store.namespaces.finish_deletion(census, "a") == [1]
    store.censuses.answer(census, [answer(1, 2)])
    store.censuses.answer(census, [answer(1, 1, items=5)])
    assert store.namespaces.finish_deletion(census, "a") == []
    assert store.namespaces.read().namespaces == []


def test_a_namespace_is_closing_as_long_as_its_census_goes_on(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.shards.take_epoch(1, "h1", 1, at_least=0)
    census = store.namespaces.begin_deletion("a")
    with pytest.raises(UnavailableError, match="being deleted by another call") as raised:
        store.namespaces.begin_deletion("a")
    assert raised.value.nothing_done
    listed = store.namespaces.read()
    assert ([one.closing for one in listed.namespaces], listed.censuses, listed.epochs) == ([True], [census], {1: 1})
    store.censuses.answer(census, [answer(1, 1, items=3)])
    with pytest.raises(InvalidArgumentError, match="'a' still holds 3 items, dead letters included"):
        store.namespaces.finish_deletion(census, "a")
    store.censuses.end(census)
    assert [one.closing for one in store.namespaces.read().namespaces] == [False]
    with pytest.raises(UnavailableError, match="nothing was done"):
        store.namespaces.finish_deletion(census, "a")
    store.censuses.answer(census, [answer(1, 1)])
    assert store.namespaces.finish_deletion(store.namespaces.begin_deletion("a"), "a") == [1]


def test_the_items_that_keep_a_namespace_are_at_least_so_many_while_shards_have_not_answered(store: MetaStore) -> None:
    """The first answer with an item ends the deletion, and the next try may hear of others."""
    store.namespaces.insert("a", NamespaceSettings(), 1)
    for shard_id in (1, 2):
        store.shards.take_epoch(shard_id, "h1", 1, at_least=0)
    census = store.namespaces.begin_deletion("a")
    store.censuses.answer(census, [answer(1, 1, items=3)])
    with pytest.raises(InvalidArgumentError, match="'a' still holds at least 3 items"):
        store.namespaces.finish_deletion(census, "a")


def test_a_census_that_expired_is_over(store: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    monkeypatch.setattr(limits, "CENSUS_EXPIRY_MS", -1_000)
    census = store.namespaces.begin_deletion("a")
    # Open until its row is gone, which the same reading sees to.
    assert [one.closing for one in store.namespaces.read().namespaces] == [True]
    assert [one.closing for one in store.namespaces.read().namespaces] == [False]
    with pytest.raises(UnavailableError):
        store.namespaces.finish_deletion(census, "a")


def test_namespaces_and_censuses_have_a_bound(store: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMESPACES_MAX", 2)
    monkeypatch.setattr(limits, "CENSUSES_MAX", 1)
    store.namespaces.begin_creation("a")
    with pytest.raises(OverloadedError):
        store.namespaces.begin_creation("b")
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.namespaces.insert("b", NamespaceSettings(), 1)
    with pytest.raises(InvalidArgumentError, match="2 namespaces, and the limit is 2"):
        store.namespaces.begin_creation("c")
    with pytest.raises(InvalidArgumentError, match="the limit is 2"):
        store.namespaces.insert("c", NamespaceSettings(), 1)


def test_a_recovered_namespace_has_its_number_and_no_later_one_gets_it(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    settings = NamespaceSettings(key_spread=4, dedup_scope=DedupScope.TOPIC)
    recovered = store.namespaces.recover(9, "b", "lost", settings, 5)
    assert recovered == store.namespaces.read().namespaces[1]
    assert recovered == Namespace(9, "b", settings, 5, former_name="lost")
    for number, name in ((9, "c"), (3, "b")):
        with pytest.raises(AlreadyExistsError):
            store.namespaces.recover(number, name, "lost", settings, 5)
    assert store.namespaces.insert("c", NamespaceSettings(), 1).number == 10


def test_a_restored_database_learns_the_epochs_that_shards_have(store: MetaStore) -> None:
    store.shards.take_epoch(1, "h1", 1, at_least=7)
    store.shards.raise_epochs("h2", {1: 5, 2: 6}, 1)
    assert store.namespaces.read().epochs == {1: 8, 2: 6}
    assert (store.shards.owner(1), store.shards.owner(2)) == ("h1", "h2")
    # Who has the later epoch is the owner: who was it in the older state has lost the shard since.
    store.shards.raise_epochs("h2", {1: 9, 2: 0}, 1)
    assert store.namespaces.read().epochs == {1: 9, 2: 6}
    assert (store.shards.owner(1), store.shards.owner(2)) == ("h2", "h2")


def test_the_id_of_the_cluster_is_made_once_and_stays(store: MetaStore) -> None:
    assert store.cluster.id(b"") == b""
    made = store.cluster.make_id()
    assert len(made) == 16
    assert made == store.cluster.make_id() == store.cluster.id(b"another") == store.cluster.id(b"")


def test_a_database_that_has_lost_the_id_of_the_cluster_takes_the_one_it_is_told(store: MetaStore) -> None:
    assert store.cluster.id(b"found") == b"found"
    assert store.cluster.make_id() == b"found"


def test_of_the_places_of_a_configuration_none_is_adopted_twice(store: MetaStore) -> None:
    store.shards.add(1, "mysql://h:3306/one", "")
    taken = store.shards.adopt({2: "mysql://h:3306/two", 5: "mysql://h:3306/one", 6: "mysql://h:3306/two"}, "")
    assert taken == {5: 1, 6: 2}
    assert {row.shard_id: row.place for row in store.shards.read_all()} == {
        1: "mysql://h:3306/one",
        2: "mysql://h:3306/two",
    }
    assert store.shards.adopt({1: "mysql://h:3306/one"}, "") == {}


def test_the_place_of_a_removed_shard_is_free(store: MetaStore) -> None:
    store.shards.add(1, "mysql://h:3306/one", "")
    epoch = store.shards.take_epoch(1, "h1", 1, at_least=0).epoch
    store.shards.update(1, ShardUse.DRAINING, None, None)
    store.shards.remove(1, epoch)
    assert store.shards.adopt({5: "mysql://h:3306/one"}, "") == {}


def test_the_durability_of_its_server_is_told(store: MetaStore) -> None:
    assert store.check_durable() == []


def test_an_epoch_is_above_all_before_it_and_above_the_shards_own(store: MetaStore) -> None:
    assert store.shards.owner(3) is None
    assert store.shards.take_epoch(3, "h1", 1, at_least=0).epoch == 1
    assert store.shards.take_epoch(3, "h2", 2, at_least=0).epoch == 2
    assert store.shards.take_epoch(3, "h1", 3, at_least=40).epoch == 41
    assert store.shards.take_epoch(3, "h3", 4, at_least=5).epoch == 42
    assert store.shards.take_epoch(4, "h1", 5, at_least=9).epoch == 10
    assert (store.shards.owner(3), store.shards.owner(4)) == ("h3", "h1")


def test_no_epoch_is_given_twice_to_takers_at_the_same_time(store: MetaStore) -> None:
    start = threading.Barrier(4)

    def take(owner: str) -> list[int]:
        start.wait(PATIENCE_S)
        return [store.shards.take_epoch(1, owner, 1, at_least=0).epoch for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        taken = [epoch for epochs in threads.map(take, "abcd") for epoch in epochs]
    assert sorted(taken) == list(range(1, 41))


def test_sessions_are_in_utc_so_that_no_hour_comes_twice(store: MetaStore) -> None:
    with store._sessions.transaction() as connection:
        assert connection.exec_driver_sql("SELECT @@SESSION.time_zone").scalar() == "+00:00"


def test_a_server_that_is_away_is_unavailable_and_the_store_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with prepared_server(tmp_path) as server:
        url = server.url("meta")
        apply(url, SchemaKind.META)
        with closing(MetaStore(url)) as store:
            store.namespaces.insert("a", NamespaceSettings(), 1)
            server.kill()
            with pytest.raises(UnavailableError) as caught:
                store.namespaces.read()
            assert caught.value.__cause__ is not None
            server.start()
            assert [namespace.name for namespace in store.namespaces.read().namespaces] == ["a"]


def test_a_database_whose_tables_are_being_restored_is_unavailable(
    mysql_server: LocalServer, meta_url: str, store: MetaStore
) -> None:
    """A dump drops each table before it makes it anew, and hosts ask twice a second meanwhile."""
    query(mysql_server, meta_url, "RENAME TABLE namespace TO elsewhere")
    with pytest.raises(UnavailableError, match=r"lacks a table, .*namespace.* doesn't exist.*foqs schema status"):
        store.namespaces.read()
    query(mysql_server, meta_url, "RENAME TABLE elsewhere TO namespace")
    assert store.namespaces.read().namespaces == []


def answers(store: MetaStore) -> bool:
    try:
        return store.namespaces.read().namespaces == []
    except UnavailableError:
        return False


@pytest.mark.deep
def test_a_server_that_hangs_is_unavailable_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_STATEMENT_MS_MAX", 1_000)
    with prepared_server(tmp_path) as server:
        apply(server.url("meta"), SchemaKind.META)
        with closing(MetaStore(server.url("meta"))) as store:
            until_true(lambda: answers(store))
            server.pause()
            with pytest.raises(UnavailableError):
                store.namespaces.read()
            server.resume()
            until_true(lambda: answers(store))


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_of_namespaces_come_by_name_and_hold_what_begins_with_the_prefix(store, limit):
    names = sorted(["a", "a.b", "a.b.c", "a.z", "A", "a-", "b", "zz", "a" * limits.NAMESPACE_NAME_CHARS_MAX])
    for name in reversed(names):
        store.namespaces.insert(name, NamespaceSettings(), 0)
    for prefix in ("", "a", "a.", "a.b", "z", "none", "é", "%", "_"):
        seen, after = [], ""
        while page := store.namespaces.page(prefix, after, limit):
            assert len(page) <= limit
            seen += [namespace.name for namespace in page]
            after = seen[-1]
        assert seen == [name for name in names if name.startswith(prefix)]


def test_only_what_has_changed_is_read_again_and_all_that_has(meta_url, store, monkeypatch):
    rows_read, namespace_of = [], store.namespaces._blocks._namespace_of
    monkeypatch.setattr(
        store.namespaces._blocks, "_namespace_of", lambda row: rows_read.append(row["number"]) or namespace_of(row)
    )

    def read() -> list[Namespace]:
        rows_read.clear()
        found = store.namespaces.read().namespaces
        with closing(MetaStore(meta_url)) as other:
            assert found == other.namespaces.read().namespaces
        return found

    assert read() == []
    for number in (1, 2, 255, 256, 257, 700):
        store.namespaces.recover(number, f"n{number}", "", NamespaceSettings(), 0)
    assert [one.number for one in read()] == [1, 2, 255, 256, 257, 700]
    assert len(rows_read) == 6
    assert store.namespaces.read().namespaces is store.namespaces.read().namespaces
    assert len(rows_read) == 6, "nothing has changed"
    for field, value in {"enqueue_paused": True, "payload_bytes_max": 12_345, "attempts_max": 3}.items():
        with closing(MetaStore(meta_url)) as other:
            other.namespaces.update("n256", SimpleNamespace(**{field: value}))
        assert {one.name: getattr(one.settings, field) for one in read()}["n256"] == value
        assert sorted(rows_read) == [256, 257], "of its block alone"
    census = store.namespaces.begin_deletion("n700")
    assert [one.name for one in read() if one.closing] == ["n700"]
    assert store.namespaces.finish_deletion(census, "n700") == []
    assert [one.number for one in read()] == [1, 2, 255, 256, 257]
    assert rows_read == []
    created = store.namespaces.insert("a", NamespaceSettings(), 5)
    assert read()[0] == created


def slots_of(store: MetaStore) -> SlotTable:
    return store.namespaces.read().slots


def test_the_first_namespace_brings_the_slot_table_and_later_shards_get_no_slots(store: MetaStore) -> None:
    for shard_id in (9, 4, 6):
        store.shards.take_epoch(shard_id, "h1", 1, at_least=0)
    assert slots_of(store) == NO_SLOTS
    census = store.namespaces.begin_creation("a")
    store.censuses.answer(census, [answer(4, 1), answer(6, 1), answer(9, 1)])
    store.namespaces.finish_creation(census, "a", NamespaceSettings(), 1)
    made = slots_of(store)
    assert (made.version, made.shards[:4], len(made.shards)) == (1, (4, 6, 9, 4), 1_024)
    assert slots_of(store) is made, "nothing has changed"
    store.shards.take_epoch(5, "h1", 1, at_least=0)
    census = store.namespaces.begin_creation("b")
    store.censuses.answer(census, [answer(4, 1), answer(5, 1), answer(6, 1), answer(9, 1)])
    store.namespaces.finish_creation(census, "b", NamespaceSettings(), 1)
    assert slots_of(store) is made


def test_the_slot_table_is_made_without_a_namespace_once_all_shards_have_answered(store: MetaStore) -> None:
    store.namespaces.insert("a", NamespaceSettings(), 1)
    store.shards.take_epoch(1, "h1", 1, at_least=0)
    store.shards.take_epoch(2, "h2", 1, at_least=0)
    census = store.slots.begin()
    store.censuses.answer(census, [answer(1, 1)])
    assert store.slots.finish(census) == [2]
    assert slots_of(store) == NO_SLOTS
    store.censuses.answer(census, [answer(2, 1)])
    assert store.slots.finish(census) == []
    assert slots_of(store) == first_table([1, 2])
    with pytest.raises(UnavailableError, match="nothing was done"):
        store.slots.finish(census)


def test_no_slot_table_is_made_where_a_shard_knows_one(store: MetaStore) -> None:
    store.shards.take_epoch(1, "h1", 1, at_least=0)
    for finish in (
        store.slots.finish,
        lambda census: store.namespaces.finish_creation(census, "a", NamespaceSettings(), 1),
    ):
        census = store.slots.begin()
        store.censuses.answer(census, [answer(1, 1, slots_version=3)])
        with pytest.raises(UnavailableError, match="lost its slot table, which shard 1 knows") as raised:
            finish(census)
        assert raised.value.nothing_done
    assert (slots_of(store), store.namespaces.read().namespaces) == (NO_SLOTS, [])


def test_a_slot_table_comes_back_and_never_goes_back(store: MetaStore) -> None:
    old, new = SlotTable(3, (1,) * 1_024), SlotTable(5, (2,) * 1_024)
    for told, kept in ((old, old), (new, new), (old, new), (new, new)):
        store.slots.restore(told)
        assert slots_of(store) == kept


def test_hosts_that_make_the_slot_table_at_once_make_one(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as meta:
        for shard_id in range(8):
            meta.shards.take_epoch(shard_id, "h1", 1, at_least=0)
        censuses = [meta.slots.begin() for _ in range(6)]
        for number, census in enumerate(censuses):
            meta.censuses.answer(census, [answer(shard_id, 1) for shard_id in range(8)])
            if number % 2:
                meta.shards.take_epoch(8 + number, "h1", 1, at_least=0)
                meta.censuses.answer(census, [answer(8 + other, 1) for other in range(1, number + 1, 2)])
        with ThreadPoolExecutor(6) as threads:
            missing = list(threads.map(meta.slots.finish, censuses))
        assert [] in missing
        made = slots_of(meta)
        assert (made.version, len(made.shards)) == (1, 1_024)
        assert made == first_table(sorted(set(made.shards)))


def test_a_shard_is_declined_only_by_its_owner_and_only_to_the_host_that_still_asks(store: MetaStore) -> None:
    store.shards.take_epoch(1, "owner", 1, 0)
    store.shards.ask_for({1: "owner"}, "heir")
    for owner, heir in (("another", "heir"), ("owner", "another")):
        store.shards.decline({1: heir}, owner)
        assert [row.moving_to for row in store.shards.read_all()] == ["heir"]
    store.shards.decline({1: "heir", 2: "heir"}, "owner")
    assert [row.moving_to for row in store.shards.read_all()] == [""]
