"""foqs.testing.MemoryQueue beyond what a host does: its clock, planned faults, workers run until they are idle.

What it has in common with a host is held by tests/contract/test_queue.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import structlog

import foqs
from foqs import AsyncLeasedItem, AsyncWorker, LeasedItem, NewItem, RetryPolicy, Worker
from foqs.model import limits
from foqs.testing import MemoryQueue
from foqs.testing.memory_host import keep_stdout_clean
from tests.support.deep import deep_but
from tests.support.waiting import PATIENCE_S

NS = "default"
ONCE = RetryPolicy(deadline_ms=0)


def test_the_clock_stands_still_until_it_is_moved(queue: MemoryQueue) -> None:
    client, began_ms = queue.client(), queue.clock.now_ms()
    client.enqueue(NS, "t", b"x")
    client.ack(NS, client.dequeue(NS, "t", 1))
    assert queue.clock.now_ms() == began_ms
    assert queue.clock.now() == datetime.fromtimestamp(began_ms / 1000, UTC)


@pytest.mark.parametrize("by", deep_but([timedelta(days=14)], [timedelta(days=14), 14 * 86_400_000]))
def test_days_pass_at_once(queue: MemoryQueue, by: timedelta | int) -> None:
    queue.client().enqueue(NS, "t", b"x", delay=timedelta(days=14), ttl=timedelta(days=60))
    began_ms, began_s = queue.clock.now_ms(), time.monotonic()
    queue.clock.advance(timedelta(days=13))
    assert not queue.client().dequeue(NS, "t", 1)
    queue.clock.advance(by)
    assert [item.payload for item in queue.client().dequeue(NS, "t", 1)] == [b"x"]
    assert queue.clock.now_ms() - began_ms < 28 * 86_400_000
    assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("wait_ms", [1, 400, limits.WAIT_MS_MAX])
def test_a_dequeue_without_items_ends_when_its_wait_is_over(queue: MemoryQueue, wait_ms: int) -> None:
    began_ms = queue.clock.now_ms()
    assert queue.client().dequeue(NS, "t", 1, wait_ms=wait_ms) == []
    assert wait_ms <= queue.clock.now_ms() - began_ms <= wait_ms + limits.TICK_MS


def test_a_lease_ends_with_the_clock_at_its_end_and_not_before(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue(NS, "t", b"x")
    client.dequeue(NS, "t", 1, lease=timedelta(seconds=10))
    queue.clock.advance(timedelta(seconds=9))
    assert not client.dequeue(NS, "t", 1)
    queue.clock.advance(timedelta(seconds=1))
    assert client.dequeue(NS, "t", 1)


def test_the_clock_does_not_go_back(queue: MemoryQueue) -> None:
    with pytest.raises(ValueError, match="cannot be moved by -1 ms"):
        queue.clock.advance(-1)


def test_a_dequeue_that_waits_moves_the_clock_no_further_than_to_the_item(queue: MemoryQueue) -> None:
    client, began_ms = queue.client(), queue.clock.now_ms()
    client.enqueue(NS, "t", b"x", delay=timedelta(seconds=5))
    assert client.dequeue(NS, "t", 1, wait=timedelta(seconds=30))
    assert 5_000 <= queue.clock.now_ms() - began_ms < 5_500
    assert not client.dequeue(NS, "t", 1, wait=timedelta(seconds=30))
    assert 35_000 <= queue.clock.now_ms() - began_ms < 36_000


def test_pauses_before_repetitions_move_the_clock_until_a_quota_has_room(queue: MemoryQueue) -> None:
    queue.admin().create_namespace("small", enqueues_per_minute_max=1)
    client = queue.client(retry=RetryPolicy(deadline=timedelta(minutes=2)))
    began_ms = queue.clock.now_ms()
    client.enqueue("small", "t", b"1")
    client.enqueue("small", "t", b"2")
    assert 50_000 < queue.clock.now_ms() - began_ms < 70_000


def test_a_planned_error_comes_once_and_nothing_is_done(queue: MemoryQueue) -> None:
    client = queue.client(retry=ONCE)
    queue.fail_next("enqueue", foqs.OverloadedError("planned"))
    with pytest.raises(foqs.OverloadedError, match="planned"):
        client.enqueue(NS, "t", b"1")
    client.enqueue(NS, "t", b"2")
    assert [item.payload for item in client.dequeue(NS, "t", 10)] == [b"2"]


def test_a_client_repeats_after_a_planned_error_as_it_does_with_a_host(queue: MemoryQueue) -> None:
    queue.fail_next("extend", foqs.UnavailableError("planned", nothing_done=True), count=2)
    client = queue.client()
    client.enqueue(NS, "t", b"1")
    (item,) = client.dequeue(NS, "t", 1)
    client.extend(NS, item, 60_000)
    queue.clock.advance(timedelta(seconds=40))
    client.ack(NS, item)


def test_a_lost_response_leaves_the_outcome_unknown_and_the_item_stored(queue: MemoryQueue) -> None:
    client = queue.client()
    queue.lose_next_response("enqueue")
    with pytest.raises(foqs.OutcomeUnknownError):
        client.enqueue(NS, "t", b"1")
    assert [item.payload for item in client.dequeue(NS, "t", 10)] == [b"1"]


def test_a_repeated_ack_after_a_lost_response_succeeds(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue(NS, "t", b"1")
    queue.lose_next_response("ack")
    client.ack(NS, client.dequeue(NS, "t", 1))
    assert not list(client.topics(NS))


def test_faults_of_a_verb_that_there_is_not_are_refused(queue: MemoryQueue) -> None:
    with pytest.raises(ValueError, match="no call is named 'push'"):
        queue.fail_next("push", foqs.OverloadedError("planned"))
    with pytest.raises(ValueError, match="no call is named 'push'"):
        queue.lose_next_response("push")


def test_a_worker_runs_until_nothing_is_left_that_is_due(queue: MemoryQueue) -> None:
    client, handled = queue.client(), list[bytes]()

    def handle(item: LeasedItem) -> None:
        handled.append(item.payload)
        if item.payload == b"bad" and item.attempt == 1:
            raise OSError("planned")
        if item.payload == b"parent":
            client.enqueue(NS, "t", b"child")

    client.enqueue_many(NS, [NewItem("t", payload) for payload in (b"parent", b"bad", b"good")])
    worker = Worker(client, NS, "t", handle)
    queue.run_until_idle(worker)
    assert (worker.stats.acked, worker.stats.nacked) == (3, 1)
    assert sorted(handled) == [b"bad", b"child", b"good", b"parent"]
    (stats,) = client.topics(NS)
    assert (stats.ready, stats.delayed, stats.leased) == (0, 1, 0)
    queue.clock.advance(timedelta(minutes=1))
    worker = Worker(client, NS, "t", handle)
    queue.run_until_idle(worker)
    assert worker.stats.acked == 1
    assert not list(client.topics(NS))


def test_workers_that_feed_each_other_run_until_both_are_idle(queue: MemoryQueue) -> None:
    client, ends = queue.client(), list[bytes]()

    def hand_on(item: LeasedItem) -> None:
        client.enqueue(NS, "second", item.payload + b"!")

    client.enqueue_many(NS, [NewItem("first", b"%d" % number) for number in range(50)])
    queue.run_until_idle(
        Worker(client, NS, "second", lambda item: ends.append(item.payload)), Worker(client, NS, "first", hand_on)
    )
    assert sorted(ends) == sorted(b"%d!" % number for number in range(50))


def test_a_handler_that_outlasts_its_lease_has_lost_it(queue: MemoryQueue) -> None:
    client = queue.client()

    def handle(item: LeasedItem) -> None:
        queue.clock.advance(timedelta(minutes=1))

    client.enqueue(NS, "t", b"slow")
    queue.admin().update_namespace(NS, attempts_max=1)
    worker = Worker(client, NS, "t", handle, concurrency=1, prefetch_count=0, lease=timedelta(seconds=10))
    queue.run_until_idle(worker)
    # Of the first delivery the host has not heard that it is in work, so it was no attempt.
    assert (worker.stats.acked, worker.stats.lease_lost) == (0, 2)


def test_what_a_worker_raises_is_raised(queue: MemoryQueue) -> None:
    with pytest.raises(foqs.UnknownNamespaceError):
        queue.run_until_idle(Worker(queue.client(), "nowhere", "t", lambda item: None))


def test_workers_that_do_not_come_to_rest_are_stopped(queue: MemoryQueue) -> None:
    release = threading.Event()

    def handle(item: LeasedItem) -> None:
        release.wait(PATIENCE_S)

    client = queue.client()
    client.enqueue(NS, "t", b"x")
    worker = Worker(client, NS, "t", handle, drain_ms=0)
    with pytest.raises(TimeoutError, match="still busy: SettleStats\\(received="):
        queue.run_until_idle(worker, patience=timedelta(milliseconds=50))
    release.set()


async def test_an_asyncio_worker_runs_until_idle(queue: MemoryQueue) -> None:
    handled = list[bytes]()

    async def handle(item: AsyncLeasedItem) -> None:
        handled.append(item.payload)

    async with queue.async_client() as client:
        await client.enqueue_many(NS, [NewItem("t", b"%d" % number) for number in range(30)])
        worker = AsyncWorker(client, NS, "t", handle)
        await queue.run_until_idle_async(worker)
        assert worker.stats.acked == 30
        assert len(handled) == 30
        assert [stats async for stats in client.topics(NS)] == []


async def test_an_asyncio_dequeue_waits_for_what_another_task_enqueues(queue: MemoryQueue) -> None:
    async with queue.async_client() as client:
        began_ms = queue.clock.now_ms()
        _, items = await asyncio.gather(client.enqueue(NS, "t", b"x"), client.dequeue(NS, "t", 1, wait_ms=1_000))
        assert [item.payload for item in items] == [b"x"]
        assert queue.clock.now_ms() == began_ms
        assert not await client.dequeue(NS, "t", 1, wait_ms=1_000)
        assert queue.clock.now_ms() - began_ms >= 1_000


async def test_asyncio_operators_have_their_client(queue: MemoryQueue) -> None:
    async with queue.async_admin() as admin:
        await admin.create_namespace("made")
        assert [namespace.name async for namespace in admin.list_namespaces()] == ["default", "made"]


def test_waits_that_do_not_move_the_clock_block_until_something_is_enqueued() -> None:
    with MemoryQueue(waits_move_clock=False) as queue:
        client, taken = queue.client(), list[bytes]()
        thread = threading.Thread(
            target=lambda: taken.extend(item.payload for item in client.dequeue(NS, "t", 1, wait_ms=30_000))
        )
        thread.start()
        queue.client().enqueue(NS, "t", b"x")
        thread.join(PATIENCE_S)
        assert taken == [b"x"]


def test_waits_that_do_not_move_the_clock_end_when_it_is_moved() -> None:
    with MemoryQueue(waits_move_clock=False) as queue:
        client, taken = queue.client(), list[int]()
        thread = threading.Thread(target=lambda: taken.append(len(client.dequeue(NS, "t", 1, wait_ms=30_000))))
        thread.start()
        while not queue._traffic.blocked_count:
            time.sleep(0.001)
        queue.clock.advance(timedelta(seconds=29))
        assert not taken
        queue.clock.advance(timedelta(seconds=1))
        thread.join(PATIENCE_S)
        assert taken == [0]


def test_closing_a_client_ends_what_it_waits_for() -> None:
    with MemoryQueue(waits_move_clock=False) as queue:
        client, errors = queue.client(), list[Exception]()

        def wait() -> None:
            try:
                client.dequeue(NS, "t", 1, wait_ms=30_000)
            except foqs.ClientClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not queue._traffic.blocked_count:
            time.sleep(0.001)
        client.close()
        thread.join(PATIENCE_S)
        assert [str(error) for error in errors] == ["the client is closed"]


def test_a_queue_that_is_closed_says_so() -> None:
    queue = MemoryQueue(["a", "b"])
    client = queue.client()
    client.enqueue("b", "t", b"x")
    queue.close()
    queue.close()
    with pytest.raises(foqs.ClientClosedError, match="the queue of this client is closed"):
        client.enqueue("b", "t", b"x")


def test_several_shards_serve_one_topic() -> None:
    with MemoryQueue(shard_count=3) as queue:
        client = queue.client()
        client.enqueue_many(NS, [NewItem("t", b"%d" % number) for number in range(100)])
        assert len({item.id for item in client.dequeue(NS, "t", 100)}) == 100
        assert queue.admin().host_status().shards
        (host,) = queue.admin().list_hosts()
        assert (host.state, host.shards, host.sick_shards) == (foqs.HostState.SERVING, [0, 1, 2], [])
        assert {shard.owner for shard in queue.admin().list_shards()} == {host.name}


def test_items_that_ended_free_their_memory(queue: MemoryQueue) -> None:
    client = queue.client()
    for _ in range(20):
        client.enqueue_many(NS, [NewItem("t", b"x") for _ in range(100)])
        client.ack(NS, client.dequeue(NS, "t", 100))
    assert not any(server.tables.items for server in queue._traffic.host._servers.values())


def test_an_event_of_the_host_may_have_a_key_that_a_log_record_has_for_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    try:
        keep_stdout_clean()
        with caplog.at_level(logging.INFO):
            structlog.get_logger("foqs.test").error("unknown_namespace", name="jobs", number=7)
    finally:
        structlog.reset_defaults()
        if was_configured:
            structlog.configure(**before)
    assert caplog.messages == ["event='unknown_namespace' name='jobs' number=7"]


def test_a_client_gives_up_on_what_is_paused_when_its_own_time_is_over(queue: MemoryQueue) -> None:
    client, admin = queue.client(), queue.admin()
    admin.set_topic_policy(NS, "t", dequeue_paused=True)
    admin.update_namespace(NS, enqueue_paused=True)
    queue.clock.advance(3_000)
    for call in (lambda: client.dequeue(NS, "t"), lambda: client.enqueue(NS, "t", b"x")):
        began_ms = queue.clock.now_ms()
        with pytest.raises(foqs.PausedError):
            call()
        assert 10_000 < queue.clock.now_ms() - began_ms <= 15_000
    with pytest.raises(foqs.PausedError):
        client.dequeue(NS, "t", deadline_ms=500)


def test_workers_of_a_paused_topic_are_idle_and_the_clock_stands_still(queue: MemoryQueue) -> None:
    client, admin = queue.client(), queue.admin()
    client.enqueue(NS, "t", b"x")
    admin.set_topic_policy(NS, "t", dequeue_paused=True)
    queue.clock.advance(3_000)
    began_ms = queue.clock.now_ms()
    seen: list[bytes] = []
    queue.run_until_idle(Worker(client, NS, "t", lambda item: seen.append(item.payload)))
    assert (seen, queue.clock.now_ms()) == ([], began_ms)

    async def run_async() -> None:
        async def handle(item: AsyncLeasedItem) -> None:
            seen.append(item.payload)

        await queue.run_until_idle_async(AsyncWorker(queue.async_client(), NS, "t", handle))

    asyncio.run(run_async())
    assert (seen, queue.clock.now_ms()) == ([], began_ms)
    admin.set_topic_policy(NS, "t", dequeue_paused=False)
    queue.clock.advance(3_000)
    queue.run_until_idle(Worker(client, NS, "t", lambda item: seen.append(item.payload)))
    assert seen == [b"x"]


def test_principals_and_tokens_are_those_of_a_host(queue: MemoryQueue) -> None:
    admin = queue.admin()
    admin.create_principal("mailer", [foqs.AccessGrant(NS, ("worker",))])
    first, second = admin.create_token("mailer"), admin.create_token("mailer", expires_in=timedelta(days=1))
    assert first.token != second.token
    assert second.info.expires_at_ms == queue.clock.now_ms() + limits.DAY_MS
    assert [one.id for one in admin.list_tokens("mailer")] == sorted([first.info.id, second.info.id])
    with pytest.raises(foqs.InvalidArgumentError, match="role admin"):
        admin.set_access_mode(foqs.AccessMode.ENFORCED)
    assert admin.get_access().tokens_count == 2
    admin.delete_principal("mailer")
    assert list(admin.list_principals()) == []
