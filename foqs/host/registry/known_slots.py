"""Slots as this host knows them: the table that leads from a dedup id to its shard, and the copies that shards keep."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import structlog

from foqs.host.shards.shards import Shards
from foqs.model.errors import FoqsError
from foqs.model.slots import NO_SLOTS, SlotTable
from foqs.shard.port import SlotArrival
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
        self.arrivals: dict[int, SlotArrival] = {}
        """The slots that are on their way to shards that are owned here, by shard, as they were when it was opened."""
        self._kept: dict[int, tuple[ShardState, SlotTable]] = {}
        """The table of slots that each shard keeps, and the state of the shard by which it was found."""
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

    @property
    def version_max(self) -> int:
        """The highest version of a table that is known here, or that slots are on their way for."""
        return max([self.table.version, *[arrival.move.version for arrival in list(self.arrivals.values())]])

    def keeps(self, shard: ShardState) -> bool:
        """Whether the shard has a copy of the table that this host goes by, or of one before it."""
        kept = self.kept_by(shard)
        return kept is not None and (kept == self.table or 0 < kept.version < self.table.version)

    def takes(self, shard: ShardState, slot: int) -> bool:
        """Whether the copy that the shard keeps says that the slot is its own."""
        kept = self.kept_by(shard)
        return kept is not None and kept.version > 0 and kept.shards[slot] == shard.shard_id

    def kept_by(self, shard: ShardState) -> SlotTable | None:
        """The copy that the shard has; None while that is not known."""
        kept = self._kept.get(shard.shard_id)
        return kept[1] if kept is not None and kept[0] is shard else None

    def has_kept(self, shard: ShardState, table: SlotTable) -> None:
        """The shard's owner has written the table, in which slots have gone from it or come to it."""
        self.learn(table, f"shard {shard.shard_id}")
        self._kept[shard.shard_id] = (shard, table)

    def look(self) -> None:
        """Have every shard that is owned keep a copy. On the event loop, again and again: a server may be away."""
        for shard_id in self._kept.keys() - self._shards.by_id.keys():
            del self._kept[shard_id]
            self.arrivals.pop(shard_id, None)
        for _, shard in self._shards.owned():
            if self.kept_by(shard) != self.table:
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
        known, is_new = self.table, self.kept_by(shard) is None
        arrival: SlotArrival | None = None
        if is_new:
            # Before the copy, which may say already that the slots are here.
            arrival = await owned.read(owned.reader.read_arrival)
        kept = await owned.read(lambda: owned.reader.keep_slots(known))
        if is_new and self.kept_by(shard) is None:
            self.arrivals.pop(shard.shard_id, None)
            if arrival is not None:
                self.arrivals[shard.shard_id] = arrival
                shard.slot_moves.close(frozenset(arrival.move.slots))
        before = self.kept_by(shard)
        self.learn(kept, f"shard {shard.shard_id}")
        if before is None or before.version <= kept.version:
            self._kept[shard.shard_id] = (shard, kept)

    def _ended(self, shard: ShardState, task: asyncio.Task[None]) -> None:
        del self._tasks[shard]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FoqsError):
            _log.warning("slot_copy_not_kept", shard=shard.shard_id, error=str(error))
        elif error is not None:
            _log.error("host_defect", work="slot copy", exc_info=error)
