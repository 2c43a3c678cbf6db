"""Dead letters that are redriven by the text of their errors: exact in spite of two kills, and others beside it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from foqs import AdminClient, BulkAction, Client, ItemFilter, ItemState, Job, JobState, NewItem, RetryPolicy
from foqs.model import limits
from loadtest.stress.clients import Stream, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import wait_until_owned

P99_FACTOR_MAX = 1.5
KILLS = (0.5, 0.75)
"""The parts of the items after whose redrive the host is killed."""
_NAMESPACE, _TOPIC = "tenant", "payments"
_WANTED, _OTHER = "timeout of the bank", "no such card"
_FILL_THREADS = 4
_SETTLE_S = 2.5
"""Of each stretch, which does not count: hosts follow a pause within 2 s."""
_POLL_S = 0.2
_AT_REST, _BESIDE = "at rest", "beside a redrive"


@dataclass(frozen=True, slots=True)
class Course:
    """Half of the items have the text. Stretches at rest and beside the job by turns; then kills, without others."""

    items: int = 1_000_000
    rounds: int = 5
    stretch_s: float = 20.0
    redrives_per_s: int = 500
    """Of the job, beside the others. Behind these it has no rate but that of the host."""
    calls_per_s: float = 200.0
    payload_bytes: int = 200
    patience_s: float = 3_600.0


def run(course: Course) -> Verdict:
    """Raises FaultError if the job does not end."""
    length_s = course.stretch_s + _SETTLE_S
    end_s = 2 * course.rounds * length_s
    expected_count = course.items // 2
    if course.redrives_per_s * course.rounds * length_s > KILLS[0] * expected_count:
        raise FaultError("the job would end before the kills: give more items, or a lower rate")
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE, NO_QUOTA)
        began_s = time.monotonic()
        _fill(stand.host.address, course)
        filled_s = time.monotonic() - began_s
        job = _begin(stand, course)
        found = run_streams(
            stand.port, _others(course, end_s), lambda begin_ns: _alternate(stand, job, course, length_s, begin_ns)
        )
        began_s = time.monotonic()
        ended = _to_the_end(stand, job, course, expected_count)
        took_s = time.monotonic() - began_s
        stored = _stored(stand)
    verdict = _judge(course, length_s, found)
    assert ended.bulk is not None
    wrong_count = abs(stored[ItemState.READY, _WANTED] - expected_count)
    wrong_count += abs(stored[ItemState.DEAD, _OTHER] - (course.items - expected_count))
    wrong_count += stored.total() - course.items
    verdict.bounds += [
        Bound("dead letters that are in a wrong state at the end", abs(wrong_count), 0),
        Bound("difference of the job's own count", abs(ended.bulk.done - expected_count), 0),
        Bound("difference of the items that matched", abs(ended.bulk.matched - expected_count), 0),
    ]
    verdict.facts |= {
        "dead letters": course.items,
        "redriven": ended.bulk.done,
        "kills": len(KILLS),
        "counted anew after a kill": ended.bulk.is_recounted,
        "seconds to store the dead letters": filled_s,
        "seconds from the last stretch to the end": took_s,
        "redriven a second beside others": course.redrives_per_s,
    }
    return verdict


def _begin(stand: Stand, course: Course) -> Job:
    """Make the job, and let it wait."""
    with AdminClient(stand.host.address) as admin:
        job = admin.create_bulk_job(
            _NAMESPACE,
            BulkAction.REDRIVE,
            ItemFilter(topics=(_TOPIC,), error_contains="timeout"),
            items_per_second_max=course.redrives_per_s,
        )
        return admin.update_job(_NAMESPACE, job.id, state=JobState.PAUSED)


def _alternate(stand: Stand, job: Job, course: Course, length_s: float, begin_ns: int) -> None:
    """Let the job run in every other stretch."""
    with AdminClient(stand.host.address) as admin:
        for number in range(2 * course.rounds):
            wait_until(begin_ns, number * length_s)
            admin.update_job(_NAMESPACE, job.id, state=JobState.RUNNING if number % 2 else JobState.PAUSED)
        wait_until(begin_ns, 2 * course.rounds * length_s)


def _to_the_end(stand: Stand, job: Job, course: Course, expected_count: int) -> Job:
    """Let the job run, kill the host on the way, and return the record at the end."""
    kills = [part * expected_count for part in KILLS]
    until_s = time.monotonic() + course.patience_s
    with AdminClient(stand.host.address, retry=RetryPolicy(deadline_ms=60_000)) as admin:
        rate = limits.JOB_ITEMS_PER_SECOND_MAX
        found = admin.update_job(_NAMESPACE, job.id, state=JobState.RUNNING, items_per_second_max=rate)
        while found.state is JobState.RUNNING:
            if time.monotonic() > until_s:
                raise FaultError(f"the job has not ended: {found}")
            if kills and found.bulk is not None and found.bulk.done >= kills[0]:
                kills.pop(0)
                stand.kill_and_start_again()
                wait_until_owned(stand.host.address)
            time.sleep(_POLL_S)
            found = admin.get_job(_NAMESPACE, job.id)
    if kills or found.state is not JobState.SUCCEEDED:
        raise FaultError(f"{len(kills)} kills were not made until the job has ended: {found}")
    return found


def _stored(stand: Stand) -> Counter[tuple[ItemState, str]]:
    """The dead letters and those that were, by their states and reasons."""
    found: Counter[tuple[ItemState, str]] = Counter()
    with AdminClient(stand.host.address) as admin:
        for item in admin.iterate_items(_NAMESPACE, topics=[_TOPIC], with_payload=False):
            found[item.state, item.errors[0].reason if item.errors else ""] += 1
    return found


def _judge(course: Course, length_s: float, found: Mapping[str, Record]) -> Verdict:
    verdict = Verdict("redrives")
    p99s: dict[str, dict[str, float]] = {}
    refused_count = 0
    for first, kind in enumerate((_AT_REST, _BESIDE)):
        begins = [(2 * number + first) * length_s for number in range(course.rounds)]
        spans = [(begin_s + _SETTLE_S, begin_s + length_s) for begin_s in begins]
        enqueues, takes = (_of(found[name], spans) for name in ("enqueue", "dequeue"))
        p99s[kind] = {
            "dequeue": takes.latency_ms(99),
            "ack": takes.ack_latency_ms(99),
            "enqueue": enqueues.latency_ms(99),
        }
        refused_count += sum(enqueues.refused.values()) + sum(takes.refused.values())
        row: dict[str, object] = {"others": kind, "dequeue p50 ms": takes.latency_ms(50)}
        verdict.rows.append(row | {f"{verb} p99 ms": p99_ms for verb, p99_ms in p99s[kind].items()})
    for verb, at_rest_ms in p99s[_AT_REST].items():
        ratio = p99s[_BESIDE][verb] / max(at_rest_ms, 1e-3)
        verdict.bounds.append(Bound(f"{verb} p99 of others beside a redrive, by that at rest", ratio, P99_FACTOR_MAX))
    verdict.bounds.append(Bound("calls beside it that were refused", refused_count, 0))
    return verdict


def _of(record: Record, spans: Sequence[tuple[float, float]]) -> Slice:
    whole = Slice()
    for span in spans:
        whole.add(record.between(*span))
    return whole


def _others(course: Course, until_s: float) -> list[Stream]:
    """A producer and a consumer, open loop, from the first to the last stretch."""
    whole = Stream(
        name="enqueue",
        verb="enqueue",
        namespace=_NAMESPACE,
        topics=("a", "b"),
        from_s=0.0,
        until_s=until_s,
        batch=1,
        calls_per_s=course.calls_per_s,
    )
    # Somewhat slower, so that a dequeue finds something.
    return [whole, replace(whole, name="dequeue", verb="dequeue", from_s=0.5, calls_per_s=course.calls_per_s * 0.8)]


def _fill(address: str, course: Course) -> None:
    """Make the dead letters, from a few threads. Raises FaultError."""
    failures: list[BaseException] = []
    halves = {_WANTED: course.items // 2, _OTHER: course.items - course.items // 2}

    def bury(number: int) -> None:
        try:
            with Client(address) as client:
                for reason, all_count in halves.items():
                    _bury(client, reason, len(range(number, all_count, _FILL_THREADS)), course.payload_bytes)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=bury, args=(number,)) for number in range(_FILL_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise FaultError(f"the dead letters could not be made: {failures[0]!r}")


def _bury(client: Client, reason: str, count: int, payload_bytes: int) -> None:
    """Make as many dead letters as this, of items that any thread has stored."""
    for first in range(0, count, limits.BATCH_ITEMS_MAX):
        left_count = min(limits.BATCH_ITEMS_MAX, count - first)
        client.enqueue_many(_NAMESPACE, [NewItem(_TOPIC, b"x" * payload_bytes)] * left_count)
        while left_count:
            items = client.dequeue(_NAMESPACE, _TOPIC, left_count, wait_ms=limits.SECOND_MS)
            if items:
                client.nack(_NAMESPACE, items, dead_letter=True, reason=reason)
            left_count -= len(items)
