"""Why items are not delivered, from the facts of all hosts: the verb explain, and the reasons for an empty dequeue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import NamedTuple, Protocol

import structlog

from foqs.background.tasks import Tasks
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.peers.peer_table import PeerSource
from foqs.contract.permissions import reads_items, sees_hosts
from foqs.contract.requests import DequeueRequest, ExplainRequest, GetFactsRequest
from foqs.contract.verbs import Table
from foqs.model import ids, limits
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow, host_name_of
from foqs.model.errors import FoqsError, InvalidArgumentError, OverloadedError, PermissionDeniedError
from foqs.model.facts import DELIVERABLE, Facts, HostFacts, HostTopic, ShardFact, TopicFacts, read_host_facts
from foqs.model.judging import judge
from foqs.model.principal import EVERYBODY
from foqs.model.reasons import REASONS_MAX, TOPICS_JUDGED_MAX, Explanation, Reason, Verdict
from foqs.model.topic_name import hidden

ANSWER_MS_MAX = 2 * limits.SECOND_MS
"""Time that a host has to answer; then it counts as silent."""
EXPLAINED_PER_SECOND_MAX = 50
"""Explanations that a host makes in a second."""
TOPICS_OF_NAMESPACE = 10
"""Topics of a namespace that are explained."""
AGAIN_MS = 600
"""The pause before facts that nobody can explain are gathered again: items that move by then are explained."""
STUCK_LOGGED_MS = 60 * limits.SECOND_MS
"""Shortest time between two lines `stuck` of the log."""

_BY_ITSELF = CallContext("", principal=EVERYBODY)
_log = structlog.get_logger(__name__)


class LocalFacts(Protocol):
    """The operators' settings, and the facts of this host; KnownFacts of foqs.host.verbs is the real one."""

    def facts(self, namespace_name: str) -> Facts:
        """Return the facts about the namespace as a whole. Raises UnknownNamespaceError."""

    def of_topic(self, namespace_name: str, name: str) -> TopicFacts: ...

    def hidden_name(
        self, namespace_name: str, topic: str, group: str | None, ordering_key: str | None, fairness_key: str | None
    ) -> str: ...

    def number_of(self, namespace_name: str) -> int: ...

    async def host_facts(self, request: GetFactsRequest) -> HostFacts: ...


class _Answer(NamedTuple):
    """A living host, and its facts."""

    host: HostRow
    facts: HostFacts | None
    problem: str = ""


