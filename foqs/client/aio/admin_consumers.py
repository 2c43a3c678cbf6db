"""Verbs of service FoqsAdmin for consumers, as methods of its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta

from foqs.client import consumer_flows
from foqs.client.aio.base import AsyncBaseClient
from foqs.model.holder import ConsumerRow, ReleaseResult


class AsyncConsumerVerbs(AsyncBaseClient):
    """Verbs for consumers and their leases. It is a part of `AsyncAdminClient`."""

    async def list_consumers(
        self,
        namespace: str,
        topic: str = "",
        *,
        group: str | None = None,
        name_prefix: str = "",
        on_missing: Callable[[Sequence[str]], None] | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AsyncIterator[ConsumerRow]:
        """Iterate over the consumers of a namespace by name, each with every topic that it waits for or has items of.

        Those that have asked for items in the last 10 minutes are there, too.
        topic, group, name_prefix: only rows of this topic, of this group ("" for the topics' own), and of consumers
            whose names begin so.
        on_missing: called with descriptions of shards and hosts that do not respond and whose consumers are missing.
        Without it an incomplete page raises UnavailableError. A deadline applies to each page. Each page reads all
        leases of the namespace's shards.
        """
        token, partial = "", on_missing is not None
        while True:
            terms = self._within(deadline_ms, deadline)
            page = await self._run(
                consumer_flows.consumer_page(terms, namespace, topic, group, name_prefix, token, partial)
            )
            if page.missing and on_missing is not None:
                on_missing(page.missing)
            for row in page.consumers:
                yield row
            token = page.next_page_token
            if not token:
                return

    async def release_leases(
        self,
        namespace: str,
        consumer: str,
        topic: str = "",
        *,
        group: str | None = None,
        at_most_once: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ReleaseResult:
        """End the leases of a consumer: its items are ready again without a failed attempt, its acks come too late.

        A consumer that lives can take items again: pause the topic before.
        consumer: the exact name, as `list_consumers` has it.  topic, group: only these items.
        at_most_once: True to end also the leases of items that are delivered at most once, which deletes these items.
        Repeat the call if it fails: it ends the leases that are left.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(consumer_flows.release_leases(terms, namespace, consumer, topic, group, at_most_once))
