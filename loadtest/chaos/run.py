"""Rounds of chaos: load and faults, then heal, be calm, drain, check; every round by its own seed."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foqs import Client
from foqs.model.calls import ItemState
from loadtest.chaos.fault import CLIENTS, HOST, Fault
from loadtest.chaos.host_faults import HostClockMoved
from loadtest.chaos.lost_claims import can_be_lost
from loadtest.chaos.monitor import Monitor
from loadtest.chaos.plan import KINDS, Planned, plan
from loadtest.chaos.room import SHARDS, Room
from loadtest.chaos.server_faults import DiskFull
from tests.histories.checker import check
from tests.histories.dedup_checks import WHOLE_WINDOW
from tests.histories.history import Call, Verb, now_ns
from tests.histories.lives import Stored
from tests.support.faults.cluster import audit, purge_dead_letters, wait_until_owned
from tests.support.faults.load import NAMESPACE, TOPICS, Load, Pressure
from tests.support.faults.verdict import Tally, first_done_after, keep

CLOCK_TOLERANCE_MS = 100
CLOCK_LATE_MS = 500
"""A host that takes a shard over knows its server's clock by the answer to one question, and reckons with the earliest
time that it can be. On a busy machine and a slow network that is late by so much, until it asks again."""
SETTLE_MS = 42_000
"""After a fault, redelivery may be this late: what a killed host had prefetched stays claimed for so long."""
_AFTERMATH_MS = 2_000
_RECOVERY_MS_MAX = 10_000
_TICK_S = 0.1
_DRAIN_S_MAX = 120.0
_COUNTED_S_MAX = 30.0
_PRESSURE = Pressure(producers=2, consumers=4, items_per_s=500, pause_after_failure_s=0.2, dedup_share=0.2)


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault as it was, in milliseconds since the epoch. `healing_ms`: when its end began, a restart of what died."""

    fault: Fault[Any]
    began_ms: int
    healing_ms: int
    healed_ms: int


@dataclass(slots=True)
class Course:
    """What all rounds together were and found."""

    tally: Tally = field(default_factory=Tally)
    faults: Counter[str] = field(default_factory=Counter)
    rss_mib_max: float = 0.0
    host_events: Counter[str] = field(default_factory=Counter)
    kept: list[Path] = field(default_factory=list)
    """Where the histories of rounds are in which something was found."""


def kinds_for(room: Room) -> dict[type[Fault[Room]], int]:
    """The kinds of faults that this machine can have, with their weights."""
    lacking: dict[type[Fault[Room]], bool] = {DiskFull: room.small_disk is None, HostClockMoved: room.faketime is None}
    return {kind: weight for kind, weight in KINDS.items() if not lacking.get(kind, False)}


def run_round(room: Room, name: str, chaos_ms: int, calm_ms: int, course: Course) -> None:
    """One round, added to the course. `name` is its seed. Raises FaultError when the harness fails."""
    planned = plan(random.Random(name), chaos_ms, kinds_for(room))
    logged_before = room.logged()
    with Monitor(room) as monitor, Load(room.client_address, name, pressure=_PRESSURE) as load:
        happened = carry_out(room, planned)
        wait_until_owned(room.host_address)
        time.sleep(calm_ms / 1000)
        load.wait_for(enqueued=100, settled=100)
        stored = load.drain(room.direct_urls, patience_s=_DRAIN_S_MAX)
    calls = load.history.calls
    disturbed = [(each.began_ms, each.healed_ms + SETTLE_MS) for each in happened]
    disturbed += [(start_ms, end_ms + _AFTERMATH_MS) for start_ms, end_ms in monitor.away(frozenset(SHARDS))]
    report = check(
        calls,
        stored,
        tolerance_ms=CLOCK_TOLERANCE_MS,
        late_ms=CLOCK_LATE_MS,
        disturbed=disturbed,
        answers_due=True,
        dedup=WHOLE_WINDOW,
        hand_overs_lost=can_be_lost([each.fault for each in happened], logged_before, room.logged()),
    )
    found = [*audit(room.direct_urls), *miscounted(room.host_address, stored)]
    problems = [f"round {name}: {problem}" for problem in found]
    course.tally.add(report, problems)
    if report.violations or problems:
        keep_red(course, calls, stored, happened, disturbed)
    course.faults.update(each.fault.kind for each in happened)
    course.rss_mib_max = max(course.rss_mib_max, monitor.rss_mib_max)
    for each in happened:
        recovery_ms = time_to_recover(each, happened, monitor, calls)
        if recovery_ms is not None:
            course.tally.recovery_ms[each.fault.kind].append(recovery_ms)
    purge_dead_letters(room.host_address, TOPICS)


