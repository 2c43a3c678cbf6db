"""Pages of several hosts as one: page by page as much as one host with all shards would show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foqs.cluster.routing.pages import merged_items, merged_topics
from foqs.model import ids, order
from foqs.model.calls import DeliveryPolicy, ItemState, StoredItem, StoredItemPage, TopicPage, TopicStats

names = st.text("abc", min_size=1, max_size=2)
counts = st.integers(0, 3)


def all_pages(page: Callable[[str], Any], items: Callable[[Any], list[Any]]) -> list[Any]:
    found: list[Any] = []
    token, pages_count = "", 0
    while True:
        one = page(token)
        found += items(one)
        token = one.next_page_token
        pages_count += 1
        assert pages_count < 100
        if not token:
            return found


@given(
    st.lists(st.dictionaries(names, st.tuples(counts, counts), max_size=6), min_size=1, max_size=3), st.integers(1, 4)
)
def test_each_topic_comes_once_with_the_sums_of_all_hosts(hosts: list[dict[str, tuple[int, int]]], limit: int) -> None:
    def of_host(topics: dict[str, tuple[int, int]], token: str) -> TopicPage:
        after = [name for name in sorted(topics) if name > token]
        stats = [
            TopicStats(name, topics[name][0], topics[name][1], 0, 0, 7 if topics[name][0] else 0, 0)
            for name in after[:limit]
        ]
        return TopicPage(stats, after[limit - 1] if len(after) > limit else "")

    found = all_pages(
        lambda token: merged_topics([of_host(topics, token) for topics in hosts], limit), lambda page: page.topics
    )
    wanted = {name for topics in hosts for name in topics}
    assert [stats.topic for stats in found] == sorted(wanted)
    for stats in found:
        assert stats.ready == sum(topics.get(stats.topic, (0, 0))[0] for topics in hosts)
        assert stats.delayed == sum(topics.get(stats.topic, (0, 0))[1] for topics in hosts)
        assert stats.most_urgent_priority == (7 if stats.ready else 0)


def item(shard_id: int, key: int, priority: int, due_at: int, *, dead: bool) -> StoredItem:
    state = ItemState.DEAD if dead else ItemState.READY
    return StoredItem(
        ids.item_id(shard_id, key), "t", state, priority, due_at, due_at, due_at + 9, 0, DeliveryPolicy(0), b"", b"",
        died_at_ms=due_at if dead else None,
    )  # fmt: skip


def place(one: StoredItem) -> int:
    shard_id, key, _ = ids.parse(one.id)
    return order.sort_key(0 if one.died_at_ms is not None else one.priority, one.deliver_after_ms, key, shard_id)


@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2)), max_size=6), min_size=1, max_size=3),
    st.integers(1, 4),
    st.booleans(),
)
def test_each_item_comes_once_in_the_order_of_the_topic(
    hosts: list[list[tuple[int, int]]], limit: int, dead: bool
) -> None:
    stored = [
        sorted([item(shard, key + 1, *fields, dead=dead) for key, fields in enumerate(host)], key=place)
        for shard, host in enumerate(hosts)
    ]

    def of_host(items: Sequence[StoredItem], token: str) -> StoredItemPage:
        after = [one for one in items if place(one) > (int(token, 16) if token else order.FIRST)]
        return StoredItemPage(after[:limit], f"{place(after[limit - 1]):x}" if len(after) > limit else "")

    found = all_pages(
        lambda token: merged_items([of_host(items, token) for items in stored], limit), lambda page: page.items
    )
    assert found == sorted([one for items in stored for one in items], key=place)
