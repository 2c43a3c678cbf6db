"""`python -m tests.sim --seed N -v` replays one run, `--seeds N --first M` runs many."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from tests.sim.aging_runs import run_aging
from tests.sim.bulk_runs import run_bulk
from tests.sim.depth_runs import run_depths
from tests.sim.gate_runs import run_gates
from tests.sim.permits import run_permits
from tests.sim.run import Outcome, run_seed


@click.command()
@click.option("--seed", type=int, help="Run this one.")
@click.option("--first", type=int, default=0, show_default=True)
@click.option("--seeds", type=int, default=2_000, show_default=True, help="How many to run, from --first on.")
@click.option("--load-s", type=float, default=math.inf, help="The virtual seconds of load of a run at most.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything that happens.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first run that fails.")
@click.option("--cluster", "is_cluster", is_flag=True, help="Several hosts that share shards.")
@click.option("--serial", "is_serial", is_flag=True, help="With serial topics.")
@click.option("--groups", "has_groups", is_flag=True, help="With consumer groups, which some seeds have anyway.")
@click.option("--unique", "is_unique", is_flag=True, help="With items whose ids are taken as long as they live.")
@click.option("--in-flight", "limits_in_flight", is_flag=True, help="With limits of items in flight.")
@click.option("--bundles", "has_bundles", is_flag=True, help="With items that hosts keep in bundles.")
@click.option("--parks", "has_parks", is_flag=True, help="With shards that are parked and unparked; for clusters.")
@click.option("--aging", is_flag=True, help="Runs of another kind: a cluster with a topic whose items age.")
@click.option("--bulk", is_flag=True, help="Runs of another kind: a cluster that does a bulk job.")
@click.option("--depths", is_flag=True, help="Runs of another kind: a cluster that keeps the depth of a topic.")
@click.option("--gates", is_flag=True, help="Runs of another kind: slots move with items of serial topics.")
@click.option("--permits", is_flag=True, help="Runs of another kind: only books of permits, step by step.")
def main(
    seed: int | None,
    first: int,
    seeds: int,
    verbose: bool,
    keep_going: bool,
    aging: bool,
    bulk: bool,
    depths: bool,
    gates: bool,
    permits: bool,
    **kind: Any,
) -> None:
    """Simulate the queue with faults, once per seed."""
    began_s = time.monotonic()
    run = _run_of(kind, aging=aging, bulk=bulk, depths=depths, gates=gates, permits=permits, verbose=verbose)
    chosen = range(first, first + seeds) if seed is None else [seed]
    counts: Counter[str] = Counter()
    failed = 0
    for number in chosen:
        outcome = run(number)
        counts.update(outcome.tally())
        if outcome.complaints:
            failed += 1
            click.echo(str(outcome))
            if not keep_going:
                break
    elapsed_s = time.monotonic() - began_s
    click.echo(f"{len(chosen)} seeds from {chosen[0]}: {failed} failed, {elapsed_s:.0f} s")
    click.echo(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    sys.exit(1 if failed else 0)


def _run_of(
    kind: dict[str, Any], *, aging: bool, bulk: bool, depths: bool, gates: bool, permits: bool, verbose: bool
) -> Callable[[int], Outcome]:
    load_s = kind.pop("load_s")
    if not (aging or bulk or depths or gates or permits):
        return partial(run_seed, load_s_max=load_s, verbose=verbose, **kind)
    if aging + bulk + depths + gates + permits > 1 or any(kind.values()) or not math.isinf(load_s):
        raise click.UsageError(
            "--aging, --bulk, --depths, --gates and --permits are runs of their own kind: no other option changes them"
        )
    if permits:
        return run_permits
    if bulk:
        return partial(run_bulk, verbose=verbose)
    return partial(run_aging if aging else run_depths if depths else run_gates, verbose=verbose)


main()
