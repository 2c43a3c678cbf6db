"""All hosts of one meta database are of one cluster: the name of another one is refused at the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import make_url

from foqs.dev.local_server import LocalServer
from foqs.model.cluster import HostRow
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_hosts import BEATING_MS
from foqs.storage.meta.meta_statements import NOW_MS
from foqs.storage.meta.meta_store import MetaStore
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S

HOST = HostRow("h1#1", "127.0.0.1:7600", 5, 1)


def query(server: LocalServer, url: str, statement: str) -> None:
    with closing(server.connect(make_url(url).database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    store = MetaStore(meta_url)
    yield store
    store.close()


@pytest.fixture
def age(mysql_server: LocalServer, meta_url: str) -> Callable[[], None]:
    """Lets the last signs of hosts become so old that none of them runs any more."""

    def make_old() -> None:
        query(mysql_server, meta_url, f"UPDATE cluster_name SET taken_at = taken_at - {BEATING_MS}")
        query(mysql_server, meta_url, f"UPDATE host SET heartbeat_at = heartbeat_at - {BEATING_MS}")

    return make_old


async def test_a_host_of_another_name_does_not_start_beside_one_that_runs(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, shard_urls, name="one", cluster="red") as one:
        with pytest.raises(InvalidArgumentError) as refused:
            async with running_host(meta_url, shard_urls, name="two", cluster="blue"):
                pass
        for words in ("cluster is 'blue' here", "'red' on host one#", "correct cluster or meta_url", "10 s later"):
            assert words in refused.value.message
        assert one.host.owned_count == len(shard_urls)
    async with running_host(meta_url, shard_urls, name="two", cluster="red"):
        pass


@pytest.mark.parametrize("membership", ["beat", "note_elsewhere"])
def test_hosts_of_either_membership_keep_the_name(store: MetaStore, age: Callable[[], None], membership: str) -> None:
    store.cluster.agree_on_name("red")
    age()
    getattr(store.hosts, membership)(HOST)
    with pytest.raises(InvalidArgumentError, match="'blue' here, and 'red' on host h1#1"):
        store.cluster.agree_on_name("blue")
    store.cluster.agree_on_name("red")


def test_the_name_changes_once_no_host_has_run_for_a_while(store: MetaStore, age: Callable[[], None]) -> None:
    store.cluster.agree_on_name("red")
    with pytest.raises(InvalidArgumentError, match="'red' on a host that started a moment ago"):
        store.cluster.agree_on_name("blue")
    store.hosts.beat(HOST)
    age()
    store.cluster.agree_on_name("blue")
    with pytest.raises(InvalidArgumentError, match="'red' here, and 'blue'"):
        store.cluster.agree_on_name("red")


def test_of_hosts_of_two_names_that_start_in_one_moment_those_of_one_do(meta_url: str) -> None:
    start = threading.Barrier(6)

    def begin(name: str) -> bool:
        store = MetaStore(meta_url)
        try:
            start.wait(PATIENCE_S)
            store.cluster.agree_on_name(name)
        except InvalidArgumentError:
            return False
        finally:
            store.close()
        return True

    names = ["red", "blue"] * 3
    with ThreadPoolExecutor(len(names)) as threads:
        started = [name for name, is_let_in in zip(names, threads.map(begin, names), strict=True) if is_let_in]
    assert len(started) == 3
    assert len(set(started)) == 1


def test_a_host_says_which_proof_it_knows_and_one_of_an_older_build_says_nothing(
    store: MetaStore, mysql_server: LocalServer, meta_url: str
) -> None:
    row = f"('old', '', 1, {NOW_MS})"
    query(mysql_server, meta_url, f"INSERT INTO host (name, address, started_at, heartbeat_at) VALUES {row}")
    store.hosts.beat(HOST._replace(proof=2))
    assert {row.id: row.proof for row in store.hosts.beat(HOST._replace(proof=2))} == {"h1#1": 2, "old": 1}
