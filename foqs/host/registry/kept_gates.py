"""The gates of this host's shards: one shard at a time delivers the serial topics of a slot.

A shard that has given a slot delivers the items that it still has, while the next shard waits behind a gate
(docs/decisions/0073-gates.md). The owner of the earlier shard ends the gate once it has none. An earlier shard that has
items again, because a dead letter is redriven, asks the later one to wait once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from heapq import nsmallest
from itertools import islice

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.tasks import Tasks
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import NO_SHARD_RETRY_MS, Shards
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.slot_gates import GateState, SlotGate
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState
from foqs.storage.meta.meta_store import MetaStore

CHECK_MS = limits.SECOND_MS
"""The pause between two checks of the gates of this host's shards, unless an earlier shard asks."""
GATES_PER_CALL_MAX = 64
"""Gates that one call of the meta database changes."""
GATES_SHOWN_MAX = 64
"""Gates, the oldest ones, that the metrics of a host show."""
TURN_MS_MAX = 5 * limits.SECOND_MS
"""Timeout of a redrive that waits until a later shard has stopped delivering."""
TURN_POLL_MS = 50
"""The pause between two checks of such a redrive by the facts that this host knows."""

_log = structlog.get_logger(__name__)


class SlotGates:
    """Keeps the gates of the shards of this host, as often as the host reads the meta database."""

    def __init__(self, namespaces: Namespaces, shards: Shards, slots: Slots) -> None:
        self._namespaces = namespaces
        self._shards = shards
        self._slots = slots
        self._tasks = Tasks("slot gates")
        self._checking: asyncio.Task[None] | None = None
        self._check_from_s = 0.0
        self._outage: OutageLog | None = None

    def refresh(self) -> None:
        """Apply the gates that the host has read, and begin a check if it is time for one. On the event loop."""
        slots = self._slots
        for _, shard in self._shards.owned():
            slots.apply_gates(shard)
        if self._checking is not None and not self._checking.done():
            return
        slots.ending &= {gate.id for gate in slots.gates}
        loop = asyncio.get_running_loop()
        mine = {shard.shard_id for _, shard in self._shards.owned()}
        is_asked = any(gate.to_shard in mine and gate.state is GateState.ASKED for gate in slots.gates)
        if (is_asked or loop.time() >= self._check_from_s) and any(self._work_of(shard) for shard in self._owned()):
            self._check_from_s = loop.time() + CHECK_MS / 1000
            self._checking = self._tasks.spawn(self._check_all(), "slot gates")

    async def stop(self) -> None:
        await self._tasks.stop()

    def ages_s(self) -> dict[tuple[str, ...], float]:
        """Return the ages of the oldest gates behind which shards of this host wait, by slot and shards. Thread-safe.

        A host that owns no such shard any more has none.
        """
        mine = {writer.shard_id for writer in list(self._shards.writers.values()) if writer.held is not None}
        waiting = [gate for gate in self._slots.gates if gate.to_shard in mine]
        now_ms = self._namespaces.wall_ms()
        return {
            (str(gate.slot), str(gate.from_shard), str(gate.to_shard)): max(0, now_ms - gate.since_ms)
            / limits.SECOND_MS
            for gate in nsmallest(GATES_SHOWN_MAX, waiting, key=lambda gate: gate.since_ms)
        }

    @asynccontextmanager
    async def turn(self, shard_ids: Iterable[int], slot: int | None) -> AsyncIterator[dict[int, FoqsError]]:
        """Give these shards of this host the turn to deliver items of a slot again, for redrives within the context.

        Yields the errors of shards that cannot have it now. It does nothing without a slot.
        """
        errors: dict[int, FoqsError] = {}
        holds = [] if slot is None else [(shard_id, slot) for shard_id in shard_ids]
        self._slots.redriving.update(holds)
        try:
            for shard_id, of_slot in holds:
                try:
                    await self._take_turn(shard_id, of_slot)
                except FoqsError as error:
                    errors[shard_id] = error.with_traceback(None)
            yield errors
        finally:
            self._slots.redriving.subtract(holds)
            for hold in holds:
                if not self._slots.redriving[hold]:
                    del self._slots.redriving[hold]

    # ---- checks ----

    def _owned(self) -> list[ShardState]:
        return [shard for _, shard in self._shards.owned() if shard.index.counted]

    def _work_of(self, shard: ShardState) -> bool:
        """True if the shard has gates, or serial topics of slots that lead elsewhere."""
        if any(shard.shard_id in (gate.from_shard, gate.to_shard) for gate in self._slots.gates):
            return True
        return bool(self._strange_slots(shard))

    def _strange_slots(self, shard: ShardState) -> list[int]:
        """Return the slots of serial topics of the shard that lead to another shard, and have no gate."""
        kept = self._slots.kept_by(shard)
        known = shard.index.topic_table.serial_by_slot
        if kept is None or not kept.version or not known:
            return []
        gated = {gate.slot for gate in self._slots.gates}
        return [slot for slot in known if kept.shards[slot] != shard.shard_id and slot not in gated]

    async def _check_all(self) -> None:
        """Do the part of each shard in its gates. The next `refresh` begins a failed check again."""
        try:
            for shard in self._owned():
                await self._wait_behind(shard)
                await self._end_gates(shard)
                await self._ask_for(shard)
        except FoqsError as error:
            self._failed(error)
            return
        self._outage = None

    def _failed(self, error: FoqsError) -> None:
        if self._outage is None:
            self._outage = OutageLog(asyncio.get_running_loop().time, "slot_gates_not_kept")
        self._outage.failed(str(error))

    async def _wait_behind(self, shard: ShardState) -> None:
        """Tell the earlier shards that this one delivers nothing more, and has nothing out."""
        shard_id, epoch = shard.shard_id, shard.epoch
        for state in (GateState.OPEN, GateState.SHUT):
            # It claims nothing more of the slots of these gates, so a topic that is idle stays so.
            self._slots.apply_gates(shard)
            found: list[SlotGate] = []
            for gate in self._slots.gates:
                if gate.to_shard != shard_id or gate.state >= state or len(found) == GATES_PER_CALL_MAX:
                    continue
                # Gates whose items are out for long do not hold up those behind them.
                if state is GateState.SHUT or not await _any(shard, gate.slot, lambda topic: not topic.is_idle):
                    found.append(gate)
            if found:
                await self._change(partial(_advance, shard_id, epoch, found, state))

    async def _end_gates(self, shard: ShardState) -> None:
        """End the gates behind which other shards wait for this one, if it has no more items of the slot."""
        slots, shard_id, epoch = self._slots, shard.shard_id, shard.epoch
        waits_for = {gate.slot for gate in slots.gates if gate.to_shard == shard_id}
        ending: list[SlotGate] = []
        for gate in slots.gates:
            if gate.from_shard != shard_id or gate.slot in waits_for or len(ending) >= GATES_PER_CALL_MAX:
                continue
            if gate.id in slots.ending or not await self._holds(shard, gate.slot):
                ending.append(gate)
        ending = [one for one in ending if one.id in slots.ending or not slots.redriving[shard_id, one.slot]]
        if not ending:
            return
        # From here on it delivers nothing of them, and redrives ask for new gates. If the call fails, its outcome is
        # unknown, so the gates stay so until they are ended for certain.
        ids = {gate.id for gate in ending}
        slots.ending |= ids
        slots.apply_gates(shard)
        await self._change(lambda meta: meta.gates.end(shard_id, epoch, ending))
        slots.ending -= ids
        slots.apply_gates(shard)
        _log.info("slot_gates_ended", shard=shard_id, slots=[gate.slot for gate in ending][:10], count=len(ending))
        await self._namespaces.refresh()

    async def _ask_for(self, shard: ShardState) -> None:
        """Ask for gates of slots that lead elsewhere and have items here: their gates were lost or removed."""
        shard_id, epoch, closed = shard.shard_id, shard.epoch, self._slots.closed
        wanted: list[int] = []
        for slot in self._strange_slots(shard):
            if slot not in closed and await self._holds(shard, slot):
                wanted.append(slot)
            if len(wanted) == GATES_PER_CALL_MAX:
                break
        if wanted:
            _log.warning("slots_without_gates", shard=shard_id, slots=wanted[:10], count=len(wanted))
            await self._change(lambda meta: meta.gates.ask(shard_id, epoch, wanted))

    async def _holds(self, shard: ShardState, slot: int) -> bool:
        if self._slots.redriving[shard.shard_id, slot]:
            return True
        return await _any(shard, slot, lambda topic: topic.is_live)

    async def _change(self, change: Callable[[MetaStore], None]) -> None:
        """Change the gates in the meta database, and read them again."""
        await self._namespaces.run_in_lane(change)
        await self._namespaces.run_in_lane(self._namespaces.read)

    # ---- redrives ----

    async def _take_turn(self, shard_id: int, slot: int) -> None:
        """Return when no later shard delivers items of the slot. Raises UnavailableError."""
        loop, slots = asyncio.get_running_loop(), self._slots
        until_s = loop.time() + TURN_MS_MAX / 1000
        while not await self._has_turn(shard_id, slot):
            if loop.time() > until_s:
                raise _not_now(
                    f"the shard to which slot {slot} leads has not stopped delivering within {TURN_MS_MAX} ms"
                )
            await asyncio.sleep(TURN_POLL_MS / 1000)
            for _, shard in self._shards.owned():
                slots.apply_gates(shard)

    async def _has_turn(self, shard_id: int, slot: int) -> bool:
        _, shard = self._shards.serving(shard_id)
        slots = self._slots
        await slots.ask(shard)
        if slot in slots.closed:
            raise _not_now(f"slot {slot} moves to another shard")
        gates = [gate for gate in slots.gates if gate.slot == slot]
        for gate in gates:
            if gate.to_shard == shard_id:
                raise _not_now(f"earlier items are on shard {gate.from_shard}: they come first")
            if gate.from_shard == shard_id and gate.id not in slots.ending:
                return gate.state >= GateState.SHUT
        if slots.takes(shard, slot):
            return True
        if any(gate.from_shard != shard_id for gate in gates):
            raise _not_now(f"shard {gates[0].to_shard} waits for items of shard {gates[0].from_shard}")
        epoch = shard.epoch
        await self._change(lambda meta: meta.gates.ask(shard_id, epoch, [slot]))
        return False


def _advance(shard_id: int, epoch: int, gates: list[SlotGate], state: GateState, meta: MetaStore) -> None:
    meta.gates.advance(shard_id, epoch, gates, state)


async def _any(shard: ShardState, slot: int, is_so: Callable[[ShardTopic], bool]) -> bool:
    """True if it is so for a serial topic of the slot, of which each turn of the event loop sees a bounded number."""
    topics: Collection[ShardTopic] = list(shard.serial_topics_of(slot))
    some = iter(topics)
    while part := list(islice(some, limits.TOPICS_PER_TICK_MAX)):
        if any(is_so(topic) for topic in part):
            return True
        if len(part) < len(topics):
            await asyncio.sleep(0)
    return False


def _not_now(why: str) -> UnavailableError:
    return UnavailableError(
        f"dead letters of this serial topic cannot be redriven now, because {why}: nothing was done, try again",
        retry_after_ms=NO_SHARD_RETRY_MS,
        nothing_done=True,
    )
