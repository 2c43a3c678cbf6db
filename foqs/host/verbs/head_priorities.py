"""The priorities of the items that come next in topics that age: the sort key of such an item has its place instead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from foqs.host.shards.shards import Shards
from foqs.host.shards.ttl_scan import ask, in_parts
from foqs.model import limits, order
from foqs.model.aging import priority_at
from foqs.model.errors import FoqsError
from foqs.shard.port import ItemRow
from foqs.shard.state.events import LookUp

READ_MS_MAX = 1 * limits.SECOND_MS
"""Time that a page waits for the rows of shards. A sick shard answers later or never."""
_PLACE_MIN = 1 << 24
"""An urgency of this size is looked up even if the topic does not age now: it can be a place from before."""


class Head(NamedTuple):
    """The item that comes next in a topic."""

    position: int
    """The position of the topic in its page."""
    sort_key: int
    aging_ms: int


def is_place(sort_key: int, aging_ms: int) -> bool:
    """True if the urgency in the sort key can be a place instead of a priority."""
    return aging_ms > 0 or abs(order.urgency_of(sort_key)) >= _PLACE_MIN


async def read_priorities(shards: Shards, heads: Sequence[Head]) -> dict[int, int]:
    """Return the priorities by position, from memory or from the rows.

    For the rows of a shard that does not answer within READ_MS_MAX they are computed from the places.
    """
    found: dict[int, int] = {}
    by_shard: dict[int, list[Head]] = {}
    for head in heads:
        shard_id, key = order.shard_of(head.sort_key), order.key_of(head.sort_key)
        shard = shards.by_id[shard_id].writer.shard if shard_id in shards.by_id else None
        item = None if shard is None else shard.index.leases.get(key) or shard.index.resident.get(key)
        if item is not None and item.enqueued_at:  # Otherwise it is known by its sort key alone.
            found[head.position] = item.priority
        else:
            by_shard.setdefault(shard_id, []).append(head)
    reads = [_read(shards, shard_id, part) for shard_id, some in by_shard.items() for part in in_parts(some)]
    if reads:
        for priorities in await asyncio.gather(*reads):
            found.update(priorities)
    return {head.position: found.get(head.position, _computed(head)) for head in heads}


async def _read(shards: Shards, shard_id: int, heads: Sequence[Head]) -> dict[int, int]:
    done: asyncio.Future[dict[int, ItemRow]] = asyncio.get_running_loop().create_future()
    try:
        writer, shard = shards.serving(shard_id)
        ask(shard, LookUp([order.key_of(head.sort_key) for head in heads], partial(_end, done), partial(_fail, done)))
        writer.wake()
        async with asyncio.timeout(READ_MS_MAX / 1000):
            rows = await done
    except (FoqsError, TimeoutError):
        return {}
    found = [(head.position, rows.get(order.key_of(head.sort_key))) for head in heads]
    return {position: row.priority for position, row in found if row is not None}


def _end(done: asyncio.Future[dict[int, ItemRow]], rows: dict[int, ItemRow]) -> None:
    if not done.done():
        done.set_result(rows)


def _fail(done: asyncio.Future[dict[int, ItemRow]], error: FoqsError) -> None:
    if not done.done():
        done.set_exception(error)


def _computed(head: Head) -> int:
    place, due_at = order.urgency_of(head.sort_key), order.due_at_of(head.sort_key)
    return priority_at(place, due_at, head.aging_ms) if head.aging_ms else 0
