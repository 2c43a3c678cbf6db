"""The background purge of deleted consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.exports import Exports
from foqs.host.verbs.inspection import Inspection
from foqs.model import limits
from foqs.model.errors import FoqsError, PausedError
from foqs.model.groups import TopicGroup
from foqs.model.namespace import Namespace
from foqs.shard.state.engine import ShardState

PURGE_PAUSE_MS = 2 * limits.SECOND_MS
"""The pause between two rounds over the deleted groups."""
FORGET_PAUSE_MS = 30 * limits.SECOND_MS
"""The pause between two questions to all shards if they hold no items of a deleted group."""
FORGETS_AT_ONCE = 8
"""The most deleted groups that one round forgets. Each is a question to all shards, which can take seconds."""

_log = structlog.get_logger(__name__)


class GroupPurge(Service):
    """Deletes the items of deleted groups on the shards of this host, a page at a time, and forgets empty groups.

    It acts on a group that is known to be deleted, and never on a missing one: a meta database that was restored from
    an older state must not delete items. One host alone forgets groups, the owner of the first shard, after all shards
    have reported that they hold no items. It does so beside the purge, which waits for no other host.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        exports: Exports,
        inspection: Inspection,
        group_calls: GroupCalls,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic."""
        super().__init__("group-purge")
        self._namespaces = namespaces
        self._shards = shards
        self._exports = exports
        self._inspection = inspection
        self._group_calls = group_calls
        self._now_s = now_s
        self._asked_s: dict[tuple[int, str], float] = {}
        """When all shards were last asked for the items of a deleted group, by namespace and hidden name."""
        self._silent_until_s = float("-inf")
        """The end of the pause of all questions after one that a shard has not answered."""

    async def _start(self) -> None:
        outage = OutageLog(self._now_s, "group_purge_waits", "group_purge_goes_on")
        self._tasks.repeat(lambda: asyncio.sleep(PURGE_PAUSE_MS / 1000), self._purge, outage=outage)
        outage = OutageLog(self._now_s, "group_forget_waits", "group_forget_goes_on")
        self._tasks.repeat(lambda: asyncio.sleep(PURGE_PAUSE_MS / 1000), self._forget, outage=outage)

    async def _purge(self) -> None:
        """Delete the items of deleted groups on the shards of this host.

        A shard that is sick keeps no other one waiting. Raises the first error of a shard at the end.
        """
        failures: list[FoqsError] = []
        async for namespace, group in self._deleted():
            for shard_id in self._holders(namespace, group):
                try:
                    await self._purge_shard(namespace, shard_id, group)
                except FoqsError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    async def _deleted(self) -> AsyncIterator[tuple[Namespace, TopicGroup]]:
        """Yield the deleted groups of all namespaces."""
        for number, of_namespace in list(self._namespaces.settings.groups.items()):
            for name in of_namespace.deleted:
                await asyncio.sleep(0)  # There can be 10,000 of a namespace.
                namespace = self._namespaces.view.by_number.get(number)
                if namespace is None:
                    break
                yield namespace, of_namespace.by_name[name]

    def _holders(self, namespace: Namespace, group: TopicGroup) -> list[int]:
        """Return the shards of this host that hold items of the group, or might."""
        owned = self._shards.owned()
        return [shard.shard_id for _, shard in owned if _holds(shard, namespace.number, group.hidden_name)]

    async def _purge_shard(self, namespace: Namespace, shard_id: int, group: TopicGroup) -> None:
        after_key, deleted_count = 0, 0
        while True:
            keys, after_key = await self._exports.keys_of_topic(shard_id, namespace, group.hidden_name, after_key)
            # Checked behind the read: a group that was created again meanwhile has new items, which this host made.
            if not self._is_still_deleted(namespace, group):
                break
            if keys:
                errors = await self._inspection.delete_keys(namespace, shard_id, keys)
                deleted_count += len(keys) - len(errors)
            if not after_key:
                break
        if deleted_count:
            _log.info(
                "group_purged",
                namespace=namespace.name,
                topic=group.topic,
                group=group.group,
                shard=shard_id,
                count=deleted_count,
            )

    def _is_still_deleted(self, namespace: Namespace, group: TopicGroup) -> bool:
        known = self._namespaces.settings.groups.get(namespace.number)
        return known is not None and known.by_name.get(group.hidden_name) == group

    async def _forget(self) -> None:
        """Forget some deleted groups that this host holds no items of, if all shards are without them.

        The group "" stays closed. Raises the error of a shard that does not answer; then all wait, because it
        would not answer for the others, either.
        """
        now_s = self._now_s()
        is_mine = bool(self._shards.uses) and self._shards.serves(min(self._shards.uses))
        if not is_mine or now_s < self._silent_until_s:
            return
        wanted: list[tuple[Namespace, TopicGroup]] = []
        known: set[tuple[int, str]] = set()
        async for namespace, group in self._deleted():
            key = (namespace.number, group.hidden_name)
            known.add(key)
            is_due = now_s - self._asked_s.get(key, float("-inf")) >= FORGET_PAUSE_MS / 1000
            if len(wanted) < FORGETS_AT_ONCE and group.group and is_due and not self._holders(namespace, group):
                wanted.append((namespace, group))
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key in known}
        self._asked_s |= {(namespace.number, group.hidden_name): now_s for namespace, group in wanted}
        failures = await asyncio.gather(*[self._forget_one(namespace, group) for namespace, group in wanted])
        for failure in failures:
            if failure is not None:
                self._silent_until_s = self._now_s() + FORGET_PAUSE_MS / 1000
                raise failure

    async def _forget_one(self, namespace: Namespace, group: TopicGroup) -> FoqsError | None:
        try:
            await self._group_calls.forget(namespace.name, group.topic, group.group)
        except PausedError:
            return None  # Other shards still hold some.
        except FoqsError as error:
            return error
        return None


def _holds(shard: ShardState, number: int, name: str) -> bool:
    """True if the shard has items of the topic, or can have some because its rows are not counted yet."""
    topic = shard.index.topics.get((number, name))
    return topic is not None and not (shard.index.counted and not topic.holds_any)
