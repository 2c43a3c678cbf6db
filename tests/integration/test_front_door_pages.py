"""What a page costs is charged to the caller that asked for it, and to its namespace."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.model.calls import (
    DeliveryPolicy,
    ExportPage,
    ItemState,
    NamespacePage,
    StoredItem,
    StoredItemPage,
    TopicPage,
    TopicStats,
)
from foqs.model.event_history import History, HistoryRow
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.topic_rates import RatesPage, TopicRates
from foqs.transport.fair_scheduler import BYTES_PER_WORK, ELEMENTS_PER_WORK, NO_TENANT
from foqs.wire.codec import structs
from tests.support.front_door import world
from tests.support.loops import on_uvloop

COUNT = 800
ITEM = StoredItem("1-1", "t", ItemState.READY, 0, 1, 1, 1, 0, DeliveryPolicy.AT_LEAST_ONCE, b"x" * 1_000, b"")
PAGES = {
    "getActiveTopics": TopicPage([TopicStats("t", 1, 0, 0, 0, 0, 1)] * COUNT, ""),
    "peekItems": StoredItemPage([ITEM] * COUNT, ""),
    "listDeadLetters": StoredItemPage([ITEM] * COUNT, ""),
    "exportItems": ExportPage([ITEM] * COUNT, 0),
    "getRates": RatesPage([TopicRates("t")] * COUNT),
    "getHistory": History([HistoryRow("t", 0)] * COUNT, 1, 0),
    "listNamespaces": NamespacePage([Namespace(1, "jobs", NamespaceSettings(), 0)] * COUNT, ""),
}
CALLS = {
    "getActiveTopics": ("get_active_topics", structs.ActiveTopicsRequest("ns")),
    "peekItems": ("peek_items", structs.PeekItemsRequest("ns", "t")),
    "listDeadLetters": ("list_dead_letters", structs.ListDeadLettersRequest("ns", "t")),
    "exportItems": ("export_items", structs.ExportItemsRequest("ns", structs.ExportSplit(1, 0, 1, 0))),
    "getRates": ("get_rates", structs.GetRatesRequest("ns")),
    "getHistory": ("get_history", structs.GetHistoryRequest("ns", None, 0, 1)),
    "listNamespaces": ("list_namespaces", structs.ListNamespacesRequest()),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("method", PAGES)
@on_uvloop
async def test_a_page_is_charged_to_its_caller_and_namespace_in_proportion_to_what_it_holds(method: str) -> None:
    async with world() as w, w.connect() as client:
        name, request = CALLS[method]

        async def page(*_: object) -> Any:
            return PAGES[method]

        await client.call("getHostStatus", structs.HostStatusRequest())
        (connection,) = w.connections()
        scheduler, charged = connection._table.scheduler, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(w.queue, name, page, raising=False)
            patch.setattr(scheduler, "_charge", lambda queue, work, began_s: charged.append((queue.caller, work)))
            reply = await client.call(method, request)
        assert reply.error is None
        tenant = NO_TENANT if method == "listNamespaces" else w.queue.namespaces["ns"].number
        assert {caller for caller, _ in charged} == {(tenant, connection.address)}
        work = sum(work for _, work in charged)
        assert work >= COUNT // ELEMENTS_PER_WORK
        if method in ("peekItems", "listDeadLetters", "exportItems"):
            assert work >= COUNT // ELEMENTS_PER_WORK + COUNT * 1_000 // BYTES_PER_WORK
