"""The reasons for an empty dequeue: codes for machines, and sentences for people. All sentences are made here.

`judge` derives them from facts that were gathered before. It is pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from foqs.model.calls import TopicStats

REASONS_MAX = 8
"""The most reasons in a response."""
REASONS_OF_KIND_MAX = 3
"""The most reasons of one code. The last one counts the rest."""
TOPICS_JUDGED_MAX = 4
"""The most topics of a call that are checked."""


class ReasonCode(IntEnum):
    """Codes of the reasons. Numbers are never reused."""

    DEAD = 2
    DELAYED = 3
    LEASED = 5
    TOPIC_PAUSED = 14
    NAMESPACE_PAUSED = 15
    TOPIC_CAPPED = 16
    NAMESPACE_CAPPED = 17
    LEASES_FULL = 20
    SHARD_SICK = 23
    UNSERVED = 24
    HOST_SILENT = 28
    NOTHING_THERE = 30
    NOT_LOOKED_AT = 31
    UNEXPLAINED = 99


NOT_ASKED = frozenset({ReasonCode.SHARD_SICK, ReasonCode.UNSERVED, ReasonCode.HOST_SILENT, ReasonCode.NOT_LOOKED_AT})
"""Reasons with which ready items can exist all the same, because not all shards, hosts or topics were asked."""
NOT_READY = frozenset({ReasonCode.DEAD, ReasonCode.DELAYED, ReasonCode.LEASED, ReasonCode.NOTHING_THERE})
"""Reasons that prove, if no others are given, that no item is ready."""


@dataclass(slots=True)
class Reason:
    """One reason. text: for people.  until_ms: when it ends, by the host's clock; 0 if unknown.
    count: of the items that it holds back.  topic, host, shard_id: its subject; empty, or -1.  remedy: a command.
    """

    code: int
    text: str
    until_ms: int = 0
    count: int = 0
    topic: str = ""
    host: str = ""
    shard_id: int = -1
    remedy: str = ""


@dataclass(slots=True)
class TopicFacts:
    """The facts about a topic, or about all topics of a prefix together, in which case `topic` is empty."""

    topic: str
    stats: TopicStats | None
    """None if it holds no item on any shard that was asked."""
    is_paused: bool = False
    pause_reason: str = ""
    cap: float = 0.0
    """Deliveries a second; 0 for none."""
    cap_until_ms: int = 0
    lacks_room: bool = False
    """True if its leases have reached their bound."""
    group: str = ""
    """The consumer group of the topic; empty for its own."""

    @property
    def label(self) -> str:
        """The topic in words."""
        return f"topic {self.topic!r}, group {self.group!r}" if self.group else f"topic {self.topic!r}"

    def command(self, verb: str, namespace: str) -> str:
        """Return a command on the topic."""
        return _command(verb, namespace, self.topic, *(["--group", self.group] if self.group else []))


class ShardFact(NamedTuple):
    """A shard that was not asked for ready items."""

    shard_id: int
    host: str
    detail: str


@dataclass(slots=True)
class Facts:
    """The facts about all that a dequeue asked for."""

    namespace: str
    topics: Sequence[TopicFacts] = ()
    is_paused: bool = False
    pause_reason: str = ""
    cap: float = 0.0
    sick: Sequence[ShardFact] = ()
    unserved: Sequence[ShardFact] = ()
    silent: Sequence[tuple[str, str]] = ()
    """Hosts that do not answer, with the reason."""
    unjudged_count: int = 0
    """Topics that were not checked."""
    is_partial: bool = False
    """True if not all hosts have reported their stocks of the topics."""
    prefix: str | None = None
    group: str = ""
    """The consumer group, with a prefix."""
    missing: list[str] = field(default_factory=list)

    def leave_out_hosts(self) -> None:
        """Forget the names of hosts and the texts of their errors, which are for those who operate the cluster."""
        self.sick = [one._replace(host="", detail="") for one in self.sick]
        self.unserved = [one._replace(host="", detail="") for one in self.unserved]
        self.silent = [("", "") for _ in self.silent]
        self.missing = []


class WhyNone(list[Reason]):
    """The reasons of a dequeue that got nothing, in place of its items."""


def judge(facts: Facts) -> list[Reason]:
    """Return the reasons, the decisive one first: at least one, and REASONS_MAX at most."""
    reasons: list[Reason] = []
    if facts.is_paused:
        text = f"dequeues of namespace {facts.namespace!r} are paused by an operator{_why(facts.pause_reason)}"
        remedy = _command("namespace resume", facts.namespace)
        reasons.append(Reason(ReasonCode.NAMESPACE_PAUSED, text, remedy=remedy))
    for topic in facts.topics:
        reasons += _held_back(facts, topic)
    reasons += _of_kind([_sick(one) for one in facts.sick])
    reasons += _of_kind([_unserved(one) for one in facts.unserved])
    reasons += _of_kind([Reason(ReasonCode.HOST_SILENT, _silent(host, why), host=host) for host, why in facts.silent])
    if facts.is_partial and not any(reason.code in NOT_ASKED for reason in reasons):
        missing = f": {facts.missing[0]}" if facts.missing else ""
        reasons.append(Reason(ReasonCode.HOST_SILENT, f"not all hosts have reported their items{missing}"))
    if facts.unjudged_count:
        text = f"{facts.unjudged_count} other topics were not checked: ask for fewer at a time to get their reasons"
        reasons.append(Reason(ReasonCode.NOT_LOOKED_AT, text, count=facts.unjudged_count))
    for topic in facts.topics:
        reasons += _not_ready(facts, topic)
    if not reasons:
        reasons.append(Reason(ReasonCode.NOTHING_THERE, _nothing(facts)))
    return reasons[:REASONS_MAX]


def _held_back(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons why its ready items are not delivered."""
    ready_count = 0 if topic.stats is None else topic.stats.ready
    name, items = topic.topic, f"{ready_count} ready items of {topic.label}"
    if topic.is_paused:
        text = f"dequeues of {topic.label} are paused by an operator{_why(topic.pause_reason)}"
        remedy = topic.command("topic resume", facts.namespace)
        yield Reason(ReasonCode.TOPIC_PAUSED, text, count=ready_count, topic=name, remedy=remedy)
    elif not ready_count or facts.is_paused:
        return
    elif topic.cap:
        text = f"{items} wait for its cap of {topic.cap:g} deliveries a second"
        yield Reason(ReasonCode.TOPIC_CAPPED, text, topic.cap_until_ms, ready_count, name)
    elif facts.cap:
        text = f"{items} wait for the cap of namespace {facts.namespace!r}, {facts.cap:g} deliveries a second"
        yield Reason(ReasonCode.NAMESPACE_CAPPED, text, topic.cap_until_ms, ready_count, name)
    elif topic.lacks_room:
        text = f"{items} wait until leases end: their shard has as many as it can have"
        yield Reason(ReasonCode.LEASES_FULL, text, count=ready_count, topic=name)
    elif not facts.sick:
        text = f"{items} came meanwhile, or are about to be delivered to other consumers: try again"
        yield Reason(ReasonCode.UNEXPLAINED, text, count=ready_count, topic=name)


