"""Jobs over a socket: records, what enqueues count for them, their rates, and a meta database that is away."""

from __future__ import annotations

import asyncio
import time

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.admission import hosted_jobs as host_jobs
from foqs.model import limits
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    RateLimitedError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.jobs import JobState
from foqs.storage.meta.meta_jobs import MetaJobs
from tests.support.running_host import running_host

ITEMS = [NewItem("t", b"x")] * 10
TOO_LARGE = NewItem("t", b"x" * 20_000)


@pytest.fixture
async def host(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as running:
        yield running


async def counts(host, job_id: str = "load") -> tuple[int, int, int]:
    job = await host.admin.get_job("jobs", job_id)
    return job.items_count, job.duplicates_count, job.rejected_count


async def test_a_job_is_made_changed_shown_and_listed(host):
    made = await host.admin.create_job("jobs", "load", items_per_second_max=5, detail="flights")
    assert (made.id, made.namespace_name, made.state) == ("load", "jobs", JobState.RUNNING)
    assert await host.admin.get_job("jobs", "load") == made
    changed = await host.admin.update_job("jobs", "load", state=JobState.FAILED, rows_count=3)
    assert (changed.state, changed.rows_count, changed.items_per_second_max) == (JobState.FAILED, 3, 5)
    await host.admin.create_job("jobs", "load-2")
    page = await host.admin.list_jobs("jobs", 1)
    rest = await host.admin.list_jobs("jobs", 1, page.next_page_token)
    assert [job.id for job in page.jobs + rest.jobs] == ["load-2", "load"]
    assert rest.next_page_token == ""


async def test_what_is_wrong_with_a_call_on_jobs_is_told(host):
    admin = host.admin
    await admin.create_job("jobs", "load")
    with pytest.raises(AlreadyExistsError):
        await admin.create_job("jobs", "load")
    for job_id in ("", "a b", "\N{SNOWMAN}", "a" * 129, "a/b", "a\n"):
        for call in (admin.create_job("jobs", job_id), admin.get_job("jobs", job_id), admin.update_job("jobs", job_id)):
            with pytest.raises(InvalidArgumentError, match="job id"):
                await call
        with pytest.raises(InvalidArgumentError, match="job id"):
            await host.client.enqueue_many("jobs", ITEMS, job_id=job_id)
    for call in (
        admin.create_job("nope", "load"),
        admin.get_job("nope", "load"),
        admin.update_job("nope", "load"),
        admin.list_jobs("nope"),
    ):
        with pytest.raises(UnknownNamespaceError):
            await call
    for call in (admin.get_job("jobs", "other"), admin.update_job("jobs", "other")):
        with pytest.raises(NotFoundError, match="has no job 'other'"):
            await call
    for call in (
        admin.create_job("jobs", "x", items_per_second_max=-1),
        admin.create_job("jobs", "x", items_per_second_max=1 << 62),
        admin.create_job("jobs", "x", detail="\N{SNOWMAN}" * 1_366),
        admin.update_job("jobs", "load", state=7),
        admin.update_job("jobs", "load", rows_count=-1),
        admin.list_jobs("jobs", 0),
        admin.list_jobs("jobs", 1_001),
        admin.list_jobs("jobs", 1, "nonsense"),
        admin.list_jobs("jobs", 1, "\N{SUPERSCRIPT TWO}:a"),
        admin.list_jobs("jobs", 1, "9" * 400 + ":a"),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_enqueues_count_for_the_job_that_they_name_and_no_other(host):
    for job_id in ("load", "other"):
        await host.admin.create_job("jobs", job_id)
    await host.client.enqueue_many("jobs", ITEMS, job_id="load")
    result = await host.client.enqueue_many("jobs", [*ITEMS, TOO_LARGE], job_id="load", return_errors=True)
    assert list(result.errors) == [10]
    await host.client.enqueue("jobs", "t", b"x", job_id="load")
    await host.client.enqueue_many("jobs", ITEMS)
    assert (await counts(host), await counts(host, "other")) == ((21, 0, 1), (0, 0, 0))


async def test_an_enqueue_for_an_unknown_job_enqueues_nothing(host):
    with pytest.raises(NotFoundError, match="has no job 'nope': create it first, nothing was done"):
        await host.client.enqueue_many("jobs", ITEMS, job_id="nope")
    assert host.items_stored() == 0
    await host.admin.create_job("jobs", "nope")
    await host.client.enqueue_many("jobs", ITEMS, job_id="nope")
    assert await counts(host, "nope") == (10, 0, 0)


async def test_a_rate_refuses_with_the_time_of_the_turn_and_can_be_changed_at_once(host):
    await host.admin.create_job("jobs", "load", items_per_second_max=1)
    began_s = time.monotonic()
    await host.client.enqueue_many("jobs", ITEMS, job_id="load")
    with pytest.raises(RateLimitedError, match="job 'load' may enqueue 1 items per second") as refused:
        await host.client.enqueue_many("jobs", ITEMS, job_id="load")
    took_ms = (time.monotonic() - began_s) * 1_000
    wait_ms = 10_000 - limits.JOB_BURST_MS
    assert wait_ms - took_ms - 1 <= refused.value.retry_after_ms <= wait_ms
    await host.admin.update_job("jobs", "load", items_per_second_max=0)
    await host.client.enqueue_many("jobs", ITEMS, job_id="load")
    assert await counts(host) == (20, 0, 0)


async def test_positions_of_which_nothing_was_done_do_not_count_against_the_rate(host):
    await host.admin.create_job("jobs", "load", items_per_second_max=1)
    for _ in range(3):
        refused = await host.client.enqueue_many("jobs", [TOO_LARGE] * 10, job_id="load", return_errors=True)
        assert len(refused.errors) == 10
    result = await host.client.enqueue_many("jobs", [*ITEMS, *[TOO_LARGE] * 6], job_id="load", return_errors=True)
    assert len(result.errors) == 6
    with pytest.raises(RateLimitedError) as told:
        await host.client.enqueue_many("jobs", ITEMS, job_id="load")
    assert 0 < told.value.retry_after_ms <= 10_000 - limits.JOB_BURST_MS
    assert await counts(host) == (10, 0, 36)


async def test_two_hosts_count_for_one_job_and_share_its_rate(meta_url, shard_urls, host, monkeypatch):
    monkeypatch.setattr(host_jobs, "JOIN_MS", 0)
    monkeypatch.setattr(limits, "JOB_ACTIVE_MS", limits.HOUR_MS)  # Each is a while ago when the other one counts.
    away = {shard_id: url for shard_id, url in shard_urls.items() if shard_id >= 2}
    for shard_id in away:
        await host.host.lose_shard(shard_id)
    await host.admin.create_job("jobs", "load", items_per_second_max=1_000_000)
    async with running_host(meta_url, away, name="second") as second:
        for one in (host, second):
            await one.client.enqueue_many("jobs", ITEMS, job_id="load")
            await one.admin.get_job("jobs", "load")
        await host.admin.get_job("jobs", "load")
        shares = [one.host._jobs._by_key.popitem()[1].rate.items_per_second for one in (host, second)]
        assert shares == [500_000, 500_000]
        assert await counts(second) == (20, 0, 0)


async def test_counts_are_kept_while_the_meta_database_is_away_and_written_at_the_end(
    meta_url, shard_urls, monkeypatch
):
    is_away = [False]
    count = MetaJobs.count

    def count_or_fail(self, *arguments):
        if is_away[0]:
            raise UnavailableError("the meta database does not answer")
        return count(self, *arguments)

    monkeypatch.setattr(MetaJobs, "count", count_or_fail)
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_job("jobs", "known")
        await host.admin.create_job("jobs", "new")
        await host.client.enqueue_many("jobs", ITEMS, job_id="known")
        is_away[0] = True
        await host.client.enqueue_many("jobs", ITEMS, job_id="known")
        await host.client.enqueue_many("jobs", ITEMS, job_id="new")
        await host.client.enqueue_many("jobs", ITEMS, job_id="unknown")
        assert await counts(host, "new") == (0, 0, 0)
        is_away[0] = False
    async with running_host(meta_url, shard_urls) as host:
        assert (await counts(host, "known"), await counts(host, "new")) == ((20, 0, 0), (10, 0, 0))


async def test_many_calls_of_many_jobs_at_once_are_all_counted(host):
    names = [f"load-{number}" for number in range(20)]
    await asyncio.gather(*[host.admin.create_job("jobs", name) for name in names[:10]])
    await asyncio.gather(*[host.admin.create_job("jobs", name) for name in names[10:]])
    calls = [host.client.enqueue_many("jobs", ITEMS, job_id=name) for name in names for _ in range(3)]
    await asyncio.gather(*calls)
    assert {await counts(host, name) for name in names} == {(30, 0, 0)}
