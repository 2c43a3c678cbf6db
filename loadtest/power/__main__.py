"""`python -m loadtest.power`: nothing acknowledged is lost when the power goes; and the method can see a loss."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from loadtest.power.run import Series, run_series
from tests.support.faults.verdict import Tally, counts_table, promises_table, recovery_table
from tests.support.faults.volume import missing_for_mounts

_LOSSES = ("P1", "P2", "P5")
"""What a commit that was answered and is gone can break: the insert of an item, its claim, its ack."""


@click.command()
@click.option("--cuts", default=100, show_default=True, help="Of a durable server, half of them with a binary log.")
@click.option("--control-cuts", default=10, show_default=True, help="Of one that is not durable: losses must be found.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there.")
def main(cuts: int, control_cuts: int, seed: int, json_path: Path | None) -> None:
    """Cut the power of a MySQL server under load; exit code 1 when a promise broke or the control found nothing."""
    console = Console()
    if missing := missing_for_mounts():
        raise click.ClickException("a power cut needs " + "; ".join(missing))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    planned = [
        Series(name="durable", cuts=cuts - cuts // 2, seed=seed),
        Series(name="binary-log", cuts=cuts // 2, seed=seed, has_binary_log=True),
        Series(name="control", cuts=control_cuts, seed=seed, is_durable=False, host_dies=1.0, cuts_per_round=1),
    ]
    tallies = {series.name: run_series(series, console.print) for series in planned if series.cuts}
    console.print(counts_table(tallies), promises_table(tallies))
    for name, tally in tallies.items():
        console.print(recovery_table(tally), f"{name}, seed {seed}")
    if json_path is not None:
        found = {"seed": seed, **{name: tally.as_json() for name, tally in tallies.items()}}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    control = tallies.pop("control", None)
    problems = [problem for tally in tallies.values() for problem in tally.examples]
    if control is not None and not losses(control):
        problems.append("the control lost nothing, although its server was not durable: this run proves nothing")
    if problems:
        raise click.ClickException("\n".join(problems))


def losses(tally: Tally) -> int:
    """How often something that was answered did not happen."""
    return sum(tally.violations[promise] for promise in _LOSSES)


if __name__ == "__main__":
    main()
