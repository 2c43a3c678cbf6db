"""Hours of mixed load, the purge blocked in the middle: memory and latency stay flat, all counts agree in the end."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foqs.core.calls import ItemState
from foqs.testing.checker import check_files
from foqs.testing.history import History, Outcome, Verb, read_calls
from foqs.testing.splitting import write_stored
from loadtest.bench.usage import memory_mib
from loadtest.chaos.monitor import Monitor
from loadtest.chaos.room import SERVER_COUNT, SHARDS, Room
from loadtest.chaos.run import CLOCK_LATE_MS, CLOCK_TOLERANCE_MS, miscounted
from loadtest.faults.cluster import audit
from loadtest.faults.load import Load, Pressure
from loadtest.stress.stand import quiet_room
from loadtest.stress.verdict import Bound, Verdict

MEMORY_FACTOR_MAX = 1.2
LATENCY_FACTOR_MAX = 1.5
BLOCKED_FACTOR_MAX = 2.0
_AFTERMATH_MS = 2_000
"""After the host did not answer for a while, on a busy machine, redelivery may be this late."""
_DRAIN_S_MAX = 300.0
_WARM_UP_SHARE = 0.1
"""Of the run: windows, caches and allocators are filled then."""
_VERBS = (Verb.ENQUEUE, Verb.DEQUEUE, Verb.ACK)


@dataclass(frozen=True, slots=True)
class Course:
    """`part_s`: what is one row. The purge is blocked in the middle third."""

    seconds: float = 7_200.0
    part_s: float = 60.0
    items_per_s: int = 300


@dataclass(slots=True)
class _Part:
    memory_mib: float
    purge_is_blocked: bool


def run(course: Course, say: Callable[[str], None]) -> Verdict:
    """`say` gets a line after each part."""
    pressure = Pressure(producers=2, consumers=4, items_per_s=course.items_per_s)
    directory = Path(tempfile.mkdtemp(prefix="foqs-life-"))
    path = directory / "history"
    with quiet_room(with_small_disk=False) as room, Monitor(room) as monitor:
        history = History(path)
        try:
            with Load(room.host_address, "life", history, pressure) as load:
                begin_ms = time.time() * 1_000
                parts = _live(room, load, course, say)
                stored = load.drain(room.direct_urls, patience_s=_DRAIN_S_MAX)
            problems = [*audit(room.direct_urls), *miscounted(room, stored)]
        finally:
            history.close()
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
    latencies_ms = latencies_by_part(path, begin_ms, course.part_s)
    verdict = Verdict("long life", rows=[_row(number, part, latencies_ms[number]) for number, part in enumerate(parts)])
    verdict.facts = {
        "rows left, all of them dead letters": sum(row.state is ItemState.DEAD for row in stored),
        "rows left that are not": sum(row.state is not ItemState.DEAD for row in stored),
        **{f"checked: {name}": count for name, count in sorted(report.counts.items())},
        "times when the host did not answer at once": len(disturbed),
        "found": "; ".join([*map(str, report.violations[:10]), *problems]) or "nothing",
    }
    if report.violations or problems:
        write_stored(directory / "rows", stored)
        verdict.facts["history and rows are kept in"] = str(directory)
    else:
        shutil.rmtree(directory)
    verdict.bounds = [*flatness(verdict.rows), *_agreement(verdict, len(report.violations), len(problems))]
    return verdict


def _live(room: Room, load: Load, course: Course, say: Callable[[str], None]) -> list[_Part]:
    assert room.host is not None
    parts: list[_Part] = []
    count = max(3, round(course.seconds / course.part_s))
    first_blocked, first_free = count // 3, count - count // 3
    began_s = time.monotonic()
    with ExitStack() as blocking:
        for number in range(count):
            if number == first_blocked:
                blocking.enter_context(_blocked_purge(room))
            if number == first_free:
                blocking.close()
            time.sleep(max(0.0, began_s + (number + 1) * course.part_s - time.monotonic()))
            load.wait_for(enqueued=1, settled=1)
            parts.append(_Part(memory_mib(room.host.pid), first_blocked <= number < first_free))
            say(f"part {number + 1} of {count}: {parts[-1].memory_mib:.0f} MiB")
    return parts


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


def latencies_by_part(path: Path, begin_ms: float, part_s: float) -> dict[int, dict[Verb, list[int]]]:
    """Of the calls that did something, in milliseconds."""
    found: dict[int, dict[Verb, list[int]]] = defaultdict(lambda: {verb: [] for verb in _VERBS})
    for call in read_calls(path):
        if call.verb not in _VERBS or call.returned_at_ms is None or call.outcome is not Outcome.OK:
            continue
        if call.verb is Verb.DEQUEUE and not call.taken:
            continue
        part = int((call.invoked_at_ms - begin_ms) // (part_s * 1_000))
        found[part][call.verb].append(call.returned_at_ms - call.invoked_at_ms)
    return found


def _row(number: int, part: _Part, latencies_ms: dict[Verb, list[int]]) -> dict[str, Any]:
    row: dict[str, Any] = {"part": number + 1, "purge": "blocked" if part.purge_is_blocked else ""}
    for verb in _VERBS:
        ordered = sorted(latencies_ms[verb]) or [0]
        row[f"{verb} calls"] = len(latencies_ms[verb])
        row[f"{verb} p50 ms"] = ordered[len(ordered) // 2]
        row[f"{verb} p99 ms"] = ordered[int(len(ordered) * 0.99)]
    return row | {"host MiB": part.memory_mib}


def flatness(rows: Sequence[dict[str, Any]]) -> Iterator[Bound]:
    """The last third against the first, and the time of the blocked purge against the first; medians of the parts."""
    warm = int(len(rows) * _WARM_UP_SHARE)
    blocked = [row for row in rows if row["purge"]]
    first = rows[warm : rows.index(blocked[0])]
    last = rows[rows.index(blocked[-1]) + 1 :]

    def growth(of: Sequence[dict[str, Any]], key: str) -> float:
        return float(statistics.median(row[key] for row in of)) / max(
            1.0, float(statistics.median(row[key] for row in first))
        )

    yield Bound("memory of the host, last third by first", growth(last, "host MiB"), MEMORY_FACTOR_MAX)
    for verb in _VERBS:
        yield Bound(f"{verb} p99, last third by first", growth(last, f"{verb} p99 ms"), LATENCY_FACTOR_MAX)
        yield Bound(f"{verb} p99, purge blocked by first third", growth(blocked, f"{verb} p99 ms"), BLOCKED_FACTOR_MAX)


def _agreement(verdict: Verdict, violation_count: int, problem_count: int) -> Iterator[Bound]:
    yield Bound("violations that the checker found", violation_count, 0)
    yield Bound("rows that are left and not dead letters", verdict.facts["rows left that are not"], 0)
    yield Bound("differences between rows and counts, unsound rows", problem_count, 0)
