"""What a host says of shards that it has opened is believed for 3 s; then only what the meta database says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from structlog.testing import capture_logs

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_claims import CLAIM_MS, EPOCHS_AHEAD_MAX, READ_MS
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.model.cluster import HostRow, OpenedShard, ShardRow, ShardUse

CLAIM_S = CLAIM_MS / 1000
HOSTS = ("a", "b", "c")


class World:
    """The map of host a, which learns of shards that c has; b is the host that claims some."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.owners = OwnerMap(lambda: self.now_s)
        self.look({1: 5})

    def look(self, epochs: Mapping[int, int], hosts: Iterable[str] = HOSTS, owner: str = "c") -> None:
        rows = {at: ShardRow(at, epoch, owner, 0, "", ShardUse.SERVING, "", "", "", 0) for at, epoch in epochs.items()}
        living = {name: HostRow(name, f"{name}:1", 1, 1) for name in hosts}
        self.owners.refresh(ClusterView("a", living, rows, is_settled=True))

    def claim(self, epoch: int, shard_id: int = 1, host: str = "b") -> list[str]:
        """Returns what was logged."""
        with capture_logs() as logs:
            self.owners.claim(host, f"{host}:1", [OpenedShard(shard_id, epoch)])
        return [entry["event"] for entry in logs]

    def owner(self, shard_id: int = 1) -> str:
        found = self.owners.get(shard_id)
        return "" if found is None else found.host_id


@pytest.fixture
def world() -> World:
    return World()


def test_a_claim_is_believed_at_once_and_confirmed_by_the_meta_database(world: World) -> None:
    world.claim(6)
    assert world.owners.get(1) == ShardOwner(1, 6, "b", "b:1")
    world.look({1: 6}, owner="b")
    world.now_s += 60
    assert world.owner() == "b"
    assert not len(world.owners.claims)


def test_a_claim_that_is_never_confirmed_ends_and_that_is_logged_and_counted(world: World) -> None:
    world.claim(6)
    world.now_s += CLAIM_S - 0.001
    assert world.owner() == "b"
    world.now_s += 0.001
    version = world.owners.version
    with capture_logs() as logs:
        assert world.owner() == "c"
    assert world.owners.version > version, "whoever waits hears of it"
    (entry,) = logs
    assert (entry["event"], entry["peer"], entry["shard"], entry["epoch"]) == ("owner_claim_ended", "b", 1, 6)
    assert world.owners.claims.counts["unconfirmed"] == 1


def test_what_the_meta_database_says_counts_although_it_is_less(world: World) -> None:
    world.look({1: 4})
    assert world.owners.get(1) == ShardOwner(1, 4, "c", "c:1")


@pytest.mark.parametrize("epoch", [5 + EPOCHS_AHEAD_MAX + 1, 1 << 62])
def test_an_epoch_far_above_that_of_the_meta_database_is_refused(world: World, epoch: int) -> None:
    assert world.claim(epoch) == ["peer_claim_refused"]
    assert world.owner() == "c"
    assert world.owners.claims.counts["refused"] == 1
    assert world.claim(5 + EPOCHS_AHEAD_MAX) == []
    assert world.owner() == "b"


def test_a_shard_that_there_is_not_is_refused(world: World) -> None:
    assert world.claim(1, shard_id=9) == ["peer_claim_refused"]
    assert world.owner(9) == ""
    world.look({1: 5, 9: 0})
    world.claim(1, shard_id=9)
    assert world.owner(9) == "b"


def test_a_claim_of_an_epoch_that_is_known_already_is_nothing(world: World) -> None:
    for epoch in (4, 5):
        assert world.claim(epoch) == []
        assert world.owner() == "c"


def test_the_host_itself_says_that_it_does_not_have_the_shard(world: World) -> None:
    world.claim(6)
    world.owners.disowned(1, "c")
    assert world.owner() == "b", "c says nothing of what b has claimed"
    world.owners.disowned(1, "b")
    assert world.owner() == "c"
    world.owners.disowned(1, "c")
    assert world.owner() == "c", "the meta database says so"


def test_who_says_it_again_and_again_is_believed_no_longer(world: World) -> None:
    believed_s = 0.0
    for step in range(1_000):
        world.claim(6 + step)
        world.look({1: 5})
        believed_s += 0.1 if world.owner() == "b" else 0.0
        world.now_s += 0.1
    assert believed_s <= CLAIM_S + READ_MS / 1000 + 0.2
    assert world.claim(3_000) == ["peer_claim_refused"]


def test_while_nothing_can_be_read_a_host_that_goes_on_saying_it_is_believed(world: World) -> None:
    for _ in range(100):
        world.claim(6)
        world.now_s += CLAIM_S / 2
        assert world.owner() == "b"
    world.look({1: 6}, owner="b")
    assert world.owner() == "b"


def test_who_was_wrong_of_a_shard_may_be_right_once_it_has_another_epoch(world: World) -> None:
    world.claim(6)
    world.now_s += CLAIM_S
    world.look({1: 5})
    assert world.claim(6) == ["peer_claim_refused"]
    assert world.owner() == "c"
    world.look({1: 7})
    world.claim(8)
    assert world.owner() == "b"


def test_of_two_claims_that_of_the_later_epoch_is_believed(world: World) -> None:
    world.claim(7)
    world.claim(6, host="c")
    assert world.owner() == "b"
    world.claim(8, host="c")
    assert world.owner() == "c"


def test_what_this_host_has_opened_itself_stands_while_the_meta_database_is_away(world: World) -> None:
    world.owners.note([ShardOwner(1, 6, "a", "a:1")])
    world.now_s += 600
    assert world.owner() == "a"
    world.look({1: 5})
    assert world.owner() == "c", "it was read long after, and says something else"


def test_a_removed_shard_is_nobodys(world: World) -> None:
    world.claim(6)
    world.look({})
    assert world.owner() == ""


def test_nothing_is_kept_of_hosts_that_live_no_more(world: World) -> None:
    world.claim(6)
    world.look({1: 5}, hosts=("a", "c"))
    assert not world.owners.claims._first_s
