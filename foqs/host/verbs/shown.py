"""Stored items as operators see them."""

from __future__ import annotations

from foqs.model import ids
from foqs.model.calls import DeliveryPolicy, ItemState, StoredItem
from foqs.model.clock import Now
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState


def stored_item(shard: ShardState, row: ItemRow, topic_name: str, now: Now) -> StoredItem:
    """Return an item for operators, from its row and the shard's present state.

    The topic's name is passed in, because the topic has possibly ended with its last item since the row was read.
    """
    state = shard.state_of(row)
    is_dead = state is ItemState.DEAD
    item = shard.index.leases.get(row.key) if state is ItemState.LEASED else None
    return StoredItem(
        ids.item_id(shard.shard_id, row.key),
        topic_name,
        state,
        row.priority,
        row.due_at if not is_dead else row.enqueued_at,
        row.enqueued_at,
        row.expires_at,
        row.failed_attempts,
        DeliveryPolicy(row.at_most_once),
        *row.content.told(),
        lease_ms=row.lease_ms or None,
        lease_expires_at_ms=now.on_server(item.lease_due_at) if item is not None else None,
        died_at_ms=row.due_at if is_dead else None,
        death_reason=(row.death_reason or b"").decode(errors="replace") if is_dead else None,
    )
