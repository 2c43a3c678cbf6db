"""Which cases of a test are quick, and run in `make test`; the others are deep, and run in `make test-deep`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def deep_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Parameters for all cases, each of which is marked `deep` but those of `quick`."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.deep) for case in cases]
