"""A census that forgets a deleted group counts the items that can still come, and a copy waits for them."""

from __future__ import annotations

import pytest

from foqs.model.item import ShardItem
from foqs.shard.state.events import Completion, OnceOutcome
from tests.support.dedup_shard import NUMBER, OneShard

HIDDEN = "t\x1faudit"


@pytest.fixture
def shard() -> OneShard:
    return OneShard()


def wait_for_a_look(shard: OneShard) -> tuple[ShardItem, ShardItem]:
    """An item with a copy for the group that waits for the log, which a new owner has not read yet."""
    shard.open_unread()
    index = shard.state.index
    index.name_namespace(shard.settings.by_number[NUMBER])
    made = []
    for name in ("t", HIDDEN):
        key = index.next_key()
        item = ShardItem(key, index.topic(NUMBER, name), 0, shard.now_ms, key)
        item.enqueued_at, item.expires_at = shard.now_ms, shard.now_ms + 10**9
        made.append(item)
    item, copy = made
    outcome = OnceOutcome(copies={item.key: [copy]})
    shard.state.insert_once([item], [b"d" * 16], 1, Completion(lambda _: None), outcome)
    return item, copy


def test_a_copy_whose_item_waits_for_the_log_counts_at_the_census(shard: OneShard) -> None:
    shard.new_ids(0, 3)
    assert not shard.state.holds_topic(NUMBER, HIDDEN)
    wait_for_a_look(shard)
    assert not shard.state.inserts.waiting
    assert shard.state.index.topics[NUMBER, HIDDEN].empty
    assert shard.state.holds_topic(NUMBER, HIDDEN)
    assert not shard.state.holds_topic(NUMBER, "other")


def test_a_copy_of_waiting_items_begins_after_those_that_wait_for_the_log(shard: OneShard) -> None:
    shard.new_ids(0, 3)
    item, _ = wait_for_a_look(shard)
    assert shard.state.waits_up_to(item.key)
    assert not shard.state.waits_up_to(item.key - 1)
