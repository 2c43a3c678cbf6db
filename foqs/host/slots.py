"""Slots as this host knows them: the table that leads from a dedup id to its shard, and the copies that shards keep."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import structlog

from foqs.host.shards import Shards
from foqs.model.errors import FoqsError
from foqs.model.slots import NO_SLOTS, SlotTable
from foqs.shard.state.engine import ShardState

_log = structlog.get_logger(__name__)


class Slots:
    """Knows the newest slot table that the meta database or a shard of this host has told.

    A table that was known stays, whatever becomes of the meta database: `Namespaces` brings it back there. Each shard
    that is owned here keeps a copy, and takes no dedup ids before. `Enqueues`, censuses and the shard map ask it.
    """

    def __init__(self, shards: Shards) -> None:
        self.table = NO_SLOTS
        self._shards = shards
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[ShardState, SlotTable]] = {}
        """What each shard keeps, and for which state of it this was found."""
        self._tasks: dict[ShardState, asyncio.Task[None]] = {}
        """The looks at copies that are under way."""

    def learn(self, told: SlotTable, source: str) -> None:
        """`source` has this table. Any thread may call it."""
        with self._lock:
            if told.version > self.table.version:
                self.table = told
            elif told.version == self.table.version and told.shards != self.table.shards:
                # Made anew while a shard that knew the lost one was away: only an operator can tell which is right.
                _log.error("slot_tables_differ", source=source, version=told.version)

    def keeps(self, shard: ShardState) -> bool:
        """Whether the shard has a copy of the table that this host goes by."""
        kept = self._kept.get(shard.shard_id)
        return kept is not None and kept[0] is shard and kept[1] == self.table

    def look(self) -> None:
        """Have every shard that is owned keep a copy. On the event loop, again and again: a server may be away."""
        for shard_id in self._kept.keys() - self._shards.by_id.keys():
            del self._kept[shard_id]
        for _, shard in self._shards.owned():
            if not self.keeps(shard):
                self._begin(shard)

    def opened(self, shard: ShardState) -> None:
        """A shard was taken over: what it keeps is to be known soon."""
        self._begin(shard)

    async def ask(self, shard: ShardState) -> None:
        """Return when the copy that the shard had when it was taken over is known here. Raises UnavailableError."""
        kept = self._kept.get(shard.shard_id)
        if kept is None or kept[0] is not shard:
            await asyncio.shield(self._begin(shard))

    async def kept(self) -> None:
        """Return when every shard that is owned keeps a copy, as far as they can now."""
        self.look()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, shard: ShardState) -> asyncio.Task[None]:
        task = self._tasks.get(shard)
        if task is None:
            task = self._tasks[shard] = asyncio.create_task(self._keep(shard), name="slot copy")
            task.add_done_callback(partial(self._ended, shard))
        return task

    async def _keep(self, shard: ShardState) -> None:
        owned = self._shards.by_id.get(shard.shard_id)
        if owned is None:
            raise self._shards.not_served(shard.shard_id)
        known = self.table
        kept = await owned.read(lambda: owned.reader.keep_slots(known))
        self.learn(kept, f"shard {shard.shard_id}")
        self._kept[shard.shard_id] = (shard, kept)

    def _ended(self, shard: ShardState, task: asyncio.Task[None]) -> None:
        del self._tasks[shard]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FoqsError):
            _log.warning("slot_copy_not_kept", shard=shard.shard_id, error=str(error))
        elif error is not None:
            _log.error("host_defect", work="slot copy", exc_info=error)
