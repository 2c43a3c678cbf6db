"""The reasons of one topic: why its ready items are not delivered, and the counts of the others. It is pure."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.model import reason_texts as say
from foqs.model.facts import Facts, HostTopic, TopicFacts
from foqs.model.reason_texts import command, counted, span
from foqs.model.reasons import Reason, ReasonCode

WAITED_MS_MIN = 1_000
"""The time for which an item and a call wait beside each other on a host before that is a defect, in milliseconds."""
LATE_MS_MAX = 10_000
"""The same on two hosts, which have to notice each other, possibly while links are cut."""


FAILED_SHARE_MIN = 0.2
"""The share of attempts that fail which is a reason."""
FAILED_PER_1000S_MIN = 50
"""The failures in 1,000 seconds below which it is none: three in a minute."""


def failing(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reason of a topic whose items come back, because many attempts fail."""
    failed, ended = topic.sum("failed_per_1000s"), topic.sum("ended_per_1000s")
    open_count = topic.sum("ready") + topic.sum("delayed") + topic.sum("leased")
    share = failed / (failed + ended) if failed else 0.0
    if facts.is_dequeue or not open_count or failed < FAILED_PER_1000S_MIN or share < FAILED_SHARE_MIN:
        return
    text = (
        f"{round(100 * share)} % of the attempts at {topic.label} failed in the last minute, and their items come again"
    )
    remedy = say.topic_command(facts.namespace, "dead-letter list", topic)
    yield Reason(ReasonCode.ATTEMPTS_FAIL, text, count=open_count, topic=topic.topic, remedy=remedy)


