"""The writer of a shard and a store that takes its time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from foqs.core import limits
from foqs.shard.parts import ShardListener
from foqs.shard.rows import LookUp
from foqs.shard.runner import ShardRunner, TransactionMeter
from foqs.shard.slots import ServerSlots
from foqs.storage.transaction import (
    DeadlockError,
    DiskFullError,
    LaneCounts,
    ReadOnlyError,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)
from tests.support.waiting import until

SLOW_READ_MS = 5_000
"""As long as the take-over of many topics, a slow network or a stopped host takes after the time was asked for."""


class SlowToOpen:
    """A store whose image is old when it is complete, which may take until `answers` is set. It stores a number."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.tells_time = asyncio.Event()
        self.tells_time.set()
        self.answers_runs = asyncio.Event()
        self.answers_runs.set()
        self.holds_time: list[asyncio.Event] = []
        """What the next answers wait for, after the time was read."""
        self.asked_count = 0
        self.errors: list[Exception] = []
        """What the next transactions meet, one each."""
        self.numbers_run: list[int] = []
        self.number_stored = 0
        self.opened_count = self.reopened_count = 0
        self.is_lost = False
        self.reopen_errors: list[Exception] = []
        """What the next tries to reopen meet, one each."""

    def open(self) -> ShardImage:
        assert self.answers.wait(30)
        self.opened_count += 1
        return ShardImage(1, self.number_stored, 0, 0, wall_ms() - SLOW_READ_MS, [], lambda: LaneCounts([], []), [], {})

    def reopen(self) -> int:
        assert self.answers.wait(30)
        if self.reopen_errors:
            raise self.reopen_errors.pop(0)
        self.reopened_count += 1
        self.is_lost = False
        return self.number_stored

    def close(self) -> None:
        return

    def interrupt(self) -> None:
        return

    def is_session_lost(self) -> bool:
        return self.is_lost

    def check(self) -> list[str]:
        return []

    async def now_ms(self) -> int:
        self.asked_count += 1
        if self.is_lost:
            raise SessionLostError("somebody killed it")
        await self.tells_time.wait()
        told_ms = wall_ms()
        if self.holds_time:
            await self.holds_time.pop().wait()
        return told_ms

    async def run(self, transaction: Transaction) -> TransactionResult:
        self.numbers_run.append(transaction.number)
        await self.answers_runs.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.number_stored = transaction.number
        return TransactionResult(refilled=[[] for _ in transaction.refills], looked_up={})


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store() -> SlowToOpen:
    return SlowToOpen()


@pytest.fixture
async def runner(store: SlowToOpen) -> AsyncIterator[ShardRunner]:
    slots = ServerSlots(asyncio.get_running_loop(), limits.TRANSACTIONS_PER_SERVER_MAX)
    runner = ShardRunner(0, store, slots, Mock(spec=ShardListener), Mock(spec=TransactionMeter))
    yield runner
    store.answers.set()
    store.tells_time.set()
    store.answers_runs.set()
    await runner.stop()


async def test_a_take_over_that_takes_long_leaves_no_clock_that_is_late(runner: ShardRunner) -> None:
    before_ms = wall_ms()
    await runner.start()
    assert runner.shard is not None, runner.detail
    late_ms = before_ms - runner.now_ms()
    assert late_ms < SLOW_READ_MS / 5 < limits.CLOCK_PROBE_MS


