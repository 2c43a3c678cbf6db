"""After a take-over: what stands first in a topic is under lease, mostly, and need not be read to be got past."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.core import limits, order
from foqs.core.topic import ShardTopic
from foqs.shard.book import Book


def skip_leased(book: Book, place_after: Callable[[int, int, int], int | None]) -> None:
    """Put the edges of untouched windows behind the leases that stand first in their lanes.

    `place_after(lane, edge, count)` is the place of the `count`-th row of the lane after `edge`. All of it before the
    shard's first transaction.
    """
    places: dict[ShardTopic, list[int]] = {}
    for item in book.leases.values():
        if item.topic.leased >= limits.LEASED_RUN_MIN:
            places.setdefault(item.topic, []).append(item.place)
    for topic, leased in places.items():
        leased.sort()
        topic.window.edge = _end_of_run(topic.number, leased, place_after)


def _end_of_run(lane: int, leased: Sequence[int], place_after: Callable[[int, int, int], int | None]) -> int:
    """A place up to which all rows of the lane are `leased`, and behind which soon one is not.

    Every place here is one of a row. So where the n-th row stands at the n-th of these, no other is among the first n.
    """
    edge, passed, step = order.FIRST, 0, len(leased)
    while step >= limits.LEASED_RUN_MIN:
        last = passed + step - 1
        if last < len(leased) and place_after(lane, edge, step) == leased[last]:
            edge, passed = leased[last], last + 1
        step //= 2
    return edge
