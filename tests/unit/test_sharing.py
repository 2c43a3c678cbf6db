"""What a host does with its shards after each round of its membership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar, cast
from unittest.mock import AsyncMock

import pytest

from foqs.cluster.members.membership import Membership
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership import sharing
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.ownership.sharing import DECLINE_MS, Sharing
from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.errors import UnavailableError
from tests.support.waiting import until

T = TypeVar("T")
ME, OTHER = "me#1", "other#1"


class Local:
    """Shards of this host, without anything behind them."""

    def __init__(self) -> None:
        self.shards_run: set[int] = set()
        self.shards_owned: set[int] = set()
        self.unreachable: set[int] = set()
        """Those whose servers this host cannot reach."""
        self.gained: list[int] = []
        """Those that it was told to own from now on."""
        self.lost: list[int] = []
        """Those that it was told to hand on, or not to try any more."""
        self.hurried: set[int] = set()
        self.epochs: dict[int, int] = {}
        self.places: dict[int, str] = {}

    @property
    def shards_awaited(self) -> set[int]:
        return self.shards_run - self.shards_owned - self.unreachable

    def knows_shards(self, rows: Collection[ShardRow], moving: Collection[int]) -> None:
        return None

    def place_of(self, shard_id: int) -> str:
        return self.places.get(shard_id, "")

    def knows_epochs(self, epochs: Mapping[int, int]) -> None:
        self.epochs = dict(epochs)

    def expect_shards(self, shard_ids: Collection[int]) -> None:
        return None

    def retry_now(self, shard_ids: Collection[int]) -> None:
        self.hurried = set(shard_ids)

    async def gain_shard(self, shard_id: int, place: str) -> None:
        self.gained.append(shard_id)
        self.shards_run.add(shard_id)

    async def lose_shard(self, shard_id: int) -> None:
        self.lost.append(shard_id)
        self.shards_run.discard(shard_id)
        self.shards_owned.discard(shard_id)


class Members:
    """In place of Membership: rounds come when a test says so."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.asked: dict[int, str] = {}
        self.declined: dict[int, str] = {}
        self.is_leaving = False

    def is_dead(self, host_id: str, epoch: int) -> bool:
        return host_id in self.dead

    def leave(self) -> None:
        self.is_leaving = True

    async def ask_for_shards(self, by_owner: Mapping[int, str]) -> None:
        self.asked.update(by_owner)

    async def decline_shards(self, by_heir: Mapping[int, str]) -> None:
        self.declined.update(by_heir)

    async def run_in_lane(self, work: Callable[[], T]) -> T:
        return work()


class Room:
    def __init__(self, shard_count: int = 2) -> None:
        self.local, self.members, self.now_s = Local(), Members(), 100.0
        self.owners = OwnerMap()
        self.sharing = Sharing(self.local, self.owners, cast(Membership, self.members), lambda: self.now_s)
        self.hosts = [ME, OTHER]
        self.leaving: set[str] = set()
        self.rows = {at: self.row(at, OTHER) for at in range(shard_count)}

    def row(self, shard_id: int, owner: str, moving_to: str = "") -> ShardRow:
        return ShardRow(shard_id, 1, owner, 0, f"mysql://db/{shard_id}", ShardUse.SERVING, "", "", moving_to, 0)

    async def round(self, *, is_settled: bool = True) -> None:
        rows = {name: HostRow(name, f"{name}:1", 1, 1, is_leaving=name in self.leaving) for name in self.hosts}
        rows[ME] = rows[ME]._replace(is_leaving=self.members.is_leaving)
        await self.sharing.refresh(ClusterView(ME, rows, dict(self.rows), is_settled))


@asynccontextmanager
async def running(room: Room) -> AsyncIterator[Room]:
    await room.round()
    await room.sharing.start()
    await room.round()
    try:
        yield room
    finally:
        await room.sharing.stop()


