"""The copy of waiting items for a new consumer group, as values that a shard and its owner exchange."""

from __future__ import annotations

from typing import NamedTuple


class CopyKey(NamedTuple):
    """Names a copy."""

    namespace: int
    job: str


class CopyStep(NamedTuple):
    """Copied items: the key up to which items are copied now, and the number of copies."""

    copy: CopyKey
    position: int
    copied_count: int


class CopyPlace(NamedTuple):
    """The stored state of a copy: the key up to which items are copied in the end and now, and the copies."""

    up_to: int
    position: int
    copied_count: int
