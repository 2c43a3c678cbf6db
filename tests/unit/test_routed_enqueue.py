"""Items with dedup ids whose shard another host has, or is about to have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.routing.routed_enqueue import RoutedEnqueue
from foqs.cluster.routing.router import Router
from foqs.cluster.routing.routes import Routes
from foqs.contract.requests import EnqueueRequest, NewItem
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import (
    FoqsError,
    HostUnreachableError,
    InvalidArgumentError,
    NoShardError,
    OverloadedError,
    RateLimitedError,
    ShardElsewhereError,
    UnavailableError,
)
from foqs.model.principal import EVERYBODY
from tests.support.audit import AUDIT_NOTHING

CONTEXT = CallContext("127.0.0.1", principal=EVERYBODY)
ITEM = NewItem(dedup_id="a")
SHARD = 7


class Host:
    """One that does what a test says."""

    def __init__(self, answer: Callable[[CallContext], FoqsError | None]) -> None:
        self.answer = answer
        self.host_id = ""
        self.contexts: list[CallContext] = []
        self.called = asyncio.Event()

    async def call(self, context: CallContext, verb: str, request: EnqueueRequest) -> EnqueueResult:
        assert verb == "enqueue"
        return await self.enqueue(context, request)

    async def enqueue(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        self.contexts.append(context)
        self.called.set()
        if (error := self.answer(context)) is not None:
            raise error
        return EnqueueResult([f"{self.host_id}-1" for _ in request.items])


def elsewhere(*, is_sick: bool = False) -> FoqsError:
    return ShardElsewhereError("not here", shard_id=SHARD, is_sick=is_sick, nothing_done=True)


class Room:
    def __init__(self, local: Host, **others: Host) -> None:
        self.owners, self.served = OwnerMap(me="me"), set[int]()
        for host_id, host in others.items():
            host.host_id = host_id
        local.host_id = "me"
        self.now_s = 0.0
        serving = SimpleNamespace(
            served=lambda: self.served, serves=lambda at: at in self.served, know=None, number_of=lambda name: 1,
            can_take=lambda name, shard_id: True,
        )  # fmt: skip
        peers = SimpleNamespace(get=lambda host_id, address: others[host_id])
        routes = Routes("me", self.owners, cast(Any, peers), cast(Any, serving))
        routed = RoutedEnqueue(local.enqueue, routes, lambda count: 0, lambda: self.now_s)
        table, ways = {"enqueue": local.enqueue}, {"enqueue": routed.enqueue}
        self.router = Router(table, table, ways, routes, self.owners, cast(Any, None), AUDIT_NOTHING)

    def owned_by(self, host_id: str, epoch: int = 1, *, is_moving: bool = False) -> None:
        self.owners.note([ShardOwner(SHARD, epoch, host_id, f"{host_id}:1", is_moving)])

    async def enqueue(self) -> EnqueueResult:
        result: EnqueueResult = await self.router.call(CONTEXT, "enqueue", EnqueueRequest("jobs", [ITEM]))
        return result


async def test_an_item_is_held_until_the_next_owner_of_its_shard_has_it() -> None:
    local, old, new = Host(lambda _: elsewhere()), Host(lambda _: elsewhere()), Host(lambda _: None)
    room = Room(local, old=old, new=new)
    room.owned_by("old")
    held = asyncio.create_task(room.enqueue())
    await old.called.wait()
    room.owned_by("new", epoch=2)
    assert (await held).ids == ["new-1"]
    assert len(new.contexts) == 1


async def test_an_item_is_held_until_this_host_has_its_shard() -> None:
    is_open = False
    local = Host(lambda _: None if is_open else elsewhere())
    room = Room(local, old=Host(lambda _: elsewhere()))
    room.owned_by("old")
    held = asyncio.create_task(room.enqueue())
    await local.called.wait()
    is_open, room.served = True, {SHARD}
    room.owned_by("me", epoch=2)
    assert (await held).ids == ["me-1"]


async def test_a_host_that_is_about_to_give_away_its_first_shard_holds_calls_too() -> None:
    local, new = Host(lambda _: elsewhere()), Host(lambda _: None)
    room = Room(local, new=new)
    room.owned_by("me")
    with pytest.raises(UnavailableError):
        await room.enqueue()  # There is nobody else.
    room.owned_by("me", is_moving=True)
    held = asyncio.create_task(room.enqueue())
    local.called.clear()
    await local.called.wait()
    room.owned_by("new", epoch=2)
    assert (await held).ids == ["new-1"]


async def test_an_item_is_held_no_longer_than_the_bound() -> None:
    old = Host(lambda _: elsewhere())
    room = Room(Host(lambda _: elsewhere()), old=old)
    room.owned_by("old")
    held = asyncio.create_task(room.enqueue())
    await old.called.wait()
    room.now_s = limits.ROUTE_WAIT_MS_MAX / 1000
    with pytest.raises(UnavailableError) as failed:
        await held
    assert failed.value.nothing_done


async def test_an_item_for_a_sick_shard_of_this_host_is_not_held() -> None:
    local = Host(lambda _: elsewhere(is_sick=True))
    room = Room(local, other=Host(lambda _: None))
    room.served = {SHARD}
    room.owners.note([ShardOwner(1, 1, "other", "other:1")])
    room.owned_by("me")
    with pytest.raises(UnavailableError):
        await room.enqueue()
    assert len(local.contexts) == 1


async def test_what_the_owner_may_have_done_is_not_tried_again() -> None:
    owner = Host(lambda _: UnavailableError("the connection broke"))
    room = Room(Host(lambda _: elsewhere()), owner=owner)
    room.owned_by("owner")
    with pytest.raises(UnavailableError) as failed:
        await room.enqueue()
    assert not failed.value.nothing_done
    assert len(owner.contexts) == 1


async def test_a_namespace_may_take_an_item_whose_owner_cannot_be_reached_and_may_be_dead() -> None:
    local = Host(lambda context: None if SHARD in context.away else elsewhere())
    room = Room(local, owner=Host(lambda _: HostUnreachableError("it refuses connections")))
    room.owned_by("owner")
    assert (await room.enqueue()).ids == ["me-1"]


async def test_an_item_that_its_namespace_does_not_take_without_the_owner_waits_for_the_next_one() -> None:
    is_dead = True
    local = Host(lambda _: elsewhere())
    owner = Host(lambda _: HostUnreachableError("it refuses connections") if is_dead else None)
    room = Room(local, owner=owner)
    room.owned_by("owner")
    held = asyncio.create_task(room.enqueue())
    while len(owner.contexts) < 3:
        owner.called.clear()
        await owner.called.wait()
    is_dead = False
    assert (await held).ids == ["owner-1"]
    assert local.contexts[0].away == frozenset()
    assert {context.away for context in local.contexts[1:]} == {frozenset({SHARD})}


@pytest.mark.parametrize(
    "refusal",
    [RateLimitedError("the quota is used up", retry_after_ms=60_000), InvalidArgumentError("no such priority")],
)
async def test_what_another_host_refuses_one_namespace_is_told_as_it_is_and_takes_no_room_from_others(
    refusal: FoqsError,
) -> None:
    refused: list[FoqsError] = [refusal]
    local = Host(lambda _: NoShardError("this host has no shard"))
    other = Host(lambda _: refused.pop() if refused else None)
    room = Room(local, other=other)
    room.owned_by("other")
    with pytest.raises(type(refusal)):
        await room.enqueue()
    assert (await room.enqueue()).ids == ["other-1"], "a call of another namespace, say"


async def test_a_host_that_has_no_room_is_left_alone_for_a_while() -> None:
    local, other = Host(lambda _: NoShardError("no shard")), Host(lambda _: OverloadedError("full", retry_after_ms=700))
    room = Room(local, other=other)
    room.owned_by("other")
    for now_s, calls_count in ((0.0, 1), (0.6, 1), (0.8, 2)):
        room.now_s = now_s
        with pytest.raises(OverloadedError):
            await room.enqueue()
        assert len(other.contexts) == calls_count
