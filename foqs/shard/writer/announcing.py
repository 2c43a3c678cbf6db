"""Announces the topics of a shard to its listener in slices, because very many would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from foqs.background.tasks import Tasks
from foqs.model import limits
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_listener import ShardListener


class Announcing:
    """Announces topics. `current` returns the state of the shard owned now; topics of another one are not adopted."""

    def __init__(self, shard_id: int, listener: ShardListener, current: Callable[[], ShardState | None]) -> None:
        self._shard_id = shard_id
        self._listener = listener
        self._current = current
        self._tasks = Tasks(f"shard-{shard_id}-health")
        """The task that runs until all topics are announced after the breaker has opened or closed."""

    async def opened(self, shard: ShardState) -> None:
        slices = _slices(shard)
        self._listener.shard_opened(self._shard_id, next(slices))
        await self._adopt(shard, slices)

    def health_changed(self, shard: ShardState, *, healthy: bool) -> None:
        """Announce some topics now and the others in turns of their own, for the last change alone."""
        slices = _slices(shard)
        self._listener.shard_health(self._shard_id, next(slices), healthy=healthy)
        self._tasks.cancel()
        self._tasks.spawn(self._adopt(shard, slices))

    def lost(self, shard: ShardState) -> list[Callable[[], None]]:
        """Return the steps due at its loss, each in a turn of its own and all before the shard is opened again."""
        first, *others = _slices(shard)
        return [
            partial(self._listener.shard_lost, self._shard_id, first),
            *[partial(self._listener.disown, topics) for topics in others],
        ]

    async def stop(self) -> None:
        """Announce nothing more."""
        await self._tasks.stop()

    async def _adopt(self, shard: ShardState, slices: Iterator[list[ShardTopic]]) -> None:
        for topics in slices:
            await asyncio.sleep(0)
            if self._current() is not shard:
                return
            # A topic that was empty might be forgotten by now.
            self._listener.adopt([topic for topic in topics if shard.index.by_number.get(topic.number) is topic])


def _slices(shard: ShardState) -> Iterator[list[ShardTopic]]:
    """Yield the topics of a shard in slices, at least one."""
    topics = list(shard.index.topics.values())
    size = limits.TOPICS_PER_TICK_MAX
    for start in range(0, max(1, len(topics)), size):
        yield topics[start : start + size]
