"""Consumer groups declared and deleted: calls that return once the owners of all shards follow."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.model.groups import TopicGroup


class GroupCalls:
    """Does the verbs that declare and delete groups. It owns nothing.

    The meta database stores the change and opens a census in one transaction. An owner of a shard reads the census
    before the groups, and answers it after a commit, so that each item that is enqueued later has the new copies.
    """

    def __init__(self, namespaces: Namespaces, namespace_calls: NamespaceCalls) -> None:
        self._namespaces = namespaces
        self._namespace_calls = namespace_calls

    async def create(self, namespace_name: str, wanted: TopicGroup, prefixes: Sequence[str] = ()) -> TopicGroup:
        """Declare a group. Each item that is enqueued after the return has a copy in it.

        `prefixes` are those of `check_room_for_copy`. The group "" needs the answers of all shards as others do: hosts
        that still know it as deleted make no copy.

        Raises UnavailableError if the owner of a shard does not follow: the group is declared then, and the same call
        continues. Raises the errors of `GroupBook.create`.
        """
        self._namespaces.require_durable()
        await self.forget(namespace_name, wanted.topic, wanted.group)
        change = await self._namespaces.calls.run(lambda meta: meta.groups.create(namespace_name, wanted, prefixes))
        what = f"group {wanted.group!r} is declared, and not known to all hosts: repeat the call"
        return await self._namespace_calls.finish(change.census, lambda meta: meta.groups.finish(change), what)

    async def delete(self, namespace_name: str, topic: str, group: str) -> None:
        """Delete a group. No item that is enqueued after the return has a copy in it; its items are deleted later.

        Raises UnavailableError if the owner of a shard does not follow: the group is deleted then, and the same call
        continues. Raises NotFoundError.
        """
        self._namespaces.require_durable()
        change = await self._namespaces.calls.run(lambda meta: meta.groups.delete(namespace_name, topic, group))
        what = f"group {group!r} is deleted, and not all hosts know: repeat the call"
        await self._namespace_calls.finish(change.census, lambda meta: meta.groups.finish(change), what)

    async def forget(self, namespace_name: str, topic: str, group: str) -> bool:
        """Forget a deleted group of this name, if there is one. Raises PausedError while it still holds items."""
        change = await self._namespaces.calls.run(
            lambda meta: meta.groups.begin_forgetting(namespace_name, topic, group)
        )
        if change is None:
            return False
        what = f"the deleted group {group!r} is not forgotten yet"
        await self._namespace_calls.finish(change.census, lambda meta: meta.groups.finish_forgetting(change), what)
        return True
