"""A host that listens on every address of its machine, in a cluster whose others need to reach it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.model import limits
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


async def test_a_host_whose_address_the_others_cannot_know_says_so(meta_url: str, shard_urls: dict[int, str]) -> None:
    with patch.object(limits, "HEARTBEAT_MS", 20), capture_logs() as logs:
        async with running_host(
            meta_url, shard_urls, name="everywhere", listen_address="0.0.0.0", allow_open=True
        ) as first:
            await first.client.enqueue("jobs", "t", b"1")
            assert "address_not_told" not in {log["event"] for log in logs}
            async with running_host(meta_url, {}, name="here", namespace=None):
                await until(lambda: any(log["event"] == "address_not_told" for log in logs))
    assert [log["others"] for log in logs if log["event"] == "address_not_told"] == [["here"]]
