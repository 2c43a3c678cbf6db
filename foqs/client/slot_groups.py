"""Grouping of items by the shards of their dedup ids, by the shard map of a host.

A host takes any mixture of items and splits it, at a higher cost. An outdated or missing map is therefore never wrong,
only slower. The client fetches the map of a namespace when it enqueues the namespace's first item with a dedup id.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.queue_items import NewItem
from foqs.client.retry import Repeat, RetryPolicy
from foqs.model import limits
from foqs.model.calls import ShardAddress, ShardMap
from foqs.model.errors import FoqsError
from foqs.model.slots import SLOTS_COUNT, slot_of
from foqs.wire import codec as wire

NO_ID = -1
"""Group of items without dedup ids, which any shard takes."""
MAP_MS_MAX = 5 * limits.MINUTE_MS
"""Age at which a map is fetched again."""
MAP_PAUSE_MS = 10 * limits.SECOND_MS
"""Pause after a failed fetch of a map, in ms. It is long, because an older host fails every such call."""
DOUBT_MS = limits.SECOND_MS
"""Shortest time between two fetches of a map, in ms."""
ASK_MS_MAX = 2 * limits.SECOND_MS
"""Longest wait of the first enqueue with a dedup id for the map, in ms."""
NAMESPACES_KNOWN_MAX = 1_000
"""Most namespaces whose maps a client keeps."""

_ID_BYTES = 16
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass(slots=True)
class SlotGroups:
    """Groups of one namespace. The client's terms own them, and each enqueue with dedup ids reads them."""

    shards: Sequence[int]
    """Shards of the namespace's slots, in slot order; one for each slot of its key_spread."""
    fetched_at_ms: int
    ask_again_at_ms: int

    @property
    def are_several(self) -> bool:
        return len(set(self.shards)) > 1

    def of(self, items: Sequence[NewItem]) -> list[int]:
        """Return the group of each item."""
        shards, mask = self.shards, len(self.shards) - 1
        return [
            shards[crc32(dedup_id.encode()) & mask] if (dedup_id := item.dedup_id) is not None else NO_ID
            for item in items
        ]

    def doubt(self) -> None:
        """Fetch the map again soon, because a shard was unreachable and another shard might have its slots now."""
        self.ask_again_at_ms = min(self.ask_again_at_ms, self.fetched_at_ms + DOUBT_MS)


def groups_of(terms: Terms, namespace: str) -> Flow[SlotGroups]:
    """Return the groups of a namespace: a single group until a host returns the map."""
    known = terms.groups.get(namespace)
    now_ms = terms.clock_ms()
    if known is not None and now_ms < known.ask_again_at_ms:
        return known
    if len(terms.groups) >= NAMESPACES_KNOWN_MAX:
        terms.groups.clear()
    # Other enqueues do not wait for this fetch.
    found = terms.groups[namespace] = SlotGroups((0,) if known is None else known.shards, now_ms, now_ms + ASK_MS_MAX)
    try:
        asked = replace(terms, retry=_ONCE, timeout_ms=min(terms.timeout_ms, ASK_MS_MAX))
        found_map = yield from shard_map(asked, namespace)
    except FoqsError:
        found.ask_again_at_ms = now_ms + MAP_PAUSE_MS
        return found
    if terms.owners is not None:
        terms.owners.update(found_map, now_ms)
    found.shards = shards_of(found_map, namespace) or found.shards
    found.ask_again_at_ms = now_ms + MAP_MS_MAX
    return found


def shards_of(found_map: ShardMap, namespace: str) -> list[int] | None:
    """Return the shards of the namespace's slots in slot order, or None if the map lacks them."""
    if not found_map.key_spread or len(found_map.shard_by_slot) != SLOTS_COUNT:
        return None
    first = slot_of(namespace, "", 1)
    return [found_map.shard_by_slot[(first + at) % SLOTS_COUNT] for at in range(found_map.key_spread)]


def shard_map(terms: Terms, namespace: str | None) -> Flow[ShardMap]:
    request = wire.structs.ShardMapRequest(namespace_name=namespace)
    return shard_map_of((yield from call_flow(terms, Call("getShardMap", request, Repeat.READ))))


def shard_map_of(found_map: Any) -> ShardMap:
    """Return the map in the response to getShardMap."""
    addresses = [ShardAddress(one.shard_id, one.address) for one in found_map.addresses or ()]
    return ShardMap(
        found_map.version or 0,
        found_map.shard_by_slot or [],
        addresses,
        found_map.key_spread,
        found_map.dedup_window_ms,
    )


def random_ids(count: int) -> list[str]:
    """Return `count` random ids of 128 bits, which are unique in practice."""
    drawn = os.urandom(_ID_BYTES * count).hex()
    size = 2 * _ID_BYTES
    return [drawn[start : start + size] for start in range(0, size * count, size)]


def with_own_ids(items: Sequence[NewItem]) -> tuple[list[NewItem], list[int]]:
    """Return the items with a random dedup id for each item that had none, and the positions of these items.

    Such an item is copied, because a caller who enqueues the same object again means another item. An entry that is not
    an item is left unchanged.
    """
    given = list(items)
    places = [place for place, item in enumerate(given) if getattr(item, "dedup_id", "") is None]
    for place, dedup_id in zip(places, random_ids(len(places)), strict=True):
        given[place] = given[place].with_dedup_id(dedup_id)
    return given, places
