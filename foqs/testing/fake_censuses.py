"""The censuses and the slots of a meta database in memory.

They do the work of foqs.storage.meta.meta_censuses and meta_slots on dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model import limits
from foqs.model.census import Census, CensusAnswer, Closed, of_old_builds, unanswered
from foqs.model.cluster import ShardUse
from foqs.model.errors import UnavailableError
from foqs.model.slots import NO_SLOTS, SlotMove, SlotTable, first_table
from foqs.storage.meta.meta_slots import check_slots_free, closed_slots
from foqs.testing.fake_meta_tables import Reach


class FakeCensuses:
    """The open censuses, and their answers."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def answer(self, census: Census, answers: Sequence[CensusAnswer]) -> None:
        tables = self._reach().tables
        if census.id not in tables.censuses:
            return
        given = tables.answers.setdefault(census.id, {})
        for answer in answers:
            if answer.shard_id not in given or answer.epoch >= given[answer.shard_id].epoch:
                given[answer.shard_id] = answer

    def end(self, census: Census) -> None:
        tables = self._reach().tables
        tables.censuses.pop(census.id, None)
        tables.answers.pop(census.id, None)

    def begin(self, number: int, topic_namespace: int = 0, topic: str = "", closes: tuple[Closed, ...] = ()) -> Census:
        database = self._reach()
        census = Census(database.chance.getrandbits(63), number, topic_namespace, topic, closes)
        database.tables.censuses[census.id] = (census, database.now_ms() + limits.CENSUS_EXPIRY_MS)
        return census

    def counted(self, census: Census, *, is_of_groups: bool = False) -> tuple[list[CensusAnswer], list[int]]:
        tables = self._reach().tables
        if census.id not in tables.censuses:
            raise UnavailableError("the census is over")
        answers = list(tables.answers.get(census.id, {}).values())
        old = of_old_builds(census, answers, is_of_groups=is_of_groups)
        return answers, sorted({*unanswered(tables.epochs, answers), *old})


class FakeSlots:
    """The table of slots, and the move that is under way."""

    def __init__(self, reach: Reach, censuses: FakeCensuses) -> None:
        self._reach = reach
        self._censuses = censuses

    def begin(self, slots: Sequence[int] = ()) -> Census:
        return self._censuses.begin(0, closes=closed_slots(slots))

    def finish(self, census: Census) -> list[int]:
        answers, missing = self._censuses.counted(census)
        if not missing:
            self.make(answers)
            self._censuses.end(census)
        return missing

    def begin_move(self, census: Census, move: SlotMove) -> list[int]:
        answers, missing = self._censuses.counted(census)
        if not missing:
            tables = self._reach().tables
            check_slots_free(census, move, answers, tables.gates)
            version = tables.slots.version
            known = max([answer.slots_version for answer in answers], default=0)
            taker = tables.cluster.shards.get(move.to_shard)
            if taker is None or taker.use is not ShardUse.SERVING:
                raise UnavailableError(f"shard {move.to_shard} takes no slots now", nothing_done=True)
            if version != move.version - 1 or known > version or tables.slot_move is not None:
                raise UnavailableError("slots move already, or a shard knows another table", nothing_done=True)
            tables.slot_move = move
            self._censuses.end(census)
        return missing

    def restore_move(self, move: SlotMove) -> None:
        tables = self._reach().tables
        if tables.slot_move is None and tables.slots.version < move.version:
            tables.slot_move = move

    def set_phase(self, move: SlotMove) -> bool:
        tables = self._reach().tables
        if tables.slot_move is None or not tables.slot_move.is_same(move):
            return False
        tables.slot_move = move
        return True

    def restore(self, table: SlotTable) -> None:
        tables = self._reach().tables
        if table.version > tables.slots.version:
            tables.slots = table
        if tables.slot_move is not None and tables.slot_move.version <= table.version:
            tables.slot_move = None

    def make(self, answers: Sequence[CensusAnswer]) -> None:
        tables = self._reach().tables
        if tables.slots == NO_SLOTS and answers:
            if any(answer.slots_version for answer in answers):
                raise UnavailableError("the meta database has lost its slot table", nothing_done=True)
            tables.slots = first_table([answer.shard_id for answer in answers])
