"""A shard that gives slots goes on while another one reads which logs of dedup ids it has."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.shard.port import SeenName
from foqs.storage.schema import statements as sql
from foqs.storage.shard.formats import SEEN_ENTRY_BYTES, SEEN_VERSIONS
from foqs.storage.shard.slot_source import SlotSource


class ChangingShard(SlotSource):
    """Between two of the statements a log begins together with its namespace, or ends before it."""

    def __init__(self, changes_after: int, *, begins: bool) -> None:
        super().__init__(0, "")
        self._left = changes_after
        self._is_there = not begins

    def _rows(self, statement: str, *arguments: object) -> Any:
        names, extents = [(1, b"one")], [(1, 0, 0, 1 + 3 * SEEN_ENTRY_BYTES, SEEN_VERSIONS[0], 0)]
        if self._is_there:
            names, extents = [*names, (2, b"two")], [*extents, (2, 0, 0, 1 + 2 * SEEN_ENTRY_BYTES, SEEN_VERSIONS[0], 0)]
        found = {sql.READ_NAMESPACES: names, sql.READ_SEEN_EXTENTS: extents, sql.READ_ARRIVED: []}[statement]
        self._left -= 1
        if not self._left:
            self._is_there = not self._is_there
        return found


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("changes_after", [1, 2, 3, 4])
def test_a_log_that_begins_or_ends_meanwhile_is_told_whole_or_not_at_all(changes_after: int, begins: bool) -> None:
    one, *others = ChangingShard(changes_after, begins=begins).logs()
    assert one == SeenName(1, b"one", 0, 3)
    assert others in ([], [SeenName(2, b"two", 0, 2)])
