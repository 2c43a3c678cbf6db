"""A host tells all others which shards it has opened, for as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership import owner_reports
from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.ownership.owner_reports import BOUNDS, OwnerReports
from foqs.model.cluster import HostRow, OpenedShard, ShardRow, ShardUse
from foqs.model.errors import UnavailableError
from tests.support.waiting import until

HOSTS = {"me": "me:1", "b": "b:1", "c": "c:1"}


class Hosts:
    """The other hosts: what each was told, and which of them cannot be reached, or do not answer."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[OpenedShard]]] = []
        self.away: set[str] = set()
        self.tries_count = 0
        self.answers = asyncio.Event()
        self.answers.set()

    def peer(self, host_id: str) -> Any:
        return SimpleNamespace(announce=partial(self._announce, host_id))

    async def _announce(self, host_id: str, opened: Sequence[OpenedShard]) -> None:
        self.tries_count += 1
        await self.answers.wait()
        if host_id in self.away:
            raise UnavailableError("it cannot be reached", nothing_done=True)
        self.told.append((host_id, list(opened)))

    def of(self, host_id: str) -> list[OpenedShard]:
        return [shard for told, some in self.told for shard in some if told == host_id]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def view_of(epochs: Mapping[int, int]) -> ClusterView:
    """What the meta database says of shards; nobody of HOSTS has one."""
    rows = {at: ShardRow(at, epoch, "", 0, "", ShardUse.SERVING, "", "", "", 0) for at, epoch in epochs.items()}
    hosts = {name: HostRow(name, address, 1, 1) for name, address in HOSTS.items()}
    return ClusterView("me", hosts, rows, is_settled=True)


@pytest.fixture
async def owners() -> OwnerMap:
    owners = OwnerMap()
    owners.refresh(view_of({2: 0, 3: 0}))
    return owners


@pytest.fixture
async def news(hosts: Hosts, owners: OwnerMap, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OwnerReports]:
    monkeypatch.setattr(owner_reports, "BOUNDS", BOUNDS._replace(retry_ms=1))
    news = OwnerReports("me", hosts.peer, owners, asyncio.get_running_loop().time)
    news.members(HOSTS, frozenset())
    await news.start()
    yield news
    await news.stop()


async def test_every_other_host_is_told_at_once_and_this_one_knows_it(
    news: OwnerReports, hosts: Hosts, owners: OwnerMap
) -> None:
    news.opened(OpenedShard(3, 7))
    assert owners.get(3) == ShardOwner(3, 7, "me", "me:1")
    await until(lambda: len(hosts.told) == 2)
    assert sorted(hosts.told) == [("b", [(3, 7)]), ("c", [(3, 7)])]


async def test_a_host_that_cannot_be_reached_is_told_once_it_can_and_holds_nobody_up(
    news: OwnerReports, hosts: Hosts
) -> None:
    hosts.away = {"b"}
    news.opened(OpenedShard(3, 7))
    await until(lambda: hosts.tries_count > 5)
    assert hosts.told == [("c", [(3, 7)])]
    hosts.away = set()
    await until(lambda: bool(hosts.of("b")))
    assert hosts.of("b") == [(3, 7)]


async def test_what_is_opened_while_a_host_is_told_is_told_after_that(news: OwnerReports, hosts: Hosts) -> None:
    hosts.answers.clear()
    news.opened(OpenedShard(3, 7))
    await until(lambda: hosts.tries_count == 2)
    news.opened(OpenedShard(3, 9))
    news.opened(OpenedShard(4, 2))
    hosts.answers.set()
    await until(lambda: len(hosts.told) == 4)
    assert hosts.of("b") == hosts.of("c") == [(3, 7), (3, 9), (4, 2)]


async def test_a_host_that_is_dead_is_told_no_more(news: OwnerReports, hosts: Hosts) -> None:
    hosts.away = {"b"}
    news.opened(OpenedShard(3, 7))
    await until(lambda: hosts.tries_count > 2)
    news.members({"me": "me:1", "c": "c:1"}, frozenset())
    await until(lambda: not len(news._courier))
    assert hosts.of("b") == []


async def test_a_host_that_leaves_is_not_told_and_what_it_opened_is_known(
    news: OwnerReports, hosts: Hosts, owners: OwnerMap
) -> None:
    news.reported("b", [OpenedShard(2, 1)])
    news.members(HOSTS, {"b"})
    news.opened(OpenedShard(3, 7))
    await until(lambda: not len(news._courier))
    assert hosts.told == [("c", [(3, 7)])]
    news.reported("b", [OpenedShard(2, 5)])
    assert owners.get(2) == ShardOwner(2, 5, "b", "b:1")


async def test_a_message_is_bounded(news: OwnerReports, hosts: Hosts) -> None:
    shards = [OpenedShard(shard_id, 1) for shard_id in range(BOUNDS.message_max + 1)]
    for shard in shards:
        news.opened(shard)
    await until(lambda: len(hosts.told) == 4)
    assert sorted(hosts.of("b")) == shards
    assert max(len(some) for _, some in hosts.told) == BOUNDS.message_max


async def test_what_was_known_of_a_later_epoch_stands_and_a_host_without_an_address_teaches_nothing(
    news: OwnerReports, owners: OwnerMap
) -> None:
    news.reported("b", [OpenedShard(3, 7)])
    news.reported("c", [OpenedShard(3, 6)])
    news.reported("stranger", [OpenedShard(3, 8)])
    assert owners.get(3) == ShardOwner(3, 7, "b", "b:1")


async def test_a_shard_that_is_opened_while_the_host_ends_is_told_to_nobody(news: OwnerReports, hosts: Hosts) -> None:
    """Nobody would end the telling any more."""
    hosts.away = {"b", "c"}
    news.opened(OpenedShard(3, 7))
    await until(lambda: hosts.tries_count > 1)
    await news.stop()
    tries_count = hosts.tries_count
    news.opened(OpenedShard(4, 8))
    await until(lambda: not len(news._tasks))
    assert hosts.tries_count == tries_count


async def test_what_the_meta_database_does_not_say_yet_is_told_again_until_it_does(
    news: OwnerReports, hosts: Hosts, owners: OwnerMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others believe it for a while only, and while nothing can be read there they hear it here."""
    monkeypatch.setattr(owner_reports, "ANNOUNCE_REPEAT_MS", 1)
    news.opened(OpenedShard(3, 7))
    await until(lambda: len(hosts.of("b")) > 2)
    owners.refresh(view_of({2: 0, 3: 6}))
    count = len(hosts.of("c"))
    await until(lambda: len(hosts.of("c")) > count)
    rows = {3: ShardRow(3, 7, "me", 0, "", ShardUse.SERVING, "", "", "", 0)}
    owners.refresh(view_of({})._replace(shards=rows))
    await until(lambda: not news._is_repeating)


async def test_a_shard_that_this_host_has_no_more_is_not_told_again(
    hosts: Hosts, owners: OwnerMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_reports, "ANNOUNCE_REPEAT_MS", 1)
    news = OwnerReports("me", hosts.peer, owners, asyncio.get_running_loop().time, lambda shard_id: False)
    news.members(HOSTS, frozenset())
    news.opened(OpenedShard(3, 7))
    await until(lambda: not news._is_repeating and not len(news._courier))
    assert hosts.of("b") == [(3, 7)]
