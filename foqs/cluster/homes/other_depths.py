"""The depths of topics on other hosts, for the limits on depths: asked for when items of such topics are enqueued here.

Nothing is asked about topics without a limit, or without enqueues. A busy topic is asked about twice a second, and an
enqueue waits for an answer only if the known counts are older than a second.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import structlog

from foqs.background.service import Service
from foqs.cluster.peers.guarded_peers import GuardedPeer
from foqs.contract.requests import EnqueueRequest
from foqs.contract.verbs import Method
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.model.stocks import Topic

FRESH_MS = 500
"""Counts of this age are asked for again, and enqueues use them meanwhile."""
STALE_MS = 1_000
"""An enqueue waits for new counts if those known are as old as this."""
WAIT_MS_MAX = 300
"""Time that an enqueue waits for counts. Then it continues with those known, without hosts that never answered."""
ASK_MS_MAX = 1_000
"""Timeout of a question to a host."""
FLUSH_MS = 2
"""Questions within this time are sent together."""
TOPICS_PER_MESSAGE_MAX = 250
TOPICS_KNOWN_MAX = 20_000
"""Topics whose counts are kept; those asked about least recently are forgotten first."""

_log = structlog.get_logger(__name__)


class LocalDepths(Protocol):
    """The depths of topics on this host; foqs.host.verbs.host_stocks.Stocks is the real one."""

    def depth(self, topic: Topic) -> int: ...

    def limited_topics(self, request: EnqueueRequest) -> Sequence[Topic]:
        """Return the topics of a call whose depth has a limit, consumer groups included."""

    def follow_depths(self, elsewhere: Callable[[Topic], int]) -> None:
        """Set the function that returns the items of a topic on other hosts."""


class _Counts:
    """The counts of one topic."""

    __slots__ = ("asked_s", "by_host", "round")

    def __init__(self) -> None:
        self.by_host: dict[str, int] = {}
        self.asked_s = float("-inf")
        """The time of the questions that were answered last."""
        self.round: asyncio.Future[None] | None = None
        """The end of the questions that are under way."""


class OtherDepths(Service):
    """Knows how many items other hosts have of topics with a limit. It owns these counts."""

    def __init__(
        self, me: str, peer: Callable[[str], GuardedPeer], local: LocalDepths, now_s: Callable[[], float]
    ) -> None:
        """`peer` returns a living host by its id. `now_s` is the time of the event loop."""
        super().__init__("other-depths")
        self._me = me
        self._peer = peer
        self._local = local
        self._now_s = now_s
        self._others: frozenset[str] = frozenset()
        self._known: OrderedDict[Topic, _Counts] = OrderedDict()
        self._wanted: dict[Topic, _Counts] = {}
        """The topics of the next questions."""
        self._next: asyncio.Future[None] | None = None
        """The end of the next questions."""
        self._outage = Outage(now_s)
        local.follow_depths(self.count)

    def members(self, host_ids: Iterable[str]) -> None:
        """Set the living hosts."""
        self._others = frozenset(host_ids) - {self._me}

    def count(self, topic: Topic) -> int:
        """Return the items of a topic on other living hosts, as far as this one knows."""
        known = self._known.get(topic)
        others = self._others
        return 0 if known is None else sum([count for host_id, count in known.by_host.items() if host_id in others])

    def answers(self, topics: Iterable[Topic]) -> list[tuple[Topic, int]]:
        """Answer another host's question."""
        return [(topic, self._local.depth(topic)) for topic in topics]

    def around(self, enqueue: Method) -> Method:
        """Return the verb enqueue that first learns the depths it needs. Most calls need none, and are passed on."""

        def enqueue_known(context: CallContext, request: EnqueueRequest) -> Awaitable[Any]:
            if not self._others or not (topics := self._local.limited_topics(request)):
                return enqueue(context, request)
            return self._enqueue(enqueue, topics, context, request)

        return enqueue_known

    async def _enqueue(
        self, enqueue: Method, topics: Sequence[Topic], context: CallContext, request: EnqueueRequest
    ) -> Any:
        rounds = self._refresh(topics)
        if rounds:
            await asyncio.wait(rounds, timeout=WAIT_MS_MAX / 1000)
        return await enqueue(context, request)

    def _refresh(self, topics: Sequence[Topic]) -> set[asyncio.Future[None]]:
        """Ask for the counts that are not fresh. Returns the rounds of questions to wait for."""
        now_s, rounds = self._now_s(), set[asyncio.Future[None]]()
        for topic in topics:
            counts = self._known.get(topic)
            if counts is None:
                counts = self._known[topic] = _Counts()
            else:
                self._known.move_to_end(topic)
            age_ms = (now_s - counts.asked_s) * 1000
            if age_ms >= FRESH_MS and counts.round is None:
                self._want(topic, counts)
            if age_ms >= STALE_MS and counts.round is not None:
                rounds.add(counts.round)
        while len(self._known) > TOPICS_KNOWN_MAX:
            self._known.popitem(last=False)
        return rounds

    def _want(self, topic: Topic, counts: _Counts) -> None:
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(FLUSH_MS / 1000, self._flush)
        self._wanted[topic] = counts
        counts.round = self._next

    def _flush(self) -> None:
        wanted, self._wanted = self._wanted, {}
        ended, self._next = self._next, None
        assert ended is not None, "it was made with the first topic"
        self._tasks.spawn(self._ask_all(wanted, ended), "depths-asked")

    async def _ask_all(self, wanted: dict[Topic, _Counts], ended: asyncio.Future[None]) -> None:
        """Ask all other hosts. A host that does not answer keeps its former counts."""
        sent_s, others = self._now_s(), self._others
        try:
            await asyncio.gather(*[self._ask(host_id, some) for some in _chunks(wanted) for host_id in sorted(others)])
        finally:
            for counts in wanted.values():
                counts.asked_s, counts.round = sent_s, None
                counts.by_host = {host_id: count for host_id, count in counts.by_host.items() if host_id in others}
            if not ended.done():
                ended.set_result(None)

    async def _ask(self, host_id: str, wanted: dict[Topic, _Counts]) -> None:
        try:
            async with asyncio.timeout(ASK_MS_MAX / 1000):
                found = await self._peer(host_id).depths(list(wanted))
        except (FoqsError, TimeoutError) as error:
            if self._outage.is_to_be_logged(host_id):
                _log.warning("depths_not_known", peer=host_id, error=str(error) or "no response in time")
            return
        for topic, counts in wanted.items():
            counts.by_host[host_id] = found.get(topic, 0)


def _chunks(wanted: dict[Topic, _Counts]) -> Iterator[dict[Topic, _Counts]]:
    items = iter(wanted.items())
    while some := dict(islice(items, TOPICS_PER_MESSAGE_MAX)):
        yield some
