"""Hosts that call each other in the world: over its network, with its delays and losses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foqs.cluster.homes import Reported
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import UnavailableError
from foqs.model.stocks import Pointer, Topic

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor, SimHost
    from tests.sim.world import World

_OF_ADMIN = frozenset(
    {
        "peek_items", "get_item", "delete_items", "list_dead_letters", "redrive_dead_letters", "purge_dead_letters",
        "plan_export", "export_items", "get_host_status",
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
            handed_on = CallContext(context.caller, peer=self._me, shards=context.shards)

            async def do(door: FakeDoor) -> Any:
                verbs = door.admin_verbs if verb in _OF_ADMIN else door.queue_verbs
                return await getattr(verbs, verb)(handed_on, *arguments)

            return await self._call(do)

        return call

    async def report(self, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
        found: Sequence[Pointer] = await self._tell(lambda host: host.host._routing._news.reported(self._me, stocks))
        return found

    async def seek(self, wishes: Mapping[Topic, int]) -> Sequence[Pointer]:
        found: Sequence[Pointer] = await self._tell(lambda host: host.host._routing._news.sought(self._me, wishes))
        return found

    async def hint(self, pointers: Sequence[Pointer]) -> None:
        await self._tell(lambda host: host.host._routing._news.hinted(pointers))

    async def _tell(self, work: Callable[[SimHost], Any]) -> Any:
        async def do(_: FakeDoor) -> Any:
            return work(self._host())

        return await self._call(do)

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        return await self._world.call(self._host(), work, limits.CALL_MS_MAX / 1000)

    def _host(self) -> SimHost:
        for host in self._world.hosts:
            if host.host.id == self.host_id:
                return host
        raise UnavailableError(f"host {self.host_id} is gone", nothing_done=True)
