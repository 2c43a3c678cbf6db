"""What a page of items must show: packed items and rows as one, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foqs.model import ids
from foqs.model.calls import StoredItemPage
from foqs.shard.port import ItemRow

if TYPE_CHECKING:
    from tests.sim.world import World


def items_in_topic(world: World, namespace: str, topic: str) -> dict[str, ItemRow]:
    """By id the ready and leased items of a topic, but for those whose host may not know yet that they are stored."""
    numbers = {known.number for known in world.meta.tables.namespaces.values() if known.name == namespace}
    unknown = _unknown(world)
    found: dict[str, ItemRow] = {}
    for shard_id, server in world.servers.items():
        tables = server.tables
        for number, (namespace_number, name) in tables.topics.items():
            if namespace_number in numbers and name == topic.encode():
                keys = [key for _, _, key in tables.lanes.get(number, ()) if (shard_id, key) not in unknown]
                found.update([(ids.item_id(shard_id, key), tables.items[key]) for key in keys])
    return found


def items_unless_unknown(world: World, namespace: str) -> set[str]:
    """The ids of all items of a namespace in whatever state, but for those that the same is true of."""
    numbers = {known.number for known in world.meta.tables.namespaces.values() if known.name == namespace}
    unknown = _unknown(world)
    return {
        ids.item_id(shard_id, key)
        for shard_id, server in world.servers.items()
        for key, row in server.tables.items.items()
        if server.tables.topics[row.topic][0] in numbers and (shard_id, key) not in unknown
    }


def _unknown(world: World) -> set[tuple[int, int]]:
    unknown: set[tuple[int, int]] = set()
    for host in world.hosts:
        for writer in host.host._shards.writers.values():
            in_flight = writer.shard.in_flight if writer.shard is not None else None
            if in_flight is not None:
                inserts = [*in_flight.inserts, *in_flight.inserts_placed, *in_flight.inserts_short_lived]
                unknown.update([(writer.shard_id, item.key) for item in inserts])
    return unknown


def page_problems(page: StoredItemPage, before: dict[str, ItemRow], after: dict[str, ItemRow]) -> Iterator[str]:
    """`before` and `after`: what was there when the first page of the topic was asked for, and when it came."""
    shown = [item.id for item in page.items]
    if len(set(shown)) < len(shown):
        yield f"a page shows an item twice: {shown}"
    places = [(item.priority, item.deliver_after_ms, *ids.parse(item.id)[1::-1]) for item in page.items]
    if places != sorted(places):
        yield f"a page is not in order: {places}"
    for item_id, row in before.items():
        shard_id, key, _ = ids.parse(item_id)
        is_covered = not page.next_page_token or (row.urgency, row.due_at, key, shard_id) <= places[-1]
        if is_covered and item_id not in shown and after.get(item_id) == row:
            yield f"{item_id} is in its topic all the time, and a page that should show it has {shown}"
