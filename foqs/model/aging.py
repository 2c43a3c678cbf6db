"""Aging: the place of an item in the order of a topic whose items become more urgent as they wait.

An item of priority `p` that is due at `t` has the virtual deadline `t + p * tau`, where `tau` is the topic's
`aging_ms_per_priority`. All items of a topic age at one rate, so their order by virtual deadline never changes, and an
item keeps the place that it got when it was enqueued: docs/decisions/0066-aging.md.
"""

from __future__ import annotations

AGING_MS_MAX = 86_400_000
"""The longest time in which an item becomes more urgent by one priority: a day."""
PLACE_UNIT_MS = 100
"""The unit of places, in milliseconds. Items whose virtual deadlines differ by less are in the order of due times."""
FIRST_DAY_MS = 1_767_225_600_000
"""The virtual deadline of place 0, 2026-01-01 UTC, in milliseconds since the epoch."""
_PLACE_MAX = (1 << 31) - 1
"""Places are as wide as priorities, and reach 6.8 years before and after FIRST_DAY_MS."""


def aging_place(due_at_ms: int, priority: int, aging_ms: int) -> int:
    """Return the place of an item that ages by one priority in `aging_ms`; the smallest place comes first.

    A virtual deadline out of reach gets the first or the last place.
    """
    place = (due_at_ms + priority * aging_ms - FIRST_DAY_MS) // PLACE_UNIT_MS
    return max(-_PLACE_MAX - 1, min(_PLACE_MAX, place))


def priority_at(place: int, due_at_ms: int, aging_ms: int) -> int:
    """Return the priority that has this place at this due time, or one near to it.

    It is the priority of the enqueue if the item was not delayed since and the topic ages as it did then, by more than
    PLACE_UNIT_MS per priority.
    """
    priority = -((due_at_ms - FIRST_DAY_MS - place * PLACE_UNIT_MS) // aging_ms)
    return max(-_PLACE_MAX - 1, min(_PLACE_MAX, priority))
