"""The census of namespaces on this host's shards, written to the meta database and checked for names it has lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.tasks import Tasks
from foqs.host.registry.held_topics import HeldTopics, topics_holding
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces, NamespaceView
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import limits
from foqs.model.census import NOTHING_HELD, Census, CensusAnswer
from foqs.model.errors import FoqsError
from foqs.model.namespace import number_in_use
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter

_log = structlog.get_logger(__name__)


class _Compared(NamedTuple):
    """A comparison of the names of a shard with all namespaces, and the conflicts found."""

    shard: ShardState
    view: NamespaceView
    names_count: int
    """The number of names, which identifies them because a shard adds names and never changes one."""
    conflicts: dict[str, FoqsError]

    def holds(self, shard: ShardState, view: NamespaceView) -> bool:
        """True if a comparison of this shard and view would find the same again."""
        is_same = self.shard is shard and self.view is view
        return is_same and self.names_count == len(shard.index.namespace_names)


class Censuses:
    """Implements foqs.host.registry.namespaces.OwnedShards, for `Namespaces` and the verbs that change namespaces.

    It owns the tasks in which this host's shards answer censuses.
    """

    def __init__(self, shards: Shards, slots: Slots, waiting: Waiting) -> None:
        self.unknown: dict[int, str] = {}
        """The names, by number, of namespaces that hold items here but are missing in the meta database."""
        self._shards = shards
        self._slots = slots
        self._waiting = waiting
        self._tasks = Tasks("census")
        self._answers: dict[tuple[int, int, int], asyncio.Task[bool]] = {}
        """The answers that are under way and that were given, by census, shard and epoch."""
        self._compared: dict[int, _Compared] = {}
        """The last comparison of each shard that is owned: a shard can have 20,000 names, and it is made twice a
        second.
        """
        self._outages: dict[int, OutageLog] = {}
        """The outage of each shard whose last answer failed: it is tried again twice a second."""

    def check_owns_any(self) -> None:
        self._shards.check_owns_any()

    def epochs(self) -> dict[int, int]:
        owned = {shard.shard_id: shard.epoch for _, shard in self._shards.owned()}
        return dict.fromkeys(self._shards.uses, 0) | owned

    def servers(self) -> dict[int, str]:
        """Return the server of each shard that this host serves."""
        return {writer.shard_id: writer.served_on for writer, _ in self._shards.owned()}

    def conflicts(self, view: NamespaceView) -> dict[str, FoqsError]:
        self._check_for_unknown(view)
        self._compared = {shard.shard_id: self._compare(shard, view) for _, shard in self._shards.owned()}
        found: dict[str, FoqsError] = {}
        for compared in self._compared.values():
            found |= compared.conflicts
        return found

    def _compare(self, shard: ShardState, view: NamespaceView) -> _Compared:
        before = self._compared.get(shard.shard_id)
        if before is not None and before.holds(shard, view):
            return before
        # Counted first, so that a name added meanwhile is compared the next time.
        names_count = len(shard.index.namespace_names)
        return _Compared(shard, view, names_count, self.conflicts_of(shard, view))

    def conflicts_of(self, shard: ShardState, view: NamespaceView) -> dict[str, FoqsError]:
        found: dict[str, FoqsError] = {}
        for number, name in shard.index.namespace_names.copy().items():
            namespace = view.by_number.get(number)
            if namespace is not None and not namespace.is_known_as(name):
                found[namespace.name] = number_in_use(namespace, name, shard.shard_id)
        return found

    def _check_for_unknown(self, view: NamespaceView) -> None:
        found: dict[int, str] = {}
        for _, shard in self._shards.owned():
            for number in shard.index.namespaces.copy().keys() - view.by_number.keys():
                items_count = shard.items_of(number) if shard.index.counted else 0
                if items_count <= 0:
                    continue
                found[number] = name = shard.index.namespace_names[number]
                if number not in self.unknown:
                    _log.error(
                        "unknown_namespace", number=number, name=name, shard=shard.shard_id, items_count=items_count
                    )
        self.unknown = found

    def name_of(self, number: int) -> str | None:
        """Return the name by which the shards here know the number, or None."""
        names = [shard.index.namespace_names.get(number) for _, shard in self._shards.owned()]
        return next((name for name in names if name is not None), None)

    def answer(self, censuses: Sequence[Census], namespaces: Namespaces) -> None:
        """Begin to answer for every shard that this host owns, once for each of its epochs."""
        open_ids = {census.id for census in censuses}
        for key, task in list(self._answers.items()):
            if key[0] not in open_ids:
                task.cancel()
                del self._answers[key]
            elif task.done() and (task.cancelled() or task.exception() is not None or not task.result()):
                del self._answers[key]
        for census in censuses:
            for writer, shard in self._shards.owned():
                key = (census.id, shard.shard_id, shard.epoch)
                if key not in self._answers:
                    self._answers[key] = self._tasks.spawn(self._answer(census, writer, shard, namespaces))

    async def answered(self, census: Census) -> None:
        """Return when all that can be answered here has been."""
        tasks = [task for key, task in self._answers.items() if key[0] == census.id]
        if tasks:
            await asyncio.wait(tasks, timeout=limits.CENSUS_MS_MAX / 1000)

    def check_healthy(self, shard_ids: Sequence[int]) -> None:
        """Raise UnavailableError if one of the shards is here and sick, because it will not answer soon."""
        for shard_id in shard_ids:
            if self._shards.serves(shard_id):
                self._shards.check_healthy(shard_id)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _answer(self, census: Census, writer: ShardWriter, shard: ShardState, namespaces: Namespaces) -> bool:
        """True if the answer is in the meta database; else it is tried again with the next refresh."""
        try:
            async with asyncio.timeout(limits.CENSUS_MS_MAX / 1000):
                if census.namespace or census.topic or census.closes:
                    await writer.counted.wait()
                await self._slots.ask(shard)
                fence = Answer(self._waiting)
                shard.ask_fence(census.namespace, fence)
                writer.wake()
                await fence.done
                answer = CensusAnswer(
                    shard.shard_id,
                    shard.epoch,
                    _count(census, shard, namespaces),
                    max(namespaces.number_max, max(shard.index.namespace_names, default=0)),
                    self._slots.version_max,
                    await _held(census, shard, namespaces) if census.closes else NOTHING_HELD,
                )
                await namespaces.run_in_lane(lambda meta: meta.censuses.answer(census, [answer]))
        except (FoqsError, TimeoutError) as error:
            self._not_answered(shard.shard_id, str(error) or "it took too long")
            return False
        self._outages.pop(shard.shard_id, None)
        return True

    def _not_answered(self, shard_id: int, reason: str) -> None:
        outage = self._outages.get(shard_id)
        if outage is None:
            outage = self._outages[shard_id] = OutageLog(asyncio.get_running_loop().time, "census_not_answered")
        outage.failed(reason, shard=shard_id)


async def _held(census: Census, shard: ShardState, namespaces: Namespaces) -> bytes:
    """Return a bit for each closed topic, prefix and slot: 1 if the shard holds items of it.

    The topics of the shard are read in slices, because their items are refused meanwhile.
    """
    found = HeldTopics(census, namespaces.settings)
    size = max(1, limits.TOPICS_PER_TICK_MAX // len(census.closes))
    async for topic, is_live in topics_holding(shard, census.topic_namespace, size):
        found.see(topic.namespace, topic.name, is_live=is_live)
    return found.bits()


def _count(census: Census, shard: ShardState, namespaces: Namespaces) -> int:
    """Count the items of the closed namespace, or of the topic.

    Items of another namespace under the same number are not counted.
    """
    number = census.topic_namespace if census.topic else census.namespace
    namespace = namespaces.view.by_number.get(number)
    name = shard.index.namespace_names.get(number)
    if namespace is None or name is None or not namespace.is_known_as(name):
        return 0
    if not census.topic:
        return shard.items_of(number)
    # An item whose dedup id is being checked can come later, with the copies of its groups at its enqueue.
    return int(shard.holds_topic(number, census.topic))
