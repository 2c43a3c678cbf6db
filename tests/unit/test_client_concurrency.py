"""The twins that the generated client stands on: monitors, background work and copies of it, for tasks and threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs.client.aio import concurrency as aio
from foqs.client.sync import concurrency as sync
from tests.support.waiting import PATIENCE_S


def test_both_twins_have_the_same_names() -> None:
    assert [name.removeprefix("Async") for name in aio.__all__] == sync.__all__


async def test_everybody_who_waits_at_a_monitor_looks_again_when_it_is_notified() -> None:
    monitor, level = aio.AsyncMonitor(), 0

    async def wait_for(least: int) -> bool:
        with monitor:
            return await monitor.wait_for(lambda: level >= least, PATIENCE_S)

    waiting = [asyncio.create_task(wait_for(least)) for least in (1, 2, 2)]
    for reached in (1, 2):
        level = reached
        await asyncio.sleep(0)
        with monitor:
            monitor.notify_all()
    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_monitor_says_after_its_timeout_whether_the_predicate_holds() -> None:
    monitor, flag = aio.AsyncMonitor(), False
    assert await monitor.wait_for(lambda: flag, 0.001) is False
    flag = True
    assert await monitor.wait_for(lambda: flag, 0) is True


async def test_background_tasks_say_how_they_ended(caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    async def fail() -> None:
        raise ValueError("a bug")

    async def wait() -> None:
        await gate.wait()

    failing = aio.AsyncBackground(fail, "foqs-failing")
    with pytest.raises(ValueError, match="a bug"):
        await failing.join()
    assert [record.getMessage() for record in caplog.records] == ["foqs-failing failed"]
    waiting = aio.AsyncBackground(wait, "foqs-waiting")
    assert await waiting.join(0) is False
    gate.set()
    assert await waiting.join() is True
    gate.clear()
    cancelled = aio.AsyncBackground(wait, "foqs-cancelled")
    await cancelled.cancel()
    assert await cancelled.join() is True


def test_background_threads_say_how_they_ended(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    def wait() -> None:
        assert gate.wait(PATIENCE_S)

    failing = sync.Background(fail, "foqs-failing")
    with pytest.raises(ValueError, match="a bug"):
        failing.join(PATIENCE_S)
    assert [record.getMessage() for record in caplog.records] == ["foqs-failing failed"]
    waiting = sync.Background(wait, "foqs-waiting")
    assert waiting.join(0) is False
    waiting.cancel()
    gate.set()
    assert waiting.join(PATIENCE_S) is True


async def test_when_one_copy_fails_the_others_end_and_the_failure_is_told_first() -> None:
    told: list[BaseException] = []
    started = 0

    async def work() -> None:
        nonlocal started
        started += 1
        if started == 3:
            raise ValueError("the third")
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="the third"):
        await aio.run_copies(work, 3, "foqs-copy", told.append)
    assert [str(error) for error in told] == ["the third"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_threads_of_a_failed_copy_end_once_they_are_told() -> None:
    lock, over, numbers = threading.Lock(), threading.Event(), iter(range(3))

    def work() -> None:
        with lock:
            number = next(numbers)
        if number == 2:
            raise ValueError("the third")
        assert over.wait(PATIENCE_S)

    with pytest.raises(ValueError, match="the third"):
        sync.run_copies(work, 3, "foqs-copy", lambda error: over.set())


async def test_work_that_runs_to_the_end_does_so_though_its_caller_is_cancelled() -> None:
    began, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await gate.wait()
        ended.set()

    caller = asyncio.create_task(aio.run_to_the_end(work))
    await began.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    gate.set()
    await ended.wait()


def test_signals_are_left_alone_beside_the_main_thread() -> None:
    def enter() -> bool:
        with sync.stop_on_signals(lambda: None):
            return True

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(enter).result(PATIENCE_S)


async def test_signals_mean_afterwards_what_they_meant_before() -> None:
    heard: list[str] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: heard.append("program"))
    try:
        with aio.stop_on_signals(lambda: heard.append("worker")):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == ["worker", "program"]
