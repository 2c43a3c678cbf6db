"""The writer of a shard and a store that takes its time, which is virtual: a machine that is busy changes nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from unittest.mock import Mock

import pytest
import structlog.testing

from foqs.model import limits
from foqs.shard.port import LaneCounts
from foqs.shard.state.look_ups import LookUp
from foqs.shard.state.parts import ShardListener
from foqs.shard.writer.runner import ShardRunner
from tests.sim.loop import VirtualLoop
from tests.support.slow_store import SLOW_READ_MS, SlowStore, run_one, runner_of, start, tick_for, until_health
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
def runner(store: SlowStore) -> Iterator[ShardRunner]:
    context, loop = runner_of(store), store.loop
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


@in_virtual_time
async def test_a_take_over_that_takes_long_leaves_no_clock_that_is_late(runner: ShardRunner, store: SlowStore) -> None:
    before_ms = store.wall_ms()
    await runner.start()
    assert runner.shard is not None, runner.detail
    late_ms = before_ms - runner.now_ms()
    assert late_ms < SLOW_READ_MS / 5 < limits.CLOCK_PROBE_MS


@in_virtual_time
async def test_a_take_over_on_a_machine_that_stalls_leaves_no_clock_that_is_late(
    runner: ShardRunner, store: SlowStore
) -> None:
    """The time was read at once, and its answer came late: it says no more than that it is not before it."""
    stall_ms = 600
    store.holds_time.append(asyncio.Event())
    asyncio.get_running_loop().call_later(stall_ms / 1000, store.holds_time[0].set)
    await runner.start()
    assert store.wall_ms() - runner.now_ms() < stall_ms / 2


@in_virtual_time
async def test_a_step_of_the_servers_clock_is_told_and_leaves_the_steady_clock_as_it_was(
    runner: ShardRunner, store: SlowStore
) -> None:
    await start(runner, store)
    steps_count = runner.clock.steps_count  # The image of this store is older than its opening.
    steady_ms, loop = runner.now().steady_ms - 1000 * store.loop.time(), store.loop
    with structlog.testing.capture_logs() as logs:
        for stepped_ms in (3_600_000, -3_600_000):
            store.stepped_ms = stepped_ms
            await tick_for(runner, limits.CLOCK_PROBE_MS / 1000 + 1)
            assert abs(store.wall_ms() - runner.now_ms()) <= 5
            assert abs(runner.now().steady_ms - 1000 * loop.time() - steady_ms) <= 1
    assert runner.clock.steps_count == steps_count + 2
    told = [(log["direction"], round(log["step_ms"], -3)) for log in logs if log["event"] == "server_clock_stepped"]
    assert told == [("forward", 3_600_000), ("backward", -7_200_000)]


@in_virtual_time
async def test_a_server_that_hangs_when_it_is_asked_for_the_time_opens_the_breaker_like_one_that_hangs_in_a_commit(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runner.start()
    monkeypatch.setattr(limits, "CLOCK_PROBE_MS", 0)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    store.tells_time.clear()
    await until_health(runner, healthy=False)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 0)
    store.tells_time.set()
    await until_health(runner, healthy=True)


@in_virtual_time
async def test_a_shard_with_nothing_to_do_notices_that_its_server_hangs(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULSE_MS", 1)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    await start(runner, store)
    await runner._idle.wait()
    store.tells_time.clear()
    await tick_until_sick(runner, limits.CLOCK_PROBE_MS / 2000)
    store.tells_time.set()
    await until_health(runner, healthy=True)


@in_virtual_time
async def test_an_event_loop_that_was_held_is_not_taken_for_a_server_that_hangs(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(runner, store)
    await runner._idle.wait()
    assert runner.shard is not None
    for _ in range(2 * limits.BREAKER_SAMPLES_MIN):
        store.answers_runs.clear()
        runner.shard.look_ups.look_up(LookUp([1], Mock(), Mock()))
        runner.wake()
        await tick_for(runner, limits.TICK_MS / 1000)
        monkeypatch.setattr(store.loop, "_now_s", store.loop.time() + 2)
        runner.tick()
        assert runner.health.healthy
        store.answers_runs.set()
        await runner._idle.wait()
    assert runner.health.opened_count == 0


@in_virtual_time
async def test_a_server_that_answers_transactions_is_not_asked_for_more(runner: ShardRunner, store: SlowStore) -> None:
    await start(runner, store)
    asked_count, loop = store.asked_count, asyncio.get_running_loop()
    until_s = loop.time() + 10 * limits.PULSE_MS / 1000
    while loop.time() < until_s:
        await tick_for(runner, limits.TICK_MS / 1000)
        assert await run_one(runner, store) == "done"
    assert store.asked_count == asked_count


@in_virtual_time
async def test_a_server_that_is_silent_is_asked_once_a_while(runner: ShardRunner, store: SlowStore) -> None:
    await start(runner, store)
    asked_count = store.asked_count
    await tick_for(runner, 10 * limits.PULSE_MS / 1000)
    assert 1 <= store.asked_count - asked_count <= 10


@in_virtual_time
async def test_a_sick_server_is_not_asked_beside_the_probes(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULSE_MS", 1)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 60_000)
    await start(runner, store)
    await runner._idle.wait()
    runner.health.trip(asyncio.get_running_loop().time(), "it is slow")
    asked_count = store.asked_count
    await tick_for(runner, 0.1)
    assert store.asked_count == asked_count


@in_virtual_time
async def test_a_shard_waits_for_a_slot_of_its_server_with_what_it_is_to_write(
    runner: ShardRunner, store: SlowStore
) -> None:
    await start(runner, store)
    await runner._idle.wait()
    store.numbers_run.clear()
    shard = runner.shard
    assert shard is not None
    async with runner_has_no_slot(runner):
        ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future in ended:
            shard.look_ups.look_up(LookUp([1], future.set_result, future.set_exception))
            runner.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        assert store.numbers_run == []
    async with asyncio.timeout(10):
        await asyncio.gather(*ended)
    assert len(store.numbers_run) == 1, "both are in one transaction"


@pytest.mark.parametrize(("calls_enough", "transactions"), [(1, 2), (0, 3)])
@in_virtual_time
async def test_who_was_answered_comes_back_before_the_next_transaction_unless_enough_wait(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch, calls_enough: int, transactions: int
) -> None:
    monkeypatch.setattr(limits, "COALESCE_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "COALESCE_CALLS", calls_enough)
    await start(runner, store)
    await runner._idle.wait()
    store.numbers_run.clear()
    shard, loop = runner.shard, asyncio.get_running_loop()
    assert shard is not None

    def call() -> asyncio.Future[object]:
        ended: asyncio.Future[object] = loop.create_future()
        shard.look_ups.look_up(LookUp([1], ended.set_result, ended.set_exception))
        runner.wake()
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
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_ms = 50
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", stall_ms)
    monkeypatch.setattr(limits, "PULSE_MS", 60_000)
    monkeypatch.setattr(limits, "SLOT_MS_MAX", 60_000)
    await start(runner, store)
    await runner._idle.wait()
    shard, loop = runner.shard, asyncio.get_running_loop()
    assert shard is not None
    async with runner_has_no_slot(runner):
        run_count = len(store.numbers_run)
        shard.look_ups.look_up(LookUp([1], Mock(), Mock()))
        runner.wake()
        until_s = loop.time() + 3 * stall_ms / 1000
        while loop.time() < until_s:
            runner._slots.heard_s = loop.time()
            runner.tick()
            await asyncio.sleep(STEP_S)
        assert runner.health.healthy, "they are slow, and no more"
        await tick_until_sick(runner)
        assert 0 <= loop.time() - runner._slots.heard_s - stall_ms / 1000 < limits.TICK_MS / 1000
        assert len(store.numbers_run) == run_count, "it still waits"
    await until_health(runner, healthy=True)


@in_virtual_time
async def test_a_sick_shard_neither_waits_for_a_slot_nor_keeps_one(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLOT_MS_MAX", 60_000)
    await start(runner, store)
    await runner._idle.wait()
    loop = asyncio.get_running_loop()
    runner.health.trip(loop.time(), "for the test")
    async with runner_has_no_slot(runner):
        await until_health(runner, healthy=True)
    await runner._idle.wait()
    runner.health.trip(loop.time(), "for the test")
    store.answers_runs.clear()
    run_count = len(store.numbers_run)
    while len(store.numbers_run) == run_count:
        runner.wake()
        await tick_for(runner, 0)
    async with asyncio.timeout(10), runner_has_no_slot(runner):
        assert not runner.health.healthy, "its probe is under way"
    store.answers_runs.set()
    await until_health(runner, healthy=True)


@in_virtual_time
async def test_a_shard_that_got_its_slot_late_is_sick_as_soon_as_those_before_it(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_s, wait_s = 0.6, 0.4
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", int(stall_s * 1000))
    monkeypatch.setattr(limits, "PULSE_MS", 60_000)
    monkeypatch.setattr(limits, "SLOT_MS_MAX", int(wait_s * 1000))
    await start(runner, store)
    await runner._idle.wait()
    shard, loop = runner.shard, asyncio.get_running_loop()
    assert shard is not None
    store.answers_runs.clear()
    async with runner_has_no_slot(runner):
        shard.look_ups.look_up(LookUp([1], Mock(), Mock()))
        runner.wake()
        run_count, asked_s = len(store.numbers_run), loop.time()
        await tick_until_sick(runner)
    assert len(store.numbers_run) == run_count + 1, "it is under way"
    assert loop.time() - asked_s < stall_s + wait_s
    store.answers_runs.set()
    await until_health(runner, healthy=True)


@asynccontextmanager
async def runner_has_no_slot(runner: ShardRunner) -> AsyncIterator[None]:
    """Its neighbours have them all."""
    async with AsyncExitStack() as neighbours:
        for _ in range(limits.TRANSACTIONS_PER_SERVER_MAX):
            await neighbours.enter_async_context(runner._slots.slot())
        yield


async def tick_until_sick(runner: ShardRunner, patience_s: float = 10.0) -> None:
    """And give it nothing to do."""
    async with asyncio.timeout(patience_s):
        while runner.health.healthy:
            await tick_for(runner, 0)


@in_virtual_time
async def test_no_turn_of_the_loop_tells_of_more_topics_than_a_few_however_many_there_are(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", 10)
    await start(runner, store)
    assert runner.shard is not None
    topics = [runner.shard.index.topic(1, f"t{number}") for number in range(35)]
    listener = Mock(spec=ShardListener)
    monkeypatch.setattr(runner._announcing, "_listener", listener)
    for healthy in (False, True):
        listener.reset_mock()
        runner._health_changed(healthy, "for the test")
        await until(lambda: listener.adopt.call_count == 3)
        (first,) = listener.shard_health.call_args_list
        told = [list(call.args[-1]) for call in (first, *listener.adopt.call_args_list)]
        assert [topic for some in told for topic in some] == topics
        assert [len(some) for some in told] == [10, 10, 10, 5]
    listener.reset_mock()
    runner._health_changed(False, "it opens")
    runner._health_changed(True, "and closes before all were told")
    await until(lambda: listener.adopt.call_count == 3)
    await asyncio.sleep(STEP_S)
    assert listener.adopt.call_count == 3, "of the last change alone"
    opened = asyncio.Event()
    listener.reset_mock()
    listener.shard_opened.side_effect = lambda *_: opened.set()
    await run_one(runner, store, ValueError("a defect"))
    await opened.wait()
    names = [name for name, _, _ in listener.mock_calls]
    assert names == ["shard_lost", *3 * ["disown"], "shard_opened"]
    told = [list(call.args[-1]) for call in (*listener.shard_lost.call_args_list, *listener.disown.call_args_list)]
    assert [topic for some in told for topic in some] == topics
    assert [len(some) for some in told] == [10, 10, 10, 5]


@in_virtual_time
async def test_rows_are_counted_a_few_topics_in_a_turn_of_the_loop(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", 10)
    await start(runner, store)
    assert runner.shard is not None
    index = runner.shard.index
    numbers = [index.topic(1, f"t{number}").number for number in range(35)]
    counts = LaneCounts([*[(number, 3) for number in numbers], (-numbers[0], 2)], [(number, 1) for number in numbers])
    totals = [index.counts.total for _ in runner.shard.add_counts(counts)]
    assert totals[:3] == [30, 60, 90]
    assert len(totals) == 8
    assert (index.counts.rows, index.counts.dead, index.counts.delayed) == (105, 2, 35)
