"""What a page costs is counted for the address that asked for it, once it is known."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, ItemState, NamespacePage, StoredItem, StoredItemPage, TopicPage, TopicStats
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.wire.codec import structs
from tests.support.front_door import run, world

COUNT = 800
ITEM = StoredItem("1-1", "t", ItemState.READY, 0, 1, 1, 1, 0, DeliveryPolicy.AT_LEAST_ONCE, b"x" * 1_000, b"")
PAGES = {
    "getActiveTopics": TopicPage([TopicStats("t", 1, 0, 0, 0, 0, 1)] * COUNT, ""),
    "peekItems": StoredItemPage([ITEM] * COUNT, ""),
    "listDeadLetters": StoredItemPage([ITEM] * COUNT, ""),
    "listNamespaces": NamespacePage([Namespace(1, "jobs", NamespaceSettings(), 0)] * COUNT, ""),
}
CALLS = {
    "getActiveTopics": ("get_active_topics", structs.ActiveTopicsRequest("jobs")),
    "peekItems": ("peek_items", structs.PeekItemsRequest("jobs", "t")),
    "listDeadLetters": ("list_dead_letters", structs.ListDeadLettersRequest("jobs", "t")),
    "listNamespaces": ("list_namespaces", structs.ListNamespacesRequest()),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("method", PAGES)
def test_a_page_counts_as_work_of_its_address_in_proportion_to_what_it_holds(method: str) -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            name, request = CALLS[method]

            async def page(*_: object) -> Any:
                return PAGES[method]

            await client.call("getHostStatus", structs.HostStatusRequest())
            (connection,) = w.connections()
            turns, spent = connection._table.scheduler, []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(w.queue, name, page, raising=False)
                patch.setattr(turns, "_spend", lambda address, work, began_s: spent.append((address, work)))
                reply = await client.call(method, request)
            assert reply.error is None
            assert {address for address, _ in spent} == {connection.address}
            work = sum(work for _, work in spent)
            assert work >= COUNT // limits.TURN_WORK_ELEMENTS
            if method in ("peekItems", "listDeadLetters"):
                assert work >= COUNT // limits.TURN_WORK_ELEMENTS + COUNT * 1_000 // limits.TURN_WORK_BYTES

    run(main)
