"""`python -m loadtest.chaos`: every promise holds through everything that can go wrong, on one host or several."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from loadtest.chaos import cluster_run
from loadtest.chaos.cluster_links import HOSTS_MAX, missing_for_namespaces
from loadtest.chaos.cluster_room import ClusterRoom, Layout
from loadtest.chaos.packet_loss import missing_for_packet_loss
from loadtest.chaos.plan import GAP_MS_MEAN
from loadtest.chaos.room import Room, find_faketime
from loadtest.chaos.run import Course, run_round
from loadtest.chaos.works import WORKS, Work
from tests.support.faults.verdict import counts_table, promises_table, spread
from tests.support.faults.volume import missing_for_mounts

_ROUND_S = 130
_ITEMS_MIN = 1_000
_CALM_S = 48
"""Longer than SETTLE_MS: some of it must be undisturbed."""


@click.command()
@click.option("--minutes", default=2.0, show_default=True, help="About how long.")
@click.option("--seed", default=1, show_default=True, help="The same seed plans the same faults at the same times.")
@click.option(
    "--hosts", type=click.IntRange(1, HOSTS_MAX), default=1, show_default=True, help="Hosts that share shards."
)
@click.option(
    "--servers", type=click.IntRange(1, 8), default=2, show_default=True, help="MySQL servers of several hosts."
)
@click.option(
    "--work",
    "work_name",
    type=click.Choice(list(WORKS)),
    default="mixed",
    show_default=True,
    help="What several hosts have to do: items of all kinds; serial topics and ordering keys whose slots move; consumer"
    " groups while hosts are killed; topics with a limit of items in flight.",
)
@click.option("--items", default=0, help="Go on until so many items were enqueued, instead of for a time.")
@click.option("--items-per-second", default=0, help="Of all producers of several hosts; 0: as the work has it.")
@click.option(
    "--gap-seconds", default=GAP_MS_MEAN / 1000, show_default=True, help="From one fault of several hosts to the next."
)
@click.option("--zookeeper", is_flag=True, help="Several hosts find each other by ZooKeeper.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there.")
def main(
    minutes: float,
    seed: int,
    hosts: int,
    servers: int,
    work_name: str,
    items: int,
    items_per_second: int,
    gap_seconds: float,
    zookeeper: bool,
    json_path: Path | None,
) -> None:
    """Exit code 1 when a promise broke."""
    if hosts == 1 and work_name != "mixed":
        raise click.UsageError(f"the work {work_name} is for several hosts: --hosts 2")
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    course = Course()
    run = Run(console, course, minutes, seed, json_path, items)
    try:
        if hosts == 1:
            _on_one_host(run)
        else:
            layout = Layout(hosts, servers, by_zookeeper=zookeeper)
            work = WORKS[work_name]
            if items_per_second:
                work = replace(work, pressure=replace(work.pressure, items_per_s=items_per_second))
            _on_several(run, layout, work, int(gap_seconds * 1000))
        failure = ""
    except Exception as error:
        # Whatever it was: what was found until then is told.
        console.print_exception()
        failure = f"the run could not go on: {error!r}"
    if not failure and (course.tally.counts["items"] < _ITEMS_MIN or not course.faults):
        failure = "too little happened: this run proves nothing"
    columns = {f"seed {seed}": course.tally}
    console.print(counts_table(columns), faults_table(course), promises_table(columns))
    console.print(events_table(course), f"most memory of a host: {course.rss_mib_max:.0f} MiB")
    if failure or course.tally.violation_count:
        kept = [f"history and rows in {path}" for path in course.kept]
        raise click.ClickException("\n".join([failure, *course.tally.examples, *kept]))


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for, and what it comes to."""

    console: Console
    course: Course
    minutes: float
    seed: int
    json_path: Path | None
    items: int = 0
    """Instead of the minutes."""

    def rounds(self, one: Callable[[str, int, int], Counter[str]]) -> None:
        """Do rounds until the time is over. Each returns how often hosts have logged each event until then."""
        course, began_s = self.course, time.monotonic()
        for number in itertools.count(1):
            left_s = self.minutes * 60 - (time.monotonic() - began_s)
            if self.items:
                left_s = _ROUND_S + _CALM_S if course.tally.counts["items"] < self.items else 0
            if left_s <= 0:
                break
            chaos_s, calm_s = lengths(left_s)
            course.host_events = one(f"chaos-{self.seed}-{number}", int(chaos_s * 1000), int(calm_s * 1000))
            elapsed_s = time.monotonic() - began_s
            faults, broken = course.faults.total(), course.tally.violation_count
            self.console.print(f"{elapsed_s / 60:.1f} min, round {number}: {faults} faults, {broken} violations")
            if self.json_path is not None:
                self.json_path.write_text(json.dumps(as_json(course, self.seed, elapsed_s), indent=1) + "\n")


def _on_one_host(run: Run) -> None:
    missing = missing_for_mounts()
    if missing:
        run.console.print(f"without full disks, which need {'; '.join(missing)}")
    if find_faketime() is None:
        run.console.print("without moved clocks, which need libfaketime (Debian: apt-get install libfaketime)")
    with Room(with_small_disk=not missing) as room:

        def one(name: str, chaos_ms: int, calm_ms: int) -> Counter[str]:
            run_round(room, name, chaos_ms, calm_ms, run.course)
            return room.logged()

        run.rounds(one)


def _on_several(run: Run, layout: Layout, work: Work, gap_ms_mean: int) -> None:
    not_parted = missing_for_namespaces()
    not_lost = not_parted or missing_for_packet_loss()
    for what, missing in (("partitions between two hosts", not_parted), ("lost packets", not_lost)):
        if missing:
            run.console.print(f"without {what}, which need {missing}")
    with ClusterRoom(layout._replace(can_part=not not_parted, can_lose=not not_lost)) as room:
        cluster_run.prepare(room, work)

        def one(name: str, chaos_ms: int, calm_ms: int) -> Counter[str]:
            cluster_run.run_round(room, name, chaos_ms, calm_ms, run.course, work=work, gap_ms_mean=gap_ms_mean)
            return room.logged()

        run.rounds(one)


def lengths(left_s: float) -> tuple[float, float]:
    """Of chaos and calm in the next round, when so many seconds are left."""
    whole_s = min(_ROUND_S + _CALM_S, max(left_s, 1.0))
    calm_s = min(_CALM_S, whole_s / 4)
    return whole_s - calm_s, calm_s


def faults_table(course: Course) -> Table:
    table = Table(
        "fault", "times", "measured", "median ms", "max ms", title="faults, and the time to recover from them"
    )
    for kind, count in sorted(course.faults.items()):
        found = spread(course.tally.recovery_ms[kind])
        table.add_row(kind, f"{count:,}", *[f"{found.get(name, 0):,}" for name in ("count", "median", "max")])
    table.add_row("all", f"{course.faults.total():,}", "", "", "")
    return table


def events_table(course: Course) -> Table:
    table = Table("event", "times", title="what the hosts logged")
    for event, count in sorted(course.host_events.items()):
        table.add_row(event, f"{count:,}")
    return table


def as_json(course: Course, seed: int, elapsed_s: float) -> dict[str, object]:
    return {
        "seed": seed,
        "seconds": round(elapsed_s),
        "faults": dict(sorted(course.faults.items())),
        "rss_mib_max": round(course.rss_mib_max),
        "host_events": dict(sorted(course.host_events.items())),
        **course.tally.as_json(),
    }


if __name__ == "__main__":
    main()
