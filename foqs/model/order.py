"""The order of a topic, (urgency, due_at, primary key, shard), packed into one integer.

One comparison of integers instead of one of tuples: half the memory in a window and half the time.
"""

from __future__ import annotations

from collections.abc import Iterable

_URGENCY_OFFSET = 1 << 31
_KEY_SHIFT = 16
_DUE_SHIFT = 64 + _KEY_SHIFT
_URGENCY_SHIFT = 48 + _DUE_SHIFT
_SHARD_MASK = (1 << _KEY_SHIFT) - 1
_KEY_MASK = (1 << 64) - 1
_DUE_MASK = (1 << 48) - 1

FIRST = -1
"""A bound below every sort key."""
LAST = 1 << (32 + _URGENCY_SHIFT)
"""A bound above every sort key."""


def sort_key(urgency: int, due_at: int, key: int, shard_id: int) -> int:
    return (urgency + _URGENCY_OFFSET) << _URGENCY_SHIFT | due_at << _DUE_SHIFT | key << _KEY_SHIFT | shard_id


def sort_keys(first: int, count: int) -> range:
    """Return the sort keys of items with consecutive keys that share everything else."""
    return range(first, first + (count << _KEY_SHIFT), 1 << _KEY_SHIFT)


def shard_of(packed: int) -> int:
    return packed & _SHARD_MASK


def shards_of(packed: Iterable[int]) -> list[int]:
    return [one & _SHARD_MASK for one in packed]


def key_of(packed: int) -> int:
    return packed >> _KEY_SHIFT & _KEY_MASK


def keys_of(packed: Iterable[int]) -> list[int]:
    return [one >> _KEY_SHIFT & _KEY_MASK for one in packed]


def due_at_of(packed: int) -> int:
    return packed >> _DUE_SHIFT & _DUE_MASK


def urgency_of(packed: int) -> int:
    return (packed >> _URGENCY_SHIFT) - _URGENCY_OFFSET


def are_as_urgent(packed: int, other: int) -> bool:
    return packed >> _URGENCY_SHIFT == other >> _URGENCY_SHIFT


def on_last_shard(packed: int) -> int:
    """Return the last sort key of the same urgency, due time and key on any shard."""
    return packed | _SHARD_MASK
