"""Hosts that call each other in the world: over its network, with its delays and losses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foqs.cluster.homes import Reported
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.cluster import OpenedShard
from foqs.model.errors import HostUnreachableError, UnavailableError
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Topic

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor, SimHost
    from tests.sim.world import World

_HANDED_ON = " handed on"
"""Ends the caller's name at a host that was handed the call."""
_OF_ADMIN = frozenset(
    {
        "peek_items", "get_item", "delete_items", "list_dead_letters", "redrive_dead_letters", "purge_dead_letters",
        "plan_export", "export_items", "remove_shard", "get_host_status",
    }
)  # fmt: skip


class SimPeers:
    """In place of foqs.transport.peers.Peers."""

    def __init__(self, world: World, me: str, *_: Any) -> None:
        self._world = world
        self._me = me

    def get(self, host_id: str, address: str) -> Any:
        return SimRemote(self._world, self._me, host_id)

    def keep(self, host_ids: set[str]) -> None:
        return None

    async def stop(self) -> None:
        return None


class SimRemote:
    """In place of foqs.transport.remote_host.RemoteHost."""

    def __init__(self, world: World, me: str, host_id: str) -> None:
        self.host_id = host_id
        self._world = world
        self._me = me

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def call(context: CallContext, *arguments: Any) -> Any:
            if context.caller.endswith(_HANDED_ON):
                self._world.complain(f"{verb} of {context.caller} goes on to {self.host_id}, although it was handed on")
            handed_on = CallContext(context.caller + _HANDED_ON, peer=self._me, shards=context.shards)
            self._world.counts[f"handed on: {verb}"] += 1

            async def do(door: FakeDoor) -> Any:
                verbs = door.admin_verbs if verb in _OF_ADMIN else door.queue_verbs
                return await getattr(verbs, verb)(handed_on, *arguments)

            return await self._call(do)

        return call

    async def report(self, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
        found: Sequence[Pointer] = await self._tell(lambda host: host.host._routing._news.reported(self._me, stocks))
        return found

    async def announce(self, opened: Sequence[OpenedShard]) -> None:
        await self._tell(lambda host: host.host._routing._owner_news.heard(self._me, opened))

    async def seek(self, wishes: Mapping[Topic, int]) -> Sequence[Pointer]:
        found: Sequence[Pointer] = await self._tell(lambda host: host.host._routing._news.sought(self._me, wishes))
        return found

    async def ask(self, asks: Sequence[CapAsk]) -> Sequence[CapGrant] | None:
        found: Sequence[CapGrant] | None = await self._tell(lambda host: host.host._routing._caps.asked(self._me, asks))
        return found

    async def hint(self, pointers: Sequence[Pointer]) -> None:
        await self._tell(lambda host: host.host._routing._news.hinted(pointers))

    async def _tell(self, work: Callable[[SimHost], Any]) -> Any:
        async def do(_: FakeDoor) -> Any:
            return work(self._host())

        return await self._call(do)

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        """What was sent is done there, even if nobody waits any more."""
        world = self._world
        host = self._host()
        world.raising.before(self._me, self.host_id)
        if world.links.is_refused(self._me, self.host_id):
            raise HostUnreachableError(f"host {self.host_id} cannot be reached")
        sent = world.loop.create_task(self._sent(host, work), context=world.context)
        sent.add_done_callback(lambda task: task.cancelled() or task.exception(), context=world.context)
        try:
            async with asyncio.timeout(limits.CALL_MS_MAX / 1000):
                answer = await asyncio.shield(sent)
        except TimeoutError:
            raise UnavailableError(f"host {self.host_id} has not responded") from None
        world.raising.after()
        return answer

    async def _sent(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        links = self._world.links
        await links.passed(self._me, self.host_id)
        try:
            return await self._world.send(host, work, limits.CALL_MS_MAX / 1000)
        finally:
            await links.passed(self.host_id, self._me)

    def _host(self) -> SimHost:
        for host in self._world.hosts:
            if host.host.id == self.host_id:
                return host
        raise HostUnreachableError(f"host {self.host_id} is gone")
