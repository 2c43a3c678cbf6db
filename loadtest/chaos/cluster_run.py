"""Rounds of chaos over several hosts: load and faults, then heal, share the shards anew, drain, check."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from foqs import AdminClient
from loadtest.chaos.cluster_faults import kinds_for
from loadtest.chaos.cluster_room import ClusterRoom
from loadtest.chaos.lost_claims import can_be_lost
from loadtest.chaos.plan import GAP_MS_MEAN, plan
from loadtest.chaos.run import (
    CLOCK_LATE_MS,
    CLOCK_TOLERANCE_MS,
    SETTLE_MS,
    Course,
    Happened,
    carry_out,
    keep_red,
    miscounted,
)
from loadtest.chaos.works import WORKS, Work
from tests.histories.checker import Report, check
from tests.histories.dedup_checks import WHOLE_WINDOW
from tests.histories.group_views import view_of
from tests.histories.history import Call, Verb, now_ns
from tests.histories.lives import Stored
from tests.support.faults.cluster import audit, purge_dead_letters
from tests.support.faults.load import Load
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.verdict import first_done_after

_LOOK_EVERY_S = 0.1
_SILENT_MS_MAX = 1_000
_AFTERMATH_MS = 3_000
_DRAIN_S_MAX = 120.0
_APPLIED_S_MAX = 2.0
"""A policy holds on every host within this time, says docs/wire-contract.md."""


class ClusterMonitor(OwnThread):
    """Asks all hosts all the time, past their networks, which shards they serve."""

    def __init__(self, room: ClusterRoom) -> None:
        super().__init__("cluster-monitor")
        self.rss_mib_max = 0.0
        self._room = room
        self._shards = frozenset(room.layout.shards)
        self._seen: list[tuple[int, bool]] = []
        """When the hosts were asked, and whether every shard was served."""

    def served_at_ms(self, after_ms: int) -> int | None:
        """The first time after this when every shard was served."""
        return next((at_ms for at_ms, is_whole in self._seen if at_ms >= after_ms and is_whole), None)

    def away(self) -> list[tuple[int, int]]:
        """(start, end) of the times when not every shard was known to be served."""
        return [
            (start_ms, end_ms)
            for (start_ms, was_whole), (end_ms, is_whole) in pairwise(self._seen)
            if not (was_whole and is_whole) or end_ms - start_ms > _SILENT_MS_MAX
        ]

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            asked_at_ms = now_ns() // 1_000_000
            served = frozenset[int]().union(*[self._room.owned(host) for host in self._room.programs])
            self._seen.append((asked_at_ms, served == self._shards))
            for program in self._room.programs.values():
                self.rss_mib_max = max(self.rss_mib_max, _rss_mib(program.pid))


def prepare(room: ClusterRoom, work: Work) -> None:
    """Make what the items of this work need, and let every host apply it."""
    with AdminClient(room.address_of(1)) as admin:
        work.prepare(admin)
    time.sleep(_APPLIED_S_MAX)


def run_round(
    room: ClusterRoom,
    name: str,
    chaos_ms: int,
    calm_ms: int,
    course: Course,
    settle_ms: int = SETTLE_MS,
    work: Work = WORKS["mixed"],
    gap_ms_mean: int = GAP_MS_MEAN,
) -> None:
    """One round, added to the course. `name` is its seed. Raises FaultError when the harness fails.

    After a fault, redelivery may be `settle_ms` late: so long may what a killed host had prefetched stay claimed.
    """
    planned = plan(random.Random(name), chaos_ms, kinds_for(room.layout, work.kinds), gap_ms_mean)
    logged_before = room.logged()
    with (
        ClusterMonitor(room) as monitor,
        Load(room.client_addresses, name, pressure=work.pressure, shape=work.shape) as load,
    ):
        happened = carry_out(room, planned)
        room.wait_until_shared()
        time.sleep(calm_ms / 1000)
        load.wait_for(enqueued=100, settled=100)
        stored = load.drain(room.direct_urls, patience_s=_DRAIN_S_MAX)
    calls = load.history.calls
    disturbed = [(each.began_ms, each.healed_ms + settle_ms) for each in happened]
    disturbed += [(start_ms, end_ms + _AFTERMATH_MS) for start_ms, end_ms in monitor.away()]
    is_lost = can_be_lost([each.fault for each in happened], logged_before, room.logged())
    found = [*audit(room.direct_urls), *miscounted(room.address_of(1), stored)]
    problems = [f"round {name}: {problem}" for problem in found]
    for seen_calls, seen_rows in _views(work, calls, stored):
        report = _check(seen_calls, seen_rows, work, disturbed, is_lost)
        course.tally.add(report, problems)
        if report.violations or problems:
            keep_red(course, seen_calls, seen_rows, happened, disturbed)
        problems = []
    course.faults.update(each.fault.kind for each in happened)
    course.rss_mib_max = max(course.rss_mib_max, monitor.rss_mib_max)
    for each in happened:
        recovery_ms = _time_to_recover(each, happened, monitor, calls)
        if recovery_ms is not None:
            course.tally.recovery_ms[each.fault.kind].append(recovery_ms)
    for group in work.shape.groups or [""]:
        purge_dead_letters(room.address_of(1), list(work.shape.topics), group)


def _views(
    work: Work, calls: Sequence[Call], stored: Sequence[Stored]
) -> Iterator[tuple[Sequence[Call], Sequence[Stored]]]:
    """The calls and the rows of each group, or all of them."""
    if not work.shape.groups:
        yield calls, stored
    for group in work.shape.groups:
        rows = [row for row in stored if row.group == group]
        yield view_of(group, calls, rows), rows


def _check(
    calls: Sequence[Call], stored: Sequence[Stored], work: Work, disturbed: Sequence[tuple[int, int]], is_lost: bool
) -> Report:
    return check(
        calls,
        stored,
        tolerance_ms=CLOCK_TOLERANCE_MS,
        late_ms=CLOCK_LATE_MS,
        disturbed=disturbed,
        answers_due=True,
        dedup=WHOLE_WINDOW,
        one_host=False,
        hand_overs_lost=is_lost,
        bounds=work.bounds,
    )


def _time_to_recover(
    each: Happened, happened: Sequence[Happened], monitor: ClusterMonitor, calls: Sequence[Call]
) -> int | None:
    """From the begin of its end until every shard is served and an enqueue is answered; None where others disturb."""
    served_at_ms = monitor.served_at_ms(each.healed_ms)
    done_at_ms = first_done_after(calls, Verb.ENQUEUE, each.healed_ms)
    if served_at_ms is None or done_at_ms is None:
        return None
    recovered_at_ms = max(served_at_ms, done_at_ms)
    others = [other for other in happened if other is not each]
    since_ms = each.healing_ms - _AFTERMATH_MS
    if any(other.healed_ms > since_ms and other.began_ms < recovered_at_ms for other in others):
        return None
    return recovered_at_ms - each.healing_ms


def _rss_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # It has ended this moment.
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024 if "VmRSS" in lines else 0.0
