"""One of four servers is sick: what the shards of the others notice, and what becomes of what was meant for it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from foqs.model import limits
from loadtest.chaos.room import SHARDS, SMALL, Room
from loadtest.chaos.server_faults import DiskFull
from loadtest.stress.clients import Stream, Verb, run_streams, wait_until
from loadtest.stress.record import Record
from loadtest.stress.stand import quiet_room
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import wait_until_owned
from tests.support.faults.load import NAMESPACE
from tests.support.faults.volume import missing_for_mounts

P99_FACTOR_MAX = 1.5
OPENS_MS_MAX = limits.BREAKER_OPENS_MS_MAX
CLOSES_MS_MAX = 3_000
_SICK = 1
"""This server, and SMALL where the disk is full. Each has one shard."""
_SLOW_MS = 600
"""Each way: a transaction takes longer than a breaker bears."""
_LEAD_S = 2.0
_TOPICS = tuple(f"topic-{number}" for number in range(4))
_VERBS: tuple[Verb, Verb] = ("enqueue", "dequeue")


@dataclass(frozen=True, slots=True)
class Course:
    """Seconds before a fault, of it, and after it."""

    before_s: float = 15.0
    sick_s: float = 15.0
    after_s: float = 10.0
    items_per_s: float = 500.0
    batch: int = 5


@dataclass(frozen=True, slots=True)
class Sickness:
    """`mend`: what must be done until the server is well; its time to recover begins when that returns.

    `from_refusal`: the server is sick from the first transaction that it refuses on, till then its files have room.
    """

    kind: str
    server: int
    begin: Callable[[], None]
    mend: Callable[[], None]
    from_refusal: bool = False


_REFUSALS = ("transaction_failed", "session_lost")
"""A server without room may refuse a row or end: which comes first depends on what room its files have left."""


@dataclass(slots=True)
class _Times:
    """In seconds since the epoch; the begin of the run, and what happened in it."""

    begin_s: float = 0.0
    sick_s: float = 0.0
    mended_s: float = 0.0
    """When the mending began: to start a server takes the machine's time, whoever needs it."""
    well_s: float = 0.0


@dataclass(slots=True)
class BreakerTimes:
    """When a transaction was first refused or lost its session, when the breaker opened and closed: seconds since the
    epoch, or 0."""

    first_refusal_s: float = 0.0
    opened_s: float = 0.0
    closed_s: float = 0.0


def run(course: Course, kinds: tuple[str, ...] = ()) -> Verdict:
    """All that this machine can have, or those of these kinds."""
    missing = missing_for_mounts()
    verdict = Verdict("sick shard")
    if missing:
        verdict.facts["without a full disk, which needs"] = "; ".join(missing)
    with quiet_room(with_small_disk=not missing) as room:
        for sickness in _sicknesses(room):
            if not kinds or sickness.kind in kinds:
                _go_through(room, sickness, course, verdict)
                wait_until_owned(room.host_address)
    return verdict


def _sicknesses(room: Room) -> list[Sickness]:
    server, network = room.servers[_SICK], room.networks[_SICK]
    found = [
        Sickness("frozen", _SICK, server.pause, server.resume),
        Sickness("killed", _SICK, server.kill, server.start),
        Sickness("slow", _SICK, lambda: network.slow_down(_SLOW_MS), lambda: network.slow_down(0)),
    ]
    if room.small_disk is not None:
        fault = DiskFull(random.Random(0))
        found.append(Sickness("full", SMALL, lambda: fault.begin(room), lambda: fault.end(room), from_refusal=True))
    return found


def _go_through(room: Room, sickness: Sickness, course: Course, verdict: Verdict) -> None:
    times = _Times()

    def fall_sick(begin_ns: int) -> None:
        times.begin_s = time.time() + (begin_ns - time.monotonic_ns()) / 1e9
        wait_until(begin_ns, _LEAD_S + course.before_s)
        times.sick_s = time.time()
        sickness.begin()
        wait_until(begin_ns, _LEAD_S + course.before_s + course.sick_s)
        times.mended_s = time.time()
        sickness.mend()
        times.well_s = time.time()
        time.sleep(course.after_s)

    found = run_streams(room.host_port, _streams(course), fall_sick)
    shard = next(shard for shard, server in SHARDS.items() if server == sickness.server)
    breaker = breaker_times(room, shard, times.sick_s, times.well_s)
    row, bounds = judge(sickness, shard, found, times, breaker)
    verdict.rows.append(row)
    verdict.bounds += bounds


