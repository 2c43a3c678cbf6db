"""How the ids of slots are copied while the shard that has them goes on: so many at a time, until little is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.host.registry.slot_moves import COPY_PASSES_MAX, COPY_READS_MAX, HELD_IDS, MOVED_IDS, SlotMover
from foqs.host.shards.waiting import Waiting
from foqs.model.errors import UnavailableError
from foqs.model.held import FREED, HeldId
from foqs.model.namespace import SettingsTable
from foqs.model.seen import digest_of
from foqs.model.slots import MovePhase, SlotMove, SlotTable, first_table, moved
from foqs.shard.port import SeenName, SeenRow, SlotArrival
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted

OTHER, SLOT = 5, 9
TABLE = first_table([0, OTHER])
MOVE = SlotMove(2, OTHER, 0, (SLOT,))


def held(key: int, text: str, *, first: int | None = None, slot: int = SLOT, shard_id: int = OTHER) -> HeldId:
    return HeldId(key, shard_id, NUMBER, digest_of(NUMBER, b"", slot, text), key if first is None else first)


class BusyShard:
    """A shard that gives slots. While it has them, some ids come with each read, and each has a row of its own."""

    def __init__(self, ids_count: int, ids_per_read: int) -> None:
        self.ids_count = ids_count
        self.first = 0
        self.is_giving = False
        self.reads: list[int] = []
        """How many ids each of them found."""
        self.closed_reads_count = 0
        self.most_read = 0
        self._ids_per_read = ids_per_read
        self.held_rows: list[HeldId] = []
        """The ids that items hold, by key and shard."""
        self.held_reads_count = 0

    def slots(self) -> SlotTable:
        return moved(TABLE, MOVE) if self.is_giving else TABLE

    def logs(self) -> list[SeenName]:
        return [SeenName(NUMBER, b"n7", self.first, self.ids_count)]

    def read(self, namespace: int, first: int, end: int) -> tuple[int, list[SeenRow]]:
        found = range(max(first, self.first), min(end, self.ids_count))
        self.reads.append(len(found))
        if self.is_giving:
            self.closed_reads_count += 1
        else:
            self.ids_count += self._ids_per_read
        return 0, [
            SeenRow(namespace, at, 0, [digest_of(namespace, b"", SLOT, f"id-{at}")], [(OTHER, at)]) for at in found
        ]

    def held(self, after: tuple[int, int], limit: int) -> list[HeldId]:
        assert self.is_giving, "the shard takes no more of them"
        self.held_reads_count += 1
        return [row for row in self.held_rows if (row.key, row.shard_id) > after][:limit]

    def close(self) -> None:
        return None


class Receiver:
    """The host of a shard that gets slots."""

    def __init__(self, source: BusyShard) -> None:
        self.shard, self.source = OneShard(), source
        self.shard.stored.tables.slots = TABLE
        self.shard.set_window(ids=1_000_000)
        self.slots = SimpleNamespace(arrivals={}, has_kept=lambda shard, table: None, gates=(), ending=set())
        self.reads_after_giving_count = 0
        self.writer = SimpleNamespace(wake=self._run)

    async def follow(self) -> SlotTable:
        namespaces = SimpleNamespace(run_in_lane=self._on_meta, view=SimpleNamespace(by_number={}), read=self._read)
        shards = SimpleNamespace(owned=list)
        waiting = Waiting(asyncio.get_running_loop())
        mover = SlotMover(
            cast(Any, namespaces), cast(Any, None), cast(Any, shards), cast(Any, self.slots), waiting, cast(Any, None)
        )
        arrival = SlotArrival(MOVE, {})
        try:
            return await mover._follow(cast(Any, self.writer), self.shard.state, arrival, cast(Any, self.source))
        finally:
            await mover.stop()

    async def _on_meta(self, work: Callable[[Any], Any]) -> Any:
        return work(SimpleNamespace(slots=SimpleNamespace(set_phase=self._set), shards=SimpleNamespace(read_all=list)))

    def _read(self, meta: object) -> None:
        """The gates are there before the slots are given."""
        self.reads_after_giving_count += self.source.slots().version == MOVE.version

    def _set(self, move: SlotMove) -> bool:
        assert move.phase is MovePhase.GIVING
        self.source.is_giving = True
        return True

    def _run(self) -> None:
        while self._commit():
            for completion in self.shard.state.take_events().completed:
                completion.on_done(completion)

    def _commit(self) -> bool:
        state = self.shard.state
        transaction = state.take(self.shard.now, {})
        if transaction is not None:
            events = state.committed(self.shard.stored.apply(transaction), self.shard.now)
            for completion in events.completed:
                completion.on_done(completion)
        return transaction is not None

    def knows_all(self) -> bool:
        window = self.shard.state.dedup.windows[NUMBER]
        digests = [digest_of(NUMBER, b"", SLOT, f"id-{at}") for at in range(self.source.first, self.source.ids_count)]
        return len(window.probe(digests)) == len(digests)


@pytest.mark.deep
@pytest.mark.parametrize("ids_per_read", [0, 200, 1_000])
async def test_slots_are_given_when_little_is_left_whatever_the_load(ids_per_read: int) -> None:
    source = BusyShard(ids_count=40_000, ids_per_read=ids_per_read)
    receiver = Receiver(source)
    assert await receiver.follow() == moved(TABLE, MOVE)
    assert receiver.reads_after_giving_count == 1
    assert receiver.knows_all()
    assert source.closed_reads_count <= COPY_READS_MAX
    assert max(source.reads) <= MOVED_IDS
    assert len(source.reads) <= 3 * source.ids_count / MOVED_IDS, "each reads as many as it may"


@pytest.mark.deep
async def test_slots_are_given_even_if_ids_come_faster_than_they_are_copied() -> None:
    source = BusyShard(ids_count=2 * COPY_READS_MAX * MOVED_IDS, ids_per_read=MOVED_IDS)
    receiver = Receiver(source)
    assert await receiver.follow() == moved(TABLE, MOVE)
    assert receiver.reads_after_giving_count == 1
    assert receiver.knows_all()
    assert len(source.reads) == (COPY_PASSES_MAX + 1) * 2 * COPY_READS_MAX


async def test_what_the_other_shard_has_forgotten_is_passed_over() -> None:
    source = BusyShard(ids_count=100_000, ids_per_read=0)
    source.first = 99_000
    receiver = Receiver(source)
    await receiver.follow()
    assert receiver.knows_all()
    assert source.reads == [1_000]


async def test_ids_that_items_hold_come_page_by_page_with_the_shards_of_their_items() -> None:
    source = BusyShard(ids_count=0, ids_per_read=0)
    count = 2 * HELD_IDS
    source.held_rows = [held(key, f"id-{key}") for key in range(1, count)]
    # A second copy, an item of another slot, one that is made free, and items of the receiving shard.
    source.held_rows += [held(count, "id-1", first=1), held(count + 1, "other", slot=SLOT + 1)]
    source.held_rows += [held(count + 2, "free", first=FREED), held(count + 3, "mine", shard_id=0)]
    source.held_rows += [held(count + 4, "lost", shard_id=0, first=FREED)]
    receiver = Receiver(source)
    tables = receiver.shard.stored.tables
    tables.held = {(at, 0): held(at, text, shard_id=0) for at, text in ((count + 3, "mine"), (count + 4, "lost"))}
    await receiver.follow()
    assert source.held_reads_count == 4
    kept = {(row.key, row.shard_id): row for row in source.held_rows[: count - 1] + source.held_rows[count + 1 : -2]}
    assert tables.held == kept | {(count + 3, 0): held(count + 3, "mine", shard_id=0)}


async def test_a_shard_gives_no_slots_on_while_it_waits_for_ids_of_others() -> None:
    """The meta database may have lost the first move: the next shard would miss the ids that have not come yet."""
    receiver = Receiver(BusyShard(ids_count=0, ids_per_read=0))
    state, table = receiver.shard.state, moved(TABLE, MOVE)
    onward = SlotMove(3, 0, OTHER, (SLOT,), MovePhase.GIVING)
    receiver.shard.stored.tables.slots = table
    kept = {"": table}

    async def ask(shard: object) -> None:
        return None

    receiver.slots = SimpleNamespace(
        arrivals={0: SlotArrival(MOVE, {})}, ask=ask, kept_by=lambda shard: kept[""], refresh=lambda: None,
        has_kept=lambda shard, table: kept.update({"": table}), redriving={}, gates=(), ending=set(),
    )  # fmt: skip
    mover = SlotMover(
        cast(Any, SimpleNamespace(settings=SettingsTable())), cast(Any, None), cast(Any, None),
        cast(Any, receiver.slots), Waiting(asyncio.get_running_loop()), cast(Any, None),
    )  # fmt: skip
    with pytest.raises(UnavailableError, match="have not come"):
        await mover._give(cast(Any, receiver.writer), state, onward)
    assert receiver.shard.stored.tables.slots == table
    receiver.slots.arrivals.clear()
    await mover._give(cast(Any, receiver.writer), state, onward)
    assert receiver.shard.stored.tables.slots == moved(table, onward)
    await mover.stop()
