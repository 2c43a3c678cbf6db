"""A job that is larger than its quota, and one for a host that is busy: both wait as they are told, and end whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from foqs import AdminClient, Client
from foqs.host.admission.bulk_lane import BulkLane, Slice
from foqs.host.admission.quotas import Quotas
from foqs.model import grants, limits
from foqs.model.errors import OverloadedError, RateLimitedError
from foqs.model.jobs import JobState
from tests.support.running_host import host_beside
from tests.support.spark_rows import keyed, numbered, numbers, save

pytestmark = [pytest.mark.database]
WINDOW_MS = 1_500
QUOTA_ITEMS = 500
ROWS = 2_000


@pytest.fixture
def busy(meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a host in this process, whose limits may be patched."""
    monkeypatch.setattr(grants, "QUOTA_WINDOW_MS", WINDOW_MS)
    with host_beside(meta_url, shard_urls, "busy") as address:
        yield address


def check_whole(address: str) -> None:
    with AdminClient(address) as admin, Client(address) as client:
        job = admin.get_job("busy", "load")
        assert (job.state, job.rows_count, job.items_count) == (JobState.SUCCEEDED, ROWS, ROWS)
        assert numbers(client, "busy") == Counter(range(ROWS))


def test_a_job_that_is_larger_than_its_quota_waits_as_it_is_told_and_ends_whole(
    spark: Any, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_ms: list[int | None] = []
    wait = Quotas.wait

    async def watched(self: Quotas, *arguments: Any) -> Any:
        try:
            return await wait(self, *arguments)
        except RateLimitedError as error:
            told_ms.append(error.retry_after_ms)
            raise

    monkeypatch.setattr(Quotas, "wait", watched)
    with AdminClient(busy) as admin:
        admin.update_namespace("busy", enqueues_per_minute_max=QUOTA_ITEMS)
    began_s = time.monotonic()
    save(keyed(numbered(spark, ROWS)), busy, "busy", dedup="key", jobId="load", batchSize="100")
    assert told_ms, "the quota was met"
    assert all(told_ms), "each refusal says when there will be room"
    windows_count = ROWS // QUOTA_ITEMS - 1
    assert time.monotonic() - began_s > windows_count * WINDOW_MS / 1000, "the quota was obeyed"
    # A client that did not obey would ask again every few milliseconds.
    assert len(told_ms) < ROWS // 100 * 2 * ROWS // QUOTA_ITEMS
    check_whole(busy)


def test_a_job_for_a_host_that_is_overloaded_waits_and_ends_whole(
    spark: Any, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane of bulk loads has room for one slice, and no patience."""
    refused_count = 0
    enter = BulkLane.enter

    async def watched(self: BulkLane, count: int, size_bytes: int) -> Slice:
        nonlocal refused_count
        try:
            return await enter(self, count, size_bytes)
        except OverloadedError:
            refused_count += 1
            raise

    monkeypatch.setattr(BulkLane, "enter", watched)
    monkeypatch.setattr(limits, "BULK_ITEMS_MAX", 100)
    monkeypatch.setattr(limits, "BULK_SHARED_ITEMS_MAX", 100)
    monkeypatch.setattr(limits, "BULK_WAIT_MS_MAX", 2)
    save(keyed(numbered(spark, ROWS)), busy, "busy", dedup="key", jobId="load", batchSize="100")
    assert refused_count, "the host was overloaded"
    check_whole(busy)
