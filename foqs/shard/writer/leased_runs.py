"""After a take-over: what stands first in a topic is under lease, mostly, and need not be read to be got past."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.model import order
from foqs.model.topic import ShardTopic
from foqs.shard.state.index import ShardIndex

LEASED_RUN_MIN = 1_000
"""A run of so many items under lease in a row is worth a question to the server."""


def skip_leased(index: ShardIndex, sort_key_after: Callable[[int, int, int], int | None]) -> None:
    """Put the edges of unchanged windows behind the leases that stand first in their lanes.

    `sort_key_after(lane, edge, count)` is the sort key of the `count`-th row of the lane after `edge`. All of it
    happens before the shard's first transaction.
    """
    sort_keys: dict[ShardTopic, list[int]] = {}
    for item in index.leases.values():
        if item.topic.leased >= LEASED_RUN_MIN:
            sort_keys.setdefault(item.topic, []).append(item.sort_key)
    for topic, leased in sort_keys.items():
        leased.sort()
        topic.window.edge = _end_of_run(topic.number, leased, sort_key_after)


def _end_of_run(lane: int, leased: Sequence[int], sort_key_after: Callable[[int, int, int], int | None]) -> int:
    """A sort key up to which all rows of the lane are `leased`, and behind which soon one is not.

    Every sort key here is one of a row. So where the n-th row stands at the n-th of these, no other is among the
    first n.
    """
    edge, passed, step = order.FIRST, 0, len(leased)
    while step >= LEASED_RUN_MIN:
        last = passed + step - 1
        if last < len(leased) and sort_key_after(lane, edge, step) == leased[last]:
            edge, passed = leased[last], last + 1
        step //= 2
    return edge
