"""The reasons for an empty dequeue, from the answers of all hosts. Clients ask for them explicitly afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.host_rounds import HostAnswer, HostRounds
from foqs.contract.permissions import sees_hosts
from foqs.contract.requests import ActiveTopicsRequest, DequeueRequest
from foqs.model import limits
from foqs.model.calls import CallContext, TopicPage, TopicStats
from foqs.model.cluster import host_name_of
from foqs.model.errors import FoqsError
from foqs.model.groups import GROUPS_PER_TOPIC_MAX
from foqs.model.reasons import TOPICS_JUDGED_MAX, Facts, Reason, ShardFact, TopicFacts, judge
from foqs.model.topic_name import hidden

WHY_MS_MAX = 2 * limits.SECOND_MS
"""Timeout of a question; a host that has not answered by then counts as not asked."""
ROWS_READ_MAX = TOPICS_JUDGED_MAX * (GROUPS_PER_TOPIC_MAX + 1)
"""The most rows of topics with a prefix that are read: each topic has one for each of its groups."""
AskAll = Callable[[CallContext, str, Any, list[str]], Awaitable[list[Any]]]


class LocalReasons(Protocol):
    """The operators' settings, and this host's view of its topics; KnownReasons of foqs.host.verbs is the real one."""

    def facts(self, namespace_name: str) -> Facts:
        """Return the facts about the namespace as a whole. Raises UnknownNamespaceError."""

    def of_topic(self, namespace_name: str, topic: str, stats: TopicStats | None) -> TopicFacts: ...


class WhyEmpty:
    """Gathers facts and judges them. It owns nothing."""

    def __init__(self, ask_all: AskAll, local: LocalReasons, owners: OwnerMap, rounds: HostRounds) -> None:
        """`queue` has only the items of this host."""
        self._ask_all = ask_all
        self._local = local
        self._owners = owners
        self._rounds = rounds

    async def why_empty(self, context: CallContext, request: DequeueRequest) -> list[Reason]:
        """Return the reasons, the decisive one first. Raises UnknownNamespaceError.

        A caller without WATCH gets the code and the shard of each, and neither hosts nor the texts of their errors.
        """
        namespace_name, topics, topic_prefix = request.namespace_name, request.topics, request.topic_prefix
        facts = self._local.facts(namespace_name)
        facts.prefix, facts.group = topic_prefix, request.group or ""
        names = list(dict.fromkeys(hidden(demand.topic or "", demand.group) for demand in topics))
        facts.unjudged_count = max(0, len(names) - TOPICS_JUDGED_MAX)
        asked = [self._pages(context, namespace_name, name, 1) for name in names[:TOPICS_JUDGED_MAX]]
        if topic_prefix is not None:
            asked = [self._pages(context, namespace_name, topic_prefix, ROWS_READ_MAX)]
        found, answers = await asyncio.gather(asyncio.gather(*asked), self._rounds.answers())
        self._note_hosts(facts, answers)
        by_name: Iterable[tuple[str, TopicStats | None]]
        if topic_prefix is not None:
            # Such a call gets nothing of other groups.
            of_topics = [(name, at) for name, at in _by_name(found[0]).items() if (at.group or "") == facts.group]
            by_name = of_topics[:TOPICS_JUDGED_MAX]
        else:
            by_name = [(name, _by_name(pages).get(name)) for name, pages in zip(names, found, strict=False)]
        facts.topics = [self._local.of_topic(namespace_name, name, stats) for name, stats in by_name]
        facts.missing = [one for pages in found for page in pages for one in page.missing]
        facts.is_partial = bool(facts.missing)
        if not sees_hosts(context):
            facts.leave_out_hosts()
        return judge(facts)

    async def _pages(self, context: CallContext, namespace_name: str, prefix: str, limit: int) -> list[TopicPage]:
        """Return each host's topics that begin with `prefix`; a topic of exactly that name comes first."""
        missing: list[str] = []
        request = ActiveTopicsRequest(namespace_name, prefix, limit, "", True)
        try:
            async with asyncio.timeout(WHY_MS_MAX / 1000):
                asking = replace(context, deadline_s=None)
                pages: list[TopicPage] = await self._ask_all(asking, "getActiveTopics", request, missing)
        except TimeoutError:
            return [TopicPage([], "", [f"not all hosts have answered within {WHY_MS_MAX} ms"])]
        except FoqsError as error:
            return [TopicPage([], "", [error.message])]
        return [*pages, TopicPage([], "", missing)]

    def _note_hosts(self, facts: Facts, answers: Sequence[HostAnswer]) -> None:
        """Note the shards and hosts that were not asked for items."""
        shards = [(answer, shard) for answer in answers for shard in answer.shards]
        served = {shard.shard_id for _, shard in shards if shard.state != "lost"}
        facts.sick = [
            ShardFact(shard.shard_id, host_name_of(answer.host.id), shard.detail)
            for answer, shard in shards
            if shard.state == "sick"
        ]
        silent = {answer.host.id: answer.problem for answer in answers if answer.status is None}
        facts.silent = [(host_name_of(host_id), problem) for host_id, problem in sorted(silent.items())]
        lost = {shard.shard_id: shard.detail for _, shard in shards if shard.shard_id not in served}
        owned_elsewhere = {at.shard_id: "" for at in self._owners.owners.values() if at.host_id not in silent}
        facts.unserved = [
            ShardFact(shard_id, "", detail)
            for shard_id, detail in sorted((owned_elsewhere | lost).items())
            if shard_id not in served
        ]


def _by_name(pages: Sequence[TopicPage]) -> dict[str, TopicStats]:
    """Return the topics of all hosts by name, each with the sum of its items."""
    found: dict[str, TopicStats] = {}
    for stats in sorted([stats for page in pages for stats in page.topics], key=_name):
        known = found.get(_name(stats))
        found[_name(stats)] = stats if known is None else _sum(known, stats)
    return found


def _name(stats: TopicStats) -> str:
    return hidden(stats.topic, stats.group)


def _sum(one: TopicStats, other: TopicStats) -> TopicStats:
    return TopicStats(
        one.topic,
        one.ready + other.ready,
        one.delayed + other.delayed,
        one.leased + other.leased,
        one.dead + other.dead,
        0,
        0,
        one.group,
        one.serial or other.serial,
    )
