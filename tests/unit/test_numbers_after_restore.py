"""The numbers of namespaces, when the meta database comes back as it was in a backup."""

from __future__ import annotations

import pytest

from foqs.testing.memory_queue import MemoryQueue


@pytest.mark.parametrize("is_noticed", [True, False], ids=["a while later", "at once"])
def test_a_number_that_the_meta_database_has_forgotten_is_given_to_no_other_namespace(*, is_noticed: bool) -> None:
    """Its items are on the shards: they would be the next namespace's."""
    with MemoryQueue("first") as queue:
        database = queue._traffic.host._meta.reach()
        backup = database.tables.copy()
        queue.admin().create_namespace("forgotten")
        queue.client().enqueue("forgotten", "t", b"its own")
        number = database.tables.namespaces["forgotten"].number
        database.tables = backup
        if is_noticed:
            queue.clock.advance(10_000)
        queue.admin().create_namespace("next")
        assert database.tables.namespaces["next"].number > number
        assert queue.client().dequeue("next", "t") == []
