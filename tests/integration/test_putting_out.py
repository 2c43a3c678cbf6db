"""The session of a dead owner that cannot be killed, is gone already, or ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.shard_place import EpochAsk, EpochGiven
from foqs.shard.port import OwnedError, OwnershipLostError, SessionLostError
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess, ShardStore
from tests.contract.owner import opened
from tests.support.identities import some_cluster
from tests.support.waiting import PATIENCE_S, until_true

pytestmark = pytest.mark.database

USER = "weak"

Open = Callable[..., ShardStore]


@pytest.fixture
def make_store(shard_urls: dict[int, str]) -> Iterator[Open]:
    stores: list[ShardStore] = []
    epochs = [0]

    def take_epoch(ask: EpochAsk) -> EpochGiven:
        epochs[0] = max(epochs[0], ask.at_least) + 1
        return EpochGiven(epochs[0], None)

    def make(owner: str, user: str = "root") -> ShardStore:
        url = shard_urls[0].replace("//root@", f"//{user}@")
        access = ShardAccess(
            shard_id=0, url=url, lock_name="putting-out", owner=owner, cluster=some_cluster(), allow_undurable=True
        )
        stores.append(ShardStore(access, take_epoch, lambda name, epoch: name == "dead", PackIndex(PackBudget(0))))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def weak_user(mysql_server: LocalServer) -> Iterator[str]:
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE USER {USER}@localhost")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON shard_0.* TO {USER}@localhost")
        yield USER
        cursor.execute(f"DROP USER {USER}@localhost")


def test_who_may_not_kill_says_so_and_leaves_the_owner_alone(make_store: Open, weak_user: str) -> None:
    dead = make_store("dead")
    dead.open()
    weak = make_store("host-2", weak_user)
    with pytest.raises(OwnershipLostError, match=r"must not KILL session \d+ of 'dead'.*CONNECTION_ADMIN"):
        weak.open()
    assert not dead.is_session_lost()
    dead.close()
    assert opened(weak).epoch == 2


def test_a_server_that_takes_no_writes_uses_up_no_epochs(
    make_store: Open, weak_user: str, mysql_server: LocalServer
) -> None:
    """A shard is tried once a second, and its epochs would be used up after half a year."""
    store = make_store("host-1", weak_user)
    assert opened(store).epoch == 1
    store.close()
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            for _ in range(3):
                with pytest.raises(SessionLostError, match="read-only"):
                    store.open()
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
    assert opened(store).epoch == 2


def warnings_of(store: ShardStore) -> list[str]:
    """What it says when it meets the living owner twice."""
    with capture_logs() as logged:
        for _ in range(2):
            with pytest.raises(OwnedError):
                store.open()
    return [event["error"] for event in logged if event["event"] == "owner_not_to_be_ended"]


def test_a_host_that_stands_by_says_once_that_it_could_not_end_the_owners_session(
    make_store: Open, weak_user: str, mysql_server: LocalServer
) -> None:
    living = make_store("host-1")
    living.open()
    weak = make_store("host-2", weak_user)
    (warning,) = warnings_of(weak)
    assert "let all hosts use one user, or grant it CONNECTION ADMIN (MySQL: CONNECTION_ADMIN)" in warning
    assert f"session {living._owning_session_id}," in warning
    living.close()
    living.open()
    assert len(warnings_of(weak)) == 1, "another session may be another user's"


def test_a_host_that_may_end_the_owners_session_says_nothing(
    make_store: Open, weak_user: str, mysql_server: LocalServer
) -> None:
    living = make_store("host-1", weak_user)
    living.open()
    assert warnings_of(make_store("host-2")) == [], "its user may do anything"
    assert warnings_of(make_store("host-3", weak_user)) == [], "it is the same user"
    living.close()
    make_store("host-1").open()
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        privilege = "CONNECTION ADMIN" if "MariaDB" in cursor.fetchall()[0][0] else "CONNECTION_ADMIN"
        cursor.execute(f"GRANT {privilege} ON *.* TO {USER}@localhost")
    assert warnings_of(make_store("host-4", weak_user)) == [], "it may end sessions of others"


def test_a_user_kills_sessions_of_its_own(make_store: Open, weak_user: str) -> None:
    make_store("dead", weak_user).open()
    assert make_store("host-2", weak_user).open().epoch == 2


def test_a_session_that_is_gone_already_is_as_good_as_killed(make_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, store = make_store("dead"), make_store("host-2")
    dead.open()
    kill = store._kill

    def kill_twice(session_id: int, owner: str) -> None:
        kill(session_id, owner)
        kill(session_id, owner)
        kill(1 << 30, owner)

    monkeypatch.setattr(store, "_kill", kill_twice)
    assert store.open().epoch == 2


def test_a_lock_that_stays_taken_is_told_with_its_bound(make_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a large transaction of the killed session is rolled back."""
    monkeypatch.setattr(limits, "LOCK_WAIT_MS_MAX", 20)
    dead, store = make_store("dead"), make_store("host-2")
    dead.open()
    monkeypatch.setattr(store, "_kill", lambda session_id, owner: None)
    with pytest.raises(OwnershipLostError, match="not free within 20 ms"):
        store.open()
    assert not dead.is_session_lost()


def test_an_epoch_of_this_process_does_not_come_back_when_both_databases_went_back(
    make_store: Open, mysql_server: LocalServer
) -> None:
    """As with a promoted replica that was behind and a restored meta database: its keys were handed out."""
    store = make_store("host-1")
    epoch = store.open().epoch
    store.close()
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute("UPDATE shard_0.writer SET epoch = %s", (epoch - 1,))
        session.commit()
    store._take_epoch = lambda ask: EpochGiven(ask.at_least + 1, None)
    assert opened(store).epoch == epoch + 1


def opens(store: ShardStore) -> bool:
    """False if it said nothing for so long meanwhile that the server has ended its session."""
    try:
        store.open()
    except SessionLostError:
        return False
    return True


def test_the_server_ends_an_owners_session_that_says_nothing(
    make_store: Open, mysql_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_SILENT_MS_MAX", 1_000)
    silent = make_store("host-1")
    until_true(lambda: opens(silent))
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT GET_LOCK('putting-out', {PATIENCE_S})")
        assert cursor.fetchone() == (1,)
    assert silent.is_session_lost()
