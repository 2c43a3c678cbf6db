"""How a shard leaves a host that goes on running."""

from __future__ import annotations

import asyncio

from foqs.host.dispatch import Dispatcher
from foqs.host.shards import OwnedShard
from foqs.model import limits
from foqs.model.topic import ShardTopic


async def let_go(shard: OwnedShard, dispatcher: Dispatcher) -> None:
    """Write all that was accepted, give back what no consumer has got, and own the shard no more.

    Leases go on: the next owner honours them.
    """
    first, *others = _topic_slices(shard)
    dispatcher.shard_leaves(shard.shard_id, first)
    for topics in others:
        await asyncio.sleep(0)
        dispatcher.adopt(topics)
    await shard.drain()
    first, *others = _topic_slices(shard)
    await shard.stop()
    dispatcher.shard_lost(shard.shard_id, first)
    for topics in others:
        await asyncio.sleep(0)
        dispatcher.disown(topics)
    for queues in dispatcher.queue_slices():
        await asyncio.sleep(0)
        dispatcher.drop_parts(shard.shard_id, queues)
    dispatcher.shard_left(shard.shard_id)


def _topic_slices(shard: OwnedShard) -> list[list[ShardTopic]]:
    """The topics of the shard for one turn of the event loop after the other; at least one slice."""
    state = shard.writer.held
    topics = list(state.index.topics.values()) if state is not None else []
    size = limits.TOPICS_PER_TICK_MAX
    return [topics[start : start + size] for start in range(0, max(1, len(topics)), size)]
