"""Namespaces created, deleted and recovered, slots made: calls that need the answers of all shards of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from foqs.background.tasks import Tasks
from foqs.host.registry.censuses import Censuses
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.census import Census
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.slots import SlotTable
from foqs.storage.meta.meta_store import MetaStore

CENSUS_POLL_MS = 50
"""The pause between two reads of the responses of the owners of all shards."""

T = TypeVar("T")


class NamespaceCalls:
    """Does the verbs that create, delete and recover namespaces. `Admin` calls it.

    A call that needs the slot table and finds none calls it too: simultaneous calls share one try to make it.
    """

    def __init__(self, namespaces: Namespaces, censuses: Censuses, slots: Slots, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` is the time of day."""
        self._namespaces = namespaces
        self._censuses = censuses
        self._slots = slots
        self._tasks = Tasks("slots")
        self._slots_task: asyncio.Task[None] | None = None
        """The slot table is being made for several calls, each of which can give up."""
        self._calls = namespaces.calls
        self._wall_ms = wall_ms

    async def create(self, name: str, settings: NamespaceSettings, prefixes: Sequence[str] = ()) -> Namespace:
        """Create the namespace under a number that no shard has ever seen.

        If `prefixes` are given, there has to be room under one of these.
        """
        self._namespaces.require_durable()
        census = await self._calls.run(lambda meta: meta.namespaces.begin_creation(name, prefixes))

        def finish(meta: MetaStore) -> Namespace | list[int]:
            return meta.namespaces.finish_creation(census, name, settings, self._wall_ms())

        return await self.finish(census, finish, f"namespace {name!r} was not created")

    async def delete(self, name: str) -> None:
        """Close the namespace, and delete it once every shard has reported that it holds no item of it.

        Raises InvalidArgumentError when one does, UnavailableError when one does not answer; then it is open again.
        """
        self._namespaces.require_durable()
        census = await self._calls.run(lambda meta: meta.namespaces.begin_deletion(name))
        await self.finish(
            census, lambda meta: meta.namespaces.finish_deletion(census, name) or None, f"namespace {name!r} was kept"
        )

    async def recover(self, number: int, name: str, settings: NamespaceSettings) -> Namespace:
        """Bring back a namespace that the shards here have items of and the meta database has lost.

        With its name, or another one if `name` is given. Raises NotFoundError when no shard here knows the number.
        """
        self._namespaces.require_durable()
        if not 1 <= number <= limits.NAMESPACE_NUMBER_MAX:
            raise InvalidArgumentError(f"number {number} is not within 1..{limits.NAMESPACE_NUMBER_MAX}")
        known = self._censuses.name_of(number)
        if known is None:
            raise NotFoundError(
                f"no shard of this host has items of a lost namespace with number {number}: ask the host alone that "
                "has it in its log (unknown_namespace)"
            )
        recovered = await self._calls.run(
            lambda meta: meta.namespaces.recover(number, name or known, known, settings, self._wall_ms())
        )
        await self._namespaces.refresh()
        return recovered

    async def slots(self) -> SlotTable:
        """The slot table, which is made over all shards of the cluster if none exists yet.

        Raises UnavailableError while the meta database or the owner of a shard does not answer.
        """
        while not self._slots.table.version:
            if self._slots_task is None or self._slots_task.done():
                self._slots_task = self._tasks.lend(self._make_slots())
            await asyncio.shield(self._slots_task)
        return self._slots.table

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _make_slots(self) -> None:
        self._namespaces.require_durable()
        census = await self._calls.run(lambda meta: meta.slots.begin())

        def finish(meta: MetaStore) -> list[int] | None:
            return meta.slots.finish(census) or None

        await self.finish(census, finish, "the slot table was not made")
        await self._namespaces.refresh()

    async def finish(self, census: Census, finish: Callable[[MetaStore], T | list[int]], failure: str) -> T:
        """Try until `finish` returns no list of shards that have not answered, and return its result.

        A failure ends the census. `failure` is the text of the error for that.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.CENSUS_MS_MAX / 1000
        try:
            # This host's shards answer at once, and the others' after their next refresh.
            await self._namespaces.refresh()
            await self._censuses.answered(census)
            while isinstance(result := await self._calls.run(finish), list):
                self._censuses.check_healthy(result)
                if loop.time() > until_s:
                    raise UnavailableError(
                        _silent(result, failure), retry_after_ms=limits.META_CALLS_RETRY_MS, nothing_done=True
                    )
                await asyncio.sleep(CENSUS_POLL_MS / 1000)
        except FoqsError:
            with suppress(FoqsError):  # It expires.
                await self._calls.run(lambda meta: meta.censuses.end(census))
                await self._namespaces.refresh()
            raise
        # It is done, and known here at once if the meta database still answers.
        with suppress(UnavailableError):
            await self._namespaces.refresh()
            await self._slots.kept()
        return result


def _silent(shards: list[int], failure: str) -> str:
    """`shards` are many when a host is unreachable, and then the first ones show their owner."""
    shown = ", ".join(map(str, shards[:10])) + (", ..." if len(shards) > 10 else "")
    return (
        f"the owner of shard {shown} has not answered within {limits.CENSUS_MS_MAX} ms, and that is needed to know all "
        f"its namespaces and items: {failure}; see that a host of this version serves it, and try again"
    )
