"""`enqueue_many` on threads: what ends one of them ends the others too."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import pytest

from foqs import Client, NewItem
from foqs.model.calls import EnqueueResult

ITEMS = 20_000


def test_when_a_call_ends_by_a_defect_no_thread_goes_on_with_the_items() -> None:
    left, has_failed = iter(range(ITEMS)), threading.Event()
    items = (NewItem("t", b"") for _ in left)

    def run(flow: Any) -> EnqueueResult:
        flow.close()
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("a defect")
        return EnqueueResult(["1"])

    with (
        Client("127.0.0.1:1", batch_items_max=1) as client,
        patch.object(client, "_run", run),
        pytest.raises(RuntimeError, match="a defect"),
    ):
        client.enqueue_many("ns", items, calls_in_flight=4)
    assert next(left, None) is not None, "all was sent"
