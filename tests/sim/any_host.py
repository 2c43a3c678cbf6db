"""When all is well, any host does any call: what that promises is tried out on the hosts that a run has left.

An item that comes to one host reaches who waits at another one at once; what was fetched for a caller who has gone is
ready again long before its lease would end; a page of topics has each topic of all hosts once, and says what is
missing; what a lost response may have done is told as unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.cluster.homes import home_table
from foqs.model import limits
from foqs.model.calls import Delivery, PositionErrors, TopicPage
from foqs.model.errors import AlreadyExistsError, FoqsError, NotFoundError, UnavailableError
from foqs.model.item import Phase
from tests.histories.history import make_payload, uid_of

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import FakeDoor, SimHost

_SHARE = 0.4
"""Of the clusters: the trials take as long as the rest of a short run, or longer."""
_NAMESPACE = "any"
_HOSTS_MIN = 3
_REACH_S_MAX = 0.4
"""How long an item needs to a consumer that waits at any host; wishes are repeated every second."""
_AGAIN_S_MAX = 1.5
_LEASE_MS = 60_000
_WAIT_MS = 2_000
_ROUNDS = 2
_LOOK_S = 0.0001
_TOPICS = 7
_PAGE = 2
_CUT_SHARE = 0.3
_CUT_S = 1_000.0
_QUIET_S = 0.3
"""Epochs that the last trial used up are renewed by then."""
_PATIENCE_S = 20.0
"""A page waits for shards that are on their way, and then for a host that does not respond."""


class AnyHost:
    """The trials of one run, one after the other."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"any host {world.seed}")
        self._count = 0

    async def run(self, is_even: Callable[[], bool]) -> None:
        """`is_even` says whether all hosts have their share of the shards."""
        if self._chance.random() >= _SHARE:
            return
        world = self._world
        while len(world.ready) < _HOSTS_MIN:
            world.start_host()
            while not is_even():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # Nobody waits for anything that was.
        if not await self._know_each_other():
            world.complain(f"all is well, and hosts do not know each other after {_PATIENCE_S} s")
        try:
            await self._make_namespace()
            for _ in range(_ROUNDS):
                await self._reaches()
                await self._gone_caller()
            if self._chance.random() < _CUT_SHARE:
                await self._lost_acks()
                await self._lost_enqueues()
            await self._topics()
        except FoqsError as error:
            world.complain(f"all is well, and a call fails: {error!r}")
        await asyncio.sleep(_QUIET_S)

    async def _know_each_other(self) -> bool:
        """Wait until topics have the same homes for all hosts, none of which is suspected any more."""
        until_s = self._world.loop.time() + _PATIENCE_S
        while self._world.loop.time() < until_s:
            ids = {host.host.id for host in self._world.ready}
            if all(set(host.host._routing._topic_homes._home.hosts) == ids for host in self._world.ready):
                return True
            await asyncio.sleep(0.05)
        return False

    async def _make_namespace(self) -> None:
        """One host makes it, and another one knows it at once."""
        one, other, _ = self._some_hosts()
        settings = self._world.slots.some_settings()
        with suppress(AlreadyExistsError):
            await self._call(one, lambda door: door.admin.create_namespace(_NAMESPACE, settings))
        try:
            await self._call(other, lambda door: door.queue.dequeue(_NAMESPACE, [_demand("none")], None, 0))
        except NotFoundError as error:
            self._world.complain(f"{one.name} has made a namespace, and {other.name} says {error}")

    async def _reaches(self) -> None:
        """An item gets from any host to who waits at any other one, and is acked at a third."""
        one, other, third = self._some_hosts()
        topic, loop = self._new_topic(), self._world.loop
        waiting = asyncio.create_task(self._take(other, topic, _WAIT_MS))
        await asyncio.sleep(0.05 + self._chance.random())
        await self._put(one, [topic])
        put_s = loop.time()
        items = await waiting
        if not items or loop.time() - put_s > _REACH_S_MAX:
            what = f"an item of {one.name} reached who waits at {other.name}"
            self._world.complain(f"{what} after {loop.time() - put_s:.3f} s: {len(items)} items")
        await self._ack(third, items)

    async def _gone_caller(self) -> None:
        """The caller goes in the moment in which the item was leased to it, wherever that was."""
        world = self._world
        one, other, third = self._some_hosts()
        topic = self._new_topic()
        demands = [_demand(topic)]
        caller = world.loop.create_task(
            other.door.serve(lambda door: door.queue.dequeue(_NAMESPACE, demands, _LEASE_MS, _WAIT_MS)),
            context=other.process.context,
        )
        await asyncio.sleep(0.01)
        await self._put(one, [topic])
        while not self._is_leased() and not caller.done():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        caller.cancel()
        try:
            items = await caller
        except asyncio.CancelledError:
            began_s = world.loop.time()
            items = await self._take(third, topic, _WAIT_MS)
            if not items or world.loop.time() - began_s > _AGAIN_S_MAX:
                world.complain(f"a caller at {other.name} has gone, and its item came to {third.name} as {items}")
            world.counts["callers that went when an item had been leased to them"] += 1
        await self._ack(third, items)

    async def _lost_acks(self) -> None:
        """The responses of one host get lost on the way to another: what that one tells must be true."""
        one, other, third = self._some_hosts()
        topic = self._new_topic()
        for host in (one, other, third):
            await self._put(host, [topic] * 3)
        receipts = [item.receipt for item in await self._take_all(third, topic, 9)]
        self._lose_responses(other, one)
        errors: PositionErrors
        try:
            errors = await self._call(one, lambda door: door.queue.ack(_NAMESPACE, receipts))
        except FoqsError as failure:  # All of them were there.
            errors = dict.fromkeys(range(len(receipts)), failure)
        await self._heal()
        for at, error in errors.items():
            if not isinstance(error, UnavailableError) or error.nothing_done:
                self._world.complain(f"the response to an ack of {receipts[at]} was lost, and is told as {error!r}")
        again: PositionErrors = await self._call(one, lambda door: door.queue.ack(_NAMESPACE, receipts, True))
        if again:
            self._world.complain(f"acks are repeated after their responses were lost, and fail: {again}")

    async def _lost_enqueues(self) -> None:
        """Of what was written, no host may say that nothing was done."""
        one, other, third = self._some_hosts()
        topic = self._new_topic()
        items = [self._new_item(topic, f"{topic}-{number}") for number in range(12)]
        self._lose_responses(other, one)
        errors: dict[int, FoqsError] = {}
        try:
            errors = (await self._call(one, lambda door: door.queue.enqueue(_NAMESPACE, items, False))).errors
        except FoqsError as failure:
            errors = dict.fromkeys(range(len(items)), failure)
        await self._heal()
        written = {stored.uid for stored in self._world.stored()}
        for at, error in errors.items():
            uid = uid_of(items[at].payload)
            if uid in written and error.nothing_done:
                self._world.complain(f"{uid} was written, and {one.name} says that nothing was done: {error!r}")
        count = sum(uid_of(item.payload) in written for item in items)
        await self._ack(one, await self._take_all(third, topic, count))

    async def _heal(self) -> None:
        """Hosts that did not reach each other take one another for homes of topics again only after a while."""
        self._world.links.heal()
        await asyncio.sleep(home_table.SUSPECT_MS / 1000 + 1)

    def _lose_responses(self, sender: SimHost, receiver: SimHost) -> None:
        """For as long as a call of a peer may take, and a little more."""
        self._world.links.cut(sender.host.id, receiver.host.id, limits.CALL_MS_MAX / 1000 + 0.3)

    async def _topics(self) -> None:
        """Pages of the topics of all hosts, also when two hosts do not reach each other."""
        one, other, third = self._some_hosts()
        counts = {f"page-{number}": 1 for number in range(_TOPICS)}
        await self._put(one, list(counts))
        for host in (one, other, third):
            some = self._chance.sample(list(counts), _TOPICS // 2)
            await self._put(host, some)
            counts |= {name: counts[name] + 1 for name in some}
        await self._check_topics(one, counts, _PAGE)
        if self._chance.random() < _CUT_SHARE:
            there, away = one.host.id, other.host.id
            self._world.links.cut(there, away, _CUT_S)
            self._world.links.cut(away, there, _CUT_S)
            await self._check_topics(one, counts, _TOPICS + 1, is_cut=True)
            await self._check_whole_page(one, counts)
            await self._heal()
        for name, count in counts.items():
            await self._ack(self._chance.choice(self._world.ready), await self._take_all(third, name, count))

    async def _check_topics(
        self, host: SimHost, counts: Mapping[str, int], limit: int, *, is_cut: bool = False
    ) -> None:
        found: list[tuple[str, int]] = []
        token, missing = "", False
        while True:
            page = await self._page(host, limit, token, partial=True)
            found += [(topic.topic, topic.ready) for topic in page.topics]
            missing = missing or bool(page.missing)
            token = page.next_page_token
            if not token:
                break
        if missing:
            if not is_cut:
                self._world.complain(f"all is well, and {host.name} has pages without some hosts")
        elif found != list(counts.items()):
            self._world.complain(f"the pages of {host.name} are to show {counts}, and have {found}")

    async def _check_whole_page(self, host: SimHost, counts: Mapping[str, int]) -> None:
        """It fails, or is one."""
        with suppress(FoqsError):
            page = await self._page(host, _TOPICS + 1)
            if [(topic.topic, topic.ready) for topic in page.topics] != list(counts.items()):
                self._world.complain(f"a whole page of {host.name}, which does not reach a host, has {page.topics}")

    async def _page(self, host: SimHost, limit: int, token: str = "", *, partial: bool = False) -> TopicPage:
        page: TopicPage = await self._call(
            host, lambda door: door.queue.get_active_topics(_NAMESPACE, "page-", limit, token, partial)
        )
        return page

    # ---- calls ----

    def _some_hosts(self) -> list[SimHost]:
        return self._chance.sample(self._world.ready, 3)

    def _new_topic(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _is_leased(self) -> bool:
        """Nothing else is in the cluster."""
        return any(
            item.phase is Phase.LEASED
            for host in self._world.ready
            for _, shard in host.host._shards.owned()
            for item in shard.index.leases.values()
        )

    async def _call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        return await self._world.send(host, work, _PATIENCE_S)

    async def _put(self, host: SimHost, topics: Sequence[str]) -> None:
        items = [self._new_item(topic) for topic in topics]
        result = await self._call(host, lambda door: door.queue.enqueue(_NAMESPACE, items, False))
        if result.errors:
            self._world.complain(f"all is well, and an enqueue at {host.name} failed: {result.errors}")

    def _new_item(self, topic: str, dedup_id: str | None = None) -> NewItem:
        self._count += 1
        uid = f"any:{self._count}"
        if dedup_id is not None:
            self._world.dedup_ids[uid] = dedup_id
        return NewItem(topic, make_payload(uid, 40), dedup_id=dedup_id)

    async def _take_all(self, host: SimHost, topic: str, count: int) -> list[Delivery]:
        items: list[Delivery] = []
        while len(items) < count and (some := await self._take(host, topic, _WAIT_MS)):
            items += some
        if len(items) != count:
            self._world.complain(f"{count} items are in topic {topic}, and {len(items)} come to {host.name}")
        return items

    async def _take(self, host: SimHost, topic: str, wait_ms: int) -> list[Delivery]:
        demands = [_demand(topic)]
        items: list[Delivery] = await self._call(
            host, lambda door: door.queue.dequeue(_NAMESPACE, demands, _LEASE_MS, wait_ms)
        )
        return items

    async def _ack(self, host: SimHost, items: Sequence[Delivery]) -> None:
        receipts = [item.receipt for item in items]
        if receipts and (errors := await self._call(host, lambda door: door.queue.ack(_NAMESPACE, receipts))):
            self._world.complain(f"all is well, and an ack at {host.name} failed: {errors}")


def _demand(topic: str) -> Any:
    return SimpleNamespace(topic=topic, count=1, group=None)
