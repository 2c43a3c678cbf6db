"""A host brings back what a meta database that was restored from an older state has forgotten of moves of slots."""

from __future__ import annotations

from typing import Any, cast

import pytest

from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.model.slots import SlotMove, SlotTable, first_table, moved
from foqs.shard.port import SlotArrival
from foqs.storage.meta.meta_namespaces import NamespaceList

OLD = SlotTable(7, first_table([0, 1, 2]).shards)
ENDED = SlotMove(8, 1, 2, (1,))
NEXT = SlotMove(9, 0, 2, (0,))


class OldMeta:
    """Has the table of before a move, and that move as one that is under way."""

    def __init__(self) -> None:
        self.namespaces = self.slots = self
        self.restored: list[SlotTable] = []

    def read(self) -> NamespaceList:
        return NamespaceList([], [], {}, OLD, ENDED, {}, {}, {})

    def restore(self, table: SlotTable) -> None:
        self.restored.append(table)

    def close(self) -> None:
        return None


class NoShards:
    def conflicts(self, view: object) -> dict[str, Any]:
        return {}

    def servers(self) -> dict[int, str]:
        return {}

    def epochs(self) -> dict[int, int]:
        return {}

    def answer(self, censuses: object, namespaces: object) -> None:
        return None


@pytest.mark.parametrize("is_next_under_way", [False, True])
async def test_the_table_of_a_move_comes_back_if_the_next_move_is_under_way(is_next_under_way: bool) -> None:
    """Without one, the host that follows the move ends it, and the table is not lost but on its way."""
    meta = OldMeta()
    slots = Slots(Shards())
    namespaces = Namespaces(cast(Any, meta), "host", lambda: 0, cast(Any, NoShards()), slots, allow_undurable=True)
    slots.note(moved(OLD, ENDED), "shard 2")
    if is_next_under_way:
        slots.arrivals[2] = SlotArrival(NEXT, {})
    await namespaces.refresh()
    assert meta.restored == ([moved(OLD, ENDED)] if is_next_under_way else [])
    await namespaces.stop()
