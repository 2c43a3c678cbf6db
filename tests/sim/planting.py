"""Where defects are planted, which there are, and how the simulation is held against each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.sim.run import run_seed

SEEDS_MAX = 600
"""Most show within a few seeds, and the rarest in about one in two hundred, which differ with every change."""

_DEFECTS: dict[str, dict[str, Callable[[], Any]]] = {}
"""By the module that plants them and by name; each gives a context in which the defect is there."""


def in_place_of(target: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is decorated is a defect: it stands in place of the target's attribute."""

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        plant(replacement.__module__, replacement.__name__, lambda: patch.object(target, name, replacement))
        return replacement

    return add


def plant(module: str, name: str, defect: Callable[[], Any]) -> None:
    _DEFECTS.setdefault(module, {})[name] = defect


def names(module: ModuleType) -> list[str]:
    return list(_DEFECTS[module.__name__])


def check_found(module: ModuleType, name: str) -> None:
    """A seed is red with the defect and green without it."""
    with _DEFECTS[module.__name__][name]():
        red = next((seed for seed in range(SEEDS_MAX) if run_seed(seed).complaints), None)
    assert red is not None, f"{SEEDS_MAX} seeds do not see it"
    assert not run_seed(red).complaints, f"seed {red} is red without the defect, too"
