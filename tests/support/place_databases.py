"""Databases of shards that are only asked whether they can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from foqs.host.verbs.place_check import Databases


def databases(**checks: Callable[..., Any]) -> Mock:
    """All checks pass but those given."""
    return Mock(spec=Databases, **checks)
