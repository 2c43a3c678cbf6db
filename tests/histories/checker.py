"""Holds a history and what is stored in the end against the promises P1 to P9, P12, P13 and O1 of the queue.

Every finding is certain: where the record leaves open which of two things came first, or whether a call without an
answer was done, the kinder reading counts. So a violation is never the checker's doubt, and O(n log n) suffices: no
search for an order of events that would explain the history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import click

from tests.histories.call_checks import CallChecks
from tests.histories.clocks import Clocks, ClockSteps
from tests.histories.dedup_checks import NO_WINDOW, WHOLE_WINDOW, Begins, DedupWindow, check_dedup
from tests.histories.history import Call, Verb, read_calls
from tests.histories.lane_checks import UNBOUND, Bounds, check_bounds
from tests.histories.life_checks import LifeChecks
from tests.histories.lives import NONE_LEFT, Lives, Stored
from tests.histories.overtaking import check_overtaking
from tests.histories.report import Report, Violation
from tests.histories.splitting import read_stored, split

__all__ = ["Report", "Violation", "check", "check_files"]

Windows = Sequence[tuple[int, int]]
_EVENTS_PER_PART = 400_000
"""About 0.7 KB each in memory."""


def check(
    calls: Iterable[Call],
    stored: Iterable[Stored],
    *,
    drained: bool = True,
    tolerance_ms: int = 0,
    late_ms: int = 0,
    lease_tolerance_ms: int | None = None,
    steps: ClockSteps | None = None,
    disturbed: Windows = (),
    answers_due: bool = False,
    ended_ms: int = 0,
    claims_left: Mapping[str, Collection[int]] = NONE_LEFT,
    dedup: DedupWindow = NO_WINDOW,
    one_host: bool = True,
    hand_overs_lost: bool = False,
    bounds: Bounds = UNBOUND,
) -> Report:
    """Check the calls of one namespace against the rows that are stored after the last of them.

    drained: consumers took all there was, so that nothing may be left but dead letters and what is not due yet.
    tolerance_ms: by how much the servers' clocks may differ from the clients'.
    late_ms: by how much a host's idea of its server's clock may be late besides: times that it reckons from its own
    "now" are earlier by as much. A slow answer at a take-over makes it so.
    lease_tolerance_ms: the same of the ends of leases, when the history has them by a clock of its own.
    steps: of the servers' clocks; without it there were none.
    disturbed: (start, end) of the times when a promise that holds while the owner lives is suspended.
    answers_due: outside of them every call must have got a clear answer.
    ended_ms: when the stored rows were read, by the clock of the calls: until then an item may have expired.
    claims_left: by uid, the numbers of deliveries that were claimed for calls that had ended when the owner died: the
    next owner takes them for delivered, and nobody has had them. Only who sees into the hosts knows them.
    dedup: where and for how long dedup ids are known.
    one_host: whether one host at a time delivered all there was: only then an order holds across answers, and an empty
    answer says that nothing was ready.
    hand_overs_lost: items may have been lost on their way from one host to another, or claimed by an owner that lost
    its shard before it returned them, for a call that was answered without them. Unlike `claims_left` it names none.
    bounds: the lanes and the limits of items in flight that the items have besides.
    Raises ValueError when two enqueues of the history have the same uid.
    """
    calls = list(calls)
    report = Report()
    of_calls = CallChecks(report, disturbed if answers_due else None)
    for call in calls:
        of_calls.see(call)
    of_calls.finish()
    lease_ms = tolerance_ms if lease_tolerance_ms is None else lease_tolerance_ms
    clocks = Clocks(tolerance_ms, late_ms, lease_ms, steps or ClockSteps())
    lives = Lives(calls, stored, ended_ms, claims_left, hand_overs_lost=hand_overs_lost)
    _check_lives(lives, drained, clocks, disturbed, report, one_host=one_host)
    check_dedup(calls, lives, dedup, report)
    check_bounds(calls, lives, bounds, clocks, report)
    return report


def check_files(
    paths: Sequence[Path],
    stored: Sequence[Stored],
    *,
    parts: int | None = None,
    drained: bool = True,
    tolerance_ms: int = 0,
    late_ms: int = 0,
    disturbed: Windows = (),
    answers_due: bool = False,
    ended_ms: int = 0,
    dedup: DedupWindow = NO_WINDOW,
) -> Report:
    """The same of a history in files, of any length: it is split by items, and a part at a time is in memory.

    parts: by default as many as keep each below about 400,000 items enqueued, delivered or settled. Of promise P6
    only what concerns items of the same part is compared, an answer of some items against about all that stood ready.
    Raises ValueError as `check` and `read_histories` do.
    """
    report = Report()
    of_calls = CallChecks(report, disturbed if answers_due else None)
    begins = Begins((), dedup)
    event_count, last_ms = _extent(paths)
    count = parts or 1 + event_count // _EVENTS_PER_PART

    def see(call: Call) -> None:
        of_calls.see(call)
        begins.see(call, dedup)

    with tempfile.TemporaryDirectory(prefix="foqs-history-") as directory:
        found = split(paths, stored, count, Path(directory), see, dedup)
        begins.sort()
        for part in found:
            lives = Lives(part.calls(), part.stored, max(ended_ms, last_ms))
            _check_lives(lives, drained, Clocks(tolerance_ms, late_ms, tolerance_ms), disturbed, report)
            if dedup.namespaces:
                check_dedup(part.calls(), lives, dedup, report, begins)
    of_calls.finish()
    return report


def _extent(paths: Sequence[Path]) -> tuple[int, int]:
    """How many items were enqueued, delivered or settled, and when the last call was."""
    event_count = last_ms = 0
    for path in paths:
        for call in read_calls(path):
            event_count += len(call.taken) if call.verb is Verb.DEQUEUE else len(call.asked)
            last_ms = max(last_ms, call.invoked_at_ms, call.returned_at_ms or 0)
    return event_count, last_ms


def _check_lives(
    lives: Lives,
    drained: bool,
    clocks: Clocks,
    disturbed: Windows,
    report: Report,
    *,
    one_host: bool = True,
) -> None:
    LifeChecks(lives, drained, clocks, disturbed, report, one_host=one_host).run()
    if one_host:
        check_overtaking(lives.by_uid.values(), clocks.tolerance_ms, disturbed, report)


@click.command()
@click.argument("histories", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--stored",
    "stored_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The rows in the end: one JSON line [id, uid, state] each. Without it there are none.",
)
@click.option("--drained/--not-drained", default=True, show_default=True, help="Whether consumers took all there was.")
@click.option("--tolerance-ms", default=60, show_default=True, help="By how much clocks may differ.")
@click.option("--disturbed", nargs=2, type=int, multiple=True, help="From when to when there were faults, in ms.")
@click.option("--ended-ms", default=0, help="When the rows were read, in ms; by default at the last call.")
@click.option(
    "--dedup/--no-dedup", default=True, show_default=True, help="Whether no dedup id was forgotten meanwhile."
)
@click.option("--parts", type=int, help="Into how many parts to split it, for less memory.")
def main(
    histories: tuple[Path, ...],
    stored_path: Path | None,
    drained: bool,
    tolerance_ms: int,
    disturbed: tuple[tuple[int, int], ...],
    ended_ms: int,
    dedup: bool,
    parts: int | None,
) -> None:
    """Check recorded HISTORIES of one run; exit code 1 when a promise broke."""
    stored = read_stored(stored_path) if stored_path is not None else []
    report = check_files(
        histories,
        stored,
        parts=parts,
        drained=drained,
        tolerance_ms=tolerance_ms,
        disturbed=disturbed,
        ended_ms=ended_ms,
        dedup=WHOLE_WINDOW if dedup else NO_WINDOW,
    )
    click.echo(str(report))
    if report.violations:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
