"""A tenant within its quota, and next to it one that sends five times its own."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.stress.clients import Stream, Verb, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict

P99_FACTOR_MAX = 1.2
_EXCESS_FACTOR = 5.0
_TOPICS = tuple(f"topic-{number}" for number in range(4))
_LEAD_S = 1.0
_VERBS: tuple[Verb, Verb] = ("enqueue", "dequeue")
_CALM, _GREEDY = "calm", "greedy"


@dataclass(frozen=True, slots=True)
class Course:
    """`rounds` of three stretches: the calm tenant alone, the other within its quota, the other at five times it."""

    rounds: int = 3
    stretch_s: float = 20.0
    calm_items_per_s: float = 400.0
    quota_items_per_s: float = 200.0
    batch: int = 10


def run(course: Course) -> Verdict:
    """A quota is of a sliding minute: what the greedy tenant may is admitted at the speed at which it comes."""
    whole_s = course.rounds * 3 * course.stretch_s
    kinds = ("alone", "next to one within its quota", "next to one at five times its quota")
    stretches = [
        (kinds[number % 3], number * course.stretch_s, (number + 1) * course.stretch_s)
        for number in range(course.rounds * 3)
    ]
    streams = [*_tenant(_CALM, course, course.calm_items_per_s, 0, whole_s)]
    for kind, from_s, until_s in stretches[1:]:
        factor = {kinds[1]: 1.0, kinds[2]: _EXCESS_FACTOR}.get(kind)
        if factor is not None:
            streams += _tenant(_GREEDY, course, course.quota_items_per_s, from_s, until_s, factor)
    with Stand() as stand:
        stand.make_namespace(_CALM, NO_QUOTA)
        stand.make_namespace(_GREEDY, max(1, int(course.quota_items_per_s * 60)))
        found = run_streams(stand.port, streams, lambda begin_ns: wait_until(begin_ns, whole_s))
    verdict = Verdict("isolation")
    p99s = {}
    for kind in kinds:
        spans = [(from_s, until_s) for other, from_s, until_s in stretches if other == kind]
        enqueues, takes, greedy = (
            _of(found[name], spans) for name in (f"{_CALM} enqueue", f"{_CALM} dequeue", f"{_GREEDY} enqueue")
        )
        p99s[kind] = enqueues.latency_ms(99), takes.latency_ms(99)
        seconds = course.rounds * course.stretch_s
        verdict.rows.append(
            {
                "calm tenant": kind,
                "enqueue p50 ms": enqueues.latency_ms(50),
                "enqueue p99 ms": enqueues.latency_ms(99),
                "dequeue p50 ms": takes.latency_ms(50),
                "dequeue p99 ms": takes.latency_ms(99),
                "its calls refused": sum(enqueues.refused.values()),
                "others offered a second": greedy.due_count * course.batch / seconds,
                "others enqueued a second": greedy.taken_count / seconds,
                "others refused": ", ".join(f"{name} {count:,}" for name, count in greedy.refused.items()) or "none",
            }
        )
    for number, verb in enumerate(_VERBS):
        over_ms = p99s[kinds[2]][number]
        for kind in kinds[:2]:
            ratio = over_ms / max(p99s[kind][number], 1e-3)
            verdict.bounds.append(Bound(f"{verb} p99 {kinds[2]} by that {kind}", ratio, P99_FACTOR_MAX))
    refused = sum(row["its calls refused"] for row in verdict.rows)
    verdict.bounds.append(Bound("calls of the calm tenant that were refused", refused, 0))
    return verdict


def _of(record: Record, spans: list[tuple[float, float]]) -> Slice:
    whole = Slice()
    for from_s, until_s in spans:
        # What the stretch before left behind is not this one's.
        whole.add(record.between(from_s + (until_s - from_s) / 10, until_s))
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
