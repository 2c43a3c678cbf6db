"""Where defects are planted, which there are, and how the simulation is held against each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, count, islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.sim.chance import Profile
from tests.sim.run import Outcome, profile_of, run_seed

SEEDS_MAX = 600
"""Most show within a few seeds. The rarest need more than so many, and are found by their hints."""

SHOWN_BY_PATH = Path(__file__).with_name("shown_by.json")
SHOWN_BY: dict[str, int] = json.loads(SHOWN_BY_PATH.read_text())
"""The seeds that show the defects are tried first. What changes the simulation may change them: `tests.sim.hints`."""


class _Defect(NamedTuple):
    plant: Callable[[], Any]
    """Gives a context in which the defect is there."""
    can_show: Callable[[Profile], bool]


_DEFECTS: dict[str, dict[str, _Defect]] = {}
"""By the module that plants them, and by name."""
_RUNS: dict[str, Callable[[int], Outcome]] = {}
"""The runs of seeds that are to find the defects of a module, where they are of a kind of their own."""


def in_place_of(
    target: Any, name: str, can_show: Callable[[Profile], bool] = lambda _: True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is decorated is a defect: it stands in place of the target's attribute.

    `can_show` says of a run whether it has the faults without which the defect changes nothing.
    """

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        plant(replacement.__module__, replacement.__name__, lambda: patch.object(target, name, replacement), can_show)
        return replacement

    return add


def runs_with(module: str, run: Callable[[int], Outcome]) -> None:
    """Say that the defects of the module are found by runs of this kind."""
    _RUNS[module] = run


def plant(module: str, name: str, defect: Callable[[], Any], can_show: Callable[[Profile], bool]) -> None:
    _DEFECTS.setdefault(module, {})[name] = _Defect(defect, can_show)


class Planted(NamedTuple):
    """A defect by the module that plants it, and its name."""

    module: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"


def planted(module: ModuleType) -> list[Planted]:
    return [Planted(module.__name__.rpartition(".")[2], name) for name in _DEFECTS[module.__name__]]


def first_red(one: Planted, *, is_cluster: bool, first: int | None = None, begin: int = 0) -> int | None:
    """The first seed that is red with the defect, the hint before all others; None if there is none of so many."""
    defect, run = _DEFECTS[_path(one)][one.name], _run_of(one, is_cluster=is_cluster)
    tried = chain([] if first is None else [first], count(begin))
    seeds = (seed for seed in tried if defect.can_show(profile_of(seed)))
    with defect.plant():
        return next((seed for seed in islice(seeds, SEEDS_MAX) if run(seed).complaints), None)


def _path(one: Planted) -> str:
    return f"{__package__}.{one.module}"


def _run_of(one: Planted, *, is_cluster: bool) -> Callable[[int], Outcome]:
    return _RUNS.get(_path(one)) or partial(run_seed, is_cluster=is_cluster)


def first_red_of(one: Planted, run: Callable[[int], Outcome], seeds_max: int) -> int | None:
    """The first seed for which another kind of run is red with the defect; None if there is none of so many."""
    with _DEFECTS[f"{__package__}.{one.module}"][one.name].plant():
        return next((seed for seed in range(seeds_max) if run(seed).complaints), None)


def search(one: Planted, *, is_cluster: bool) -> int | None:
    """Return the first seed, the hint before all others, that is red with the defect and green without it, or None."""
    red = first_red(one, is_cluster=is_cluster, first=SHOWN_BY.get(one.key))
    while red is not None and not _is_green(red, _kind(one), is_cluster=is_cluster):
        red = first_red(one, is_cluster=is_cluster, begin=red + 1)
    return red


def check_found(one: Planted, *, is_cluster: bool) -> None:
    """Check that a seed is red with the defect, and green without it."""
    red = first_red(one, is_cluster=is_cluster, first=SHOWN_BY.get(one.key))
    assert red is not None, f"{SEEDS_MAX} seeds do not see it"
    assert _is_green(red, _kind(one), is_cluster=is_cluster), f"seed {red} is red without the defect, too"


def _kind(one: Planted) -> str:
    return _path(one) if _path(one) in _RUNS else ""


@cache
def _is_green(seed: int, kind: str, *, is_cluster: bool) -> bool:
    """Whether it is without any defect; many defects show in the same seeds. `kind` is of a run that is another one."""
    run = _RUNS[kind] if kind else partial(run_seed, is_cluster=is_cluster)
    return not run(seed).complaints
