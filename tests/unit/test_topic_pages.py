"""Pages of topics: right whatever their size, and little to look at in each turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from foqs.contract.requests import ActiveTopicsRequest
from foqs.host.metrics.rates import Rates
from foqs.host.shards.shards import Shards as HostShards
from foqs.host.verbs import topics as host_topics
from foqs.host.verbs.page_reads import Slices
from foqs.host.verbs.topics import Topics
from foqs.model import limits
from foqs.model.calls import CallContext, TopicPage
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import EVERYBODY
from foqs.model.topic import NamespaceTopics
from tests.support.shards import NAMESPACE, NamespacesOf, Shards

pytestmark = pytest.mark.interpreted
_after = NamespaceTopics.after
CALL = CallContext("test", principal=EVERYBODY)
JOBS = Namespace(NAMESPACE, "jobs", NamespaceSettings(), 0)


class CountingTopics(Topics):
    """Notes how many topics, of each shard one, every slice looks at."""

    def __init__(self, shards: Shards) -> None:
        namespaces, slices = cast(Any, NamespacesOf(JOBS)), Slices(asyncio.get_running_loop())
        rates = Rates(cast(HostShards, shards), lambda: 0.0, lambda: 0, lambda: 0.0)
        super().__init__(namespaces, cast(HostShards, shards), shards.dispatcher, slices, rates)
        self.slices: list[int] = []

    def _find(self, *args: Any) -> str | None:
        looked = 0

        def after(namespace: Any, *args: Any) -> Any:
            nonlocal looked
            for topic in original(namespace, *args):
                looked += 1
                yield topic

        original = _after
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("foqs.model.topic.NamespaceTopics.after", after)
            found = super()._find(*args)
        self.slices.append(looked)
        return found


def _filled(shard_count: int, names: list[str], every: int = 1) -> Shards:
    """Every `every`-th topic holds an item, on one shard or on all."""
    shards = Shards(shard_count)
    for sort_key, name in enumerate(names):
        for number, state in shards.states.items():
            state.index.topic(NAMESPACE, name)
            if sort_key % every == 0 and (sort_key % 2 == 0 or number == 0):
                shards.enqueue(number, name)
    for number in shards.states:
        shards.run(number)
    return shards


async def _walk(topics: Topics, prefix: str, limit: int) -> list[TopicPage]:
    pages = [await topics.get_active_topics(CALL, ActiveTopicsRequest(JOBS.name, prefix, limit, ""))]
    while pages[-1].next_page_token:
        pages.append(
            await topics.get_active_topics(
                CALL, ActiveTopicsRequest(JOBS.name, prefix, limit, pages[-1].next_page_token)
            )
        )
    return pages


@pytest.mark.parametrize("limit", [1, 7, 30, 1_000])
@pytest.mark.parametrize("every", [1, 3])
async def test_pages_hold_all_topics_with_items_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, limit: int, every: int
) -> None:
    monkeypatch.setattr(host_topics, "SLICE_TOPICS_MAX", 5)
    names = sorted([f"mail/{number:02d}" for number in range(25)] + ["mail", "zoo", "é", "%"])
    shards = _filled(3, names, every)
    for prefix in ("", "mail", "mail/", "mail/1", "z", "none"):
        expected = [name for sort_key, name in enumerate(names) if sort_key % every == 0 and name.startswith(prefix)]
        pages = await _walk(CountingTopics(shards), prefix, limit)
        assert [topic.topic for page in pages for topic in page.topics] == expected
        assert [len(page.topics) for page in pages[:-1]] == [limit] * (len(pages) - 1)


async def test_a_turn_of_the_loop_looks_at_no_more_topics_than_a_slice_however_many_there_are() -> None:
    shards = _filled(2, [f"t{number:05d}" for number in range(3_000)], every=1_500)
    topics = CountingTopics(shards)
    await asyncio.gather(
        *[
            topics.get_active_topics(CALL, ActiveTopicsRequest(JOBS.name, "", limits.PAGE_ITEMS_MAX, ""))
            for _ in range(3)
        ]
    )
    slack = 2 * len(shards.states)
    assert max(topics.slices) <= host_topics.SLICE_TOPICS_MAX + slack
    assert sum(topics.slices) <= 3 * (6_000 + slack * len(topics.slices))


async def test_a_page_looks_at_what_it_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = _filled(2, [f"t{number:05d}" for number in range(3_000)])
    topics = CountingTopics(shards)
    page = await topics.get_active_topics(CALL, ActiveTopicsRequest(JOBS.name, "t02", 10, "t02500"))
    assert [topic.topic for topic in page.topics] == [f"t{number:05d}" for number in range(2_501, 2_511)]
    assert sum(topics.slices) <= 2 * 12


async def test_the_loop_goes_on_between_two_slices() -> None:
    slices, turns = Slices(asyncio.get_running_loop()), 0
    order: list[str] = []

    async def other() -> None:
        nonlocal turns
        for _ in range(20):
            turns += 1
            await asyncio.sleep(0)

    async def long(name: str) -> None:
        for _ in range(3):
            await slices.run(lambda: order.append(f"{name} in turn {turns}"))

    await asyncio.gather(other(), long("a"), long("b"))
    assert len({entry.rpartition(" ")[2] for entry in order}) == len(order) == 6, "no two in one turn"


async def test_what_an_enqueue_changes_between_two_slices_spoils_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_topics, "SLICE_TOPICS_MAX", 4)
    names = [f"t{number:02d}" for number in range(40)]
    shards = _filled(1, names)
    walk = asyncio.create_task(
        CountingTopics(shards).get_active_topics(CALL, ActiveTopicsRequest(JOBS.name, "", 100, ""))
    )
    for number in range(30):
        await asyncio.sleep(0)
        shards.enqueue(0, f"u{number:02d}")
        shards.run(0)
    assert [topic.topic for topic in (await walk).topics][:40] == names
