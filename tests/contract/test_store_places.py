"""The contract of a store for items that age: each keeps its place, which is not its priority, through failures."""

from __future__ import annotations

import pytest

from foqs.model import order
from foqs.model.item import ShardItem
from foqs.shard.port import TIMER_LANE, ClaimEntries, Refill, Rewrite
from tests.contract.owner import SHARD_ID, Owner, new_item, new_topic
from tests.contract.test_store_packs import taken_over

PLACE = 280_000_000
DUE_MS = 5_000


def placed(key: int, place: int, priority: int = 7, *, delayed: bool = False) -> ShardItem:
    due_at = DUE_MS if delayed else 1_000
    item = new_item(key, topic=new_topic(1), priority=priority, due_at=due_at, enqueued_at=1_000)
    item.sort_key = order.sort_key(place, due_at, key, SHARD_ID)
    return item


def test_ready_items_are_read_in_the_order_of_their_places_with_their_priorities(shard) -> None:
    owner = Owner(shard)
    low, urgent = placed(1, PLACE, 90), placed(2, PLACE + 1, -5)
    owner.run(inserts_placed=[urgent, low], inserts=[new_item(3, topic=new_topic(1), priority=4)])
    result = owner.run(refills=[Refill(1, order.FIRST, 9, with_payload=True)], fetches=[low, urgent])
    assert [(urgency, key) for urgency, _, key, _, _ in result.refilled[0]] == [(4, 3), (PLACE, 1), (PLACE + 1, 2)]
    assert {key: row.priority for key, row in result.read_ahead.items()} == {1: 90, 2: -5, 3: 4}
    assert {key: row.priority for key, row in result.fetched.items()} == {1: 90, 2: -5}
    assert [row.place for row in owner.look_up(1, 2, 3).values()] == [PLACE, PLACE + 1, None]


@pytest.mark.parametrize("place", [PLACE, -PLACE, 0, (1 << 31) - 1, -(1 << 31)])
def test_a_delayed_item_gets_its_place_when_it_becomes_ready(shard, place) -> None:
    owner = Owner(shard)
    owner.run(inserts_placed=[placed(1, place, delayed=True)], inserts=[new_item(2, due_at=DUE_MS, enqueued_at=1)])
    (found,) = owner.run(refills=[Refill(TIMER_LANE, order.FIRST, 9)]).refilled
    assert [(key, urgency) for _, _, key, _, urgency in found] == [(1, place), (2, new_item(2).priority)]
    owner = taken_over(shard, owner)
    owner.run(wakes=[1, 2])
    rows = owner.look_up(1, 2)
    assert (rows[1].lane, rows[1].urgency, rows[1].due_at, rows[1].priority) == (1, place, DUE_MS, 7)
    assert rows[2].urgency == rows[2].priority


def test_a_delay_keeps_the_place_and_a_new_place_replaces_it(shard) -> None:
    owner = Owner(shard)
    owner.run(inserts_placed=[placed(1, PLACE), placed(2, PLACE)])
    owner.run(rewrites=[Rewrite(1, TIMER_LANE, 0, 9_000, 1, 1), Rewrite(2, -1, 0, 9_000, 1, 1, None, b"died")])
    owner.run(wakes=[1], rewrites=[Rewrite(2, 1, PLACE + 9, 9_500, 1, 0, None, b"", place=PLACE + 9)])
    rows = owner.look_up(1, 2)
    assert [(row.urgency, row.place) for row in rows.values()] == [(PLACE, PLACE), (PLACE + 9, PLACE + 9)]
    owner.run(rewrites=[Rewrite(2, TIMER_LANE, 0, 9_900, 2, 1)])
    owner.run(wakes=[2])
    assert owner.look_up(2)[2].urgency == PLACE + 9


def test_a_new_owner_finds_the_places_of_items_under_claim(shard) -> None:
    owner = Owner(shard)
    items = [placed(1, PLACE), placed(2, PLACE + 1)]
    owner.run(inserts_placed=items, claims=[ClaimEntries(900, 5_000, items)])
    found = taken_over(shard, owner).image.claimed_rows
    assert {key: (row.urgency, row.priority) for key, row in found.items()} == {1: (PLACE, 7), 2: (PLACE + 1, 7)}
