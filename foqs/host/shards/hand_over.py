"""The hand-over of a shard by a host that keeps running."""

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
    """Write all accepted changes, unclaim items that no consumer has, and release the ownership of the shard.

    Leases stay valid, because the next owner honours them. A defect on the way is logged, and does not stop any host
    from owning the shard afterwards, this one included.
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
        for queues in dispatcher.queues.slices():
            await asyncio.sleep(0)
            dispatcher.drop_parts(shard.shard_id, queues)
    dispatcher.queues.shard_left(shard.shard_id)


@contextmanager
def _defects_logged(shard: OwnedShard) -> Iterator[None]:
    try:
        yield
    except Exception:
        log_defect(shard.shard_id)


def _topic_slices(shard: OwnedShard) -> list[list[ShardTopic]]:
    """Return the topics of the shard in slices, one for each turn of the event loop; at least one slice."""
    state = shard.writer.held
    topics = list(state.index.topics.values()) if state is not None else []
    size = limits.TOPICS_PER_TICK_MAX
    return [topics[start : start + size] for start in range(0, max(1, len(topics)), size)]
