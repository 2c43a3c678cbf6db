"""The words of reasons and of their remedies, which are commands that exist. All sentences for people are made here
and in `foqs.model.judging`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from foqs.model.facts import Facts, ItemFacts, TopicFacts
from foqs.model.reasons import Verdict
from foqs.model.topic_name import fairness_key_of, ordering_key_of

_SPANS = ((86_400_000, "day"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
_MANY = 2
"""A span has at least this number of its unit, so that a smaller one does not hide most of it."""


def span(ms: int) -> str:
    """Return a length of time in words, in the largest unit of which it has some."""
    ms = max(0, ms)
    for unit_ms, unit in _SPANS:
        if ms >= _MANY * unit_ms:
            return f"{ms // unit_ms} {unit}{'s' if unit == 'day' else ''}"
    return f"{ms} ms"


def counted(count: int, noun: str) -> str:
    """Return "1 item", or "1,204 items"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def be(count: int) -> str:
    return "is" if count == 1 else "are"


def verb(count: int, plural: str) -> str:
    """Return "waits" for one, or "wait" for others."""
    return f"{plural}s" if count == 1 else plural


def why(reason: str) -> str:
    return f": {reason}" if reason else ""


def items_are(count: int, topic: TopicFacts) -> str:
    of = f" of {topic.label}" if topic.name else ""
    return f"{counted(count, 'item')}{of} {be(count)}"


def last_failure(item: ItemFacts) -> str:
    """Return the failed attempts of an item, as the end of a sentence; empty without any."""
    if not item.failed_attempts:
        return ""
    return f"; {counted(item.failed_attempts, 'attempt')} failed{why(item.error)}"


def nothing(facts: Facts) -> str:
    if facts.prefix is None:
        return "nothing was asked for"
    of_group = f" of group {facts.group!r}" if facts.group else ""
    return f"no topic with prefix {facts.prefix!r} holds items{of_group}"


def silent(host: str, reason: str) -> str:
    return f"host {host} was not asked{why(reason)}" if host else "a host was not asked"


def command(words: str, *names: str, options: Sequence[str] = ()) -> str:
    """Return a command line that a shell reads as it is meant, also with names that look like options."""
    mark = ["--"] if any(name.startswith("-") for name in names) else []
    return " ".join(["foqs", words, *map(shlex.quote, [*options, *mark, *names])])


def topic_command(namespace: str, words: str, topic: TopicFacts, *more: str) -> str:
    """Return a command on a topic, or on its group or key."""
    options = ["--group", topic.group] if topic.group else []
    if words.startswith("dead-letter"):
        options += _key_options(topic)
    return command(words, namespace, topic.topic, *more, options=options)


def consumers_command(namespace: str, topic: TopicFacts | None = None) -> str:
    """Return the command that lists the consumers of a topic, or of a namespace."""
    options = [] if topic is None or not topic.name else ["--topic", topic.topic]
    options += ["--group", topic.group] if topic is not None and topic.group else []
    return command("consumer list", namespace, options=options)


def _key_options(topic: TopicFacts) -> list[str]:
    if (ordering_key := ordering_key_of(topic.name)) is not None:
        return ["--ordering-key", ordering_key]
    fairness_key = fairness_key_of(topic.name)
    return [] if fairness_key is None else ["--fairness-key", fairness_key]


_MOVES = {
    Verdict.MOVING: "moves",
    Verdict.SLOW: "waits",
    Verdict.STOPPED: "stands still",
    Verdict.EMPTY: "has nothing to deliver",
    Verdict.GONE: "is gone",
    Verdict.UNEXPLAINED: "stands still, and nobody knows why",
}


_HAS = {
    Verdict.SLOW: "has topics that wait",
    Verdict.STOPPED: "has topics that stand still",
    Verdict.UNEXPLAINED: "has topics that stand still, and nobody knows why",
}
"""The same of a namespace, whose topics differ."""


def summary(facts: Facts, verdict: Verdict) -> str:
    """Return one sentence: the thing, its state, and its items."""
    if facts.item_id:
        of = f" of {TopicFacts(facts.item.topic).label}" if facts.item is not None else ""
        return f"item {facts.item_id}{of} {_MOVES[verdict]}"
    if facts.all_topics is not None:
        all_topics = facts.all_topics
        counts = [getattr(all_topics, name) for name in ("ready", "leased", "delayed", "dead")]
        label = f"namespace {facts.namespace!r}"
    else:
        counts = [sum([topic.sum(name) for topic in facts.topics]) for name in ("ready", "leased", "delayed", "dead")]
        label = facts.topics[0].label if len(facts.topics) == 1 else f"{len(facts.topics)} topics"
    ready, leased, delayed, dead = counts
    has_topics = facts.all_topics is not None and not facts.is_paused and bool(facts.topics)
    state = _HAS.get(verdict, _MOVES[verdict]) if has_topics else _MOVES[verdict]
    return (
        f"{label} {state}: {ready:,} ready, {leased:,} under lease, {delayed:,} delayed, "
        f"{dead:,} dead {'letter' if dead == 1 else 'letters'}"
    )
