"""A backlog that is read ahead of the transactions that hand it out, on a real server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from foqs.client.items import NewItem
from foqs.core import limits
from tests.support.running_host import running_host

pytestmark = pytest.mark.database

COUNT = 2_000


async def test_a_backlog_that_is_read_ahead_is_handed_out_in_order_and_once(
    meta_url: str, shard_urls: Mapping[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WINDOW_ITEMS_MAX", 200)
    monkeypatch.setattr(limits, "RESIDENT_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "COLD_READ_US_MIN", 0)
    monkeypatch.setattr(limits, "COLD_READ_ROW_US_MIN", 0)
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        for start in range(0, COUNT, 500):
            items = [NewItem("t", b"%d" % number, priority=-number) for number in range(start, start + 500)]
            await host.client.enqueue_many("jobs", items)
        payloads: list[int] = []
        while len(payloads) < COUNT:
            found = await host.client.dequeue("jobs", "t", 100, wait_ms=5_000)
            assert found
            assert await host.client.ack("jobs", found) == {}
            payloads += [int(item.payload) for item in found]
        assert payloads == list(reversed(range(COUNT)))
        registry = host.host.metrics.registry
        read_ahead = registry.get_sample_value("foqs_preread_rows_total", {"shard": "0"})
        assert read_ahead is not None
        assert read_ahead > COUNT / 2