def held_back(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons why its ready items are not delivered."""
    ready, name, namespace = topic.sum("ready"), topic.topic, facts.namespace
    if not topic.has_group:
        text = f"{topic.label}: the group does not exist, so nothing is delivered to it"
        yield Reason(ReasonCode.NO_GROUP, text, count=ready, topic=name, remedy=command("group list", namespace))
    if topic.is_paused:
        text = f"dequeues of {topic.label} are paused by an operator{say.why(topic.pause_reason)}"
        remedy = say.topic_command(namespace, "topic resume --dequeue", topic)
        yield Reason(ReasonCode.TOPIC_PAUSED, text, count=ready, topic=name, remedy=remedy)
    elif ready and not facts.is_paused and topic.has_group:
        reasons = _of_ready(facts, topic)
        if not reasons and topic.sum("sick") < ready:  # Sick shards are reasons of their own.
            reasons.append(_unchecked(topic))
        yield from reasons


def _of_ready(facts: Facts, topic: TopicFacts) -> list[Reason]:
    """Return the reasons for ready items that no operator holds back."""
    stuck = [_stuck(topic)] if any(_is_stuck(found) for _, found in topic.by_host) else []
    return [
        *stuck,
        *_of_consumers(facts, topic),
        *_of_caps(facts, topic),
        *_of_leases(facts, topic),
        *_of_order(facts, topic),
        *_of_memory(topic),
        *_of_free(facts, topic),
    ]


def _unchecked(topic: TopicFacts) -> Reason:
    """Return the reason of ready items with keys that were not checked, because the topic has too many."""
    ready = topic.sum("ready")
    text = f"{counted(ready, 'ready item')} of {topic.label} {say.be(ready)} on shards or in keys that were not checked"
    return Reason(ReasonCode.NOT_LOOKED_AT, text, 0, ready, topic.topic)


def _is_served(topic: TopicFacts) -> bool:
    """Return True if consumers work on its items, or took some a moment ago."""
    return bool(topic.sum("leased")) or topic.has("has_consumers")


def _of_consumers(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    ready = topic.sum("ready") - topic.sum("sick")
    if facts.is_dequeue or topic.sum("waiting_calls") or _is_served(topic) or ready <= 0:
        return
    items = f"{counted(ready, 'ready item')} {say.be(ready)} waiting for one"
    text = f"no consumer waits for {topic.label} or has items of it: {items}"
    remedy = say.consumers_command(facts.namespace)
    yield Reason(ReasonCode.NO_CONSUMERS, text, count=ready, topic=topic.topic, remedy=remedy)


def _is_capped(facts: Facts, topic: TopicFacts) -> bool:
    if topic.has("waits_for_token") or topic.has("waits_for_namespace"):
        return True
    return facts.is_dequeue and bool(topic.cap or facts.cap) and bool(topic.sum("free") or topic.sum("unread"))


def _of_caps(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    if not _is_capped(facts, topic):
        return
    ready, name, until_ms = topic.sum("ready"), topic.topic, topic.first("cap_until_ms")
    items = f"{counted(ready, 'ready item')} of {topic.label} {say.verb(ready, 'wait')}"
    if topic.has("is_cap_lost"):
        text = f"{items} for tokens of a cap, and the host that has these does not answer"
        yield Reason(ReasonCode.CAP_HOME_AWAY, text, 0, ready, name, remedy="foqs hosts")
    elif topic.has("waits_for_token") or (topic.cap and not topic.has("waits_for_namespace")):
        text = f"{items} for its cap of {_rate(topic.cap)}"
        remedy = say.topic_command(facts.namespace, "topic limit", topic, "none")
        yield Reason(ReasonCode.TOPIC_CAPPED, text, until_ms, ready, name, remedy=remedy)
    else:
        text = f"{items} for the cap of namespace {facts.namespace!r}, {_rate(facts.cap)}"
        remedy = command("namespace set", facts.namespace, options=["--deliveries-per-second-max", "0"])
        yield Reason(ReasonCode.NAMESPACE_CAPPED, text, until_ms, ready, name, remedy=remedy)


def _rate(cap: float) -> str:
    """Return a cap in words. The asked host possibly knows a new one later than the host that has the items."""
    return f"{cap:g} deliveries a second" if cap else "deliveries, which is new"


def _of_leases(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    see_consumers, until_ms = say.consumers_command(facts.namespace, topic), topic.first("busy_until_ms")
    left_ms = until_ms - facts.now_ms
    ends = f"; the first lease ends in {span(left_ms)}" if left_ms > 0 else ""
    if count := topic.sum("no_permit"):
        leased = topic.sum("leased")
        text = (
            f"{counted(count, 'ready item')} of {topic.label} {say.verb(count, 'wait')} for permits: at most "
            f"{topic.in_flight_max} can be in flight, and {leased} {say.be(leased)} under lease{ends}"
        )
        yield Reason(ReasonCode.IN_FLIGHT_FULL, text, until_ms, count, topic.topic, remedy=see_consumers)
    if count := topic.sum("no_room"):
        text = (
            f"{counted(count, 'ready item')} of {topic.label} {say.verb(count, 'wait')} until leases end: their shard "
            f"has as many as it can have, {topic.sum('leased')} of this topic{ends}"
        )
        yield Reason(ReasonCode.LEASES_FULL, text, until_ms, count, topic.topic, remedy=see_consumers)


def _of_order(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons of topics and keys that deliver one item, or one run of items, at a time."""
    name, keys = topic.topic, topic.sum("ordering_keys")
    code = ReasonCode.KEY_BUSY if keys or topic.key else ReasonCode.SERIAL_BUSY
    keyed = f" with {counted(keys, 'ordering key')}" if keys and not topic.key else ""
    owner = "a key" if code == ReasonCode.KEY_BUSY else "a serial topic"
    if count := topic.sum("busy"):
        by = next((found.busy_by for _, found in topic.by_host if found.busy_by), "")
        until_ms = topic.first("busy_until_ms")
        out = f", which is with {by}" if by else ", which is out"
        ends = f" for another {span(until_ms - facts.now_ms)}" if until_ms > facts.now_ms else ""
        text = (
            f"{counted(count, 'ready item')} of {topic.label}{keyed} {say.verb(count, 'wait')} for the delivery before"
            f"{out}{ends}: items of {owner} are delivered one after the other"
        )
        remedy = say.consumers_command(facts.namespace, topic)
        yield Reason(code, text, until_ms, count, name, remedy=remedy)
    if count := topic.sum("retrying"):
        until_ms = topic.first("due_at_ms")
        due = f", due in {span(until_ms - facts.now_ms)}" if until_ms > facts.now_ms else ""
        text = (
            f"{counted(count, 'ready item')} of {topic.label}{keyed} {say.verb(count, 'wait')} for the next attempt of "
            f"the item before{due}"
        )
        yield Reason(code, text, until_ms, count, name)
    if count := topic.sum("held"):
        text = f"{counted(count, 'ready item')} of {topic.label} {say.be(count)} held by a dead letter that comes first"
        remedy = say.topic_command(facts.namespace, "dead-letter redrive", topic)
        yield Reason(ReasonCode.HELD_BY_DEAD, text, 0, count, name, remedy=remedy)
    if count := topic.sum("moving"):
        text = f"{counted(count, 'ready item')} of {topic.label} {say.be(count)} on the way to another shard, in order"
        yield Reason(ReasonCode.SLOT_MOVING, text, 0, count, name, remedy="foqs shard list")
    if count := topic.sum("uncounted"):
        text = f"the shard of {topic.label} was just opened: it counts its items before it delivers any in order"
        yield Reason(ReasonCode.COUNTING, text, 0, count, name)


def _of_memory(topic: TopicFacts) -> Iterable[Reason]:
    if count := topic.sum("no_memory"):
        text = (
            f"{counted(count, 'ready item')} of {topic.label} {say.verb(count, 'wait')}: the host holds as many "
            "claimed items as fit into its memory"
        )
        yield Reason(ReasonCode.PREFETCH_FULL, text, 0, count, topic.topic)
    if (count := topic.sum("unread")) and not topic.sum("free") and topic.sum("waiting_calls"):
        text = f"{counted(count, 'ready item')} of {topic.label} {say.be(count)} being read from the database"
        yield Reason(ReasonCode.REFILLING, text, 0, count, topic.topic)


def _of_free(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons for the items that nothing holds back."""
    free, claimed, name = topic.sum("free"), topic.sum("claimed"), topic.topic
    waiting = topic.sum("waiting_calls")
    if not waiting:
        free += topic.sum("unread") + claimed  # They are read, and claimed ones delivered, once somebody asks.
    items = f"{counted(free, 'ready item')} of {topic.label}"
    if _is_capped(facts, topic):
        free = 0  # The cap explains these.
    if free and facts.is_dequeue:
        text = f"{items} came meanwhile, or are about to be delivered to other consumers: try again"
        yield Reason(ReasonCode.ON_THE_WAY, text, 0, free, name)
    elif free and not waiting and _is_served(topic):
        leased = topic.sum("leased")
        doing = f"are busy with {counted(leased, 'item')}" if leased else "took some a moment ago, and ask no more"
        text = f"{items} {say.verb(free, 'wait')} for consumers, which {doing}"
        remedy = say.consumers_command(facts.namespace, topic)
        yield Reason(ReasonCode.CONSUMERS_SLOW, text, 0, free, name, remedy=remedy)
    elif free and waiting:
        yield from _of_distance(topic, free, items)
    if claimed and waiting and not facts.is_dequeue:
        text = f"{counted(claimed, 'item')} of {topic.label} {say.be(claimed)} claimed for consumers"
        yield Reason(ReasonCode.CLAIMED, text, 0, claimed, name)


def _of_distance(topic: TopicFacts, free: int, items: str) -> Iterable[Reason]:
    """Return the reason for free items beside calls, which wait on the same host or on others."""
    holding = [(host, found) for host, found in topic.by_host if found.free]
    waited_ms = max([found.waited_ms for _, found in topic.by_host])
    late_ms = min(waited_ms, max([found.free_ms for _, found in holding]))
    if any(found.waiting_calls for _, found in holding) or late_ms < WAITED_MS_MIN:
        text = f"{items} {say.be(free)} about to be delivered"
        yield Reason(ReasonCode.ON_THE_WAY, text, 0, free, topic.topic)
    elif late_ms < LATE_MS_MAX:
        on = f" on host {holding[0][0]}" if holding[0][0] else ""
        text = f"{items} {say.be(free)} ready{on}, and consumers wait on other hosts, which have to hear of it"
        yield Reason(ReasonCode.OTHER_HOST_LATE, text, 0, free, topic.topic, holding[0][0])
    else:
        text = (
            f"{items} {say.be(free)} ready for {span(late_ms)}, and calls on other hosts wait as long: please report "
            "this, with the line `stuck` of the host's log"
        )
        yield Reason(ReasonCode.UNEXPLAINED, text, 0, free, topic.topic)


def _stuck(topic: TopicFacts) -> Reason:
    waiting = topic.sum("waiting_calls")
    held = topic.sum("free") + topic.sum("claimed") + topic.sum("unread_idle") + topic.sum("astray")
    text = (
        f"{counted(held, 'item')} of {topic.label} and {counted(waiting, 'waiting call')} are there, and nothing known "
        "keeps them apart: please report this, with the line `stuck` of the host's log"
    )
    return Reason(ReasonCode.UNEXPLAINED, text, 0, held, topic.topic)


def _is_stuck(found: HostTopic) -> bool:
    """Return True if items and calls wait beside each other on a host, or for an event that does not come."""
    if found.astray or found.cap_late_ms >= WAITED_MS_MIN:
        return True
    if not found.waiting_calls or found.waited_ms < WAITED_MS_MIN:
        return False
    if found.waits_for_token or found.waits_for_namespace:
        return False
    is_held = found.claimed > 0 and found.claimed == found.prefetched and not (found.free or found.unread)
    is_unread = found.unread > 0 and found.unread == found.unread_idle and not (found.free or found.claimed)
    return is_held or is_unread or (found.free > 0 and found.free_ms >= WAITED_MS_MIN)


def not_ready(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons for its items that are not ready."""
    if topic.is_empty:
        if not topic.is_paused and topic.has_group and not facts.is_partial:
            yield Reason(ReasonCode.NOTHING_THERE, f"{topic.label} holds no item", topic=topic.topic)
        return
    yield from counts(facts, topic)


def counts(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    name = topic.topic
    if count := topic.sum("leased"):
        text = f"{say.items_are(count, topic)} under lease: consumers have {'it' if count == 1 else 'them'}"
        yield Reason(ReasonCode.LEASED, text, 0, count, name, remedy=say.consumers_command(facts.namespace, topic))
    if count := topic.sum("delayed"):
        yield Reason(ReasonCode.DELAYED, f"{say.items_are(count, topic)} not due yet", 0, count, name)
    if count := topic.sum("dead"):
        text = f"{say.items_are(count, topic)} in the dead letters"
        remedy = say.topic_command(facts.namespace, "dead-letter list", topic) if name else ""
        yield Reason(ReasonCode.DEAD, text, 0, count, name, remedy=remedy)
