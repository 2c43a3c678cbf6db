"""The rows of hosts in the meta database: beaten, read, forgotten and swept."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import make_url

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.errors import (
    UnavailableError,
)
from foqs.model.meta_bounds import HOST_ROW_MS, HOST_ROW_READ_MS
from foqs.storage.meta import meta_hosts
from foqs.storage.meta.meta_hosts import NAMESAKE_ROW_MS
from foqs.storage.meta.meta_store import MetaStore


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        yield meta


def query(server: LocalServer, url: str, statement: str) -> tuple[tuple[object, ...], ...]:
    with closing(server.connect(make_url(url).database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def host(name: str, *, beat: int = 1, address: str = "127.0.0.1:7600", is_leaving: bool = False) -> HostRow:
    return HostRow(name, address, 5, beat, is_leaving, "gold")


def test_a_heartbeat_gives_all_rows_its_own_included(store: MetaStore) -> None:
    first, second = host("h1#1"), host("h2#1", address="127.0.0.1:7601")
    assert store.hosts.beat(first) == [first]
    assert sorted(store.hosts.beat(second)) == [first, second]
    changed = host("h1#1", beat=2, address="127.0.0.1:7602", is_leaving=True)
    assert sorted(store.hosts.beat(changed)) == [changed, second]
    assert sorted(store.hosts.beat(second)) == [changed, second]
    store.hosts.remove("h1#1")
    assert store.hosts.beat(second) == [second]


def test_a_host_of_a_version_that_counted_no_beats_lives_as_long_as_its_heartbeats_are_of_other_times(
    store: MetaStore, mysql_server: LocalServer, meta_url: str
) -> None:
    now = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
    row = f"INSERT INTO host (name, address, started_at, heartbeat_at) VALUES ('old', '', 1, {now})"
    query(mysql_server, meta_url, row)
    ((beaten_at_ms,),) = query(mysql_server, meta_url, "SELECT heartbeat_at FROM host WHERE name = 'old'")
    rows = {row.id: row for row in store.hosts.beat(host("h1#1"))}
    old = rows["old"]
    assert (old.beat_number, old.is_leaving, old.tier) == (beaten_at_ms, False, "")


def test_a_host_that_says_nothing_of_an_address_for_hosts_is_of_an_older_build(
    store: MetaStore, mysql_server: LocalServer, meta_url: str
) -> None:
    now = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
    row = f"INSERT INTO host (name, address, started_at, heartbeat_at) VALUES ('old', 'h:1', 1, {now})"
    query(mysql_server, meta_url, row)
    told = {"a#1": "", "b#1": "[fd00::1]:7601", "c#1": None}
    for name, peer_address in told.items():
        store.hosts.beat(host(name)._replace(peer_address=peer_address))
    rows = {row.id: row.peer_address for row in store.hosts.beat(host("a#1", beat=2)._replace(peer_address="h:2"))}
    assert rows == {**told, "a#1": "h:2", "old": None}


def age(server: LocalServer, url: str, name: str, age_ms: int) -> None:
    query(server, url, f"UPDATE host SET heartbeat_at = heartbeat_at - {age_ms} WHERE name = '{name}'")


def names_of(server: LocalServer, url: str) -> set[str]:
    return {name.decode() for (name,) in query(server, url, "SELECT name FROM host")}  # type: ignore[attr-defined]


def test_rows_of_earlier_processes_of_a_host_that_starts_are_forgotten(
    store: MetaStore, mysql_server: LocalServer, meta_url: str
) -> None:
    ages_ms = {"a_1#1": HOST_ROW_MS, "a_1#2": NAMESAKE_ROW_MS, "a_1#3": 0, "ab1#1": NAMESAKE_ROW_MS, "a_1": 0}
    for name, age_ms in ages_ms.items():
        store.hosts.beat(host(name))
        age(mysql_server, meta_url, name, age_ms)
    store.hosts.forget("a_1")
    assert names_of(mysql_server, meta_url) == {"a_1#3", "ab1#1", "a_1"}


def test_rows_that_nobody_beats_any_more_are_swept_some_at_a_time_also_those_of_a_clock_that_was_ahead(
    store: MetaStore, mysql_server: LocalServer, meta_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, age_ms in {"a": HOST_ROW_MS, "b": 2 * HOST_ROW_MS, "c": -HOST_ROW_MS - 60_000, "d": 0}.items():
        store.hosts.beat(host(name))
        age(mysql_server, meta_url, name, age_ms)
    monkeypatch.setattr(meta_hosts, "HOSTS_SWEPT_MAX", 2)
    assert [store.hosts.sweep() for _ in range(3)] == [2, 1, 0]
    assert names_of(mysql_server, meta_url) == {"d"}


def test_a_crash_loop_under_changing_names_stops_no_heartbeat(
    store: MetaStore, mysql_server: LocalServer, meta_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of processes that are gone count for nothing, however many there are."""
    monkeypatch.setattr(limits, "HOSTS_MAX", 2)
    for number in range(10):
        store.hosts.beat(host(f"crashed#{number}"))
        age(mysql_server, meta_url, f"crashed#{number}", HOST_ROW_READ_MS)
    assert [row.id for row in store.hosts.beat(host("h1"))] == ["h1"]
    assert {row.id for row in store.hosts.beat(host("h2"))} == {"h1", "h2"}


def test_more_hosts_than_can_be_watched_are_an_error_none_of_them_looks_gone_and_all_of_them_beat(
    store: MetaStore, mysql_server: LocalServer, meta_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOSTS_MAX", 2)
    store.hosts.beat(host("h1"))
    store.hosts.beat(host("h2"))
    for name in ("h3", "h1"):
        with pytest.raises(UnavailableError, match="more than 2 hosts"):
            store.hosts.beat(host(name, beat=7))
    beats = query(mysql_server, meta_url, "SELECT name, beat_number FROM host ORDER BY name")
    assert beats == ((b"h1", 7), (b"h2", 1), (b"h3", 7))
