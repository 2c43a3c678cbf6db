"""Pages of several hosts merged into one, with the token for the next page."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import groupby

from foqs.cluster.ownership.owner_map import ShardOwner
from foqs.host.verbs.consumer_rows import merged_consumers
from foqs.host.verbs.keyed_pages import Place
from foqs.host.verbs.page_reads import merged
from foqs.model import ids, order
from foqs.model.calls import (
    ExportPlan,
    ShardAddress,
    ShardMap,
    StoredItem,
    StoredItemPage,
    TopicPage,
    TopicStats,
)
from foqs.model.holder import ConsumerPage
from foqs.model.serial import SERIAL_DUE_AT
from foqs.model.topic_name import hidden, sequence_named
from foqs.model.topic_rates import summed


def merged_topics(pages: Sequence[TopicPage], limit: int) -> TopicPage:
    """Merge the first topics by name, each with the sums of all pages, which must have that order and one request."""
    known_up_to = min([page.next_page_token for page in pages if page.next_page_token], default=None)
    found: list[TopicStats] = []
    has_more = any(page.next_page_token for page in pages)
    for name, parts in groupby(heapq.merge(*[page.topics for page in pages], key=_name), key=_name):
        if len(found) == limit or (known_up_to is not None and name > known_up_to):
            has_more = True
            break
        found.append(_summed(list(parts)))
    missing = sorted({what for page in pages for what in page.missing or ()})
    return TopicPage(found, _name(found[-1]) if found and has_more else "", missing)


def _summed(parts: Sequence[TopicStats]) -> TopicStats:
    ready = [part for part in parts if part.ready]
    oldest = [part.oldest_ready_at_ms for part in ready if part.oldest_ready_at_ms]
    return TopicStats(
        parts[0].topic,
        sum([part.ready for part in parts]),
        sum([part.delayed for part in parts]),
        sum([part.leased for part in parts]),
        sum([part.dead for part in parts]),
        min([part.most_urgent_priority for part in ready], default=0),
        min(oldest, default=0),
        parts[0].group,
        any(part.serial for part in parts),
        parts[0].in_flight_max,
        sum([part.ordering_keys or 0 for part in parts]) or None,
        sum([part.fairness_keys or 0 for part in parts]) or None,
        summed(part.rates for part in parts),
    )


def merged_items(pages: Sequence[StoredItemPage], limit: int) -> StoredItemPage:
    """Merge the first items of a topic in its order, from pages of one request."""
    holding = [page for page in pages if page.items]
    if len(holding) == 1:
        return holding[0]  # Those of a serial topic, mostly: their times do not have their order.
    keyed = [
        ([(_place_of(item), item) for item in page.items], bool(page.items and page.next_page_token)) for page in pages
    ]
    chosen, token = merged(keyed, limit, lambda item: len(item.payload) + len(item.metadata))
    return StoredItemPage([item for _, item in chosen], token)


def merged_consumer_pages(pages: Sequence[ConsumerPage], limit: int) -> ConsumerPage:
    """Merge the first rows of all hosts, each with the sums over them."""
    found, token = merged_consumers([(page.consumers, page.next_page_token) for page in pages], limit)
    return ConsumerPage(found, token, sorted({what for page in pages for what in page.missing or ()}))


def merged_plans(plans: Sequence[ExportPlan]) -> ExportPlan:
    """All splits together; they hold the items stored when the first host made its own."""
    splits = sorted([split for plan in plans for split in plan.splits], key=lambda at: (at.shard_id, at.from_key))
    missing = [what for plan in plans for what in plan.missing or ()]
    return ExportPlan(splits, min([plan.as_of_ms for plan in plans], default=0), missing)


def merged_maps(maps: Sequence[ShardMap], owners: Iterable[ShardOwner]) -> ShardMap:
    """The newest map with the addresses of all owners, and the shortest dedup window of all hosts."""
    newest = max(maps, key=lambda found: found.version)
    windows = [found.dedup_window_ms for found in maps if found.dedup_window_ms is not None]
    addresses = [ShardAddress(owner.shard_id, owner.address) for owner in sorted(owners) if owner.address]
    return ShardMap(newest.version, newest.shard_by_slot, addresses, newest.key_spread, min(windows, default=None))


def _place_of(item: StoredItem) -> Place:
    """Return the place of the item; dead letters are ordered by their time of death, and items of ordering keys have no
    time.
    """
    shard_id, key, _ = ids.parse(item.id)
    sequence = sequence_named(item.ordering_key, item.key_bucket, item.fairness_key)
    if item.died_at_ms is not None:
        return Place(sequence, order.sort_key(0, item.died_at_ms, key, shard_id))
    due_at = SERIAL_DUE_AT if sequence and item.fairness_key is None else item.deliver_after_ms
    urgency = item.priority if item.urgency is None else item.urgency
    return Place(sequence, order.sort_key(urgency, due_at, key, shard_id))


def _name(topic: TopicStats) -> str:
    return hidden(topic.topic, topic.group)
