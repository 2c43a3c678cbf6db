"""`python -m tests.sim.hints` finds the seed that shows each planted defect first, for the tests to begin with it.

It goes on from what the file says: a hint that still holds stays. Without hints the tests take longer, and do not find
the few defects that show in less than one of SEEDS_MAX seeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed

import click

from tests.sim.all_defects import all_defects
from tests.sim.planting import SHOWN_BY, SHOWN_BY_PATH, Planted, search


@click.command()
@click.option("--workers", default=2, show_default=True)
@click.argument("words", nargs=-1)
def main(workers: int, words: tuple[str, ...]) -> None:
    """Only for defects in whose names one of the WORDS is, if there are any."""
    found = dict(SHOWN_BY)
    chosen = {one: kind for one, kind in all_defects().items() if not words or any(word in one.key for word in words)}
    with ProcessPoolExecutor(workers) as pool:
        began_s = time.monotonic()
        searches = {pool.submit(_search, one, is_cluster): one for one, is_cluster in chosen.items()}
        for ended in as_completed(searches):
            one, red = searches[ended], ended.result()
            click.echo(f"{time.monotonic() - began_s:6.0f} s  {one.key}: {'no seed shows it' if red is None else red}")
            if red is not None:
                found[one.key] = red
            _write(found, all_defects())


def _search(one: Planted, is_cluster: bool) -> int | None:
    return search(one, is_cluster=is_cluster)


def _write(found: dict[str, int], of: Iterable[Planted]) -> None:
    keys = {one.key for one in of}
    kept = {key: seed for key, seed in sorted(found.items()) if key in keys and seed}
    SHOWN_BY_PATH.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
