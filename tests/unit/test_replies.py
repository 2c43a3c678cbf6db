"""What a reply of a peer must have."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.wire.codec import METHODS, structs
from foqs.wire.replies import missing_field

ITEM = structs.Item("1-1", "1-1:1", "t", 0, b"", b"")


@pytest.mark.parametrize(
    ("method", "response", "missing"),
    [
        ("dequeue", structs.DequeueResponse([ITEM]), None),
        ("dequeue", structs.DequeueResponse(), "DequeueResponse.items"),
        ("dequeue", structs.DequeueResponse([ITEM, structs.Item("1-2")]), "Item.receipt"),
        ("ack", structs.BatchResponse({}), None),
        ("ack", structs.BatchResponse(), "BatchResponse.errors"),
        ("ack", structs.BatchResponse({3: structs.ItemError(message="no")}), "ItemError.code"),
        ("getItem", structs.StoredItem("1-1"), "StoredItem.topic"),
        ("hint", structs.HintResponse(), None),
        ("enqueue", structs.EnqueueResponse([], {}), None),
    ],
)
def test_what_is_needed_of_a_reply_is_looked_for_in_all_of_it(method: str, response: Any, missing: str | None) -> None:
    assert missing_field(METHODS[method], response) == missing
