"""Hours of mixed load, the purge blocked in the middle: memory and latency stay flat, all counts agree in the end.

Over hours a machine that others share is now faster and now slower. So at the end of each third a newcomer, a host that
has just been started, on servers of its own, has the same load beside the veteran for some minutes: what the two take
at the same time tells what age does.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from math import nan
from pathlib import Path
from typing import Any

from foqs.model.calls import ItemState
from loadtest.bench.usage import memory_mib
from loadtest.chaos.monitor import Monitor
from loadtest.chaos.room import SERVER_COUNT, SHARDS, Room
from loadtest.chaos.run import CLOCK_LATE_MS, CLOCK_TOLERANCE_MS, miscounted
from loadtest.stress.stand import quiet_room
from loadtest.stress.verdict import Bound, Verdict
from tests.histories.checker import check_files
from tests.histories.history import History, Outcome, Verb, read_calls
from tests.histories.splitting import write_stored
from tests.support.faults.cluster import audit
from tests.support.faults.load import Load, Pressure

MEMORY_FACTOR_MAX = 1.2
LATENCY_FACTOR_MAX = 1.5
BLOCKED_FACTOR_MAX = 2.0
_AFTERMATH_MS = 2_000
"""After the host did not answer for a while, on a busy machine, redelivery may be this late."""
_DRAIN_S_MAX = 300.0
_WARM_UP_SHARE = 0.1
"""Of the run: windows, caches and allocators are filled then."""
_COMPARED_SHARE = 0.2
"""Of a third: so long is the newcomer compared, after one part to warm up."""
_MEMORY = "host MiB"
_VERBS = (Verb.ENQUEUE, Verb.DEQUEUE, Verb.ACK)


@dataclass(frozen=True, slots=True)
class Course:
    """`part_s`: what is one row. The purge is blocked in the middle third."""

    seconds: float = 7_200.0
    part_s: float = 60.0
    items_per_s: int = 300

    @property
    def part_count(self) -> int:
        return max(6, round(self.seconds / self.part_s))

    @property
    def thirds(self) -> tuple[range, range, range]:
        """The parts of each."""
        first, last = self.part_count // 3, self.part_count - self.part_count // 3
        return range(first), range(first, last), range(last, self.part_count)

    def compared(self, third: range) -> range:
        """The parts of a third in which there is a warm newcomer."""
        return third[-max(1, int(len(third) * _COMPARED_SHARE)) :]


@dataclass(slots=True)
class _Part:
    memory_mib: float
    purge_is_blocked: bool


def run(course: Course, say: Callable[[str], None]) -> Verdict:
    """`say` gets a line after each part."""
    pressure = Pressure(producers=2, consumers=4, items_per_s=course.items_per_s)
    directory = Path(tempfile.mkdtemp(prefix="foqs-life-"))
    path = directory / "history"
    newcomers = [directory / f"newcomer-{number}" for number in range(len(course.thirds))]
    with quiet_room(with_small_disk=False) as room, Monitor(room) as monitor:
        with closing(History(path)) as history, Load(room.host_address, "life", history, pressure) as load:
            begin_ms = time.time() * 1_000
            parts = _live(room, load, course, [partial(_newcomer, path, pressure) for path in newcomers], say)
            stored = load.drain(room.direct_urls, patience_s=_DRAIN_S_MAX)
        problems = [*audit(room.direct_urls), *miscounted(room.host_address, stored)]
        disturbed = [(start, end + _AFTERMATH_MS) for start, end in monitor.away(frozenset(SHARDS))]
    # A part of the history is in memory at a time.
    report = check_files(
        [path],
        stored,
        tolerance_ms=CLOCK_TOLERANCE_MS,
        late_ms=CLOCK_LATE_MS,
        disturbed=disturbed,
        answers_due=True,
    )
    latencies_ms = latencies_by_part([path], begin_ms, course.part_s)
    newcomer_ms = latencies_by_part(newcomers, begin_ms, course.part_s)
    rows = [_row(number, part, latencies_ms[number], newcomer_ms[number]) for number, part in enumerate(parts)]
    verdict = Verdict("long life", rows=rows)
    verdict.facts = {
        "rows left, all of them dead letters": sum(row.state is ItemState.DEAD for row in stored),
        "rows left that are not": sum(row.state is not ItemState.DEAD for row in stored),
        **{f"checked: {name}": count for name, count in sorted(report.counts.items())},
        "times when the host did not answer at once": len(disturbed),
        **dict(beside_each_other(rows, course)),
        **dict(by_the_clock(rows, course)),
        "found": "; ".join([*map(str, report.violations[:10]), *problems]) or "nothing",
    }
    if report.violations or problems:
        write_stored(directory / "rows", stored)
        verdict.facts["history and rows are kept in"] = str(directory)
    else:
        shutil.rmtree(directory)
    verdict.bounds = [*flatness(rows, course), *_agreement(verdict, len(report.violations), len(problems))]
    return verdict


def _live(
    room: Room,
    load: Load,
    course: Course,
    newcomers: Sequence[Callable[[], AbstractContextManager[None]]],
    say: Callable[[str], None],
) -> list[_Part]:
    assert room.host is not None
    parts: list[_Part] = []
    began_s = time.monotonic()
    for third, newcomer in zip(course.thirds, newcomers, strict=True):
        is_middle = third == course.thirds[1]
        with ExitStack() as stack:
            if is_middle:
                stack.enter_context(_blocked_purge(room))
            for number in third:
                if number == course.compared(third)[0] - 1:
                    stack.enter_context(newcomer())
                time.sleep(max(0.0, began_s + (number + 1) * course.part_s - time.monotonic()))
                load.wait_for(enqueued=1, settled=1)
                parts.append(_Part(memory_mib(room.host.pid), purge_is_blocked=is_middle))
                say(f"part {number + 1} of {course.part_count}: {parts[-1].memory_mib:.0f} MiB")
    return parts


@contextmanager
def _newcomer(path: Path, pressure: Pressure) -> Iterator[None]:
    """A host on servers of its own, both just started, under the same load; its calls are recorded in `path`."""
    with (
        quiet_room(with_small_disk=False) as room,
        closing(History(path)) as history,
        Load(room.host_address, "newcomer", history, pressure),
    ):
        yield


@contextmanager
def _blocked_purge(room: Room) -> Iterator[None]:
    """An old snapshot on every server of shards: no deleted row can be cleared away."""
    with ExitStack() as stack:
        for server in range(SERVER_COUNT):
            session = stack.enter_context(room.root(server, autocommit=False))
            with session.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                for shard in [shard for shard, at in SHARDS.items() if at == server]:
                    cursor.execute(f"SELECT COUNT(*) FROM shard_{shard}.item")
        yield


def latencies_by_part(paths: Sequence[Path], begin_ms: float, part_s: float) -> dict[int, dict[Verb, list[int]]]:
    """Of the calls that did something, in milliseconds."""
    found: dict[int, dict[Verb, list[int]]] = defaultdict(lambda: {verb: [] for verb in _VERBS})
    for call in chain.from_iterable(map(read_calls, paths)):
        if call.verb not in _VERBS or call.returned_at_ms is None or call.outcome is not Outcome.OK:
            continue
        if call.verb is Verb.DEQUEUE and not call.taken:
            continue
        part = int((call.invoked_at_ms - begin_ms) // (part_s * 1_000))
        found[part][call.verb].append(call.returned_at_ms - call.invoked_at_ms)
    return found


def _row(
    number: int, part: _Part, latencies_ms: dict[Verb, list[int]], newcomer_ms: dict[Verb, list[int]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"part": number + 1, "purge": "blocked" if part.purge_is_blocked else ""}
    for verb in _VERBS:
        row[f"{verb} calls"] = len(latencies_ms[verb])
        row[f"{verb} p50 ms"] = _percentile(latencies_ms[verb], 0.5)
        row[_p99(verb)] = _percentile(latencies_ms[verb], 0.99)
        row[_p99(verb, of_newcomer=True)] = _percentile(newcomer_ms[verb], 0.99)
    return row | {_MEMORY: part.memory_mib}


def _p99(verb: Verb, *, of_newcomer: bool = False) -> str:
    return f"{verb} p99 ms" + (" of newcomer" if of_newcomer else "")


def _percentile(latencies_ms: list[int], share: float) -> int | None:
    return sorted(latencies_ms)[int(len(latencies_ms) * share)] if latencies_ms else None


def flatness(rows: Sequence[dict[str, Any]], course: Course) -> Iterator[Bound]:
    """Memory against the first third, latencies against the newcomer in the same parts; medians of the parts."""
    first, blocked, last = course.thirds
    memory = _median(rows, last, _MEMORY) / _median(rows, first, _MEMORY)
    yield Bound("memory of the host, last third by first", memory, MEMORY_FACTOR_MAX)
    periods = ((last, "last third", LATENCY_FACTOR_MAX), (blocked, "purge blocked", BLOCKED_FACTOR_MAX))
    for verb, (third, when, limit) in product(_VERBS, periods):
        yield Bound(f"{verb} p99 by newcomer's, {when}", _against_newcomer(rows, course, third, verb), limit)


def beside_each_other(rows: Sequence[dict[str, Any]], course: Course) -> Iterator[tuple[str, str]]:
    """What both wait for on a busy machine makes their ratio smaller: so these are the figures themselves."""
    for verb in _VERBS:
        pairs = [
            f"{_median(rows, course.compared(third), _p99(verb)):.0f}, "
            f"{_median(rows, course.compared(third), _p99(verb, of_newcomer=True)):.0f}"
            for third in course.thirds
        ]
        yield f"{verb} p99 ms of veteran and newcomer, at the end of each third", "; ".join(pairs)


def by_the_clock(rows: Sequence[dict[str, Any]], course: Course) -> Iterator[tuple[str, float]]:
    """The same without the newcomer: what the machine did to all in the course of the run is in it."""
    first, blocked, last = course.thirds
    for verb in _VERBS:
        base = _median(rows, first[int(len(rows) * _WARM_UP_SHARE) :], _p99(verb))
        yield f"{verb} p99, last third by first", _median(rows, last, _p99(verb)) / base
        yield f"{verb} p99, purge blocked by first third", _median(rows, blocked, _p99(verb)) / base
        yield f"{verb} p99 by newcomer's, first third", _against_newcomer(rows, course, first, verb)


def _against_newcomer(rows: Sequence[dict[str, Any]], course: Course, third: range, verb: Verb) -> float:
    parts = course.compared(third)
    return _median(rows, parts, _p99(verb)) / _median(rows, parts, _p99(verb, of_newcomer=True))


def _median(rows: Sequence[dict[str, Any]], parts: Sequence[int], key: str) -> float:
    """At least 1; not a number where nothing was measured."""
    found = [float(rows[part][key]) for part in parts if rows[part][key] is not None]
    return max(1.0, statistics.median(found)) if found else nan


def _agreement(verdict: Verdict, violation_count: int, problem_count: int) -> Iterator[Bound]:
    yield Bound("violations that the checker found", violation_count, 0)
    yield Bound("rows that are left and not dead letters", verdict.facts["rows left that are not"], 0)
    yield Bound("differences between rows and counts, unsound rows", problem_count, 0)
