"""The judge: why items are not delivered, derived from facts that were gathered before. It is pure.

Dequeues that get nothing and the verb explain ask it alike, so an empty answer and an explanation never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.model import reason_texts as say
from foqs.model.facts import DELIVERABLE, Facts, HostTopic, ItemFacts, ItemStage, ShardFact, TopicFacts
from foqs.model.reason_texts import command, counted, span
from foqs.model.reasons import NOT_ASKED, REASONS_EXPLAINED_MAX, Explanation, Reason, ReasonCode, Verdict

REASONS_OF_KIND_MAX = 3
"""The most reasons of one code. The last one counts the rest."""
WAITED_MS_MIN = 1_000
"""The time for which an item and a call wait beside each other on a host before that is a defect, in milliseconds."""
LATE_MS_MAX = 10_000
"""The same on two hosts, which have to notice each other, possibly while links are cut."""

_STOPPED = frozenset(
    {
        ReasonCode.DEAD, ReasonCode.TOPIC_PAUSED, ReasonCode.NAMESPACE_PAUSED, ReasonCode.NO_CONSUMERS,
        ReasonCode.HELD_BY_DEAD, ReasonCode.SHARD_SICK, ReasonCode.UNSERVED, ReasonCode.NO_GROUP,
    }
)  # fmt: skip
_MOVING = frozenset(
    {
        ReasonCode.WAKING, ReasonCode.LEASED, ReasonCode.SETTLING, ReasonCode.CLAIMED, ReasonCode.EXPIRED,
        ReasonCode.ON_THE_WAY,
    }
)  # fmt: skip
_NOTHING_READY = frozenset({ReasonCode.DELAYED, ReasonCode.DEAD, ReasonCode.NOTHING_THERE})
_OF_ENQUEUES = frozenset({ReasonCode.ENQUEUE_PAUSED, ReasonCode.NAMESPACE_CLOSING, ReasonCode.DEPTH_FULL})


def judge(facts: Facts) -> Explanation:
    """Return the reasons, the decisive one first: at least one, and REASONS_EXPLAINED_MAX at most."""
    if facts.item_id:
        reasons = list(_of_item(facts)) or [_unknown_wait()]
    elif facts.all_topics is not None:
        reasons = _of_namespace(facts)
    else:
        reasons = _of_topics(facts)
    verdict = _verdict(facts, reasons)
    found = Explanation(verdict, say.summary(facts, verdict), reasons[:REASONS_EXPLAINED_MAX], facts.now_ms)
    if facts.item is not None and facts.item.state in DELIVERABLE:
        found.ahead_count, found.ahead_is_exact = _ahead(facts.topics)
        found.expected_wait_ms = _expected_wait_ms(facts.topics, found.ahead_count + 1)
    elif not facts.item_id and not facts.is_dequeue and len(facts.topics) == 1:
        found.expected_wait_ms = _expected_wait_ms(facts.topics, facts.topics[0].sum("ready"))
    found.missing = [reason.text for reason in reasons if reason.code in NOT_ASKED]
    return found


def _verdict(facts: Facts, reasons: Sequence[Reason]) -> Verdict:
    code = reasons[0].code
    if code == ReasonCode.GONE:
        return Verdict.GONE
    if code == ReasonCode.UNEXPLAINED:
        return Verdict.UNEXPLAINED
    if code == ReasonCode.NOTHING_THERE or (code in _NOTHING_READY and not facts.item_id):
        return Verdict.EMPTY
    if code in _STOPPED:
        return Verdict.STOPPED
    return Verdict.MOVING if code in _MOVING else Verdict.SLOW


def _expected_wait_ms(topics: Sequence[TopicFacts], count: int) -> int:
    """Return the time in which a cap lets this number of items pass; 0 without one."""
    caps = [topic.cap for topic in topics if topic.cap]
    return round(count / min(caps) * 1000) if caps and count else 0


# ---- what was asked for ----


def _of_topics(facts: Facts) -> list[Reason]:
    """Return the reasons for some topics, as a dequeue names them, or for one that is to be explained."""
    reasons = list(_of_pause(facts))
    for topic in facts.topics:
        reasons += _held_back(facts, topic)
    reasons += _not_asked(facts)
    if facts.unjudged_count:
        text = f"{facts.unjudged_count} other topics were not checked: ask for fewer at a time to get their reasons"
        reasons.append(Reason(ReasonCode.NOT_LOOKED_AT, text, count=facts.unjudged_count))
    for topic in facts.topics:
        reasons += _not_ready(facts, topic)
    if not reasons:
        reasons.append(Reason(ReasonCode.NOTHING_THERE, say.nothing(facts)))
    if not facts.is_dequeue:
        reasons += _of_enqueues(facts)
    return reasons


def _of_namespace(facts: Facts) -> list[Reason]:
    """Return the first reason of each topic with ready items, those that stand still before those that move."""
    assert facts.all_topics is not None, "the caller has checked it"
    reasons = list(_of_pause(facts))
    of_topics = [first for topic in facts.topics if (first := next(iter(_held_back(facts, topic)), None)) is not None]
    reasons += sorted(of_topics, key=lambda reason: (_severity(reason.code), -reason.count))
    left_count = facts.topics_count - len(facts.topics)
    reasons += _not_asked(facts)
    reasons = reasons[: REASONS_EXPLAINED_MAX - 5]
    if left_count > 0:
        text = f"{counted(left_count, 'other topic')} with fewer ready items were not checked"
        reasons.append(Reason(ReasonCode.NOT_LOOKED_AT, text, count=left_count))
    everything = TopicFacts("", by_host=[("", facts.all_topics)])
    reasons += _counts(facts, everything)
    if not reasons:
        reasons.append(Reason(ReasonCode.NOTHING_THERE, f"namespace {facts.namespace!r} holds no item"))
    return reasons + list(_of_enqueues(facts))


def _severity(code: int) -> int:
    if code == ReasonCode.UNEXPLAINED:
        return 0
    return 1 if code in _STOPPED else 3 if code in _MOVING else 2


def _of_item(facts: Facts) -> Iterable[Reason]:
    item, shard_id = facts.item, facts.item_shard_id
    if item is None:
        reasons = [one for one in _not_asked(facts) if one.shard_id == shard_id]
        if not facts.is_item_shard_asked:
            reasons = reasons or [one for one in _not_asked(facts) if one.shard_id == -1]
        if facts.item_problem and not reasons:
            text = f"item {facts.item_id} could not be looked up: {facts.item_problem}"
            reasons.append(Reason(ReasonCode.HOST_SILENT, text, shard_id=shard_id))
        if not reasons:
            text = f"no item {facts.item_id} is stored in namespace {facts.namespace!r}: it was acked or deleted, has "
            reasons.append(Reason(ReasonCode.GONE, text + "expired, or was never there"))
        yield from reasons
        return
    if item.state != ItemStage.DEAD and item.expires_at_ms and item.expires_at_ms <= facts.now_ms:
        late = span(facts.now_ms - item.expires_at_ms)
        yield Reason(ReasonCode.EXPIRED, f"its TTL ended {late} ago: it is deleted when a delivery or a scan meets it")
    if item.state not in DELIVERABLE:
        yield _of_stage(facts, item)
        return
    yield from _of_pause(facts)
    for topic in facts.topics:
        yield from _held_back(facts, topic)
    yield from [one for one in _not_asked(facts) if one.shard_id in (-1, shard_id)]
    count, is_exact = _ahead(facts.topics)
    if count and facts.topics:
        text = f"{'' if is_exact else 'at least '}{counted(count, 'item')} of {facts.topics[0].label} come first"
        wait_ms = _expected_wait_ms(facts.topics, count + 1)
        yield Reason(ReasonCode.BEHIND, text, facts.now_ms + wait_ms if wait_ms else 0, count, facts.topics[0].topic)
    if item.state != ItemStage.READY:
        yield _of_stage(facts, item)


def _unknown_wait() -> Reason:
    text = "it is ready, and its hosts know of no ready items of its topic: please report this, with the line `stuck` "
    return Reason(ReasonCode.UNEXPLAINED, text + "of the host's log", count=1)


def _ahead(topics: Sequence[TopicFacts]) -> tuple[int, bool]:
    """Return the number of items before the item, and False if others are possible."""
    by_host = [found for topic in topics for _, found in topic.by_host]
    return sum([found.before for found in by_host]), all(found.before_is_exact for found in by_host)


def _of_stage(facts: Facts, item: ItemFacts) -> Reason:
    """Return the reason of an item that is not ready."""
    topic, until_ms, now_ms = TopicFacts(item.topic), item.until_ms, facts.now_ms
    name, failed = topic.topic, say.last_failure(item)
    see_consumers = say.consumers_command(facts.namespace, topic)
    match item.state:
        case ItemStage.DEAD:
            since = f" since {span(now_ms - item.since_ms)}" if item.since_ms else ""
            text = f"it is a dead letter{since}{say.why(item.detail)}"
            remedy = say.topic_command(facts.namespace, "dead-letter redrive", topic, item.id)
            return Reason(ReasonCode.DEAD, text, count=1, topic=name, remedy=remedy)
        case ItemStage.DELAYED if until_ms > now_ms:
            text = f"it is due in {span(until_ms - now_ms)}{failed}"
            return Reason(ReasonCode.DELAYED, text, until_ms, 1, name)
        case ItemStage.DELAYED:
            text = f"it was due {span(now_ms - until_ms)} ago, and is about to become ready{failed}"
            return Reason(ReasonCode.WAKING, text, count=1, topic=name)
        case ItemStage.LEASED:
            by = f" of {item.holder}" if item.holder else ""
            since = f" since {span(now_ms - item.since_ms)}" if item.since_ms else ""
            left = f", for another {span(until_ms - now_ms)} unless it is extended" if until_ms > now_ms else ""
            text = f"it is under a lease{by}{since}{left}{failed}"
            return Reason(ReasonCode.LEASED, text, until_ms, 1, name, remedy=see_consumers)
        case ItemStage.INHERITED:
            text = "the former owner of its shard had claimed it ahead: whether a consumer has it is unknown until then"
            return Reason(ReasonCode.INHERITED, text, until_ms, 1, name)
        case ItemStage.SETTLING:
            return Reason(ReasonCode.SETTLING, "the end of its lease is being written", count=1, topic=name)
    is_held = item.state == ItemStage.PREFETCHED
    text = "it is claimed for a consumer that is expected" if is_held else "it is being claimed for a consumer"
    return Reason(ReasonCode.CLAIMED, text, count=1, topic=name)


# ---- reasons of namespaces, shards and hosts ----


def _of_pause(facts: Facts) -> Iterable[Reason]:
    if facts.is_paused:
        text = f"dequeues of namespace {facts.namespace!r} are paused by an operator{say.why(facts.pause_reason)}"
        remedy = command("namespace resume --dequeue", facts.namespace)
        yield Reason(ReasonCode.NAMESPACE_PAUSED, text, remedy=remedy)


def _of_enqueues(facts: Facts) -> Iterable[Reason]:
    """Return the reasons why new items are refused."""
    namespace = facts.namespace
    if facts.is_closing:
        text = f"namespace {namespace!r} is being deleted, and takes no items"
        yield Reason(ReasonCode.NAMESPACE_CLOSING, text)
    if facts.is_enqueue_paused:
        text = f"enqueues of namespace {namespace!r} are paused by an operator{say.why(facts.pause_reason)}"
        yield Reason(ReasonCode.ENQUEUE_PAUSED, text, remedy=command("namespace resume --enqueue", namespace))
    for topic in facts.topics if facts.all_topics is None else ():
        if topic.is_enqueue_paused:
            text = f"enqueues of {topic.label} are paused by an operator{say.why(topic.pause_reason)}"
            remedy = say.topic_command(namespace, "topic resume --enqueue", topic)
            yield Reason(ReasonCode.ENQUEUE_PAUSED, text, topic=topic.topic, remedy=remedy)
        depth = topic.sum("ready") + topic.sum("delayed") + topic.sum("leased")
        if topic.depth_max and depth >= topic.depth_max:
            text = f"{topic.label} holds {counted(depth, 'item')}, and can hold {topic.depth_max}: enqueues are refused"
            remedy = say.topic_command(namespace, "topic depth", topic, str(2 * topic.depth_max))
            yield Reason(ReasonCode.DEPTH_FULL, text, count=depth, topic=topic.topic, remedy=remedy)


def _not_asked(facts: Facts) -> Iterable[Reason]:
    """Return the reasons of shards and hosts, of which a topic that is explained concerns those with items of it."""
    is_concerned = facts.is_dequeue or facts.item_id or any(topic.sum("sick") for topic in facts.topics)
    reasons = _of_kind([_sick(one) for one in facts.sick]) if is_concerned else []
    reasons += _of_kind([_unserved(one) for one in facts.unserved])
    reasons += _of_kind([_unsettled(one) for one in facts.unsettled])
    return reasons + _of_kind(
        [
            Reason(ReasonCode.HOST_SILENT, say.silent(host, cause), host=host, remedy="foqs hosts")
            for host, cause in facts.silent
        ]
    )


def _sick(shard: ShardFact) -> Reason:
    text = f"shard {shard.shard_id} is sick and was not asked{say.why(shard.detail)}"
    return Reason(ReasonCode.SHARD_SICK, text, host=shard.host, shard_id=shard.shard_id, remedy="foqs shard list")


def _unserved(shard: ShardFact) -> Reason:
    text = f"shard {shard.shard_id} is served by no host and was not asked{say.why(shard.detail)}"
    return Reason(ReasonCode.UNSERVED, text, host=shard.host, shard_id=shard.shard_id, remedy="foqs shard list")


def _unsettled(shard: ShardFact) -> Reason:
    code, text = {
        "leaving": (ReasonCode.LEAVING, "is on its way to another host"),
        "counting": (ReasonCode.COUNTING, "was just opened and still counts its items"),
    }.get(shard.state, (ReasonCode.MAP_DIFFERS, "has other owners by the word of other hosts"))
    text = f"shard {shard.shard_id} {text}{say.why(shard.detail)}"
    return Reason(code, text, host=shard.host, shard_id=shard.shard_id, remedy="foqs shard list")


def _of_kind(reasons: Sequence[Reason]) -> list[Reason]:
    """Keep REASONS_OF_KIND_MAX reasons of one kind."""
    some = list(reasons[:REASONS_OF_KIND_MAX])
    if left_count := len(reasons) - len(some):
        some[-1].text += f"; and {left_count} others like it"
    return some


# ---- reasons of topics ----


def _held_back(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
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
        if any(_is_stuck(found) for _, found in topic.by_host):
            yield _stuck(topic)
        yield from _of_consumers(facts, topic)
        yield from _of_caps(facts, topic)
        yield from _of_leases(facts, topic)
        yield from _of_order(facts, topic)
        yield from _of_memory(topic)
        yield from _of_free(facts, topic)


def _is_served(topic: TopicFacts) -> bool:
    """Return True if consumers work on its items, or took some a moment ago."""
    return bool(topic.sum("leased")) or topic.has("has_consumers")


def _of_consumers(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    if facts.is_dequeue or topic.sum("waiting_calls") or _is_served(topic):
        return
    ready = topic.sum("ready")
    text = f"no consumer asks for {topic.label}: {counted(ready, 'ready item')} {say.be(ready)} waiting for one"
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
    elif topic.cap and (facts.is_dequeue or topic.has("waits_for_token")):
        text = f"{items} for its cap of {topic.cap:g} deliveries a second"
        remedy = say.topic_command(facts.namespace, "topic limit", topic, "none")
        yield Reason(ReasonCode.TOPIC_CAPPED, text, until_ms, ready, name, remedy=remedy)
    elif facts.cap:
        text = f"{items} for the cap of namespace {facts.namespace!r}, {facts.cap:g} deliveries a second"
        remedy = command("namespace set", facts.namespace, options=["--deliveries-per-second-max", "0"])
        yield Reason(ReasonCode.NAMESPACE_CAPPED, text, until_ms, ready, name, remedy=remedy)


def _of_leases(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    see_consumers, until_ms = say.consumers_command(facts.namespace, topic), topic.first("busy_until_ms")
    if count := topic.sum("no_permit"):
        leased = topic.sum("leased")
        text = (
            f"{counted(count, 'ready item')} of {topic.label} {say.verb(count, 'wait')} for permits: at most "
            f"{topic.in_flight_max} can be in flight, and {leased} {say.be(leased)} under lease"
        )
        yield Reason(ReasonCode.IN_FLIGHT_FULL, text, until_ms, count, topic.topic, remedy=see_consumers)
    if count := topic.sum("no_room"):
        text = (
            f"{counted(count, 'ready item')} of {topic.label} {say.verb(count, 'wait')} until leases end: their shard "
            f"has as many as it can have, {topic.sum('leased')} of this topic"
        )
        yield Reason(ReasonCode.LEASES_FULL, text, until_ms, count, topic.topic, remedy=see_consumers)


def _of_order(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons of topics and keys that deliver one item, or one run of items, at a time."""
    name, keys = topic.topic, topic.sum("ordering_keys")
    code = ReasonCode.KEY_BUSY if keys or topic.key else ReasonCode.SERIAL_BUSY
    in_order = f", in {counted(keys, 'key')}" if keys and not topic.key else ""
    if count := topic.sum("busy"):
        by = next((found.busy_by for _, found in topic.by_host if found.busy_by), "")
        until_ms = topic.first("busy_until_ms")
        ends = f", for another {span(until_ms - facts.now_ms)}" if until_ms > facts.now_ms else ""
        text = (
            f"{counted(count, 'ready item')} of {topic.label}{in_order} {say.verb(count, 'wait')} for the one that is "
            f"out{f' with {by}' if by else ''}{ends}: they are delivered one after the other"
        )
        remedy = say.consumers_command(facts.namespace, topic)
        yield Reason(code, text, until_ms, count, name, remedy=remedy)
    if count := topic.sum("retrying"):
        until_ms = topic.first("due_at_ms")
        due = f", due in {span(until_ms - facts.now_ms)}" if until_ms > facts.now_ms else ""
        text = (
            f"{counted(count, 'ready item')} of {topic.label}{in_order} {say.verb(count, 'wait')} for the next attempt "
            f"of the one before{due}"
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


def _not_ready(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
    """Return the reasons for its items that are not ready."""
    if topic.is_empty:
        if not topic.is_paused and topic.has_group and not facts.is_partial:
            yield Reason(ReasonCode.NOTHING_THERE, f"{topic.label} holds no item", topic=topic.topic)
        return
    yield from _counts(facts, topic)


def _counts(facts: Facts, topic: TopicFacts) -> Iterable[Reason]:
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
