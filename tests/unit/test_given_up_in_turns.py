"""Items whose caller left before it got them: calls for any topic, and for the keys of a topic, get them next."""

from __future__ import annotations

import pytest

from foqs.model.topic_name import ordered
from tests.support.shards import Shards
from tests.unit.test_caps import check


@pytest.mark.parametrize("name", ["a", ordered("a", "key")])
@pytest.mark.parametrize("items_count", [1, 3])
@pytest.mark.parametrize("lease_ms", [None, 600_000])
def test_an_item_that_was_on_its_way_to_a_caller_that_left_goes_to_the_next_call(
    name: str, items_count: int, lease_ms: int | None
) -> None:
    shards = Shards(1)
    shards.enqueue(0, name, 0, count=items_count)
    shards.run(0)
    for _ in range(3):
        given_up = shards.dequeue_any(items_count, lease_ms=lease_ms)
        shards.pass_ms(100)
        assert given_up.items
        shards.dispatcher.deliveries.unclaim(given_up.items)
        shards.pass_ms(100)
        check(shards)
    found = shards.dequeue_any(items_count)
    shards.pass_ms(100)
    assert found.items
    assert len(found.items) == (items_count if name == "a" else 1)
