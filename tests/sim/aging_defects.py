"""Defects of topics that age: of the places of items, in memory and in their rows."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from foqs.model.aging import aging_place
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import ClaimedRow, ItemRow, Transaction
from foqs.shard.state.engine import ShardState
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops import change, insert
from tests.sim.aging_runs import place_by_hand, run_aging
from tests.sim.planting import in_place_of, plant, runs_with

runs_with(__name__, run_aging)

_claimed_item, _place_of, _add_drafts = ShardState._claimed_item, aging_place, ShardIndex.add_drafts


def _from_the_wake(self: ItemRow) -> int:
    return self.priority if self.place is None else place_by_hand(self.due_at, self.priority)


plant(
    __name__,
    "ages_from_the_due_time_of_the_wake",
    lambda: patch.object(ItemRow, "ready_urgency", property(_from_the_wake)),
    lambda _: True,
)


@in_place_of(ShardState, "_claimed_item")
def loses_places_by_a_take_over(self: ShardState, row: ClaimedRow) -> ShardItem:
    return _claimed_item(self, row._replace(urgency=row.priority))


@in_place_of(insert, "_set_placed_apart")
def packs_items_that_age(transaction: Transaction) -> None:
    """They are stored as items of strict topics, by their priorities."""


@in_place_of(change, "aging_place")
def redrives_items_to_the_places_of_their_deaths(due_at_ms: int, priority: int, aging_ms: int) -> int:
    return _place_of(due_at_ms - 60_000, priority, aging_ms)


@in_place_of(ShardIndex, "add_drafts")
def forgets_that_new_topics_have_places(self: ShardIndex, items: Sequence[ShardItem]) -> dict[ShardTopic, FoqsError]:
    """Items with dedup ids get their topics as late as that."""
    for item in items:
        if not item.topic.number:
            item.topic.has_places = False
    return _add_drafts(self, items)