async def test_a_take_over_on_a_machine_that_stalls_leaves_no_clock_that_is_late(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    """The time was read at once, and its answer came late: it says no more than that it is not before it."""
    stall_ms = 600
    store.holds_time.append(asyncio.Event())
    asyncio.get_running_loop().call_later(stall_ms / 1000, store.holds_time[0].set)
    await runner.start()
    assert wall_ms() - runner.now_ms() < stall_ms / 2


async def test_a_server_that_hangs_does_not_hold_up_the_start_and_is_served_once_it_answers(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHARD_OPEN_WAIT_MS_MAX", 50)
    store.answers.clear()
    async with asyncio.timeout(10):
        await runner.start()
        assert (runner.shard, runner.detail) == (None, "its server does not answer")
        store.answers.set()
        await runner.counted.wait()
    assert (runner.shard is None, runner.detail) == (False, "owned")


async def test_a_server_that_hangs_when_it_is_asked_for_the_time_opens_the_breaker_like_one_that_hangs_in_a_commit(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runner.start()
    monkeypatch.setattr(limits, "CLOCK_PROBE_MS", 0)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    store.tells_time.clear()
    await until_health(runner, healthy=False)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 0)
    store.tells_time.set()
    await until_health(runner, healthy=True)


async def test_a_shard_with_nothing_to_do_notices_that_its_server_hangs(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULSE_MS", 1)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    await start(runner, store)
    await runner._idle.wait()
    store.tells_time.clear()
    await tick_until_sick(runner, limits.CLOCK_PROBE_MS / 2000)
    store.tells_time.set()
    await until_health(runner, healthy=True)


async def test_a_server_that_answers_transactions_is_not_asked_for_more(runner: ShardRunner, store: SlowToOpen) -> None:
    await start(runner, store)
    asked_count, until_s = store.asked_count, time.monotonic() + 10 * limits.PULSE_MS / 1000
    while time.monotonic() < until_s:
        runner.tick()
        assert await run_one(runner, store) == "done"
    assert store.asked_count - asked_count <= 3, "a stall of the machine looks like a silence"


async def test_a_server_that_is_silent_is_asked_once_a_while(runner: ShardRunner, store: SlowToOpen) -> None:
    await start(runner, store)
    asked_count = store.asked_count
    await tick_for(runner, 10 * limits.PULSE_MS / 1000)
    assert 1 <= store.asked_count - asked_count <= 10


async def test_a_sick_server_is_not_asked_beside_the_probes(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULSE_MS", 1)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 60_000)
    await start(runner, store)
    await runner._idle.wait()
    runner.health.trip(asyncio.get_running_loop().time(), "it is slow")
    asked_count = store.asked_count
    await tick_for(runner, 0.1)
    assert store.asked_count == asked_count


async def run_one(runner: ShardRunner, store: SlowToOpen, *errors: Exception) -> str:
    """Let a look-up be in a transaction that meets these errors; what became of it."""
    assert runner.shard is not None
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    store.errors, store.numbers_run = list(errors), []
    on_rows, on_failed = (lambda _: ended.set_result("done")), (lambda error: ended.set_result(error.message))
    runner.shard.rows.look_up(LookUp([1], on_rows, on_failed))
    runner.wake()
    async with asyncio.timeout(10):
        return await ended


async def start(runner: ShardRunner, store: SlowToOpen) -> None:
    """And run what every new owner reads first."""
    await runner.start()
    assert await run_one(runner, store) == "done"


@pytest.mark.parametrize("count", range(1, limits.DEADLOCK_TRIES_MAX))
async def test_a_transaction_that_meets_deadlocks_is_run_again_as_it_is(
    runner: ShardRunner, store: SlowToOpen, count: int
) -> None:
    await start(runner, store)
    assert await run_one(runner, store, *[DeadlockError("a deadlock")] * count) == "done"
    assert len(store.numbers_run) == count + 1
    assert len(set(store.numbers_run)) == 1
    assert runner.health.healthy


async def test_a_transaction_that_meets_nothing_but_deadlocks_fails_in_the_end(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    assert "a deadlock" in await run_one(runner, store, *[DeadlockError("a deadlock")] * limits.DEADLOCK_TRIES_MAX)
    assert len(store.numbers_run) == limits.DEADLOCK_TRIES_MAX
    assert await run_one(runner, store) == "done"


async def test_a_transaction_that_was_refused_for_another_reason_is_not_run_again(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    assert "a lock wait" in await run_one(runner, store, TransactionFailedError("a lock wait"))
    assert len(store.numbers_run) == 1


async def test_a_transaction_whose_session_was_lost_is_run_once_more_if_it_has_not_happened(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    lost = SessionLostError("somebody killed it")
    assert await run_one(runner, store, lost) == "done"
    assert len(store.numbers_run) == 2
    assert len(set(store.numbers_run)) == 1
    assert runner.health.healthy, "what was run once more is the probe"
    assert "killed" in await run_one(runner, store, lost, lost)
    assert len(store.numbers_run) == 2


async def test_a_session_that_is_lost_while_the_shard_is_idle_is_noticed_by_the_next_tick(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    await runner._idle.wait()
    store.is_lost = True
    runner.tick()
    await until(lambda: store.reopened_count == 1)
    assert runner.health.opened_count == 0, "the server is well"
    assert await run_one(runner, store) == "done"
    assert len(store.numbers_run) == 1, "no transaction met the loss"


@pytest.mark.parametrize("server", ["refuses", "hangs"])
async def test_a_server_that_gives_no_new_session_opens_the_breaker(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(limits, "BREAKER_STALL_MS", 20)
    await start(runner, store)
    await runner._idle.wait()
    if server == "refuses":
        store.reopen_errors.append(SessionLostError("connection refused"))
    else:
        store.answers.clear()
    store.is_lost = True
    await until_health(runner, healthy=False)
    monkeypatch.setattr(limits, "BREAKER_PROBE_MS", 0)
    store.answers.set()
    await until_health(runner, healthy=True)
    assert store.reopened_count == 1


async def test_a_transaction_whose_session_was_lost_is_not_run_again_if_it_has_happened(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    store.number_stored += 1
    assert await run_one(runner, store, SessionLostError("its answer is lost")) == "done"
    assert store.numbers_run == [store.number_stored - 1, store.number_stored], "the look-up alone is run anew"


@pytest.mark.parametrize("error", [DiskFullError("it is full"), ReadOnlyError("it is read-only")])
async def test_a_server_that_takes_no_writes_opens_the_breaker_by_its_first_refusal(
    runner: ShardRunner, store: SlowToOpen, error: TransactionFailedError
) -> None:
    await start(runner, store)
    assert "it is" in await run_one(runner, store, error)
    assert not runner.health.healthy
    await until_health(runner, healthy=True)


async def test_a_server_that_has_become_read_only_is_looked_for_anew(runner: ShardRunner, store: SlowToOpen) -> None:
    await start(runner, store)
    assert "read-only" in await run_one(runner, store, ReadOnlyError("it is read-only"))
    assert len(store.numbers_run) == 1
    assert await run_one(runner, store) == "done"
    assert (store.opened_count, store.reopened_count) == (1, 1)


async def test_a_server_that_has_lost_transactions_is_opened_anew(runner: ShardRunner, store: SlowToOpen) -> None:
    await start(runner, store)
    store.number_stored -= 1
    first = runner.shard
    assert "lost transaction" in await run_one(runner, store, SessionLostError("a fail-over"))
    assert len(store.numbers_run) == 1
    await until(lambda: runner.shard is not None)
    assert runner.shard is not first
    assert store.opened_count == 2
    assert await run_one(runner, store) == "done"


async def test_a_shard_waits_for_a_slot_of_its_server_with_what_it_is_to_write(
    runner: ShardRunner, store: SlowToOpen
) -> None:
    await start(runner, store)
    await runner._idle.wait()
    store.numbers_run.clear()
    shard = runner.shard
    assert shard is not None
    async with runner_has_no_slot(runner):
        ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future in ended:
            shard.rows.look_up(LookUp([1], future.set_result, future.set_exception))
            runner.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        assert store.numbers_run == []
    async with asyncio.timeout(10):
        await asyncio.gather(*ended)
    assert len(store.numbers_run) == 1, "both are in one transaction"


@pytest.mark.parametrize(("calls_enough", "transactions"), [(1, 2), (0, 3)])
async def test_who_was_answered_comes_back_before_the_next_transaction_unless_enough_wait(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch, calls_enough: int, transactions: int
) -> None:
    monkeypatch.setattr(limits, "GATHER_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "GATHER_CALLS", calls_enough)
    await start(runner, store)
    await runner._idle.wait()
    store.numbers_run.clear()
    shard, loop = runner.shard, asyncio.get_running_loop()
    assert shard is not None

    def call() -> asyncio.Future[object]:
        ended: asyncio.Future[object] = loop.create_future()
        shard.rows.look_up(LookUp([1], ended.set_result, ended.set_exception))
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


async def test_a_shard_that_waits_for_a_slot_is_sick_when_its_server_answers_none_of_its_neighbours(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
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
        shard.rows.look_up(LookUp([1], Mock(), Mock()))
        runner.wake()
        until_s = loop.time() + 3 * stall_ms / 1000
        while loop.time() < until_s:
            runner._slots.heard_s = loop.time()
            runner.tick()
            await asyncio.sleep(0)
        assert runner.health.healthy, "they are slow, and no more"
        await tick_until_sick(runner)
        assert loop.time() - until_s >= stall_ms / 1000
        assert len(store.numbers_run) == run_count, "it still waits"
    await until_health(runner, healthy=True)


async def test_a_sick_shard_neither_waits_for_a_slot_nor_keeps_one(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
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


async def test_a_shard_that_got_its_slot_late_is_sick_as_soon_as_those_before_it(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch
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
        shard.rows.look_up(LookUp([1], Mock(), Mock()))
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


async def tick_for(runner: ShardRunner, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while True:
        runner.tick()
        await asyncio.sleep(0.001)
        if time.monotonic() >= until_s:
            return


async def until_health(runner: ShardRunner, *, healthy: bool) -> None:
    async with asyncio.timeout(10):
        while runner.health.healthy is not healthy:
            runner.wake()
            runner.tick()
            await asyncio.sleep(limits.TICK_MS / 1000)


@pytest.mark.interpreted
@pytest.mark.parametrize("where", ["transaction", "loss", "abandon", "tick"])
async def test_a_defect_costs_a_take_over_and_not_the_shard(
    runner: ShardRunner, store: SlowToOpen, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever is raised: nobody else would open the shard again, or notice."""
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    await start(runner, store)
    first, opened_count = runner.shard, store.opened_count
    assert first is not None
    opened = asyncio.Event()
    runner._listener.shard_opened.side_effect = lambda *_: opened.set()  # type: ignore[attr-defined]
    if where == "loss":
        runner._listener.shard_lost.side_effect = [AssertionError("in the dispatcher"), None]  # type: ignore[attr-defined]
    if where == "abandon":
        tell_all = first.abandon
        monkeypatch.setattr(first, "abandon", lambda reason: (tell_all(reason), {}["a ticket"]))
    if where == "tick":
        first.settlements.tick = Mock(side_effect=KeyError("a receipt"))  # type: ignore[method-assign]
        with capture_logs() as logs:
            runner.tick()
    else:
        with capture_logs() as logs:
            await run_one(runner, store, ValueError("an item that cannot be packed"))
    async with asyncio.timeout(10):
        await opened.wait()
    assert "shard_defect" in {log["event"] for log in logs}
    assert store.opened_count == opened_count + 1
    assert await run_one(runner, store) == "done"
