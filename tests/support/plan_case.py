"""A statement with its plan: the index that it takes, and the most that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PAGE = 1_000
SLACK = 16
"""Reads beside the rows themselves: the ends of ranges."""


@dataclass(frozen=True, slots=True)
class Case:
    """`key` is the index it must use ("": any), `reads_max` how many index entries and rows it may touch."""

    key: str
    reads_max: int
    arguments: tuple[object, ...] = ()
    fill: Callable[[str], str] = str
    sorts: bool = False
    """The index cannot give this order."""
    notes: bool = False
    """It may keep a temporary table of what it has found."""
    with_payload: bool = False
    """It reads its whole table or index, and is meant to."""