async def test_a_host_that_leaves_while_a_shard_is_on_its_way_to_it_hands_that_on_too() -> None:
    """It owns nothing yet; the owner has let go, and the lock may be its own by now."""
    async with running(Room()) as room:
        await until(lambda: bool(room.members.asked))
        (shard_id,) = room.members.asked
        leaving = asyncio.create_task(room.sharing.leave())
        await until(lambda: room.members.is_leaving)
        room.local.shards_owned = {shard_id}
        await room.round()
        assert not leaving.done()
        assert shard_id not in room.local.lost
        room.rows[shard_id] = room.row(shard_id, ME, moving_to=OTHER)
        await room.round()
        await until(lambda: shard_id in room.local.lost)
        assert not leaving.done(), "nobody has it yet"
        room.rows[shard_id] = room.row(shard_id, OTHER)
        await room.round()
        await leaving


async def test_a_host_that_has_nothing_leaves_at_once_and_says_so() -> None:
    """Else it is the home of topics as long as it drains, and its peers' reports keep it from its end."""
    async with running(Room(shard_count=0)) as room:
        await room.sharing.leave()
        assert room.members.is_leaving


async def test_a_host_that_is_alone_leaves_without_a_word_until_another_one_comes() -> None:
    room = Room(shard_count=0)
    room.hosts = [ME]
    async with running(room):
        await room.sharing.leave()
        await room.round()
        assert not room.members.is_leaving
        room.hosts = [ME, OTHER]
        await room.round()
        assert room.members.is_leaving


async def test_a_standby_that_drains_gets_nothing_when_an_owner_dies() -> None:
    """Nobody would be served: it takes no calls any more, and has the shard until it ends."""
    async with running(Room(shard_count=1)) as room:
        assert not room.local.shards_owned
        await room.sharing.leave()
        room.hosts = [ME, "third#1"]
        room.rows = {at: room.row(at, OTHER) for at in range(4)}
        await room.round()
        await until(lambda: not room.local.shards_run)
        await room.round()
        assert not room.local.shards_run
        assert not room.members.asked


async def test_a_host_that_ends_before_the_cluster_has_settled_asks_for_no_shard_while_it_drains() -> None:
    room = Room()
    await room.round(is_settled=False)
    await room.sharing.start()
    await room.round(is_settled=False)
    await room.sharing.leave()
    room.members.is_leaving = False  # The round that is under way was asked before.
    for _ in range(2):
        await room.round()
        await asyncio.sleep(0)
    assert not room.members.asked
    await room.sharing.stop()


async def test_a_host_that_ends_gains_nothing_by_a_round_that_was_asked_before() -> None:
    async with running(Room(shard_count=1)) as room:
        room.local.shards_run.clear()
        await room.sharing.leave()
        room.members.is_leaving = False
        room.hosts = [ME]
        await room.round()
        await asyncio.sleep(0)
        assert not room.local.shards_run


async def test_a_host_asks_for_no_shard_that_it_cannot_reach_and_for_the_next_one_instead() -> None:
    """The owner would hand it on, have nobody to take it, and take it again, over and over."""
    room = Room(shard_count=6)
    room.local.unreachable = set(room.rows)
    async with running(room):
        await room.round()
        assert not room.members.asked
        room.local.unreachable = set()
        await room.round()
        await until(lambda: bool(room.members.asked))
        ((first, _),) = room.members.asked.items()
        room.members.asked.clear()
        room.local.unreachable = {first}
        await room.round()
        await until(lambda: bool(room.members.asked))
        ((second, _),) = room.members.asked.items()
        assert second != first
        room.rows[second] = room.row(second, OTHER, moving_to=ME)
        room.local.unreachable = set()
        room.members.asked.clear()
        await room.round()
        assert not room.members.asked, "one is on its way"
        room.rows[second] = room.row(second, ME)
        room.local.shards_owned = {second}
        await room.round()
        await until(lambda: room.members.asked == {first: OTHER})