def _streams(course: Course) -> list[Stream]:
    until_s = _LEAD_S + course.before_s + course.sick_s + course.after_s
    return [
        Stream(
            name=verb,
            verb=verb,
            namespace=NAMESPACE,
            topics=_TOPICS,
            # Behind the producers: a dequeue is to find something, not to wait for it.
            from_s=_LEAD_S if verb == "dequeue" else 0.0,
            until_s=until_s,
            batch=course.batch,
            calls_per_s=course.items_per_s / course.batch,
        )
        for verb in _VERBS
    ]


def breaker_times(room: Room, shard: int, sick_s: float, well_s: float) -> BreakerTimes:
    """By the host's log."""
    if room.host is None or not room.host.is_running:
        raise FaultError("the host has ended")
    found = BreakerTimes()
    for line in list(room.host.lines):
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("shard") != shard or "timestamp" not in entry:
            continue
        at_s, event = datetime.fromisoformat(entry["timestamp"]).timestamp(), entry["event"]
        if event in _REFUSALS and at_s >= sick_s:
            found.first_refusal_s = found.first_refusal_s or at_s
        if event == "breaker_opened" and at_s >= sick_s:
            found.opened_s = found.opened_s or at_s
        if event == "breaker_closed" and at_s >= well_s:
            found.closed_s = found.closed_s or at_s
    return found


def judge(
    sickness: Sickness, shard: int, found: Mapping[str, Record], times: _Times, breaker: BreakerTimes
) -> tuple[dict[str, Any], list[Bound]]:
    """The others are judged while the breaker is open: before that, a call may wait for the sick one."""
    kind, opened_s, closed_s = sickness.kind, breaker.opened_s, breaker.closed_s
    sick_s, mended_s, well_s, open_s = (
        at - times.begin_s for at in (times.sick_s, times.mended_s, times.well_s, opened_s)
    )
    row: dict[str, Any] = {"server": kind}
    bounds = []
    for verb in _VERBS:
        before = found[verb].between(_LEAD_S + 1, sick_s - 0.1)
        sick = found[verb].between(open_s + 0.1 if opened_s else sick_s, mended_s)
        row |= {
            f"{verb} p50 ms before": before.latency_ms(50),
            f"{verb} p50 ms, breaker open": sick.latency_ms(50),
            f"{verb} p99 ms before": before.latency_ms(99),
            f"{verb} p99 ms, breaker open": sick.latency_ms(99),
        }
        ratio = sick.latency_ms(99) / max(before.latency_ms(99), 1e-3)
        bounds.append(Bound(f"{kind}: {verb} p99 by that before", ratio, P99_FACTOR_MAX))
    since_fault_ms = (opened_s - times.sick_s) * 1_000 if opened_s else float("inf")
    refused_after_ms = (breaker.first_refusal_s - times.sick_s) * 1_000 if sickness.from_refusal else 0.0
    opened_ms = max(0.0, since_fault_ms - max(0.0, refused_after_ms))
    closed_ms = max(0.0, (closed_s - times.well_s) * 1_000) if closed_s else float("inf")
    held_up = found["enqueue"].between(sick_s - 1, well_s + 1)
    whole = found["enqueue"].between(0, 1e9)
    row |= {
        "opens ms": opened_ms,
        "opens ms after the fault began": since_fault_ms,
        "closes ms": closed_ms,
        "held up": sum(held_up.late_by_shard.values()),
        "placed elsewhere": sum(n for at, n in held_up.late_by_shard.items() if at != shard),
        "enqueues refused": ", ".join(f"{name} {n:,}" for name, n in whole.refused.items() if n) or "none",
    }
    bounds += [
        Bound(f"{kind}: breaker opens, ms", opened_ms, OPENS_MS_MAX),
        Bound(f"{kind}: breaker closes, ms", closed_ms, CLOSES_MS_MAX),
        Bound(f"{kind}: enqueues refused", sum(whole.refused.values()), 0),
    ]
    return row, bounds
