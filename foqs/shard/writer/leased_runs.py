"""After a take-over, the first items of a topic are mostly under lease. Windows skip them without reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.model import order
from foqs.model.topic import ShardTopic
from foqs.shard.state.index import ShardIndex

LEASED_RUN_MIN = 1_000
"""The fewest items under lease in a row that are worth a question to the server."""


def skip_leased(index: ShardIndex, sort_key_after: Callable[[int, int, int], int | None]) -> None:
    """Put the edges of unchanged windows behind the leases that stand first in their lanes.

    `sort_key_after(lane, edge, count)` is the sort key of the `count`-th row of the lane after `edge`. Everything
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
    """Return a sort key up to which all rows of the lane are `leased`, and soon after which one is not.

    Every sort key here is one of a row. So if the n-th row has the n-th of these keys, no other row is among the first
    n.
    """
    edge, passed, step = order.FIRST, 0, len(leased)
    while step >= LEASED_RUN_MIN:
        last = passed + step - 1
        if last < len(leased) and sort_key_after(lane, edge, step) == leased[last]:
            edge, passed = leased[last], last + 1
        step //= 2
    return edge
