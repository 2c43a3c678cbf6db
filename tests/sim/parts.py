"""`python -m tests.sim.parts` runs very many seeds of simulated clusters in parts, from where the last run ended.

What each part had is a line of a file: its commit, its seeds and what failed. So a run of days may be broken off and
taken up again, also at a later commit; each line says which one it was. Parts that failed at another commit run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from tests.sim.run import run_seed

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option(
    "--seeds", default=100_000, show_default=True, help="All seeds from --first on, those of former runs too."
)
@click.option("--first", default=0, show_default=True)
@click.option("--part", "part_seeds", default=100, show_default=True, help="How many one line of the file is of.")
@click.option("--load-s", default=1.5, show_default=True, help="The virtual seconds of load of a run at most.")
@click.option("--workers", default=2, show_default=True)
@click.option(
    "--path", type=click.Path(path_type=Path), default=ROOT / "build/sim/clusters.jsonl", help="The file of the parts."
)
def main(seeds: int, first: int, part_seeds: int, load_s: float, workers: int, path: Path) -> None:
    """Simulate clusters with faults, once per seed, without the parts that PATH has already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    commit, parts = _commit(), _parts(path)
    done = {
        part["first"]
        for part in parts
        if (part["seeds"], part["load_s"]) == (part_seeds, load_s) and (part["commit"] == commit or not part["failed"])
    }
    with ProcessPoolExecutor(workers) as pool:
        left = [start for start in range(first, first + seeds, part_seeds) if start not in done]
        runs = [pool.submit(_run, start, part_seeds, load_s) for start in left]
        try:
            for run in as_completed(runs):
                part = {"commit": commit, **run.result()}
                parts.append(part)
                with path.open("a") as file:
                    file.write(json.dumps(part) + "\n")
                click.echo(f"seeds from {part['first']}: {len(part['failed'])} failed, {part['took_s']} s")
        finally:
            pool.shutdown(cancel_futures=True)
    click.echo("\n".join(_told(parts)))
    last = {part["first"]: part for part in parts}
    sys.exit(1 if any(part["failed"] for part in last.values()) else 0)


def _parts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _commit() -> str:
    """The commit that is checked out; with a plus if files differ from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(first: int, seeds: int, load_s: float) -> dict[str, Any]:
    began_s, counts, failed = time.monotonic(), Counter[str](), dict[int, list[str]]()
    for seed in range(first, first + seeds):
        outcome = run_seed(seed, load_s_max=load_s, is_cluster=True)
        counts.update(outcome.tally())
        if outcome.complaints:
            failed[seed] = outcome.complaints
    took_s = round(time.monotonic() - began_s, 1)
    return {"first": first, "seeds": seeds, "load_s": load_s, "took_s": took_s, "failed": failed, "counts": counts}


def _told(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The seeds by commit, and what all parts together had."""
    seeds, failed, counts = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        seeds[part["commit"]] += part["seeds"]
        failed[part["commit"]] += len(part["failed"])
        counts.update(part["counts"])
    lines = [f"{commit}: {count:,} seeds, {failed[commit]:,} failed" for commit, count in seeds.items()]
    return [*lines, ", ".join([f"{name} {count:,}" for name, count in sorted(counts.items())])]


if __name__ == "__main__":
    main()
