"""The poller of the console: it asks once for the data of all viewers, by one client, at a bounded cost of hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.console.policies_known import PoliciesKnown
from foqs.console.reach import ClientPair, Reach
from foqs.console.topic_index import TopicIndex
from foqs.model import limits
from foqs.model.calls import ClusterShard
from foqs.model.cluster_calls import ClusterHost
from foqs.model.errors import FoqsError, PermissionDeniedError, UnknownNamespaceError
from foqs.model.namespace import Namespace

CLUSTER_EVERY_MS: Final = 2 * limits.SECOND_MS
"""The pause between two looks at namespaces, hosts and shards."""
TOPICS_EVERY_MS: Final = 2 * limits.SECOND_MS
"""The least pause between two rounds over all topics."""
_REST_RATIO: Final = 19
"""The rest after a page, as a multiple of the wait for it: hosts work for a twentieth of the time at most."""
_REST_S_MAX: Final = 1.0
"""The longest rest after a page. Hosts need less than 50 ms for one, also if they are busy with others."""
_PAGE_S_MIN: Final = 0.0005
"""A row that took longer to come is the first one of a page that hosts were asked for."""
_HOST_SHARE_MIN: Final = 0.2
"""The least share of the wait for a page that counts as the work of hosts. The rest is the console's own reading."""
_FIRST_ROUND_S_MAX: Final = 2.0
"""The longest time that the start waits for the first round."""
T = TypeVar("T")


class Poller(Service):
    """The reports of hosts of the cluster and of all topics, as the console's own principal sees them.

    Pages must leave out everything that their viewers cannot observe.
    """

    def __init__(
        self, reach: Reach, now_ms: Callable[[], int], rest: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """`now_ms` is the time of the hosts. `rest` pauses between two pages of topics, for some seconds."""
        super().__init__("console-poller")
        self._reach = reach
        self._now_ms = now_ms
        self._rest = rest
        self._clients: ClientPair | None = None
        self._one_round = asyncio.Lock()
        """Held during a round: a second one at the same time would drop rows of the first, and cost as much again."""
        self.namespaces: dict[str, Namespace] = {}
        self.indexes: dict[str, TopicIndex] = {}
        self.hosts: list[ClusterHost] = []
        self.shards: list[ClusterShard] = []
        self.cluster_as_of_ms = 0
        self.error = ""
        """Why the last look at the cluster failed; empty if it did not."""

    async def poll_cluster(self) -> None:
        """Ask for namespaces, hosts and shards."""
        assert self._clients is not None, "it was started"
        admin = self._clients.admin
        try:
            found = {one.name: one async for one in admin.list_namespaces()}
            self.namespaces = found
            for name in self.indexes.keys() - found.keys():
                del self.indexes[name]
            self.hosts = await _or_none(admin.list_hosts())
            self.shards = await _or_none(admin.list_shards())
        except FoqsError as error:
            self.error = error.message
            raise
        self.cluster_as_of_ms = self._now_ms()
        self.error = ""

    async def poll_topics(self) -> None:
        """Ask for all topics of all namespaces, with their rates, and rest after each page."""
        async with self._one_round:
            for name, namespace in list(self.namespaces.items()):
                with suppress(PermissionDeniedError, UnknownNamespaceError):
                    await self._round(name, namespace)

    async def _round(self, name: str, namespace: Namespace) -> None:
        assert self._clients is not None, "it was started"
        admin, queue = self._clients
        index = self.indexes.setdefault(name, TopicIndex())
        began_at_ms, began_s = self._now_ms(), time.monotonic()
        known = PoliciesKnown([one async for one in admin.list_topic_policies(name)])
        await self._rest(min(_REST_S_MAX, _REST_RATIO * (time.monotonic() - began_s)))
        missing: dict[str, None] = {}
        rows = queue.topics(name, on_missing=lambda parts: missing.update(dict.fromkeys(parts)), with_rates=True)
        async for stats, waited_s in timed(rows):
            if waited_s > _PAGE_S_MIN:
                await self._rest(min(_REST_S_MAX, _REST_RATIO * waited_s))
            index.take(stats, known.policy_of(stats.topic, stats.group), namespace, began_at_ms)
        index.finish_round(began_at_ms, list(missing))
        index.took_s = time.monotonic() - began_s

    async def _start(self) -> None:
        self._clients = self._reach.own()
        first = self._tasks.lend(self._first_round(), "console-first-round")
        await asyncio.wait([first], timeout=_FIRST_ROUND_S_MAX)
        cluster = OutageLog(time.monotonic, "console_cluster_failed", "console_cluster_back")
        topics = OutageLog(time.monotonic, "console_topics_failed", "console_topics_back")
        pause, repeat = asyncio.sleep, self._tasks.repeat
        repeat(lambda: pause(CLUSTER_EVERY_MS / 1_000), self.poll_cluster, "console-cluster", cluster)
        repeat(lambda: pause(TOPICS_EVERY_MS / 1_000), self.poll_topics, "console-topics", topics)

    async def _first_round(self) -> None:
        await self.poll_cluster()
        await self.poll_topics()

    async def _stop(self) -> None:
        if self._clients is not None:
            await self._clients.close()


async def _or_none(call: Awaitable[list[T]]) -> list[T]:
    """Return the rows of a call; none if the console's own principal lacks the right."""
    try:
        return await call
    except PermissionDeniedError:
        return []


async def timed(rows: AsyncIterator[T]) -> AsyncIterator[tuple[T, float]]:
    """Yield each row with the time that hosts took for it, in seconds: the wait without the work of this process."""
    asked_s, own_s = time.perf_counter(), time.process_time()
    async for row in rows:
        waited_s = time.perf_counter() - asked_s
        yield row, max(_HOST_SHARE_MIN * waited_s, waited_s - (time.process_time() - own_s))
        asked_s, own_s = time.perf_counter(), time.process_time()
