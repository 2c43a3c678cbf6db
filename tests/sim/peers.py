"""Hosts that call each other in the world: over its network, with its delays and losses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import HostUnreachableError, UnavailableError
from foqs.model.principal import EVERYBODY
from foqs.transport.peers import GREET_AGAIN_MS, KNOWN_MS_MAX

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor, SimHost
    from tests.sim.world import World

_HANDED_ON = " handed on"
"""Ends the caller's name at a host that was handed the call."""
_MESSAGES = ("report", "seek", "hint")
"""What hosts tell each other by themselves."""


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

    async def call(self, context: CallContext, verb: str, request: Any) -> Any:
        if verb in _MESSAGES:
            return await self._tell(verb, request)
        if context.caller.endswith(_HANDED_ON):
            self._world.complain(f"{verb} of {context.caller} goes on to {self.host_id}, although it was handed on")
        handed_on = CallContext(context.caller + _HANDED_ON, peer=self._me, shards=context.shards, principal=EVERYBODY)
        self._world.counts[f"handed on: {verb}"] += 1
        return await self._call(lambda door: door.call(handed_on, verb, request))

    async def _tell(self, verb: str, request: Any) -> Any:
        """What hosts tell each other goes through the door of the one that is told."""
        self._world.heard_of_peer(self._me, self.host_id, verb, request)
        return await self._call(
            lambda door: door.call(CallContext("", peer=self._me, principal=EVERYBODY), verb, request)
        )

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        """What was sent is done there, even if nobody waits any more."""
        world = self._world
        host = self._host()
        world.raising.before(self._me, self.host_id)
        if world.links.is_refused(self._me, self.host_id):
            raise HostUnreachableError(f"host {self.host_id} cannot be reached")
        await self._until_known(host)
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

    async def _until_known(self, host: SimHost) -> None:
        """A host lets nobody in whom it does not know to live; one that has just started it knows soon."""
        until_s = self._world.loop.time() + KNOWN_MS_MAX / 1000
        while not host.door.is_living_peer(self._me, ""):
            if self._world.loop.time() >= until_s:
                raise HostUnreachableError(f"host {self.host_id} does not know that host {self._me} lives")
            await asyncio.sleep(GREET_AGAIN_MS / 1000)
        self._world.opens_to_peer(self._me, host)

    def _host(self) -> SimHost:
        for host in self._world.hosts:
            if host.host.id == self.host_id:
                return host
        raise HostUnreachableError(f"host {self.host_id} is gone")
