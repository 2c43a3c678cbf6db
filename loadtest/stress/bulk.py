"""Interactive calls at rest, and beside a bulk load of the same namespace from the same address that never pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from foqs.host.admission import bulk_lane
from loadtest.stress.clients import Stream, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict

P99_FACTOR_MAX = 2.0
ALONE_SHARE_MIN = 0.9
"""What a bulk load gets alone, of what the same load without the flag gets."""
_NAMESPACE = "tenant"
_ADDRESS = "127.0.0.2"
_SETTLE_S = bulk_lane.SHARED_MS / 1000 + 0.5
_AT_REST, _BESIDE, _UNMARKED, _BULK_ALONE, _UNMARKED_ALONE = (
    "at rest",
    "beside a bulk load",
    "beside the same load without bulk",
    "the bulk load alone",
    "the same load without bulk alone",
)
_KINDS = (_AT_REST, _BESIDE, _AT_REST, _UNMARKED, _BULK_ALONE, _UNMARKED_ALONE)
"""The stretches of a round."""


@dataclass(frozen=True, slots=True)
class Course:
    """Rounds of stretches. Interactive calls are of one item, so many a second of each verb; bulk calls of many."""

    rounds: int = 3
    stretch_s: float = 15.0
    calls_per_s: float = 100.0
    bulk_connections: int = 2
    bulk_in_flight: int = 4
    bulk_batch: int = 1_000


def run(course: Course) -> Verdict:
    """Each stretch begins with a time that does not count: what the last one left behind is not its own."""
    kinds = list(_KINDS) * course.rounds
    length_s = course.stretch_s + _SETTLE_S
    begins = [number * length_s for number in range(len(kinds))]
    streams: list[Stream] = []
    for kind, begin_s in zip(kinds, begins, strict=True):
        if kind in (_AT_REST, _BESIDE, _UNMARKED):
            streams += _interactive(course, begin_s, begin_s + length_s)
        if kind != _AT_REST:
            load = _load(course, begin_s, begin_s + length_s)
            streams.append(load if kind in (_UNMARKED, _UNMARKED_ALONE) else replace(load, bulk=True))
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE, NO_QUOTA)
        found = run_streams(stand.port, streams, lambda begin_ns: wait_until(begin_ns, begins[-1] + length_s))
    return _judge(course, kinds, begins, found)


def _judge(course: Course, kinds: Sequence[str], begins: Sequence[float], found: Mapping[str, Record]) -> Verdict:
    verdict = Verdict("bulk")
    p99s: dict[str, dict[str, float]] = {}
    rates: dict[str, float] = {}
    refused_count = 0
    for kind in dict.fromkeys(kinds):
        starts = [begin_s + _SETTLE_S for one, begin_s in zip(kinds, begins, strict=True) if one == kind]
        spans = [(start_s, start_s + course.stretch_s) for start_s in starts]
        enqueues, takes, load = (_of(found[name], spans) for name in ("enqueue", "dequeue", "load"))
        seconds = sum(until_s - from_s for from_s, until_s in spans)
        rates[kind] = load.taken_count / seconds
        p99s[kind] = {
            "enqueue": enqueues.latency_ms(99),
            "dequeue": takes.latency_ms(99),
            "ack": takes.ack_latency_ms(99),
        }
        if kind != _UNMARKED:
            refused_count += sum(enqueues.refused.values()) + sum(takes.refused.values())
        row: dict[str, object] = {"interactive calls": kind, "enqueue p50 ms": enqueues.latency_ms(50)}
        row |= {f"{verb} p99 ms": p99_ms for verb, p99_ms in p99s[kind].items()}
        refused = enqueues.refused + takes.refused
        row["interactive calls refused"] = ", ".join(f"{name} {count:,}" for name, count in refused.items()) or "none"
        row |= {"load, items a second": rates[kind], "load, calls refused": sum(load.refused.values())}
        verdict.rows.append(row)
    for verb, at_rest_ms in p99s[_AT_REST].items():
        ratio = p99s[_BESIDE][verb] / max(at_rest_ms, 1e-3)
        verdict.bounds.append(Bound(f"{verb} p99 beside a bulk load, by that at rest", ratio, P99_FACTOR_MAX))
    alone = rates[_BULK_ALONE] / max(rates[_UNMARKED_ALONE], 1e-3)
    verdict.bounds.append(Bound("a bulk load alone, by the same without bulk", alone, ALONE_SHARE_MIN, is_least=True))
    goes_on = rates[_BESIDE] / max(rates[_BULK_ALONE], 1e-3)
    verdict.bounds.append(Bound("a bulk load beside interactive calls, by that alone", goes_on, 0.1, is_least=True))
    verdict.bounds.append(Bound("interactive calls that were refused", refused_count, 0))
    return verdict


def _of(record: Record, spans: Sequence[tuple[float, float]]) -> Slice:
    whole = Slice()
    for span in spans:
        whole.add(record.between(*span))
    return whole


def _interactive(course: Course, from_s: float, until_s: float) -> list[Stream]:
    """A producer and a consumer, open loop."""
    whole = Stream(
        name="enqueue",
        verb="enqueue",
        namespace=_NAMESPACE,
        topics=("a", "b"),
        from_s=from_s,
        until_s=until_s,
        batch=1,
        calls_per_s=course.calls_per_s,
        address=_ADDRESS,
    )
    # Somewhat slower, so that a dequeue finds something.
    takes = replace(whole, name="dequeue", verb="dequeue", from_s=from_s + 0.5, calls_per_s=course.calls_per_s * 0.8)
    return [whole, takes]


def _load(course: Course, from_s: float, until_s: float) -> Stream:
    return Stream(
        name="load",
        verb="enqueue",
        namespace=_NAMESPACE,
        topics=tuple(f"load-{number}" for number in range(10)),
        from_s=from_s,
        until_s=until_s,
        batch=course.bulk_batch,
        connections=course.bulk_connections,
        in_flight=course.bulk_in_flight,
        address=_ADDRESS,
    )