async def test_a_host_asks_one_that_leaves_for_all_shards_but_those_that_it_cannot_reach() -> None:
    room = Room(shard_count=4)
    room.leaving = {OTHER}
    room.local.unreachable = {2}
    async with running(room):
        await room.round()
        await until(lambda: bool(room.members.asked))
        assert room.members.asked.keys() == {0, 1, 3}


async def test_rounds_come_faster_while_a_shard_is_on_its_way_and_not_for_one_that_cannot_be_had() -> None:
    room = Room(shard_count=4)
    room.local.unreachable = set(room.rows)
    async with running(room):
        await room.round()
        assert not room.sharing.is_moving
        room.local.unreachable = set()
        await room.round()
        assert room.sharing.is_moving
        room.hosts = [ME]
        await room.round()
        assert not room.sharing.is_moving, "nobody has them whom it could ask"


async def test_a_shard_that_was_asked_for_before_the_plan_changed_is_on_its_way_no_more() -> None:
    """It would wait for its next owner until its next epoch, and so would slots that are to move to it."""
    room = Room(shard_count=1)
    room.hosts = [ME]
    room.rows = {0: room.row(0, ME, moving_to=OTHER)}
    room.local.shards_run, room.local.shards_owned = {0}, {0}
    async with running(room):
        await room.round()
        assert not room.members.declined, "who asks may know more than this host"
        room.now_s += DECLINE_MS / 1000
        await room.round()
        await until(lambda: room.members.declined == {0: OTHER})
        assert room.local.shards_owned == {0}


async def test_a_host_that_asks_anew_for_what_the_plan_gives_it_is_not_declined() -> None:
    room = Room(shard_count=2)
    room.rows = {at: room.row(at, ME) for at in range(2)}
    room.local.shards_run, room.local.shards_owned = {0, 1}, {0, 1}
    async with running(room):
        planned = {at: room.sharing._intent.planned[at] for at in room.rows}
        (shard_id,) = [at for at, target in planned.items() if target == OTHER]
        room.rows[shard_id] = room.row(shard_id, ME, moving_to=OTHER)
        room.now_s += DECLINE_MS / 1000
        await room.round()
        await until(lambda: room.local.lost == [shard_id])
        assert not room.members.declined


