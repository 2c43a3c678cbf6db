"""A tenant within its quota, and next to it one that sends five times its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.stress.clients import Stream, Verb, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict

P99_FACTOR_MAX = 1.2
_TOPICS = tuple(f"topic-{number}" for number in range(4))
_LEAD_S = 1.0
_LOOK_S = 1.0
_VERBS: tuple[Verb, Verb] = ("enqueue", "dequeue")
_CALM, _GREEDY = "calm", "greedy"
_ALONE = "alone"
_WITHIN = "next to one within its quota"
_BURST = "next to one that uses up its quota"
_OVER = "next to one over its quota"
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Course:
    """`rounds` of three stretches: the calm tenant alone, the other within its quota, the other at `excess_factor`
    times it."""

    rounds: int = 3
    stretch_s: float = 30.0
    calm_items_per_s: float = 400.0
    quota_items_per_s: float = 200.0
    excess_factor: float = 5.0
    batch: int = 10


def run(course: Course) -> Verdict:
    """A quota is of a sliding minute. What is left of it is admitted at the speed at which it comes, as it must be:
    more work for all, which is not what a quota guards against. It is over its quota when calls are refused, and these
    seconds are the ones that have a bound.
    """
    whole_s = course.rounds * 3 * course.stretch_s
    stretches = [(number * course.stretch_s, (number + 1) * course.stretch_s) for number in range(course.rounds * 3)]
    streams = [*_tenant(_CALM, course, course.calm_items_per_s, 0, whole_s)]
    for factor, of_greedy in ((1.0, stretches[1::3]), (course.excess_factor, stretches[2::3])):
        for from_s, until_s in of_greedy:
            streams += _tenant(_GREEDY, course, course.quota_items_per_s, from_s, until_s, factor)
    with Stand() as stand:
        stand.make_namespace(_CALM, NO_QUOTA)
        stand.make_namespace(_GREEDY, max(1, int(course.quota_items_per_s * 60)))
        found = run_streams(stand.port, streams, lambda begin_ns: wait_until(begin_ns, whole_s))
    settled = [_settled(stretch) for stretch in stretches]
    burst, over = _by_refusals(found[f"{_GREEDY} enqueue"], settled[2::3])
    verdict = Verdict("isolation")
    p99s = {}
    for kind, spans in {_ALONE: settled[0::3], _WITHIN: settled[1::3], _BURST: burst, _OVER: over}.items():
        enqueues, takes, greedy = (
            _of(found[name], spans) for name in (f"{_CALM} enqueue", f"{_CALM} dequeue", f"{_GREEDY} enqueue")
        )
        p99s[kind] = enqueues.latency_ms(99), takes.latency_ms(99)
        seconds = sum(until_s - from_s for from_s, until_s in spans)
        verdict.rows.append(
            {"calm tenant": kind, "seconds": seconds} | _figures(enqueues, takes, greedy, seconds, course)
        )
    for number, verb in enumerate(_VERBS):
        for kind in (_ALONE, _WITHIN):
            ratio = p99s[_OVER][number] / max(p99s[kind][number], 1e-3)
            verdict.bounds.append(Bound(f"{verb} p99 {_OVER} by that {kind}", ratio, P99_FACTOR_MAX))
    verdict.bounds.append(Bound("seconds in which the other was over its quota", len(over), 1, is_least=True))
    refused = sum(row["its calls refused"] for row in verdict.rows)
    verdict.bounds.append(Bound("calls of the calm tenant that were refused", refused, 0))
    return verdict


def _figures(enqueues: Slice, takes: Slice, greedy: Slice, seconds: float, course: Course) -> dict[str, Any]:
    return {
        "enqueue p50 ms": enqueues.latency_ms(50),
        "enqueue p99 ms": enqueues.latency_ms(99),
        "dequeue p50 ms": takes.latency_ms(50),
        "dequeue p99 ms": takes.latency_ms(99),
        "its calls refused": sum(enqueues.refused.values()),
        "others offered a second": greedy.due_count * course.batch / max(seconds, 1.0),
        "others enqueued a second": greedy.taken_count / max(seconds, 1.0),
        "others refused": ", ".join(f"{name} {count:,}" for name, count in greedy.refused.items()) or "none",
    }


def _settled(stretch: Span) -> Span:
    """What the stretch before left behind is not this one's."""
    from_s, until_s = stretch
    return from_s + (until_s - from_s) / 10, until_s


def _by_refusals(greedy: Record, stretches: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """The seconds of these stretches in which nothing was refused, and those in which something was."""
    kinds: tuple[list[Span], list[Span]] = ([], [])
    for from_s, until_s in stretches:
        for number in range(int((until_s - from_s) / _LOOK_S)):
            span = from_s + number * _LOOK_S, from_s + (number + 1) * _LOOK_S
            kinds[bool(greedy.between(*span).refused)].append(span)
    return kinds


def _of(record: Record, spans: Sequence[Span]) -> Slice:
    whole = Slice()
    for span in spans:
        whole.add(record.between(*span))
    return whole


def _tenant(
    namespace: str, course: Course, items_per_s: float, from_s: float, until_s: float, factor: float = 1.0
) -> list[Stream]:
    """Producers at `factor` times its rate, and consumers that take what the rate allows."""
    return [
        Stream(
            name=f"{namespace} {verb}",
            verb=verb,
            namespace=namespace,
            topics=_TOPICS,
            # Behind the producers: a dequeue is to find something, not to wait for it.
            from_s=from_s + (_LEAD_S if verb == "dequeue" else 0),
            until_s=until_s,
            batch=course.batch,
            calls_per_s=items_per_s * (factor if verb == "enqueue" else 1) / course.batch,
        )
        for verb in _VERBS
    ]
