"""One shard whose items are packed, and what its callers do with them."""

from __future__ import annotations

from foqs.model import limits, order
from foqs.model.item import Item, Phase
from foqs.shard.state.callers import Completion
from tests.support.shards import NAMESPACE, Shards

MANY = 2 * limits.PACK_ITEMS_MIN
"""So many that come together are packed."""


def one_shard() -> Shards:
    """A shard whose topic "t" is there, and whose window is complete."""
    shards = Shards(1)
    shards.enqueue(0, "t")
    shards.run(0)
    shards.states[0].index.topic(NAMESPACE, "t").window.edge = order.LAST
    return shards


def packed_keys(shards: Shards) -> set[int]:
    assert shards.states[0].index.packed.keys() == shards.tables[0].packed.keys()
    return set(shards.tables[0].packed)


def keys(items: list[Item]) -> set[int]:
    return {item.key for item in items}


def leased(shards: Shards, count: int) -> list[Item]:
    """Out of topic "t", the first one left alone."""
    call = shards.dequeue({"t": count})
    shards.run(0)
    items = list(call.items)
    state = shards.states[0]
    for item in items:
        if item.phase is Phase.PREFETCHED:
            state.settlements.deliver(item, shards.clock_ms + 30_000)
    return items


def settle(shards: Shards, items: list[Item], *, delay_ms: int | None = None) -> None:
    settlements = shards.states[0].settlements
    rewrites = None
    for item in items:
        settlements.end_lease(item)
    if delay_ms is not None:
        rewrites = [settlements.failed_attempt(item, shards.clock_ms, delay_ms=delay_ms) for item in items]
    settlements.settle(items, rewrites, Completion(lambda _: None), list(range(len(items))))
