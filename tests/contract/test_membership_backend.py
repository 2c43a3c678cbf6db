"""What a membership promises, whatever it is kept by: in memory, in the meta database, in ZooKeeper."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Protocol

import pytest

from foqs.cluster.members.backends import zookeeper_backend
from foqs.cluster.members.backends.choice import membership_backend
from foqs.cluster.members.backends.meta_backend import MetaBackend
from foqs.cluster.members.view import MembershipBackend
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.errors import UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import FakeMeta
from foqs.testing.fake_meta_tables import MetaDatabase
from tests.support.waiting import PATIENCE_MS, PATIENCE_S
from tests.support.zookeeper import ZookeeperServer


class Room(Protocol):
    """Hosts of one cluster, and the server by which they find each other."""

    def backend(self) -> MembershipBackend: ...

    def outage(self) -> None:
        """From now on the server answers nobody."""

    def end_outage(self) -> None: ...


class MemoryRoom:
    def __init__(self) -> None:
        self._database = MetaDatabase(lambda: 1, random.Random(0))
        self._meta = FakeMeta(self._reach)
        self._is_away = False

    def _reach(self) -> MetaDatabase:
        if self._is_away:
            raise UnavailableError("the meta database is away")
        return self._database

    def backend(self) -> MembershipBackend:
        return MetaBackend(self._meta, self._meta)  # type: ignore[arg-type]

    def outage(self) -> None:
        self._is_away = True

    def end_outage(self) -> None:
        self._is_away = False


class MetaRoom:
    def __init__(self, server: LocalServer, url: str, closing: ExitStack) -> None:
        self._server = server
        self._url = url
        self._closing = closing

    def meta(self) -> MetaStore:
        meta = MetaStore(self._url)
        self._closing.callback(meta.close)
        return meta

    def backend(self) -> MembershipBackend:
        return MetaBackend(self.meta(), self.meta())

    def outage(self) -> None:
        self._session = self._server.connect("meta")
        self._closing.callback(self._session.close)
        with self._session.cursor() as cursor:
            cursor.execute("LOCK TABLES host WRITE")

    def end_outage(self) -> None:
        with self._session.cursor() as cursor:
            cursor.execute("UNLOCK TABLES")


class ZookeeperRoom:
    """`now_s` of its hosts goes on by a second each time that it is asked for.

    A slow round is an outage, as is a silent server or client; on a busy machine either is slow without one.
    """

    def __init__(self, server: ZookeeperServer, path: str, meta: Callable[[], MetaStore], closing: ExitStack) -> None:
        self._patch = closing.enter_context(pytest.MonkeyPatch.context())
        self._patch.setattr(zookeeper_backend, "SESSION_MS", PATIENCE_MS)
        self._patch.setattr(zookeeper_backend, "ROUND_MS_MAX", PATIENCE_MS)
        self._server = server
        self._url = server.url(path)
        self._meta = meta
        self._closing = closing
        self._seconds = count()

    def backend(self) -> MembershipBackend:
        backend = membership_backend(self._url, "foqs", self._meta(), lambda: float(next(self._seconds)), self._meta)
        self._closing.callback(backend.close)
        return backend

    def outage(self) -> None:
        self._patch.setattr(zookeeper_backend, "ROUND_MS_MAX", limits.BEAT_STATEMENT_MS_MAX)
        self._server.freeze()
        self._closing.callback(self._server.thaw)

    def end_outage(self) -> None:
        self._server.thaw()
        self._patch.setattr(zookeeper_backend, "ROUND_MS_MAX", PATIENCE_MS)


_paths = count()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("meta", marks=pytest.mark.database),
        pytest.param("zookeeper", marks=pytest.mark.database),
    ]
)
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    with ExitStack() as closing:
        if request.param == "memory":
            yield MemoryRoom()
            return
        meta = MetaRoom(request.getfixturevalue("mysql_server"), request.getfixturevalue("meta_url"), closing)
        if request.param == "meta":
            yield meta
            return
        server = request.getfixturevalue("zookeeper_server")
        yield ZookeeperRoom(server, f"/contract-{next(_paths)}", meta.meta, closing)


def row(name: str, beat_number: int = 1, *, is_leaving: bool = False) -> HostRow:
    return HostRow(name, f"{name}:7600", 17, beat_number, is_leaving, "gold", 2, peer_address=f"{name}:7601")


def joined(room: Room, name: str) -> MembershipBackend:
    backend = room.backend()
    backend.join(row(name))
    return backend


def others(backend: MembershipBackend, me: str, beat_number: int = 1) -> dict[str, HostRow]:
    return {found.id: found for found in backend.beat(row(me, beat_number)) if found.id != me}


def test_hosts_find_each_other_with_all_that_they_say_of_themselves(room: Room) -> None:
    one, two = joined(room, "one#1"), joined(room, "two#1")
    assert others(one, "one#1") == {}
    assert others(two, "two#1") == {"one#1": row("one#1")}
    assert others(one, "one#1", 2) == {"two#1": row("two#1")}


def test_a_heartbeat_is_seen_by_its_number_and_one_that_is_missing_leaves_the_row_as_it_was(room: Room) -> None:
    one, two = joined(room, "one#1"), joined(room, "two#1")
    two.beat(row("two#1", 5))
    for number in range(2, 6):
        one.beat(row("one#1", number))
        assert others(two, "two#1", number + 5)["one#1"].beat_number == number
    for number in range(20, 30):
        assert others(two, "two#1", number) == {"one#1": row("one#1", 5)}


def test_a_host_that_leaves_says_so_before_it_is_gone(room: Room) -> None:
    one, two = joined(room, "one#1"), joined(room, "two#1")
    one.beat(row("one#1"))
    assert others(two, "two#1") == {"one#1": row("one#1")}
    one.beat(row("one#1", 2, is_leaving=True))
    assert others(two, "two#1", 2) == {"one#1": row("one#1", 2, is_leaving=True)}
    one.leave(row("one#1", 2, is_leaving=True))
    for number in range(3, 6):
        assert others(two, "two#1", number) == {}


def test_a_host_that_has_ended_may_end_again_and_one_that_comes_back_under_its_name_is_another_one(room: Room) -> None:
    one, two = joined(room, "one#1"), joined(room, "two#1")
    one.leave(row("one#1"))
    one.beat(row("one#1", 2))
    assert others(two, "two#1") == {"one#1": row("one#1", 2)}
    one.leave(row("one#1"))
    one.leave(row("one#1"))
    again = joined(room, "one#2")
    again.beat(row("one#2"))
    assert others(two, "two#1", 2) == {"one#2": row("one#2")}


def test_a_name_may_have_any_character_that_names_of_hosts_have(room: Room) -> None:
    name = "A.b_c-D:7600" + "x" * 90 + "#mwvvtyuo"
    one, two = joined(room, name), joined(room, "two#1")
    one.beat(row(name))
    assert others(two, "two#1") == {name: row(name)}


def test_many_hosts_are_seen_at_once(room: Room) -> None:
    backends = {f"host-{number}#1": joined(room, f"host-{number}#1") for number in range(8)}
    for name, backend in backends.items():
        backend.beat(row(name))
    for name, backend in backends.items():
        assert others(backend, name, 2).keys() == backends.keys() - {name}


def test_what_is_not_answered_is_an_error_and_afterwards_nobody_is_missing(room: Room) -> None:
    one, two = joined(room, "one#1"), joined(room, "two#1")
    one.beat(row("one#1"))
    two.beat(row("two#1"))
    room.outage()
    for backend, name in ((one, "one#1"), (two, "two#1")):
        with pytest.raises(UnavailableError):
            backend.beat(row(name, 2))
    room.end_outage()
    found = _answered(two, "two#1")
    assert found["one#1"]._replace(beat_number=1) == row("one#1")
    assert _answered(one, "one#1").keys() == {"two#1"}


def _answered(backend: MembershipBackend, name: str) -> dict[str, HostRow]:
    """The first round that is, after an outage."""
    until_s = time.monotonic() + PATIENCE_S
    for number in count(3):
        try:
            return others(backend, name, number)
        except UnavailableError:
            assert time.monotonic() < until_s, "it does not come back"
            time.sleep(0.01)
    raise AssertionError("unreachable")


def test_what_was_never_joined_can_be_closed(room: Room) -> None:
    room.backend().close()
