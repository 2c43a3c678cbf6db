"""The judge: why items are not delivered, derived from facts that were gathered before. It is pure.

Dequeues that get nothing and the verb explain ask it alike, so an empty answer and an explanation never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.model import reason_texts as say
from foqs.model.facts import DELIVERABLE, Facts, ItemFacts, ItemStage, ShardFact, TopicFacts
from foqs.model.reason_texts import command, counted, span
from foqs.model.reasons import NOT_ASKED, REASONS_EXPLAINED_MAX, Explanation, Reason, ReasonCode, Verdict
from foqs.model.topic_reasons import counts, failing, held_back, not_ready

REASONS_OF_KIND_MAX = 3
"""The most reasons of one code. The last one counts the rest."""
_STOPPED = frozenset(
    {
        ReasonCode.DEAD, ReasonCode.TOPIC_PAUSED, ReasonCode.NAMESPACE_PAUSED, ReasonCode.NO_CONSUMERS,
        ReasonCode.HELD_BY_DEAD, ReasonCode.SHARD_SICK, ReasonCode.UNSERVED, ReasonCode.PARKED,
        ReasonCode.NO_GROUP,
    }
)  # fmt: skip
_MOVING = frozenset(
    {
        ReasonCode.WAKING, ReasonCode.LEASED, ReasonCode.SETTLING, ReasonCode.CLAIMED, ReasonCode.EXPIRED,
        ReasonCode.ON_THE_WAY,
    }
)  # fmt: skip
_NOTHING_READY = frozenset({ReasonCode.DELAYED, ReasonCode.DEAD, ReasonCode.NOTHING_THERE})


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
    """Return the time in which a cap lets this number of items pass, or without one the time that their delivery takes
    at the speed of the last minute; 0 if it is unknown.
    """
    caps = [topic.cap for topic in topics if topic.cap]
    rate = min(caps) if caps else sum([topic.sum("delivered_per_1000s") for topic in topics]) / 1_000
    return round(count / rate * 1_000) if rate and count else 0


# ---- what was asked for ----


def _of_topics(facts: Facts) -> list[Reason]:
    """Return the reasons for some topics, as a dequeue names them, or for one that is to be explained."""
    reasons = list(_of_pause(facts))
    for topic in facts.topics:
        reasons += held_back(facts, topic)
    reasons += _not_asked(facts)
    if facts.unjudged_count:
        text = f"{facts.unjudged_count} other topics were not checked: ask for fewer at a time to get their reasons"
        reasons.append(Reason(ReasonCode.NOT_LOOKED_AT, text, count=facts.unjudged_count))
    for topic in facts.topics:
        reasons += [*failing(facts, topic), *not_ready(facts, topic)]
    if not reasons:
        reasons.append(Reason(ReasonCode.NOTHING_THERE, say.nothing(facts)))
    if not facts.is_dequeue:
        reasons += _of_enqueues(facts)
    return reasons


def _of_namespace(facts: Facts) -> list[Reason]:
    """Return the first reason of each topic with ready items, those that stand still before those that move."""
    assert facts.all_topics is not None, "the caller has checked it"
    reasons = list(_of_pause(facts))
    of_topics = [first for topic in facts.topics if (first := next(iter(held_back(facts, topic)), None)) is not None]
    reasons += sorted(of_topics, key=lambda reason: (_severity(reason.code), -reason.count))
    left_count = facts.topics_count - len(facts.topics)
    reasons += _not_asked(facts)
    reasons = reasons[: REASONS_EXPLAINED_MAX - 5]
    if left_count > 0:
        text = f"{counted(left_count, 'other topic')} with fewer ready items were not checked"
        reasons.append(Reason(ReasonCode.NOT_LOOKED_AT, text, count=left_count))
    everything = TopicFacts("", by_host=[("", facts.all_topics)])
    reasons += counts(facts, everything)
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
        yield from held_back(facts, topic)
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
            since = f"has been a dead letter for {span(now_ms - item.since_ms)}"
            text = f"it {since if item.since_ms else 'is a dead letter'}{say.why(item.detail)}"
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
            since = f"has been under a lease{by} for {span(now_ms - item.since_ms)}"
            since = since if item.since_ms else f"is under a lease{by}"
            left = f", which ends in {span(until_ms - now_ms)} unless it is extended" if until_ms > now_ms else ""
            text = f"it {since}{left}{failed}"
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
    if facts.quota_left_ms:
        text = f"namespace {namespace!r} has used its quota of {facts.quota:,} enqueues a minute: enqueues are refused"
        until_ms = facts.now_ms + facts.quota_left_ms
        yield Reason(ReasonCode.QUOTA_USED, text, until_ms, remedy=command("namespace show", namespace))
    if not facts.takes_items:
        of_tier = f" of tier {facts.tier!r}" if facts.tier else ""
        text = f"no shard{of_tier} takes new items, or the cluster has none: enqueues are refused"
        yield Reason(ReasonCode.NO_SHARD_TAKES, text, remedy="foqs shard list")
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
    if shard.state == "parked":
        text = f"shard {shard.shard_id} is parked by an operator, and was not asked"
        remedy = f"foqs shard unpark {shard.shard_id}"
        return Reason(ReasonCode.PARKED, text, shard_id=shard.shard_id, remedy=remedy)
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
