"""Moves of slots between shards. The owners of both shards follow a move, and a host begins moves to its own shards.

The order of the steps prevents ids from being taken twice (docs/decisions/0036-moving-slots.md). Each step is stored in
one of three databases and can be repeated, so that the next owner of a shard continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

import structlog

from foqs.background.lane import Lane
from foqs.background.tasks import Tasks
from foqs.host.registry.censuses import Censuses
from foqs.host.registry.held_topics import held_slots
from foqs.host.registry.kept_gates import SlotGates
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespace_calls import CENSUS_POLL_MS
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards, check_open
from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.errors import FoqsError, SlotsBusyError, UnavailableError
from foqs.model.held import FREED, HeldId, Holder, NamespaceDigest
from foqs.model.seen import slot_of_digest
from foqs.model.slots import SLOTS_COUNT, MovePhase, SlotMove, SlotTable, moved, next_move, slot_of
from foqs.shard.port import SeenName, SeenRow, SlotArrival
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.slot_move import MovedId, MovedIds
from foqs.shard.writer.shard_writer import ShardWriter

MOVED_IDS = 2_048
"""Ids of a log that are read and copied at a time, in any number of rows."""
HELD_IDS = 2_000
"""Held ids that are read at a time, of all slots."""
COPY_READS_MAX = 4
"""Reads of a copy pass that counts as short, about 100 ms, because the pass after it will be as short."""
COPY_PASSES_MAX = 10
"""Copy passes after which the slots are given even if no pass was short because new ids come too fast."""
GIVEN_POLL_MS = 50
"""The pause between two reads of the other shard's table, until its owner has given the slots."""
GIVEN_MS_MAX = 30 * limits.SECOND_MS
"""Timeout of the wait for given slots. The next refresh of the namespaces begins it again."""
BUSY_MS = 30 * limits.SECOND_MS
"""The time for which a slot whose next shard has older items of serial topics is left out of moves."""
PROPOSE_MS = 3 * limits.SECOND_MS
"""The pause after a failed attempt to begin a move."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class Source(Protocol):
    """Reads another shard, of any owner; SlotSource of foqs.storage.shard is the real one. Its methods block."""

    def slots(self) -> SlotTable: ...
    def logs(self) -> list[SeenName]: ...
    def read(self, namespace: int, first: int, end: int) -> tuple[int, list[SeenRow]]: ...
    def held(self, after: tuple[int, int], limit: int) -> list[HeldId]: ...
    def holders(self, ids: Sequence[NamespaceDigest]) -> dict[NamespaceDigest, Holder]: ...
    def interrupt(self) -> None:
        """Make the current call and all later ones fail. Thread-safe."""

    def close(self) -> None: ...


class SlotMover:
    """Follows the current move for the shards of this host. `Namespaces` passes it the meta database's move.

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
        """`source` makes the reader of a shard by its id, its place, and the server on which it is served."""
        self.move: SlotMove | None = None
        """The last move seen in the meta database."""
        self.gates = SlotGates(namespaces, shards, slots)
        self._namespaces = namespaces
        self._censuses = censuses
        self._shards = shards
        self._slots = slots
        self._waiting = waiting
        self._source = source
        self._tasks = Tasks("slot move")
        self._parts: set[tuple[str, ShardState | None]] = set()
        """The parts of a move that are under way."""
        self._propose_from_s = 0.0
        self._busy_until_s: dict[int, float] = {}
        """The slots that could not move when they were last asked about, and the end of that knowledge."""
        self._lane = Lane("slot-moves")
        """Other shards are read there."""

    def refresh(self, move: SlotMove | None) -> None:
        """Begin this host's parts of the move in the meta database, or of one that it has lost. On the event loop."""
        self.move = move
        self.gates.refresh()
        owned = {shard.shard_id: (writer, shard) for writer, shard in self._shards.owned()}
        for shard_id, arrival in list(self._slots.arrivals.items()):
            if shard_id in owned:
                self._begin("receive", *owned[shard_id], self._receive, arrival.move)
        if move is None:
            self._propose(owned.keys())
            return
        if move.to_shard in owned and move.to_shard not in self._slots.arrivals:
            self._begin("receive", *owned[move.to_shard], self._receive, move)
        if move.from_shard in owned and move.phase is MovePhase.GIVING:
            self._begin("give", *owned[move.from_shard], self._give, move)

    async def stop(self) -> None:
        await self.gates.stop()
        await self._tasks.stop()
        self._lane.end()

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
        if key not in self._parts:
            self._parts.add(key)
            task = self._tasks.spawn(self._do(key[0], work), f"slot move: {key[0]}")
            task.add_done_callback(lambda _: self._parts.discard(key))

    async def _do(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part of a move. The next `refresh` begins a failed one again."""
        try:
            await work()
        except FoqsError as error:
            _log.warning("slot_move_waits", part=part, error=str(error))

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._lane.run(work)

    async def _write(self, writer: ShardWriter, ask: Callable[[Completion], None]) -> None:
        """Wait until the shard has committed the change that `ask` starts. Raises UnavailableError."""
        answer = Answer(self._waiting)
        ask(answer)
        writer.wake()
        await answer.done

    # ---- the next move ----

    def _propose(self, owned: Collection[int]) -> None:
        """Begin the next move if it is to a shard of this host, because the receiving owner has most of the work."""
        loop = asyncio.get_running_loop()
        if self._slots.arrivals or loop.time() < self._propose_from_s:
            return
        uses = self._shards.uses
        if ShardUse.PARKED in uses.values():
            return  # The census of a move needs all shards.
        served = [at for at in uses if self._shards.serves(at) or self._shards.is_elsewhere(at)]
        serving = [shard_id for shard_id in served if uses[shard_id] is ShardUse.SERVING]
        move = self._next(serving, [at for at in served if uses[at] is ShardUse.DRAINING])
        if move is not None and move.to_shard in owned:
            self._propose_from_s = loop.time() + PROPOSE_MS / 1000
            self._start(("propose", None), lambda: self._begin_move(move))

    def _next(self, serving: Collection[int], draining: Collection[int]) -> SlotMove | None:
        return next_move(self._slots.table, serving, draining, self._busy())

    def _busy(self) -> Collection[int]:
        """Return the slots that cannot move now."""
        if self._busy_until_s:
            now_s = asyncio.get_running_loop().time()
            self._busy_until_s = {slot: until_s for slot, until_s in self._busy_until_s.items() if until_s > now_s}
        return self._busy_until_s.keys()

    async def _begin_move(self, move: SlotMove) -> None:
        """Begin a move if all shards know the table for which it was made, and no other slots move to one.

        From the census on, the slots take no items of serial topics until they have moved.
        """
        namespaces = self._namespaces
        census = await namespaces.run_in_lane(lambda meta: meta.slots.begin(move.slots))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.CENSUS_MS_MAX / 1000
        try:
            # The shards of this host answer at once, and those of other hosts after their next refresh.
            await namespaces.refresh()
            await self._censuses.answered(census)
            while missing := await namespaces.run_in_lane(lambda meta: meta.slots.begin_move(census, move)):
                if loop.time() > until_s:
                    raise UnavailableError(f"shards {missing[:10]} have not said which slot table they know")
                await asyncio.sleep(CENSUS_POLL_MS / 1000)
        except FoqsError as error:
            if isinstance(error, SlotsBusyError):
                self._busy_until_s |= dict.fromkeys(error.slots, loop.time() + BUSY_MS / 1000)
                self._propose_from_s = 0.0
            await namespaces.run_in_lane(lambda meta: meta.censuses.end(census))
            raise
        self._propose_from_s = 0.0
        _log.info("slots_begin_to_move", from_shard=move.from_shard, to_shard=move.to_shard, slots=len(move.slots))
        await namespaces.refresh()

    # ---- the giving shard ----

    async def _give(self, writer: ShardWriter, shard: ShardState, move: SlotMove) -> None:
        """Give the slots if they are not given yet. From then on only the other shard takes their ids."""
        slots = self._slots
        await slots.ask(shard)
        if shard.shard_id in slots.arrivals:
            # A meta database that lost that move can begin the next one too soon, and its shard would miss those ids.
            raise UnavailableError(f"ids of slots that lead to shard {shard.shard_id} have not come there yet")
        kept = slots.kept_by(shard)
        if kept is None or kept.version != move.version - 1:
            return
        await self._make_gates(shard, move)
        table = moved(kept, move)
        await self._write(writer, partial(shard.slot_moves.give, table, frozenset(move.slots)))
        slots.has_kept(shard, table)
        _log.info("slots_given", shard=shard.shard_id, to_shard=move.to_shard, slots=len(move.slots))
        slots.refresh()

    async def _make_gates(self, shard: ShardState, move: SlotMove) -> None:
        """Let the other shard wait for the items of serial topics that stay here, before it gets their slots.

        It reads the gates once it sees that the slots are given. They take no new items of serial topics meanwhile.
        """
        held = await held_slots(shard, self._namespaces.settings, move.slots)
        held |= {slot for of_shard, slot in self._slots.redriving if of_shard == shard.shard_id}
        gates = self._slots.gates
        if held.intersection(move.slots) or any(gate.to_shard == shard.shard_id for gate in gates):
            await self._namespaces.run_in_lane(lambda meta: meta.gates.make(move, held))
            await self._namespaces.run_in_lane(self._namespaces.read)

    # ---- the receiving shard ----

    async def _receive(self, writer: ShardWriter, shard: ShardState, move: SlotMove) -> None:
        slots, meta = self._slots, self._namespaces.run_in_lane
        await slots.ask(shard)
        arrival = slots.arrivals.get(shard.shard_id)
        if arrival is None:
            kept = slots.kept_by(shard)
            if kept is not None and kept.version >= move.version:
                await meta(lambda store: store.slots.restore(kept))
                return
            await self._write(writer, partial(shard.slot_moves.expect, move))
            arrival = slots.arrivals[shard.shard_id] = SlotArrival(move, {})
        move = arrival.move
        await meta(lambda store: store.slots.restore_move(move))
        source = await self._source_of(move.from_shard)
        try:
            table = await self._follow(writer, shard, arrival, source)
        finally:
            # Not awaited, because the thread can wait for a hanging server, and Python waits for the thread at its end.
            source.interrupt()
            self._lane.run(source.close)
        await meta(lambda store: store.slots.restore(table))
        _log.info("slots_moved", from_shard=move.from_shard, to_shard=shard.shard_id, slots=len(move.slots))
        await self._namespaces.refresh()

    async def _follow(self, writer: ShardWriter, shard: ShardState, arrival: SlotArrival, source: Source) -> SlotTable:
        """Copy the ids of the slots, then take new ones. Returns the table that assigns the slots to this shard."""
        move = arrival.move
        table = await self._read(source.slots)
        if table.version < move.version:
            # Copied while the other shard still takes ids, so that little is left to copy afterwards at any load.
            for _ in range(COPY_PASSES_MAX):
                if await self._copy(writer, shard, arrival, source) <= COPY_READS_MAX:
                    break
            giving = move._replace(phase=MovePhase.GIVING)
            if not await self._namespaces.run_in_lane(lambda meta: meta.slots.set_phase(giving)):
                raise UnavailableError(f"the meta database has another move of slots than to shard {shard.shard_id}")
            table = await self._given(move, source)
        await self._copy(writer, shard, arrival, source)
        await self._copy_held(writer, shard, move, source)
        # Its database can be another one by now, if it was parked meanwhile.
        await self._require_open(move.from_shard)
        # The gates of the slots, behind which it waits from the first moment.
        await self._namespaces.run_in_lane(self._namespaces.read)
        await self._write(writer, partial(shard.slot_moves.arrived, table, frozenset(move.slots)))
        self._slots.arrivals.pop(shard.shard_id, None)
        self._slots.has_kept(shard, table)
        return table

    async def _given(self, move: SlotMove, source: Source) -> SlotTable:
        """Wait until the other shard has given the slots. Returns its table. Raises UnavailableError at the timeout."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GIVEN_MS_MAX / 1000
        self.refresh(move._replace(phase=MovePhase.GIVING))
        while (table := await self._read(source.slots)).version < move.version:
            if loop.time() > until_s:
                raise UnavailableError(f"shard {move.from_shard} has not given its slots for {GIVEN_MS_MAX} ms")
            await asyncio.sleep(GIVEN_POLL_MS / 1000)
        return table

    async def _copy(self, writer: ShardWriter, shard: ShardState, arrival: SlotArrival, source: Source) -> int:
        """Copy the ids of the slots that the other shard has taken since the last copy. Returns the number of reads."""
        slots, reads_count = frozenset(arrival.move.slots), 0
        for log in await self._read(source.logs):
            if not self._can_have(log.namespace, slots):
                continue
            first = max(log.first, arrival.read_to.get(log.namespace, 0))
            while first < log.end:
                reads_count += 1
                found, first = await self._read(partial(_read, source, log, first, arrival.move))
                if found.ids:
                    await self._write(writer, partial(shard.slot_moves.append, found))
                arrival.read_to[log.namespace] = first
        return reads_count

    async def _copy_held(self, writer: ShardWriter, shard: ShardState, move: SlotMove, source: Source) -> None:
        """Copy the ids of the slots that items hold, once the other shard takes no more such ids.

        The items stay, so this shard does not learn of their ends: `DistantHolders` asks for them.
        """
        slots, after = frozenset(move.slots), (0, 0)
        while rows := await self._read(partial(source.held, after, HELD_IDS)):
            after = (rows[-1].key, rows[-1].shard_id)
            moving = [row for row in rows if slot_of_digest(row.digest) in slots]
            held = {
                (row if row.first == FREED else row._replace(key=row.first)): None
                for row in moving
                if row.shard_id != shard.shard_id
            }
            # An item of this shard has its own row here, unless an operator has made its id free elsewhere.
            released = [
                (NamespaceDigest(row.namespace, row.digest), Holder(row.shard_id, row.key))
                for row in moving
                if row.shard_id == shard.shard_id and row.first == FREED
            ]
            if held or released:
                await self._write(writer, partial(shard.slot_moves.hold, list(held), released))

    def _can_have(self, number: int, slots: frozenset[int]) -> bool:
        """True if ids of the namespace can be in these slots."""
        namespace = self._namespaces.view.by_number.get(number)
        if namespace is None or self._namespaces.settings.serials(number) is not None:
            return True  # The ids of a serial topic have the slot of the topic.
        first = slot_of(namespace.name, "", 1)
        return any((slot - first) % SLOTS_COUNT < namespace.settings.key_spread for slot in slots)

    async def _source_of(self, shard_id: int) -> Source:
        owned = self._shards.by_id.get(shard_id)
        if owned is not None:
            return self._source(shard_id, owned.place, owned.writer.served_on)
        row = await self._require_open(shard_id)
        return self._source(shard_id, row.place, row.server) if row is not None else self._source(shard_id, "", "")

    async def _require_open(self, shard_id: int) -> ShardRow | None:
        """Return the row of a shard, or None if it has none. Raises UnavailableError for a parked one."""
        rows = await self._namespaces.run_in_lane(lambda meta: meta.shards.read_all())
        row = next((row for row in rows if row.shard_id == shard_id), None)
        if row is not None:
            check_open(row)
        return row


def _read(source: Source, log: SeenName, first: int, move: SlotMove) -> tuple[MovedIds, int]:
    """Return the ids of the slots in the next rows of a log, and the number after the last row. Blocks."""
    slots, again, end = frozenset(move.slots), log.moved_slots, first + MOVED_IDS
    steady_ms, rows = source.read(log.namespace, first, end)
    # Without rows, they were forgotten meanwhile.
    read_to = rows[-1].first + len(rows[-1].digests) if rows else min(end, log.end)
    ids = [
        MovedId(max(0, steady_ms - row.at_ms), digest, item, row.copies_of(at))
        for row in rows
        for at, (digest, item) in enumerate(zip(row.digests, row.items, strict=True))
        if (slot := slot_of_digest(digest)) in slots and (row.first >= log.moved_first or slot not in again)
    ]
    return MovedIds(log.namespace, log.name, ids, read_to, move), read_to
