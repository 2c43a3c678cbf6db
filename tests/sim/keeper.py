"""The operator of the simulated cluster: creates, changes and deletes namespaces, and recovers those that are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.model import limits
from foqs.model.errors import AlreadyExistsError, FoqsError
from foqs.model.namespace import SETTINGS_OF_CREATION, NamespaceSettings
from tests.sim.clients import OTHERS
from tests.sim.host import FakeDoor

if TYPE_CHECKING:
    from tests.sim.world import World

_LOOK_S = 0.1
"""How often the operator looks whether something is to be done."""


class Keeper:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._chance.expovariate(1 / _LOOK_S))
            await self.recover()
            await self._change()

    async def recover(self) -> None:
        """Bring back every namespace that a shard has items of and the meta database has lost."""
        world = self._world
        known = {namespace.number for namespace in world.meta.tables.namespaces.values()}
        for number, name in world.namespaces_stored().items():
            if number in known:
                continue
            settings = world.slots.settings[number]
            try:
                await self._call(partial(_recover, number, None, settings))
                world.counts["namespaces recovered"] += 1
            except AlreadyExistsError:
                other = f"r{number}"
                world.aliases[other] = name
                await self._quietly(partial(_recover, number, other, settings))
            except FoqsError as error:
                world.trace("keeper", f"failed: {error!r}")

    async def _change(self) -> None:
        chance = self._chance
        name = chance.choice(OTHERS)
        works: list[Callable[[FakeDoor], Awaitable[Any]]] = [
            lambda door: door.admin.create_namespace(name, self._world.slots.some_settings()),
            lambda door: door.admin.delete_namespace(name),
            lambda door: door.admin.update_namespace(
                name, SimpleNamespace(enqueue_paused=chance.random() < 0.3, batch_items_max=chance.choice([3, 1_000]))
            ),
        ]
        kind = chance.choices(range(3), [3, 2, 1])[0]
        if await self._quietly(works[kind]):
            self._world.counts[f"namespaces {('created', 'deleted', 'changed')[kind]}"] += 1

    async def _quietly(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> bool:
        """Whether it was done, as far as is known."""
        try:
            await self._call(work)
        except FoqsError as error:
            self._world.trace("keeper", f"failed: {error!r}")
            return False
        return True

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> None:
        host = self._world.pick_host(self._chance)
        if host is None:
            raise NotSentError("no host listens")
        await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)


async def _recover(number: int, name: str | None, settings: NamespaceSettings, door: FakeDoor) -> None:
    """With those settings by which its ids are found again."""
    given = {setting: getattr(settings, setting) for setting in SETTINGS_OF_CREATION}
    if settings.tier:
        given["tier"] = settings.tier
    await door.admin.recover_namespace(number, name, SimpleNamespace(**given))
