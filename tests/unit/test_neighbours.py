"""What a host says of the others that it sees beat."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from foqs.cluster.members.neighbours import Neighbours
from foqs.model import limits
from foqs.model.cluster import HostRow

ME = HostRow("me#1", "", 1, 0)
"""It tells no address."""


class World:
    """The others beat as often as they are seen, but for those that are silent."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.me = ME
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self._neighbours = Neighbours(lambda: self.now_s)
        self._beats: dict[str, int] = {}

    def see(self, *others: HostRow, is_listening: bool = True) -> list[EventDict]:
        """Returns what is logged in two rounds, of which the first shows nobody's life yet."""
        with capture_logs() as logs:
            for _ in range(2):
                for other in others:
                    self._beats[other.id] = self._beats.get(other.id, 0) + (other.id not in self.silent)
                rows = [other._replace(beat_number=self._beats[other.id]) for other in others]
                self._neighbours.saw(self.me, [self.me, *rows], self.dead.__contains__, is_listening=is_listening)
                self.now_s += limits.HEARTBEAT_MS / 1000
        return list(logs)


@pytest.fixture
def world() -> World:
    return World()


def other(name: str, address: str = "") -> HostRow:
    return HostRow(f"{name}#7", address, 7, 0)


def test_a_host_without_an_address_says_so_as_soon_as_another_one_runs(world: World) -> None:
    assert world.see() == []
    (told,) = world.see(other("b", "b:1"), other("a", "a:1"))
    assert (told["event"], told["log_level"], told["others"]) == ("address_not_told", "error", ["a", "b"])
    assert "advertise_address" in told["problem"]
    assert world.see(other("b", "b:1"), other("a", "a:1")) == []
    (again,) = world.see(other("b", "b:1"))
    assert again["others"] == ["b"]
    world.now_s += limits.MINUTE_MS / 1000
    assert len(world.see(other("b", "b:1"))) == 1
    assert world.see() == []
    assert len(world.see(other("b", "b:1"))) == 1


def test_a_single_host_that_was_killed_and_started_again_is_no_cluster(world: World) -> None:
    world.silent = {"me#0"}
    assert world.see(HostRow("me#0", "", 0, 0)) == []


def test_a_host_that_dies_or_goes_is_no_neighbour_any_more(world: World) -> None:
    assert len(world.see(other("b"))) == 1
    world.silent, world.dead = {"b#7"}, {"b#7"}
    world.now_s += limits.MINUTE_MS / 1000
    assert world.see(other("b")) == []
    assert world.see(other("c")._replace(is_leaving=True)) == []


def test_a_host_that_tells_its_address_or_does_not_listen_yet_says_nothing(world: World) -> None:
    assert world.see(other("b"), is_listening=False) == []
    world.me = ME._replace(address="me:1")
    assert world.see(other("b")) == []


def test_a_name_that_two_processes_share_is_told_when_it_begins_and_once_a_minute(world: World) -> None:
    world.me = ME._replace(address="here:1")
    twin = HostRow("me#2", "there:1", 2, 0)
    (told,) = world.see(twin, other("b"))
    assert (told["event"], told["log_level"]) == ("host_name_shared", "error")
    assert (told["host_name"], told["others"]) == ("me", ["me#2 at there:1"])
    assert world.see(twin) == world.see(twin) == []
    (changed,) = world.see(twin._replace(address="there:2"))
    assert changed["others"] == ["me#2 at there:2"]
    world.now_s += limits.MINUTE_MS / 1000
    assert len(world.see(twin._replace(address="there:2"))) == 1
    assert world.see() == []
    assert len(world.see(twin)) == 1


def test_an_address_that_is_not_known_is_not_told_as_an_empty_one(world: World) -> None:
    world.me = ME._replace(address="here:1")
    (told,) = world.see(HostRow("me#2", "", 2, 0))
    assert told["others"] == ["me#2"]


def test_a_process_that_was_killed_and_left_its_row_shares_no_name(world: World) -> None:
    world.me, world.silent = ME._replace(address="here:1"), {"me#0"}
    assert world.see(HostRow("me#0", "here:1", 0, 0)) == []
