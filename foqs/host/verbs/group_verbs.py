"""The verbs of operators on consumer groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.host.verbs.namespace_verbs import bounding_prefixes
from foqs.model import limits
from foqs.model.calls import CallContext, GroupPage
from foqs.model.errors import InvalidArgumentError
from foqs.model.groups import NO_GROUPS, TopicGroup
from foqs.model.jobs import COPY_ID_BYTES, copy_job_id
from foqs.model.namespace import check_namespace_name
from foqs.model.topic_name import check_group


class GroupCreation:
    """Creates groups, and begins to copy for as many as the cluster, the namespace and the caller's grant have room."""

    def __init__(
        self, group_calls: GroupCalls, wall_ms: Callable[[], int], random_bytes: Callable[[int], bytes]
    ) -> None:
        """`wall_ms` is the time of day. `random_bytes(count)` draws the ids of jobs."""
        self._group_calls = group_calls
        self._wall_ms = wall_ms
        self._random_bytes = random_bytes

    async def create_group(self, context: CallContext, request: of.CreateGroupRequest) -> TopicGroup:
        namespace_name = check_namespace_name(request.namespace_name)
        topic = arguments.check_topic(request.topic)
        group = check_group(request.group, topic)
        ttl_ms = arguments.check_range("ttl_ms", request.ttl_ms, 0, limits.TTL_MS_MAX)
        delay_ms = arguments.check_range("delay_ms", request.delay_ms, 0, limits.DELAY_MS_MAX)
        if not group and (ttl_ms or delay_ms or request.from_queued):
            raise InvalidArgumentError(
                f"the own group of topic {topic!r} takes no settings, and was given ttl_ms {ttl_ms}, delay_ms "
                f"{delay_ms} and from_queued {bool(request.from_queued)}: leave them out"
            )
        wanted = TopicGroup(topic, group, False, ttl_ms, delay_ms, self._wall_ms())
        if request.from_queued:
            wanted = replace(wanted, copy_job=copy_job_id(self._random_bytes(COPY_ID_BYTES)), is_copying=True)
        prefixes = bounding_prefixes(context, namespace_name)
        return await self._group_calls.create(namespace_name, wanted, prefixes)


class GroupVerbs:
    """Checks the arguments of deletions of groups, and lists the groups that this host knows. It owns nothing."""

    def __init__(self, namespaces: Namespaces, group_calls: GroupCalls) -> None:
        self._namespaces = namespaces
        self._group_calls = group_calls

    async def delete_group(self, request: of.DeleteGroupRequest) -> None:
        namespace_name = check_namespace_name(request.namespace_name)
        topic = arguments.check_topic(request.topic)
        await self._group_calls.delete(namespace_name, topic, check_group(request.group, topic))

    async def list_groups(self, request: of.ListGroupsRequest) -> GroupPage:
        number = self._namespaces.get(check_namespace_name(request.namespace_name)).number
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        known = self._namespaces.settings.groups.get(number, NO_GROUPS)
        behind = islice(known.names, bisect_right(known.names, request.page_token), None)
        names = list(islice((name for name in behind if name.startswith(request.prefix)), limit + 1))
        token = names[limit - 1] if len(names) > limit else ""
        return GroupPage([known.by_name[name] for name in names[:limit]], token)
