"""Which cases of a test are quick, and run in `make test`; the others are deep or slow, for targets of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def deep_but(quick: Collection[Any], cases: Iterable[Any], slow: Collection[Any] = ()) -> list[Any]:
    """Parameters for all cases: those of `quick` as they are, those of `slow` marked `slow`, and all others `deep`."""
    return [
        case if case in quick else pytest.param(case, marks=pytest.mark.slow if case in slow else pytest.mark.deep)
        for case in cases
    ]
