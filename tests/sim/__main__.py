"""`python -m tests.sim --seed N -v` replays one run, `--seeds N --first M` runs many."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter

import click

from tests.sim.run import run_seed


@click.command()
@click.option("--seed", type=int, help="Run this one.")
@click.option("--first", type=int, default=0, show_default=True)
@click.option("--seeds", type=int, default=2_000, show_default=True, help="How many to run, from --first on.")
@click.option("--load-s", type=float, default=math.inf, help="The virtual seconds of load of a run at most.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything that happens.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first run that fails.")
@click.option("--cluster", "is_cluster", is_flag=True, help="Several hosts that share shards.")
@click.option("--serial", "is_serial", is_flag=True, help="With serial topics.")
def main(
    seed: int | None,
    first: int,
    seeds: int,
    load_s: float,
    verbose: bool,
    keep_going: bool,
    is_cluster: bool,
    is_serial: bool,
) -> None:
    """Simulate the queue with faults, once per seed."""
    began_s = time.monotonic()
    chosen = range(first, first + seeds) if seed is None else [seed]
    counts: Counter[str] = Counter()
    failed = 0
    for number in chosen:
        outcome = run_seed(number, load_s_max=load_s, verbose=verbose, is_cluster=is_cluster, is_serial=is_serial)
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


main()
