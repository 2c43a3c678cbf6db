"""Verbs of service FoqsAdmin for consumer groups, as methods of its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from foqs.client import topic_groups
from foqs.client.aio.base import AsyncBaseClient
from foqs.client.durations import duration_or
from foqs.model.groups import TopicGroup


class AsyncGroupVerbs(AsyncBaseClient):
    """Verbs for consumer groups. It is a part of `AsyncAdminClient`."""

    async def create_group(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        ttl_ms: int | None = None,
        ttl: timedelta | None = None,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        from_queued: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicGroup:
        """Declare a consumer group of a topic: each item enqueued after the return has a copy in it.

        ttl or ttl_ms: the longest time from the moment when a copy is due until it expires.
        delay or delay_ms: the time by which its copies are ready later.
        from_queued: True to copy also the items of the topic that are ready, delayed or under lease now. A job does so
            in the background: `copy_job` of the result is its id for `get_job`, and for `update_job`, which can end it
            or limit its rate. Copies keep the times at which their items are due and expire.
        The call can be repeated. Raises UnavailableError, which names a shard whose host does not follow yet: repeat
        it. Raises AlreadyExistsError for a group with other settings, and PausedError while a deleted group of
        that name still holds items.
        """
        terms = self._within(deadline_ms, deadline)
        ttl_ms = duration_or("ttl_ms", ttl_ms, ttl, 0)
        delay_ms = duration_or("delay_ms", delay_ms, delay, 0)
        return await self._run(topic_groups.create_group(terms, namespace, topic, group, ttl_ms, delay_ms, from_queued))

    async def delete_group(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> None:
        """Delete a consumer group: no item enqueued after the return has a copy in it, and its items are deleted.

        The group "" of a topic can be deleted too. Only the other groups of the topic get its items then.
        """
        terms = self._within(deadline_ms, deadline)
        await self._run(topic_groups.delete_group(terms, namespace, topic, group))

    async def list_groups(
        self, namespace: str, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[TopicGroup]:
        """Iterate over the declared groups of topics that start with the prefix; a deadline is each page's."""
        token = ""
        while True:
            terms = self._within(deadline_ms, deadline)
            page = await self._run(topic_groups.group_page(terms, namespace, prefix, token))
            for group in page.groups:
                yield group
            token = page.next_page_token
            if not token:
                return
