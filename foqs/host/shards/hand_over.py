"""How a shard leaves a host that goes on running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.shards.shards import OwnedShard
from foqs.model import limits
from foqs.model.topic import ShardTopic
from foqs.shard.writer.ownership import log_defect


async def let_go(shard: OwnedShard, dispatcher: Dispatcher) -> None:
    """Write all that was accepted, give back what no consumer has got, and own the shard no more.

    Leases go on: the next owner honours them. A defect that is met on the way is logged, and keeps nobody from having
    the shard, this host included when it comes back.
    """
    with _defects_logged(shard):
        first, *others = _topic_slices(shard)
        dispatcher.shard_leaves(shard.shard_id, first)
        for topics in others:
            await asyncio.sleep(0)
            dispatcher.adopt(topics)
        await shard.drain()
    slices = _topic_slices(shard)
    await shard.stop()
    with _defects_logged(shard):
        dispatcher.shard_lost(shard.shard_id, slices[0])
        for topics in slices[1:]:
            await asyncio.sleep(0)
            dispatcher.disown(topics)
    with _defects_logged(shard):
        for queues in dispatcher.queue_slices():
            await asyncio.sleep(0)
            dispatcher.drop_parts(shard.shard_id, queues)
    dispatcher.shard_left(shard.shard_id)


@contextmanager
def _defects_logged(shard: OwnedShard) -> Iterator[None]:
    try:
        yield
    except Exception:
        log_defect(shard.shard_id)


def _topic_slices(shard: OwnedShard) -> list[list[ShardTopic]]:
    """The topics of the shard for one turn of the event loop after the other; at least one slice."""
    state = shard.writer.held
    topics = list(state.index.topics.values()) if state is not None else []
    size = limits.TOPICS_PER_TICK_MAX
    return [topics[start : start + size] for start in range(0, max(1, len(topics)), size)]