def _not_ready(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons for its items that are not ready."""
    name, stats = topic.topic, topic.stats
    if stats is None:
        if not topic.is_paused and not facts.is_partial and not facts.sick and not facts.unserved and not facts.silent:
            yield Reason(ReasonCode.NOTHING_THERE, f"{topic.label} holds no item", topic=name)
        return
    if stats.delayed:
        text = f"{_items(stats.delayed, topic)} not due yet"
        yield Reason(ReasonCode.DELAYED, text, 0, stats.delayed, name)
    if stats.leased:
        text = f"{_items(stats.leased, topic)} under lease: consumers have them"
        yield Reason(ReasonCode.LEASED, text, 0, stats.leased, name)
    if stats.dead:
        text = f"{_items(stats.dead, topic)} in the dead letters"
        remedy = topic.command("dead-letter list", facts.namespace)
        yield Reason(ReasonCode.DEAD, text, 0, stats.dead, name, remedy=remedy)


def _nothing(facts: Facts) -> str:
    if facts.prefix is None:
        return "nothing was asked for"
    of_group = f" of group {facts.group!r}" if facts.group else ""
    return f"no topic with prefix {facts.prefix!r} holds items{of_group}"


def _command(verb: str, *names: str) -> str:
    return " ".join(["foqs", verb, *map(shlex.quote, names)])


def _items(count: int, topic: TopicFacts) -> str:
    return f"{count} {'item' if count == 1 else 'items'} of {topic.label} {'is' if count == 1 else 'are'}"


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def _sick(shard: ShardFact) -> Reason:
    text = f"shard {shard.shard_id} is sick and was not asked{_why(shard.detail)}"
    return Reason(ReasonCode.SHARD_SICK, text, host=shard.host, shard_id=shard.shard_id, remedy="foqs shard list")


def _unserved(shard: ShardFact) -> Reason:
    text = f"shard {shard.shard_id} is served by no host and was not asked{_why(shard.detail)}"
    return Reason(ReasonCode.UNSERVED, text, host=shard.host, shard_id=shard.shard_id, remedy="foqs shard list")


def _silent(host: str, why: str) -> str:
    return f"host {host} was not asked{_why(why)}" if host else "a host was not asked"


def _of_kind(reasons: Sequence[Reason]) -> list[Reason]:
    """Keep REASONS_OF_KIND_MAX reasons of one kind."""
    some = list(reasons[:REASONS_OF_KIND_MAX])
    if left_count := len(reasons) - len(some):
        some[-1].text += f"; and {left_count} others like it"
    return some
