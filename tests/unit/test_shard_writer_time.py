"""The writer of a shard and a store that takes its time, which is virtual: a machine that is busy changes nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
import structlog.testing

from foqs.model import limits
from foqs.shard import mysql_server
from foqs.shard.port import LaneCounts
from foqs.shard.state.events import LookUp
from foqs.shard.writer import keeper
from tests.sim.loop import VirtualLoop
from tests.support.slow_store import (
    SLOW_READ_MS,
    SlowStore,
    TickedWriter,
    run_one,
    start,
    tick_for,
    until_health,
    writer_of,
)
from tests.support.waiting import until

STEP_S = 0.001
"""As long as a thread takes to do its work and as long as its answer is on the way."""


def in_virtual_time(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """On the loop of its store."""

    @functools.wraps(test)
    def run(*, store: SlowStore, **fixtures: object) -> None:
        store.loop.run_until_complete(test(store=store, **fixtures))

    return run


@pytest.fixture
def store() -> Iterator[SlowStore]:
    loop = VirtualLoop(lambda _: (STEP_S, STEP_S), lambda: 0.0)
    yield SlowStore(loop)
    loop.end_tasks()
    loop.close()
    assert loop.failures == []


@pytest.fixture
def writer(store: SlowStore) -> Iterator[TickedWriter]:
    context, loop = writer_of(store), store.loop
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


@in_virtual_time
async def test_a_take_over_that_takes_long_leaves_no_clock_that_is_late(writer: TickedWriter, store: SlowStore) -> None:
    before_ms = store.wall_ms()
    await writer.start()
    assert writer.shard is not None, writer.detail
    late_ms = before_ms - writer.now_ms()
    assert late_ms < SLOW_READ_MS / 5 < keeper.CLOCK_PROBE_MS


@in_virtual_time
async def test_a_take_over_on_a_machine_that_stalls_leaves_no_clock_that_is_late(
    writer: TickedWriter, store: SlowStore
) -> None:
    """The time was read at once, and its answer came late: it says no more than that it is not before it."""
    stall_ms = 600
    store.holds_time.append(asyncio.Event())
    asyncio.get_running_loop().call_later(stall_ms / 1000, store.holds_time[0].set)
    await writer.start()
    assert store.wall_ms() - writer.now_ms() < stall_ms / 2


@in_virtual_time
async def test_a_step_of_the_servers_clock_is_told_and_leaves_the_steady_clock_as_it_was(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    steps_count = writer.clock.steps_count  # The image of this store is older than its opening.
    steady_ms, loop = writer.now().steady_ms - 1000 * store.loop.time(), store.loop
    with structlog.testing.capture_logs() as logs:
        for stepped_ms in (3_600_000, -3_600_000):
            store.stepped_ms = stepped_ms
            await tick_for(writer, keeper.CLOCK_PROBE_MS / 1000 + 1)
            assert abs(store.wall_ms() - writer.now_ms()) <= 5
            assert abs(writer.now().steady_ms - 1000 * loop.time() - steady_ms) <= 1
    assert writer.clock.steps_count == steps_count + 2
    told = [(log["direction"], round(log["step_ms"], -3)) for log in logs if log["event"] == "server_clock_stepped"]
    assert told == [("forward", 3_600_000), ("backward", -7_200_000)]


@in_virtual_time
async def test_a_server_that_hangs_when_it_is_asked_for_the_time_opens_the_breaker_like_one_that_hangs_in_a_commit(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.start()
    monkeypatch.setattr(keeper, "CLOCK_PROBE_MS", 0)
    monkeypatch.setattr(keeper, "BREAKER_STALL_MS", 20)
    store.tells_time.clear()
    await until_health(writer, healthy=False)
    monkeypatch.setattr(keeper, "BREAKER_PROBE_MS", 0)
    store.tells_time.set()
    await until_health(writer, healthy=True)


@in_virtual_time
async def test_a_shard_with_nothing_to_do_notices_that_its_server_hangs(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_server, "PULSE_MS", 1)
    monkeypatch.setattr(keeper, "BREAKER_STALL_MS", 20)
    await start(writer, store)
    await writer._idle.wait()
    store.tells_time.clear()
    await tick_until_sick(writer, keeper.CLOCK_PROBE_MS / 2000)
    store.tells_time.set()
    await until_health(writer, healthy=True)


@in_virtual_time
async def test_an_event_loop_that_was_held_is_not_taken_for_a_server_that_hangs(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(writer, store)
    await writer._idle.wait()
    assert writer.shard is not None
    for _ in range(2 * keeper.BREAKER_SAMPLES_MIN):
        store.answers_runs.clear()
        writer.shard.look_up(LookUp([1], Mock(), Mock()))
        writer.wake()
        await tick_for(writer, limits.TICK_MS / 1000)
        monkeypatch.setattr(store.loop, "_now_s", store.loop.time() + 2)
        writer.tick()
        assert writer.health.healthy
        store.answers_runs.set()
        await writer._idle.wait()
    assert writer.health.opened_count == 0


@in_virtual_time
async def test_a_server_that_answers_transactions_is_not_asked_for_more(writer: TickedWriter, store: SlowStore) -> None:
    await start(writer, store)
    asked_count, loop = store.asked_count, asyncio.get_running_loop()
    until_s = loop.time() + 10 * mysql_server.PULSE_MS / 1000
    while loop.time() < until_s:
        await tick_for(writer, limits.TICK_MS / 1000)
        assert await run_one(writer, store) == "done"
    assert store.asked_count == asked_count


@in_virtual_time
async def test_a_server_that_is_silent_is_asked_once_a_while(writer: TickedWriter, store: SlowStore) -> None:
    await start(writer, store)
    asked_count = store.asked_count
    await tick_for(writer, 10 * mysql_server.PULSE_MS / 1000)
    assert 1 <= store.asked_count - asked_count <= 10


@in_virtual_time
async def test_a_sick_server_is_not_asked_beside_the_probes(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_server, "PULSE_MS", 1)
    monkeypatch.setattr(keeper, "BREAKER_PROBE_MS", 60_000)
    await start(writer, store)
    await writer._idle.wait()
    writer.health.trip(asyncio.get_running_loop().time(), "it is slow")
    asked_count = store.asked_count
    await tick_for(writer, 0.1)
    assert store.asked_count == asked_count


@in_virtual_time
async def test_a_shard_waits_for_a_slot_of_its_server_with_what_it_is_to_write(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    await writer._idle.wait()
    store.numbers_run.clear()
    shard = writer.shard
    assert shard is not None
    async with has_no_slot(writer):
        ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future in ended:
            shard.look_up(LookUp([1], future.set_result, future.set_exception))
            writer.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        assert store.numbers_run == []
    async with asyncio.timeout(10):
        await asyncio.gather(*ended)
    assert len(store.numbers_run) == 1, "both are in one transaction"


@pytest.mark.parametrize(("calls_enough", "transactions"), [(1, 2), (0, 3)])
@in_virtual_time
async def test_who_was_answered_comes_back_before_the_next_transaction_unless_enough_wait(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch, calls_enough: int, transactions: int
) -> None:
    monkeypatch.setattr(mysql_server, "COALESCE_MS_MAX", 60_000)
    monkeypatch.setattr(mysql_server, "COALESCE_CALLS", calls_enough)
    await start(writer, store)
    await writer._idle.wait()
    store.numbers_run.clear()
    shard, loop = writer.shard, asyncio.get_running_loop()
    assert shard is not None

    def call() -> asyncio.Future[object]:
        ended: asyncio.Future[object] = loop.create_future()
        shard.look_up(LookUp([1], ended.set_result, ended.set_exception))
        writer.wake()
        return ended

    store.answers_runs.clear()
    first = call()
    await until(lambda: len(store.numbers_run) == 1)
    second = call()
    store.answers_runs.set()
    await first
    await asyncio.gather(call(), second)
    assert len(store.numbers_run) == transactions


@in_virtual_time
async def test_a_shard_that_waits_for_a_slot_is_sick_when_its_server_answers_none_of_its_neighbours(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_ms = 50
    monkeypatch.setattr(keeper, "BREAKER_STALL_MS", stall_ms)
    monkeypatch.setattr(mysql_server, "PULSE_MS", 60_000)
    monkeypatch.setattr(mysql_server, "SLOT_MS_MAX", 60_000)
    await start(writer, store)
    await writer._idle.wait()
    shard, loop = writer.shard, asyncio.get_running_loop()
    assert shard is not None
    async with has_no_slot(writer):
        run_count = len(store.numbers_run)
        shard.look_up(LookUp([1], Mock(), Mock()))
        writer.wake()
        until_s = loop.time() + 3 * stall_ms / 1000
        while loop.time() < until_s:
            writer.server.silent_since_s = loop.time()
            writer.tick()
            await asyncio.sleep(STEP_S)
            writer.server.silent_since_s, writer.server.answered_s = None, loop.time()
        assert writer.health.healthy, "they are slow, and no more"
        writer.server.silent_since_s = loop.time()
        asked_s = loop.time()
        await tick_until_sick(writer)
        assert 0 <= loop.time() - asked_s - stall_ms / 1000 < limits.TICK_MS / 1000
        assert len(store.numbers_run) == run_count, "it still waits"
    await until_health(writer, healthy=True)


@in_virtual_time
async def test_a_sick_shard_neither_waits_for_a_slot_nor_keeps_one(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_server, "SLOT_MS_MAX", 60_000)
    await start(writer, store)
    await writer._idle.wait()
    loop = asyncio.get_running_loop()
    writer.health.trip(loop.time(), "for the test")
    async with has_no_slot(writer):
        await until_health(writer, healthy=True)
    await writer._idle.wait()
    writer.health.trip(loop.time(), "for the test")
    store.answers_runs.clear()
    run_count = len(store.numbers_run)
    while len(store.numbers_run) == run_count:
        writer.wake()
        await tick_for(writer, 0)
    async with asyncio.timeout(10), has_no_slot(writer):
        assert not writer.health.healthy, "its probe is under way"
    store.answers_runs.set()
    await until_health(writer, healthy=True)


@in_virtual_time
async def test_a_shard_that_got_its_slot_late_is_sick_as_soon_as_those_before_it(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_s, wait_s = 0.6, 0.4
    monkeypatch.setattr(keeper, "BREAKER_STALL_MS", int(stall_s * 1000))
    monkeypatch.setattr(mysql_server, "PULSE_MS", 60_000)
    monkeypatch.setattr(mysql_server, "SLOT_MS_MAX", int(wait_s * 1000))
    await start(writer, store)
    await writer._idle.wait()
    shard, loop = writer.shard, asyncio.get_running_loop()
    assert shard is not None
    store.answers_runs.clear()
    async with has_no_slot(writer):
        writer.server.silent_since_s = loop.time()
        shard.look_up(LookUp([1], Mock(), Mock()))
        writer.wake()
        run_count, asked_s = len(store.numbers_run), loop.time()
        await tick_until_sick(writer)
    assert len(store.numbers_run) == run_count + 1, "it is under way"
    assert loop.time() - asked_s < stall_s + wait_s
    store.answers_runs.set()
    await until_health(writer, healthy=True)


@asynccontextmanager
async def has_no_slot(writer: TickedWriter) -> AsyncIterator[None]:
    """Its neighbours have them all."""
    neighbours = [writer.server.scheduler.join() for _ in range(limits.TRANSACTIONS_PER_SERVER_MAX)]
    for permit in neighbours:
        await permit.ask(None, is_sick=False)
    yield
    for permit in neighbours:
        permit.end()


async def tick_until_sick(writer: TickedWriter, patience_s: float = 10.0) -> None:
    """And give it nothing to do."""
    async with asyncio.timeout(patience_s):
        while writer.health.healthy:
            await tick_for(writer, 0)


@in_virtual_time
async def test_no_turn_of_the_loop_tells_of_more_topics_than_a_few_however_many_there_are(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", 10)
    await start(writer, store)
    assert writer.shard is not None
    topics = [writer.shard.index.topic(1, f"t{number}") for number in range(35)]
    listener = writer.listener
    for healthy in (False, True):
        listener.reset_mock()
        writer._health_changed(healthy, "for the test")
        await until(lambda: listener.adopt.call_count == 3)
        (first,) = listener.shard_health.call_args_list
        told = [list(call.args[-1]) for call in (first, *listener.adopt.call_args_list)]
        assert [topic for some in told for topic in some] == topics
        assert [len(some) for some in told] == [10, 10, 10, 5]
    listener.reset_mock()
    writer._health_changed(False, "it opens")
    writer._health_changed(True, "and closes before all were told")
    await until(lambda: listener.adopt.call_count == 3)
    await asyncio.sleep(STEP_S)
    assert listener.adopt.call_count == 3, "of the last change alone"
    opened = asyncio.Event()
    listener.reset_mock()
    listener.shard_opened.side_effect = lambda *_: opened.set()
    await run_one(writer, store, ValueError("a defect"))
    await opened.wait()
    names = [name for name, _, _ in listener.mock_calls if name not in ("demand", "on_events")]
    assert names == ["shard_lost", *3 * ["disown"], "shard_opened"]
    told = [list(call.args[-1]) for call in (*listener.shard_lost.call_args_list, *listener.disown.call_args_list)]
    assert [topic for some in told for topic in some] == topics
    assert [len(some) for some in told] == [10, 10, 10, 5]


@in_virtual_time
async def test_rows_are_counted_a_few_topics_in_a_turn_of_the_loop(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", 10)
    await start(writer, store)
    assert writer.shard is not None
    index = writer.shard.index
    numbers = [index.topic(1, f"t{number}").number for number in range(35)]
    counts = LaneCounts([*[(number, 3) for number in numbers], (-numbers[0], 2)], [(number, 1) for number in numbers])
    totals = [index.counts.total for _ in writer.shard.add_counts(counts)]
    assert totals[:3] == [30, 60, 90]
    assert len(totals) == 8
    assert (index.counts.rows, index.counts.dead, index.counts.delayed) == (105, 2, 35)