def keep_red(
    course: Course,
    calls: Sequence[Call],
    stored: Sequence[Stored],
    happened: Sequence[Happened],
    disturbed: Sequence[tuple[int, int]],
) -> None:
    """Write down a round in which something was found."""
    kept = keep(calls, stored)
    lines = [f"{each.began_ms} {each.healing_ms} {each.healed_ms} {each.fault.kind}\n" for each in happened]
    (kept / "faults").write_text("".join(lines))
    (kept / "disturbed").write_text("".join(f"{start_ms} {end_ms}\n" for start_ms, end_ms in disturbed))
    course.kept.append(kept)


def carry_out(room: Any, planned: Sequence[Planned]) -> list[Happened]:
    """Begin and heal every fault at its time, or as soon after as the one before is done."""
    start_s = time.monotonic()
    due = [(each.start_ms, number, each) for number, each in enumerate(planned)]
    began_ms: dict[Fault[Any], int] = {}
    happened = []
    try:
        while due:
            at_ms, number, each = due[0]
            wait_s = start_s + at_ms / 1000 - time.monotonic()
            if wait_s > 0:
                time.sleep(min(wait_s, _TICK_S))
                for fault in began_ms:
                    fault.tick(room)
                continue
            heapq.heappop(due)
            if each.fault not in began_ms:
                began_ms[each.fault] = _wall_ms()
                heapq.heappush(due, (each.end_ms, number, each))
                each.fault.begin(room)
            else:
                since_ms, healing_ms = began_ms.pop(each.fault), _wall_ms()
                each.fault.end(room)
                happened.append(Happened(each.fault, since_ms, healing_ms, _wall_ms()))
    except BaseException as error:
        for fault in began_ms:
            try:
                fault.end(room)
            except Exception as another:
                error.add_note(f"and {fault.kind} did not end: {another!r}")
        raise
    return happened


def time_to_recover(
    each: Happened, happened: Sequence[Happened], monitor: Monitor, calls: Sequence[Call]
) -> int | None:
    """From the begin of its end until the host serves what it concerned, and an enqueue is answered.

    Shards that another fault was about at the time do not count. None when that leaves nothing to tell.
    """
    since_ms = each.healing_ms - _AFTERMATH_MS
    others = [other for other in happened if other is not each and other.healed_ms > since_ms]
    near = [other for other in others if other.began_ms < each.healed_ms + _RECOVERY_MS_MAX]
    shards = each.fault.shards.difference(*[other.fault.shards for other in near if not _is_everywhere(other)])
    served_at_ms = monitor.served_at_ms(shards, each.healed_ms)
    done_at_ms = first_done_after(calls, Verb.ENQUEUE, each.healed_ms)
    if served_at_ms is None or done_at_ms is None or (each.fault.shards and not shards):
        return None
    recovered_at_ms = max(served_at_ms, done_at_ms)
    if any(_is_everywhere(other) and other.began_ms < recovered_at_ms for other in others):
        return None
    return recovered_at_ms - each.healing_ms


def _is_everywhere(happened: Happened) -> bool:
    return bool({HOST, CLIENTS} & happened.fault.targets)


def miscounted(address: str, stored: Sequence[Stored]) -> Iterator[str]:
    """What all hosts count in memory, asked of one, and what the tables hold at rest; a sentence when they differ."""
    rows = {"dead": sum(row.state is ItemState.DEAD for row in stored), "live": 0}
    rows["live"] = len(stored) - rows["dead"]
    deadline_s = time.monotonic() + _COUNTED_S_MAX
    with Client(address) as client:
        while True:
            topics = list(client.topics(NAMESPACE))
            counted = {
                "dead": sum(topic.dead for topic in topics),
                "live": sum(topic.ready + topic.delayed + topic.leased for topic in topics),
            }
            if counted == rows:
                return
            if time.monotonic() > deadline_s:
                yield f"the topics count {counted}, the tables hold {rows}"
                return
            time.sleep(_TICK_S)


def _wall_ms() -> int:
    return now_ns() // 1_000_000
