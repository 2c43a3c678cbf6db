"""A worker that gets nothing for long asks why, and logs the reasons once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from foqs import Dequeued, Item, Reason, ReasonCode, Worker
from foqs.client import worker_core
from foqs.client.worker_core import WHY_AFTER_MS, IdleTime
from foqs.testing import MemoryQueue
from tests.support.waiting import until_true

NS = "default"
PAUSED = Reason(ReasonCode.TOPIC_PAUSED, "dequeues of topic 't' are paused by an operator: night", topic="t")
NOBODY = Reason(ReasonCode.NOTHING_THERE, "topic 't' holds no item", topic="t")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="foqs.client"):
        yield caplog


def empty(*reasons: Reason) -> list[Item]:
    found = Dequeued([], [])
    found.why_empty = list(reasons)
    return found


def test_a_worker_asks_after_a_minute_without_items_and_then_once_a_minute(lines: pytest.LogCaptureFixture) -> None:
    idle, asked = IdleTime(), []
    for now_ms in range(0, 4 * WHY_AFTER_MS + 1, WHY_AFTER_MS // 6):
        if wants := idle.wants_why(now_ms):
            asked.append(now_ms // WHY_AFTER_MS)
        idle.note(NS, empty(PAUSED) if wants else [], now_ms)
    assert asked == [1, 2, 3, 4]
    assert lines.messages == [f"no items from {NS} for 60 s: {PAUSED.text}"], "the same reasons are logged once"


def test_other_reasons_are_logged_and_items_begin_anew(lines: pytest.LogCaptureFixture) -> None:
    idle = IdleTime()
    for minute, answer in enumerate([[], empty(PAUSED), empty(NOBODY, PAUSED), empty(), empty(PAUSED)]):
        assert idle.wants_why(minute * WHY_AFTER_MS) == (minute > 0)
        idle.note(NS, answer, minute * WHY_AFTER_MS)
    assert [line.partition(" s: ")[2] for line in lines.messages] == [
        PAUSED.text, f"{NOBODY.text}; {PAUSED.text}", PAUSED.text,
    ]  # fmt: skip
    with MemoryQueue() as queue:
        queue.client().enqueue(NS, "t", b"")
        idle.note(NS, queue.client().dequeue(NS, "t"), 5 * WHY_AFTER_MS)
    assert not idle.wants_why(9 * WHY_AFTER_MS)
    assert idle.wants_why(10 * WHY_AFTER_MS)


def test_an_older_host_says_nothing(lines: pytest.LogCaptureFixture) -> None:
    idle = IdleTime()
    for minute in range(3):
        idle.wants_why(minute * WHY_AFTER_MS)
        idle.note(NS, empty(), minute * WHY_AFTER_MS)
    assert lines.messages == []


def test_the_log_of_a_worker_names_the_pause_of_its_topic(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_core, "WHY_AFTER_MS", 0)
    with MemoryQueue() as queue:
        queue.client().enqueue(NS, "t", b"")
        queue.admin().set_topic_policy(NS, "t", dequeue_paused=True, reason="migration")
        worker = Worker(queue.client(), NS, "t", lambda item: None, wait=timedelta(0))
        running = threading.Thread(target=worker.run)
        running.start()
        until_true(lambda: any("topic 't' are paused by an operator: migration" in line for line in lines.messages))
        worker.stop()
        running.join()
