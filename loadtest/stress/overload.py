"""Three times as much as the host can do: what it does of it, what it says to the rest, and when it is well again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from loadtest.stress.clients import Stream, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import Memory, Stand
from loadtest.stress.verdict import Bound, Verdict

GOODPUT_SHARE_MIN = 0.8
NORMAL_AFTER_S_MAX = 30.0
NORMAL_FACTOR = 1.5
_EXCESS_FACTOR = 3.0
_NAMESPACE = "tenant"
_TOPICS = tuple(f"topic-{number}" for number in range(8))
_PRODUCERS, _CONSUMERS = 3, 2
_CONNECTIONS = 32
_WINDOW_S = 5
"""A p99 is of so many seconds."""
_producer = partial(Stream, verb="enqueue", namespace=_NAMESPACE, topics=_TOPICS, retried_share=0.05)
_consumer = partial(Stream, verb="dequeue", namespace=_NAMESPACE, topics=_TOPICS, in_flight=4, wait_ms=200)
_normal_consumer = partial(_consumer, open_max=64)
"""Takes no more in advance than it can work off."""


@dataclass(frozen=True, slots=True)
class Course:
    """Seconds of each stretch, and what is enqueued in normal times as a part of the most that can be."""

    peak_s: float = 15.0
    before_s: float = 20.0
    overload_s: float = 300.0
    after_s: float = 45.0
    normal_share: float = 0.2
    batch: int = 20


def run(course: Course) -> Verdict:
    """Producers as fast as the host lets them, to know what normal is; the peak, the same with the consumers of the
    overload; then normal, three times the peak, normal; and the peak again, with the backlog that is there by then.

    Consumers must be the same: to hand an item out and take its ack is more work than to enqueue it, so that more of
    the one for less of the other would look like a loss.
    """
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE)
        first = _peak(stand, course, None)
        normal_calls_per_s = course.normal_share * first["enqueued a second"] / course.batch
        peak = _peak(stand, course, normal_calls_per_s)
        excess = _EXCESS_FACTOR * max(first["enqueued a second"], peak["enqueued a second"])
        with Memory(stand.host.pid) as memory:
            normal, flood, normal_takes, flood_takes = _overload(stand, course, normal_calls_per_s, excess)
        again = _peak(stand, course, normal_calls_per_s)
    peak_goodput = max(peak["goodput"], again["goodput"])
    verdict = Verdict("overload")
    over_s = course.before_s + course.overload_s
    stretches = {
        "before": (0.0, course.before_s),
        "overload": (course.before_s, over_s),
        "after": (over_s, over_s + course.after_s),
    }
    verdict.rows = [{"stretch": "fewer consumers"} | first, {"stretch": "peak"} | peak]
    for stretch, (from_s, until_s) in stretches.items():
        enqueues, takes = normal.between(from_s, until_s), normal_takes.between(from_s, until_s)
        enqueues.add(flood.between(from_s, until_s))
        takes.add(flood_takes.between(from_s, until_s))
        verdict.rows.append({"stretch": stretch} | _figures(enqueues, takes, until_s - from_s, course.batch))
    verdict.rows.append({"stretch": "peak again"} | again)
    _judge(verdict, normal, course, flood.between(0, over_s + course.after_s), peak_goodput)
    verdict.facts |= {"memory of the host, MiB, at the begin": memory.mib[0], "at most": max(memory.mib)}
    return verdict


def _peak(stand: Stand, course: Course, normal_calls_per_s: float | None) -> dict[str, Any]:
    """Of the end of a stretch, when all clients are there."""
    batch, end_s = course.batch, course.peak_s
    enqueues = _producer(name="enqueues", batch=batch, from_s=0, until_s=end_s)
    takes = _consumer(name="takes", batch=batch, from_s=0, until_s=end_s)
    streams = [enqueues] * _PRODUCERS + [takes] * _CONSUMERS
    if normal_calls_per_s is not None:
        streams.append(
            _normal_consumer(name="takes", batch=batch, calls_per_s=normal_calls_per_s, from_s=0, until_s=end_s)
        )
    found = run_streams(stand.port, streams, lambda begin_ns: None)
    from_s = end_s / 5
    return _figures(
        found["enqueues"].between(from_s, end_s),
        found["takes"].between(from_s, end_s),
        end_s - from_s,
        batch,
    )


def _overload(
    stand: Stand, course: Course, normal_calls_per_s: float, excess: float
) -> tuple[Record, Record, Record, Record]:
    """`excess`: what is offered in the overload in all, items a second."""
    batch, from_s, over_s = course.batch, course.before_s, course.before_s + course.overload_s
    end_s = over_s + course.after_s
    excess_calls_per_s = (excess / batch - normal_calls_per_s) / _PRODUCERS
    normal = _producer(name="normal", batch=batch, from_s=0, until_s=end_s, calls_per_s=normal_calls_per_s)
    normal_takes = _normal_consumer(
        name="normal takes", batch=batch, from_s=0, until_s=end_s, calls_per_s=normal_calls_per_s
    )
    flood = _producer(
        name="flood",
        batch=batch,
        from_s=from_s,
        until_s=over_s,
        calls_per_s=excess_calls_per_s,
        connections=_CONNECTIONS,
    )
    flood_takes = _consumer(name="flood takes", batch=batch, from_s=from_s, until_s=over_s)
    streams = [normal, normal_takes] + [flood] * _PRODUCERS + [flood_takes] * _CONSUMERS
    found = run_streams(stand.port, streams, lambda begin_ns: wait_until(begin_ns, end_s))
    return found["normal"], found["flood"], found["normal takes"], found["flood takes"]


def _figures(enqueues: Slice, takes: Slice, seconds: float, batch: int) -> dict[str, Any]:
    """Goodput: items enqueued and items acked, a second."""
    return {
        "offered a second": enqueues.due_count * batch / seconds,
        "enqueued a second": enqueues.taken_count / seconds,
        "acked a second": takes.acked_count / seconds,
        "goodput": (enqueues.taken_count + takes.acked_count) / seconds,
        "refused calls": _counts(enqueues.refused),
        "retry_after_ms": _spread(enqueues),
        "retries taken": f"{enqueues.retried_taken_count:,} of {enqueues.retried_count:,}",
        "unsent calls": enqueues.unsent_count,
        "enqueue p50 ms": enqueues.latency_ms(50),
        "enqueue p99 ms": enqueues.latency_ms(99),
    }


def _counts(refused: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(refused.items()) if count) or "none"


def _spread(enqueues: Slice) -> str:
    hints_ms = sorted(enqueues.hints_ms.elements())
    return f"{hints_ms[0]:,} to {hints_ms[-1]:,}" if hints_ms else "none"


def _judge(verdict: Verdict, normal: Record, course: Course, flood: Slice, peak_goodput: float) -> None:
    row = next(row for row in verdict.rows if row["stretch"] == "overload")
    goodput_share = row["goodput"] / peak_goodput
    before_ms = normal.between(course.before_s / 4, course.before_s).latency_ms(99)
    normal_after_s = _normal_after_s(normal, course, before_ms * NORMAL_FACTOR)
    first_tries = flood.due_count - flood.unsent_count
    first_taken = len(flood.latencies_us)
    unknown = sum(flood.refused[name] for name in ("UNAVAILABLE", "INTERNAL", "no answer", "connection lost"))
    verdict.facts |= {
        "peak, items enqueued and acked a second": peak_goodput,
        "share of first tries that were taken": first_taken / max(1, first_tries),
        "share of retries after retry_after_ms that were taken": flood.retried_taken_count
        / max(1, flood.retried_count),
        "normal p99 before, ms": before_ms,
    }
    verdict.bounds = [
        Bound("goodput in the overload by the peak's", goodput_share, GOODPUT_SHARE_MIN, is_least=True),
        Bound("calls refused with OVERLOADED", flood.refused["OVERLOADED"], 1, is_least=True),
        Bound("refusals without retry_after_ms", flood.hints_ms[-1], 0),
        Bound("calls without a clear answer", unknown, 0),
        Bound("seconds until p99 is normal again", normal_after_s, NORMAL_AFTER_S_MAX),
    ]


def _normal_after_s(normal: Record, course: Course, normal_ms: float) -> float:
    """When the first window begins in which the p99 is normal; infinite when none does."""
    over_s = course.before_s + course.overload_s
    for after_s in range(int(course.after_s)):
        window = normal.between(over_s + after_s, over_s + after_s + min(_WINDOW_S, course.after_s))
        if window.latencies_us and window.latency_ms(99) <= normal_ms:
            return float(after_s)
    return float("inf")
