"""The slot table of this host, which maps a dedup id to its shard, and the copies of it in shards."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial

import structlog

from foqs.background.tasks import Tasks
from foqs.host.shards.shards import Shards
from foqs.model.errors import FoqsError
from foqs.model.slot_gates import NO_GATES, SlotGate, shut_slots
from foqs.model.slots import NO_SLOTS, SlotTable
from foqs.shard.port import SlotArrival
from foqs.shard.state.engine import ShardState

_log = structlog.get_logger(__name__)


class Slots:
    """Holds the newest slot table from the meta database or a shard of this host.

    A known table outlives a loss of the meta database, because `Namespaces` restores it there. Each owned shard keeps a
    copy, and takes no dedup ids before. `Enqueues`, censuses and the shard map read it.
    """

    def __init__(self, shards: Shards) -> None:
        self.table = NO_SLOTS
        self._shards = shards
        self._lock = threading.Lock()
        self.arrivals: dict[int, SlotArrival] = {}
        """The slots that move to owned shards, by shard, as read when the shard was opened or when the move began."""
        self.closed: frozenset[int] = frozenset()
        """The slots whose serial topics take no items, because these slots move or are about to."""
        self.gates: tuple[SlotGate, ...] = NO_GATES
        """The gates of serial topics, as last read from the meta database."""
        self.ending: set[int] = set()
        """The ids of gates of shards of this host that are being ended, and open for these no longer."""
        self.redriving: Counter[tuple[int, int]] = Counter()
        """The redrives under way of dead letters of serial topics, by shard and slot."""
        self._kept: dict[int, tuple[ShardState, SlotTable]] = {}
        """The table of slots that each shard keeps, and the state of the shard by which it was found."""
        self._applied: dict[int, tuple[ShardState, tuple[object, ...]]] = {}
        """The facts by which each shard's deliveries of serial topics were last decided."""
        self._tasks = Tasks("slot copy")
        self._reads: dict[ShardState, asyncio.Task[None]] = {}
        """The reads of copies that are under way."""

    def note(self, table: SlotTable, source: str) -> None:
        """Take over the table of `source` if it is newer. Thread-safe."""
        with self._lock:
            if table.version > self.table.version:
                self.table = table
            elif table.version == self.table.version and table.shards != self.table.shards:
                # It was made anew while a shard with the lost one was unreachable. Only an operator can choose the
                # right one.
                _log.error("slot_tables_differ", source=source, version=table.version)

    @property
    def version_max(self) -> int:
        """The highest version of a table that is known here, or that a move to a shard of this host makes."""
        return max([self.table.version, *[arrival.move.version for arrival in list(self.arrivals.values())]])

    def keeps(self, shard: ShardState) -> bool:
        """True if the shard has a copy of this host's table, or of an older one."""
        kept = self.kept_by(shard)
        return kept is not None and (kept == self.table or 0 < kept.version < self.table.version)

    def takes(self, shard: ShardState, slot: int) -> bool:
        """True if the shard's copy assigns the slot to it."""
        kept = self.kept_by(shard)
        return kept is not None and kept.version > 0 and kept.shards[slot] == shard.shard_id

    def kept_by(self, shard: ShardState) -> SlotTable | None:
        """Return the shard's copy, or None while it is not known."""
        kept = self._kept.get(shard.shard_id)
        return kept[1] if kept is not None and kept[0] is shard else None

    def has_kept(self, shard: ShardState, table: SlotTable) -> None:
        """Note that the shard's owner has written the table, in which slots have left or reached the shard."""
        self.note(table, f"shard {shard.shard_id}")
        self._kept[shard.shard_id] = (shard, table)
        self.apply_gates(shard)

    def apply_gates(self, shard: ShardState) -> None:
        """Let the shard deliver the serial topics of those slots alone for which it has the turn. On the event loop."""
        known = self.kept_by(shard), self.gates, frozenset(self.ending)
        before = self._applied.get(shard.shard_id)
        if before is None or before[0] is not shard or before[1] != known:
            self._applied[shard.shard_id] = (shard, known)
            table, gates, ending = known
            shard.shut_slots(shut_slots(shard.shard_id, table, [gate for gate in gates if gate.id not in ending]))

    def refresh(self) -> None:
        """Make every owned shard keep a copy. Called repeatedly on the event loop, as a server can be unreachable."""
        for shard_id in self._kept.keys() - self._shards.by_id.keys():
            del self._kept[shard_id]
            self.arrivals.pop(shard_id, None)
            self._applied.pop(shard_id, None)
        for _, shard in self._shards.owned():
            if self.kept_by(shard) != self.table:
                self._begin(shard)

    def opened(self, shard: ShardState) -> None:
        """Begin to read the copy of a shard that was taken over. It delivers no serial topics before."""
        self.apply_gates(shard)
        self._begin(shard)

    async def ask(self, shard: ShardState) -> None:
        """Wait until the copy that the shard had at the takeover is known here. Raises UnavailableError."""
        kept = self._kept.get(shard.shard_id)
        if kept is None or kept[0] is not shard:
            await asyncio.shield(self._begin(shard))

    async def kept(self) -> None:
        """Wait until every owned shard keeps a copy, or has failed to."""
        self.refresh()
        if self._reads:
            await asyncio.wait(list(self._reads.values()))

    async def stop(self) -> None:
        await self._tasks.stop()

    def _begin(self, shard: ShardState) -> asyncio.Task[None]:
        task = self._reads.get(shard)
        if task is None:
            task = self._reads[shard] = self._tasks.lend(self._keep(shard))
            task.add_done_callback(partial(self._ended, shard))
        return task

    async def _keep(self, shard: ShardState) -> None:
        owned = self._shards.by_id.get(shard.shard_id)
        if owned is None:
            raise self._shards.not_served(shard.shard_id)
        known, is_new = self.table, self.kept_by(shard) is None
        arrival: SlotArrival | None = None
        if is_new:
            # Read before the copy, which possibly assigns the slots to this shard already.
            arrival = await owned.read(owned.reader.read_arrival)
        kept = await owned.read(lambda: owned.reader.keep_slots(known))
        if is_new and self.kept_by(shard) is None:
            self.arrivals.pop(shard.shard_id, None)
            if arrival is not None:
                self.arrivals[shard.shard_id] = arrival
                shard.slot_moves.close(frozenset(arrival.move.slots))
        before = self.kept_by(shard)
        self.note(kept, f"shard {shard.shard_id}")
        if before is None or before.version <= kept.version:
            self._kept[shard.shard_id] = (shard, kept)
        self.apply_gates(shard)

    def _ended(self, shard: ShardState, task: asyncio.Task[None]) -> None:
        del self._reads[shard]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FoqsError):
            _log.warning("slot_copy_not_kept", shard=shard.shard_id, error=str(error))
        elif error is not None:
            _log.error("host_defect", work="slot copy", exc_info=error)