async def let_go(room: Room) -> None:
    """Shard 0 is this host's, the plan gives it to the other one, which asks for it, and this host lets go of it."""
    room.rows[0] = room.row(0, ME, moving_to=OTHER)._replace(pinned_to="other")
    room.local.shards_run, room.local.shards_owned = {0}, {0}
    await room.round()
    await until(lambda: room.local.lost == [0])


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lets go of a shard takes it again after a moment."""
    monkeypatch.setattr(sharing, "RELEASE_MS_MAX", 1)


@pytest.mark.usefixtures("_soon")
async def test_a_shard_that_its_next_owner_does_not_take_is_taken_again_though_no_round_is_answered() -> None:
    """The meta database has gone away since the round in which the host let go: nobody gets an epoch from it."""
    async with running(Room(shard_count=0)) as room:
        await let_go(room)
        await until(lambda: room.local.gained == [0])


@pytest.mark.usefixtures("_soon")
async def test_a_shard_whose_next_owner_has_told_of_itself_is_not_taken_again() -> None:
    async with running(Room(shard_count=0)) as room:
        room.owners.note([ShardOwner(0, 2, OTHER, "other:1")])
        await let_go(room)
        await until(lambda: not room.sharing._released)
        assert room.local.gained == []
        assert not room.sharing._works


async def test_a_shard_that_has_its_next_owner_is_waited_for_no_more() -> None:
    async with running(Room(shard_count=0)) as room:
        await let_go(room)
        assert room.sharing._released
        room.rows[0] = room.row(0, OTHER)._replace(pinned_to="other")
        await room.round()
        assert not room.sharing._released


@pytest.mark.usefixtures("_soon")
async def test_who_did_not_take_a_shard_gets_it_when_it_asks_anew() -> None:
    """It may reach no meta database while it beats elsewhere, and the shard would be let go of again and again."""
    async with running(Room(shard_count=0)) as room:
        await let_go(room)
        await until(lambda: room.local.gained == [0])
        room.local.shards_owned = {0}
        room.local.lost.clear()
        await room.round()
        await until(lambda: room.members.declined == {0: OTHER})
        assert room.local.lost == []
        # It asks in the moment in which it was refused: the row says the same as before.
        await room.round()
        await until(lambda: room.local.lost == [0])


@pytest.mark.usefixtures("_soon")
async def test_a_shard_that_was_not_taken_is_refused_until_the_meta_database_has_noted_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(Room(shard_count=0)) as room:
        await let_go(room)
        await until(lambda: room.local.gained == [0])
        room.local.shards_owned = {0}
        room.local.lost.clear()
        away = AsyncMock(side_effect=UnavailableError("the meta database is away"))
        monkeypatch.setattr(room.members, "decline_shards", away)
        for count in range(1, 4):
            await room.round()
            await until(lambda: away.await_count == count and room.sharing._declining.done())  # noqa: B023
        assert room.local.lost == []
        assert room.local.shards_owned == {0}


@pytest.mark.usefixtures("_soon")
async def test_a_host_that_ends_takes_a_shard_again_as_long_as_it_waits_for_others_and_not_later() -> None:
    async with running(Room(shard_count=0)) as room:
        room.rows[0] = room.row(0, ME)
        room.local.shards_run, room.local.shards_owned = {0}, {0}
        await room.round()
        leaving = asyncio.create_task(room.sharing.leave())
        await until(lambda: room.members.is_leaving)
        room.rows[0] = room.row(0, ME, moving_to=OTHER)
        await room.round()
        await until(lambda: room.local.gained == [0])
        room.local.shards_owned = {0}
        await room.round()
        await until(lambda: bool(room.members.declined))
        assert not leaving.done()
        room.now_s += sharing.LEAVE_MS_MAX / 1000
        await room.round()
        await leaving
        assert room.local.lost == [0, 0]
        await until(lambda: not room.sharing._released)
        assert room.local.gained == [0]


async def test_a_parked_shard_is_let_go_by_its_owner_and_wanted_by_nobody() -> None:
    async with running(Room(shard_count=1)) as room:
        room.rows[0] = room.row(0, ME)
        room.local.shards_run, room.local.shards_owned = {0}, {0}
        await room.round()
        assert room.local.lost == []
        room.local.gained.clear()
        room.rows[0] = room.rows[0]._replace(use=ShardUse.PARKED)
        await room.round()
        await until(lambda: room.local.lost == [0])
        await room.round()
        assert room.local.gained == []
        room.rows[0] = room.rows[0]._replace(use=ShardUse.SERVING)
        await room.round()
        await until(lambda: room.local.gained == [0])


async def test_a_shard_that_was_relocated_unseen_is_let_go_and_opened_at_its_new_place() -> None:
    """This host saw no round while the shard was parked, so it still has the former database."""
    async with running(Room(shard_count=1)) as room:
        room.rows[0] = room.row(0, ME)
        room.local.shards_run, room.local.shards_owned, room.local.places = {0}, {0}, {0: "mysql://db/0"}
        room.local.gained.clear()
        await room.round()
        room.rows[0] = room.rows[0]._replace(place="mysql://new/0")
        await room.round()
        assert room.local.lost == [], "names of one server can differ"
        room.rows[0] = room.rows[0]._replace(is_relocated=True)
        await room.round()
        await until(lambda: room.local.lost == [0])
        await until(lambda: not room.sharing._works)
        await room.round()
        await until(lambda: room.local.gained == [0])


async def test_a_shard_that_was_parked_since_this_host_let_it_go_is_not_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "RELEASE_MS_MAX", 100)
    async with running(Room(shard_count=0)) as room:
        await let_go(room)
        room.rows[0] = room.rows[0]._replace(use=ShardUse.PARKED, moving_to="")
        await room.round()
        await until(lambda: not room.sharing._released)
        assert room.local.gained == []
