"""Slots move between shards: the owners of both follow a move, and a host begins the next one for a shard of its own.

The order of the steps is what keeps ids from being taken twice: docs/decisions/0036-moving-slots.md. Each of them is
stored, in one of three databases, and may be repeated: whoever owns the shards next goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import structlog

from foqs.host.registry.censuses import Censuses
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespace_calls import CENSUS_POLL_MS
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.seen import slot_of_digest
from foqs.model.slots import SLOTS_COUNT, MovePhase, SlotMove, SlotTable, moved, next_move, slot_of
from foqs.shard.port import SeenName, SeenRow, SlotArrival
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.slot_move import MovedId, MovedIds
from foqs.shard.writer.shard_writer import ShardWriter

MOVED_IDS = 2_048
"""Ids of a log that are read and taken in at a time, however many rows they are."""
COPY_READS_MAX = 4
"""A copy of what came meanwhile that takes no more reads is short, about 100 ms: so is the next one."""
COPY_PASSES_MAX = 10
"""The slots are given after so many copies, though ids come so fast that none was short."""
GIVEN_POLL_MS = 50
"""The pause between two looks whether the other shard's owner has given the slots."""
GIVEN_MS_MAX = 30 * limits.SECOND_MS
"""A look for it ends after so long; it begins again with the next refresh of the namespaces."""
PROPOSE_MS = 3 * limits.SECOND_MS
"""The pause after a try to begin a move that failed."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class Source(Protocol):
    """Reads another shard, whoever owns it; SlotSource of foqs.storage.shard is the real one. Its methods block."""

    def slots(self) -> SlotTable: ...
    def logs(self) -> list[SeenName]: ...
    def read(self, namespace: int, first: int, end: int) -> tuple[int, list[SeenRow]]: ...
    def interrupt(self) -> None:
        """Make the call that is under way fail, and those that come; any thread may call it."""

    def close(self) -> None: ...


class SlotMover:
    """Follows the move that is under way for the shards of this host. `Namespaces` tells it what the meta database has.

    It owns a task for each part that a shard of this host has in a move.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        censuses: Censuses,
        shards: Shards,
        slots: Slots,
        waiting: Waiting,
        source: Callable[[int, str, str], Source],
    ) -> None:
        """`source` makes the reader of a shard at its place, on the server on which it is served."""
        self.told: SlotMove | None = None
        """The move that the meta database had last."""
        self._namespaces = namespaces
        self._censuses = censuses
        self._shards = shards
        self._slots = slots
        self._waiting = waiting
        self._source = source
        self._tasks: dict[tuple[str, ShardState | None], asyncio.Task[None]] = {}
        self._propose_from_s = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slot-moves")
        """Other shards are read there. It starts with the first move."""

    def look(self, told: SlotMove | None) -> None:
        """Begin what is to be done for the move that the meta database has, or has lost. On the event loop."""
        self.told = told
        owned = {shard.shard_id: (writer, shard) for writer, shard in self._shards.owned()}
        for shard_id, arrival in list(self._slots.arrivals.items()):
            if shard_id in owned:
                self._begin("receive", *owned[shard_id], self._receive, arrival.move)
        if told is None:
            self._propose(owned.keys())
            return
        if told.to_shard in owned and told.to_shard not in self._slots.arrivals:
            self._begin("receive", *owned[told.to_shard], self._receive, told)
        if told.from_shard in owned and told.phase is MovePhase.GIVING:
            self._begin("give", *owned[told.from_shard], self._give, told)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False)

    # ---- tasks ----

    def _begin(
        self,
        part: str,
        writer: ShardWriter,
        shard: ShardState,
        work: Callable[[ShardWriter, ShardState, SlotMove], Awaitable[None]],
        move: SlotMove,
    ) -> None:
        self._start((part, shard), lambda: work(writer, shard, move))

    def _start(self, key: tuple[str, ShardState | None], work: Callable[[], Awaitable[None]]) -> None:
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.create_task(self._do(key[0], work), name=f"slot move: {key[0]}")
            task.add_done_callback(lambda _: self._tasks.pop(key))

    async def _do(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """A part that fails is begun again by the next look."""
        try:
            await work()
        except FoqsError as error:
            _log.warning("slot_move_waits", part=part, error=str(error))
        except Exception:  # A defect here must not end the looks.
            _log.error("host_defect", work=f"slot move: {part}", exc_info=True)

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _write(self, writer: ShardWriter, ask: Callable[[Completion], None]) -> None:
        """Return when the shard has committed what is asked of it. Raises UnavailableError."""
        answer = Answer(self._waiting)
        ask(answer)
        writer.wake()
        await answer.done

    # ---- the next move ----

    def _propose(self, owned: Collection[int]) -> None:
        """Begin the next move if it is to a shard of this host, whose owner has the most to do."""
        loop = asyncio.get_running_loop()
        if self._slots.arrivals or loop.time() < self._propose_from_s:
            return
        uses = self._shards.uses
        served = [at for at in uses if self._shards.serves(at) or self._shards.is_elsewhere(at)]
        serving = [shard_id for shard_id in served if uses[shard_id] is ShardUse.SERVING]
        move = self._next(serving, [at for at in served if uses[at] is ShardUse.DRAINING])
        if move is not None and move.to_shard in owned:
            self._propose_from_s = loop.time() + PROPOSE_MS / 1000
            self._start(("propose", None), lambda: self._begin_move(move))

    def _next(self, serving: Collection[int], draining: Collection[int]) -> SlotMove | None:
        return next_move(self._slots.table, serving, draining)

    async def _begin_move(self, move: SlotMove) -> None:
        """Begin a move, if all shards know the table that it is made for, and none of them has slots on their way."""
        namespaces = self._namespaces
        census = await namespaces.on_thread(lambda meta: meta.begin_slots())
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.CENSUS_MS_MAX / 1000
        try:
            # This host's shards answer at once, and the others' after their next refresh.
            await namespaces.refresh()
            await self._censuses.answered(census)
            while missing := await namespaces.on_thread(lambda meta: meta.begin_slot_move(census, move)):
                if loop.time() > until_s:
                    raise UnavailableError(f"shards {missing[:10]} have not said which slot table they know")
                await asyncio.sleep(CENSUS_POLL_MS / 1000)
        except FoqsError:
            await namespaces.on_thread(lambda meta: meta.end_census(census))
            raise
        self._propose_from_s = 0.0
        _log.info("slots_begin_to_move", from_shard=move.from_shard, to_shard=move.to_shard, slots=len(move.slots))
        await namespaces.refresh()

    # ---- the shard that has the slots ----

    async def _give(self, writer: ShardWriter, shard: ShardState, move: SlotMove) -> None:
        """Give the slots, unless they are given: from then on only the other shard takes their ids."""
        slots = self._slots
        await slots.ask(shard)
        if shard.shard_id in slots.arrivals:
            # A meta database that has lost that move may begin the next one too soon: its shard would miss those ids.
            raise UnavailableError(f"ids of slots that lead to shard {shard.shard_id} have not come there yet")
        kept = slots.kept_by(shard)
        if kept is None or kept.version != move.version - 1:
            return
        table = moved(kept, move)
        await self._write(writer, partial(shard.slot_moves.give, table, frozenset(move.slots)))
        slots.has_kept(shard, table)
        _log.info("slots_given", shard=shard.shard_id, to_shard=move.to_shard, slots=len(move.slots))
        slots.look()

    # ---- the shard that gets them ----

    async def _receive(self, writer: ShardWriter, shard: ShardState, move: SlotMove) -> None:
        slots, meta = self._slots, self._namespaces.on_thread
        await slots.ask(shard)
        arrival = slots.arrivals.get(shard.shard_id)
        if arrival is None:
            kept = slots.kept_by(shard)
            if kept is not None and kept.version >= move.version:
                await meta(lambda store: store.restore_slots(kept))
                return
            await self._write(writer, partial(shard.slot_moves.expect, move))
            arrival = slots.arrivals[shard.shard_id] = SlotArrival(move, {})
        move = arrival.move
        await meta(lambda store: store.restore_slot_move(move))
        source = await self._source_of(move.from_shard)
        try:
            table = await self._follow(writer, shard, arrival, source)
        finally:
            # Not waited for: the thread may wait for a server that hangs, and Python for the thread when it ends.
            source.interrupt()
            self._thread.submit(source.close)
        await meta(lambda store: store.restore_slots(table))
        _log.info("slots_moved", from_shard=move.from_shard, to_shard=shard.shard_id, slots=len(move.slots))
        await self._namespaces.refresh()

    async def _follow(self, writer: ShardWriter, shard: ShardState, arrival: SlotArrival, source: Source) -> SlotTable:
        """Get the ids of the slots, and take new ones. Returns the table in which they lead here."""
        move = arrival.move
        table = await self._read(source.slots)
        if table.version < move.version:
            # While the other shard takes ids on: what is left to copy after that is little, whatever its load.
            for _ in range(COPY_PASSES_MAX):
                if await self._copy(writer, shard, arrival, source) <= COPY_READS_MAX:
                    break
            giving = move._replace(phase=MovePhase.GIVING)
            if not await self._namespaces.on_thread(lambda meta: meta.set_slot_move(giving)):
                raise UnavailableError(f"the meta database has another move of slots than to shard {shard.shard_id}")
            table = await self._given(move, source)
        await self._copy(writer, shard, arrival, source)
        await self._write(writer, partial(shard.slot_moves.arrived, table, frozenset(move.slots)))
        self._slots.arrivals.pop(shard.shard_id, None)
        self._slots.has_kept(shard, table)
        return table

    async def _given(self, move: SlotMove, source: Source) -> SlotTable:
        """The other shard's copy once it has given the slots."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GIVEN_MS_MAX / 1000
        self.look(move._replace(phase=MovePhase.GIVING))
        while (table := await self._read(source.slots)).version < move.version:
            if loop.time() > until_s:
                raise UnavailableError(f"shard {move.from_shard} has not given its slots for {GIVEN_MS_MAX} ms")
            await asyncio.sleep(GIVEN_POLL_MS / 1000)
        return table

    async def _copy(self, writer: ShardWriter, shard: ShardState, arrival: SlotArrival, source: Source) -> int:
        """Take in the ids of the slots that the other shard has got since they were copied last.

        Returns how many reads that took.
        """
        slots, reads_count = frozenset(arrival.move.slots), 0
        for log in await self._read(source.logs):
            if not self._may_have(log.namespace, slots):
                continue
            first = max(log.first, arrival.read_to.get(log.namespace, 0))
            while first < log.end:
                reads_count += 1
                found, first = await self._read(partial(_read, source, log, first, arrival.move))
                if found.ids:
                    await self._write(writer, partial(shard.slot_moves.learn, found))
                arrival.read_to[log.namespace] = first
        return reads_count

    def _may_have(self, number: int, slots: frozenset[int]) -> bool:
        """Whether ids of the namespace may be of these slots."""
        namespace = self._namespaces.view.by_number.get(number)
        if namespace is None:
            return True
        first = slot_of(namespace.name, "", 1)
        return any((slot - first) % SLOTS_COUNT < namespace.settings.key_spread for slot in slots)

    async def _source_of(self, shard_id: int) -> Source:
        owned = self._shards.by_id.get(shard_id)
        if owned is not None:
            return self._source(shard_id, owned.place, owned.writer.served_on)
        rows = await self._namespaces.on_thread(lambda meta: meta.list_shards())
        places = [(row.place, row.server) for row in rows if row.shard_id == shard_id]
        return self._source(shard_id, *(places or [("", "")])[0])


def _read(source: Source, log: SeenName, first: int, move: SlotMove) -> tuple[MovedIds, int]:
    """The ids of the slots in the next rows of a log, and the number behind them. On a thread."""
    slots, again, end = frozenset(move.slots), log.moved_slots, first + MOVED_IDS
    steady_ms, rows = source.read(log.namespace, first, end)
    # Where there are none, they have been forgotten meanwhile.
    read_to = rows[-1].first + len(rows[-1].digests) if rows else min(end, log.end)
    ids = [
        MovedId(max(0, steady_ms - row.at_ms), digest, item)
        for row in rows
        for digest, item in zip(row.digests, row.items, strict=True)
        if (slot := slot_of_digest(digest)) in slots and (row.first >= log.moved_first or slot not in again)
    ]
    return MovedIds(log.namespace, log.name, ids, read_to, move), read_to
