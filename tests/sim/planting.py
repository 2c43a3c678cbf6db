"""Where defects are planted, and which there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

DEFECTS: dict[str, Callable[[], Any]] = {}
"""By name; each gives a context in which the defect is there."""


def in_place_of(target: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is decorated is a defect: it stands in place of the target's attribute."""

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        DEFECTS[replacement.__name__] = lambda: patch.object(target, name, replacement)
        return replacement

    return add