class Explaining:
    """Gathers the facts of all living hosts and judges them. It owns the questions that are under way."""

    def __init__(
        self, me: str, local: LocalFacts, owners: OwnerMap, peers: PeerSource, now_s: Callable[[], float]
    ) -> None:
        """`me` is the id of this host, `now_s` the time of the event loop."""
        self._me = me
        self._local = local
        self._owners = owners
        self._peers = peers
        self._now_s = now_s
        self._tasks = Tasks("facts-asked")
        self._second = 0
        self._count = 0
        """Explanations in this second."""
        self._stuck_logged_s = float("-inf")

    @property
    def table(self) -> Table:
        return {"explain": self.explain, "getFacts": self.get_facts}

    async def stop(self) -> None:
        """Cancel all questions."""
        await self._tasks.stop()

    async def get_facts(self, context: CallContext, request: GetFactsRequest) -> HostFacts:
        """Answer the question of another host."""
        if context.peer not in self._owners.living:
            raise PermissionDeniedError("only living hosts of this cluster may call this, after greet and join")
        return await self._local.host_facts(request)

    async def explain(self, context: CallContext, request: ExplainRequest) -> Explanation:
        """Explain an item, a topic with or without a key, or a namespace.

        A caller without WATCH gets neither names of hosts nor the texts of their errors, and one without READ no texts
        that consumers have written. Raises OverloadedError beyond EXPLAINED_PER_SECOND_MAX.
        """
        name = self._check(request)
        self._count_call()
        facts = await self._gather(request, name)
        found = judge(facts)
        if found.verdict == Verdict.UNEXPLAINED:
            await asyncio.sleep(AGAIN_MS / 1000)
            facts = await self._gather(request, name)
            found = judge(facts)
            if found.verdict == Verdict.UNEXPLAINED:
                self._log_stuck(facts, found)
        has_watch = sees_hosts(context)
        has_read = reads_items(context, request.namespace_name, self._local.number_of(request.namespace_name))
        if has_watch and has_read:
            return found
        if not has_watch:
            facts.leave_out_hosts()
        if not has_read:
            facts.leave_out_contents()
        found = judge(facts)
        if not has_watch:
            found.missing = []
        return found

    async def why_empty(self, context: CallContext, request: DequeueRequest) -> list[Reason]:
        """Return the reasons for an empty dequeue, the decisive one first. Raises UnknownNamespaceError.

        A caller without WATCH gets the code and the shard of each, and neither hosts nor the texts of their errors.
        """
        facts = self._local.facts(request.namespace_name)
        facts.is_dequeue = True
        facts.prefix, facts.group = request.topic_prefix, request.group or ""
        names = list(dict.fromkeys(hidden(demand.topic or "", demand.group) for demand in request.topics))
        facts.unjudged_count = max(0, len(names) - TOPICS_JUDGED_MAX)
        asked = GetFactsRequest(request.namespace_name, names[:TOPICS_JUDGED_MAX])
        if request.topic_prefix is not None:
            asked = GetFactsRequest(
                request.namespace_name, None, request.topic_prefix, request.group or "", TOPICS_JUDGED_MAX
            )
        answers = await self._ask_all(asked)
        self._note_hosts(facts, answers)
        facts.topics = self._topics(facts.namespace, answers, asked.names)[:TOPICS_JUDGED_MAX]
        if not sees_hosts(context):
            facts.leave_out_hosts()
        return judge(facts).reasons[:REASONS_MAX]

    # ---- the call ----

    def _check(self, request: ExplainRequest) -> str:
        """Return the hidden name of the topic; empty for an item or a namespace. Raises InvalidArgumentError."""
        group, keys = request.group, (request.ordering_key, request.fairness_key)
        if request.item_id:
            if request.topic or group or any(key is not None for key in keys):
                raise InvalidArgumentError(
                    f"item_id {request.item_id!r:.80} and a topic, group or key are given: give the item alone"
                )
            ids.parse(ids.without_copies(request.item_id)[0])
            self._local.facts(request.namespace_name)
            return ""
        if request.topic:
            return self._local.hidden_name(request.namespace_name, request.topic, group, *keys)
        if group or any(key is not None for key in keys):
            raise InvalidArgumentError("a group or key is given, and no topic: name its topic")
        self._local.facts(request.namespace_name)
        return ""

    def _count_call(self) -> None:
        second = int(self._now_s())
        self._count = self._count + 1 if second == self._second else 1
        self._second = second
        if self._count > EXPLAINED_PER_SECOND_MAX:
            raise OverloadedError(
                f"this host has made {EXPLAINED_PER_SECOND_MAX} explanations in this second, which is its limit: "
                "nothing was done, try again",
                retry_after_ms=1_000,
                nothing_done=True,
            )

    async def _gather(self, request: ExplainRequest, name: str) -> Facts:
        facts = self._local.facts(request.namespace_name)
        namespace = request.namespace_name
        if name:
            answers = await self._ask_all(GetFactsRequest(namespace, [name]))
            facts.topics = self._topics(namespace, answers, [name])
        elif request.item_id:
            answers = await self._gather_item(facts, request.item_id)
        else:
            answers = await self._ask_all(GetFactsRequest(namespace, None, "", limit=TOPICS_OF_NAMESPACE))
            await self._gather_namespace(facts, answers)
        self._note_hosts(facts, answers)
        return facts

    async def _gather_item(self, facts: Facts, item_id: str) -> Sequence[_Answer]:
        facts.item_id, facts.item_shard_id = item_id, ids.parse(ids.without_copies(item_id)[0])[0]
        answers = await self._ask_all(GetFactsRequest(facts.namespace, item_id=item_id))
        for answer in answers:
            if answer.facts is not None and answer.facts.item is not None:
                facts.item = answer.facts.item
            elif answer.facts is not None and answer.facts.item_problem:
                facts.item_problem = answer.facts.item_problem
        item = facts.item
        if item is None or item.state not in DELIVERABLE:
            return answers
        answers = await self._ask_all(
            GetFactsRequest(
                facts.namespace, [item.topic], urgency=item.urgency, due_at_ms=item.due_at_ms, key=item.key,
                shard_id=item.shard_id,
            )
        )  # fmt: skip
        facts.topics = self._topics(facts.namespace, answers, [item.topic])
        return answers

    async def _gather_namespace(self, facts: Facts, answers: Sequence[_Answer]) -> None:
        """Add up the topics of all hosts, and ask all for the topics that one of these has found."""
        everything, names = HostTopic(), dict[str, int]()
        for answer in answers:
            if answer.facts is None:
                continue
            facts.topics_count = max(facts.topics_count, answer.facts.topics_count)
            for topic in answer.facts.topics:
                names[topic.name] = names.get(topic.name, 0) + topic.ready
            if (some := answer.facts.all_topics) is not None:
                everything.ready += some.ready
                everything.delayed += some.delayed
                everything.leased += some.leased
                everything.dead += some.dead
        facts.all_topics = everything
        first = sorted(names, key=lambda name: (-names[name], name))[:TOPICS_OF_NAMESPACE]
        if len(answers) > 1 and first:
            answers = await self._ask_all(GetFactsRequest(facts.namespace, first))
        facts.topics = self._topics(facts.namespace, answers, first)

    def _topics(self, namespace: str, answers: Sequence[_Answer], names: Sequence[str] | None) -> list[TopicFacts]:
        """Return the topics of these names, or all that hosts have named, each with its facts on all hosts."""
        found = {name: self._local.of_topic(namespace, name) for name in names or ()}
        for answer in answers:
            for topic in answer.facts.topics if answer.facts is not None else ():
                if names is None and topic.name not in found:
                    found[topic.name] = self._local.of_topic(namespace, topic.name)
                if topic.name in found:
                    found[topic.name].by_host.append((host_name_of(answer.host.id), topic))
        return sorted(found.values(), key=_by_name) if names is None else list(found.values())

    def _log_stuck(self, facts: Facts, found: Explanation) -> None:
        now_s = self._now_s()
        if now_s - self._stuck_logged_s >= STUCK_LOGGED_MS / 1000:
            self._stuck_logged_s = now_s
            facts = deepcopy(facts)
            facts.leave_out_contents()
            _log.error("stuck", summary=found.summary, facts=asdict(facts))

    # ---- hosts ----

    async def _ask_all(self, request: GetFactsRequest) -> Sequence[_Answer]:
        """Return the answers of all living hosts, by their ids, within ANSWER_MS_MAX."""
        hosts = [host for _, host in sorted(self._owners.living.items())]
        if self._me not in self._owners.living:
            return [_Answer(HostRow(self._me, "", 0, 0), await self._local.host_facts(request))]
        asked = [self._tasks.lend(self._ask(host, request)) for host in hosts]
        try:
            answers = await asyncio.gather(*asked)
        finally:
            for one in asked:
                one.cancel()
        # A host that was found dead meanwhile is left out; it does not count as silent.
        return [answer for answer in answers if answer.host.id in self._owners.living]

    async def _ask(self, host: HostRow, request: GetFactsRequest) -> _Answer:
        if host.id != self._me and host.is_starting:
            return _Answer(host, None, f"host {host.id} is starting: it has not opened its port yet")
        if host.id != self._me and not host.address:
            return _Answer(host, None, f"host {host.id} reports no address: set its advertise_address")
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                if host.id == self._me:
                    return _Answer(host, await self._local.host_facts(request))
                peer = self._peers.get(host.id, host.address)
                return _Answer(host, read_host_facts(await peer.call(_BY_ITSELF, "getFacts", request)))
        except TimeoutError:
            return _Answer(host, None, f"host {host.id} has not answered within {ANSWER_MS_MAX} ms")
        except FoqsError as error:
            return _Answer(host, None, error.message)

    def _note_hosts(self, facts: Facts, answers: Sequence[_Answer]) -> None:
        """Note the shards and hosts that were not asked for items, or not with certainty."""
        served: dict[int, tuple[_Answer, ShardFact]] = {}
        epochs: dict[int, int] = {}
        differing: dict[int, str] = {}
        lost: dict[int, str] = {}
        for answer in answers:
            for shard in answer.facts.shards if answer.facts is not None else ():
                if shard.state == "lost":
                    lost.setdefault(shard.shard_id, shard.detail)
                    continue
                if shard.shard_id in served:
                    differing[shard.shard_id] = "two hosts have it"
                if shard.epoch >= epochs.get(shard.shard_id, 0):
                    epochs[shard.shard_id] = shard.epoch
                    found = ShardFact(shard.shard_id, host_name_of(answer.host.id), shard.detail, shard.state)
                    served[shard.shard_id] = answer, found
        by_state = [one for _, one in sorted(served.items())]
        facts.sick = [shard for _, shard in by_state if shard.state == "sick"]
        facts.unsettled = [shard for _, shard in by_state if shard.state in ("leaving", "counting")]
        facts.unsettled += [ShardFact(at, "", detail, "differs") for at, detail in sorted(differing.items())]
        silent = {answer.host.id: answer.problem for answer in answers if answer.facts is None}
        facts.silent = [(host_name_of(host_id), problem) for host_id, problem in sorted(silent.items())]
        # Shards of silent hosts are possibly served: these hosts are the reason.
        owner_of = {at.shard_id: at.host_id for at in self._owners.owners.values()}
        unserved = {**dict.fromkeys(owner_of, ""), **lost}
        facts.unserved = [
            ShardFact(shard_id, "", detail, "parked" if shard_id in self._owners.parked else "")
            for shard_id, detail in sorted(unserved.items())
            if shard_id not in served and (owner_of.get(shard_id) not in silent or shard_id in self._owners.parked)
        ]
        facts.is_item_shard_asked = facts.item_shard_id in served


def _by_name(topic: TopicFacts) -> str:
    return topic.name
