"""Pages of several hosts that are merged, and the memory that they take meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.routing.by_all import MergedCalls
from foqs.cluster.routing.routes import Routes
from foqs.contract.requests import GetHistoryRequest, GetRatesRequest, PeekItemsRequest
from foqs.host.verbs.page_reads import Slices
from foqs.model import event_history, limits, topic_rates
from foqs.model.calls import CallContext, StoredItemPage
from foqs.model.event_history import HISTORY_ROWS_MAX, OUTCOME_NAMES, History, HistoryMerge, HistoryRow
from foqs.model.event_log import BOUNDS_MS
from foqs.model.principal import EVERYBODY
from foqs.model.topic_rates import SERIES_TOPICS_MAX, SLOTS_COUNT, RatesMerge, RatesPage, TopicRates
from tests.support.waiting import PATIENCE_S


class Pages:
    """Another host, which reads pages as long as `gate` is closed."""

    def __init__(self) -> None:
        self.host_id = "other"
        self.gate = asyncio.Event()
        self.running_count = self.running_max = self.calls_count = 0

    async def call(self, *call: Any) -> StoredItemPage:
        self.calls_count += 1
        self.running_count += 1
        self.running_max = max(self.running_max, self.running_count)
        await self.gate.wait()
        self.running_count -= 1
        return StoredItemPage([], "")


@pytest.mark.parametrize("verb", ["peekItems", "listDeadLetters"])
async def test_the_pages_that_are_here_until_they_are_merged_have_a_bound(verb: str) -> None:
    owners, other = OwnerMap(), Pages()
    owners.note([ShardOwner(0, 1, "other", "other:1")])
    serving = SimpleNamespace(
        serves=lambda shard_id: False, served=lambda: (), know=None, number_of=lambda name: 1, can_take=None
    )
    routes = Routes("me", owners, cast(Any, SimpleNamespace(get=lambda host_id, address: other)), cast(Any, serving))
    merged = MergedCalls({verb: other.call}, routes, owners, Slices(asyncio.get_running_loop()))
    request = PeekItemsRequest("ns", "t", 10)
    calls = [asyncio.create_task(merged.call(verb, CallContext("", principal=EVERYBODY), request)) for _ in range(100)]
    for _ in range(10):
        await asyncio.sleep(0)
    at_a_time = limits.PAGES_BYTES_MAX // (2 * limits.PAGE_BYTES_MAX)
    assert other.running_count == at_a_time
    other.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)
    assert (other.running_max, other.calls_count) == (at_a_time, 100)


HOSTS_COUNT = 16


def rates_page() -> RatesPage:
    return RatesPage([TopicRates(f"t{number:04}", number / 7, ready=1) for number in range(1_100)])


def series_page() -> RatesPage:
    series = [[1] * SLOTS_COUNT] * 5
    return RatesPage([TopicRates(f"t{number:04}", *[1.0] * 8, *series) for number in range(SERIES_TOPICS_MAX)], 10_000)


def history_page() -> History:
    buckets: Any = [1] * (len(BOUNDS_MS) + 1)
    counts: Any = [1] * len(OUTCOME_NAMES)
    return History([HistoryRow("t", at, *counts, buckets, 1, buckets, 1) for at in range(HISTORY_ROWS_MAX)], 1, 0)


@pytest.mark.parametrize(
    ("make", "merge", "module", "add", "rows_max"),
    [
        (rates_page, lambda pages: RatesMerge(pages, 0, 1_000, ()), topic_rates, "_add", 250),
        (series_page, lambda pages: RatesMerge(pages, 0, 1_000, ()), topic_rates, "_add", 10),
        (history_page, HistoryMerge, event_history, "add_row", 100),
    ],
)
def test_no_step_of_a_merge_adds_up_many_rows(
    make: Callable[[], Any],
    merge: Callable[[Any], RatesMerge | HistoryMerge],
    module: Any,
    add: str,
    rows_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row takes 4 us, one with series 60 and one of a history 8, so that a step takes about a millisecond."""
    counted = Mock(wraps=getattr(module, add))
    monkeypatch.setattr(module, add, counted)
    one = merge([make() for _ in range(HOSTS_COUNT)])
    by_step = [0, *[counted.call_count for _ in one.steps()]]
    most = max(after - before for before, after in pairwise(by_step))
    rows: list[Any] = list(one.page().topics if isinstance(one, RatesMerge) else one.page().rows)
    own = make()
    assert counted.call_count == (HOSTS_COUNT - 1) * len(own.topics if isinstance(own, RatesPage) else own.rows)
    assert most <= rows_max
    first = rows[0]
    if isinstance(first, HistoryRow):
        assert (len(rows), first.acked, first.wait_buckets[0]) == (HISTORY_ROWS_MAX, HOSTS_COUNT, HOSTS_COUNT)
    else:
        assert first.topic == ("t1099" if make is rates_page else "t0000")
        assert first.ready == HOSTS_COUNT * (make is rates_page)
        assert (first.enqueued_series or [HOSTS_COUNT])[0] == HOSTS_COUNT


class CountedSlices(Slices):
    """Counts its slices."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.count = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.count += 1
        return await super().run(work)


async def test_rates_and_history_of_hosts_are_merged_in_slices_of_the_event_loop() -> None:
    requests: list[tuple[str, Any, Callable[[], Any]]] = [
        ("getRates", GetRatesRequest("ns", limit=10), rates_page),
        ("getHistory", GetHistoryRequest("ns", None, 0, 1), history_page),
    ]
    for verb, request, make in requests:

        async def by_all(*_: Any, make: Callable[[], Any] = make, **__: Any) -> list[Any]:
            return [make() for _ in range(HOSTS_COUNT)]

        slices = CountedSlices()
        calls = MergedCalls({verb: Mock()}, Mock(by_all=by_all), Mock(is_alone=False), slices)
        page = await calls.call(verb, CallContext("", principal=EVERYBODY), request)
        assert slices.count >= 80, verb
        assert len(page.topics if verb == "getRates" else page.rows) == (10 if verb == "getRates" else HISTORY_ROWS_MAX)
