from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from foqs.client import gathering
from foqs.client.aio_gathering import TaskGatherer
from foqs.client.errors import ClientClosedError, OutcomeUnknownError
from foqs.client.gathering import Gatherer, Lane, Ticket, deliver
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem
from foqs.client.sync_gathering import RunBatch, ThreadGatherer
from foqs.model.calls import EnqueueResult
from foqs.model.errors import OverloadedError, RateLimitedError, TooLargeError

LANE: Lane = ("ns", False)
PATIENCE_S = 10.0


def item(name: str, size: int = 0) -> NewItem:
    return NewItem(name, bytes(size))


def ids_of(items: Sequence[NewItem]) -> EnqueueResult:
    return EnqueueResult([f"id-{item.topic}" for item in items])


class GatedCalls:
    """Stands for the wire: every call waits for its permit. Blocking and asyncio flavours."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.outcome: Callable[[Sequence[NewItem]], EnqueueResult] = ids_of

    def run(self, lane: Lane, items: Sequence[NewItem]) -> EnqueueResult:
        self.batches.append([item.topic for item in items])
        self.began.release()
        assert self.permits.acquire(timeout=PATIENCE_S)
        return self.outcome(items)


class WatchedGatherer(ThreadGatherer):
    """Lets a test wait until so many enqueues wait."""

    def __init__(self, items_max: int, wait_ms_max: int, run_batch: RunBatch) -> None:
        super().__init__(items_max, wait_ms_max, run_batch)
        add = self._gatherer.add

        def announced(lane: Lane, ticket: Ticket) -> bool:
            self._room.notify_all()
            return add(lane, ticket)

        self._gatherer.add = announced  # type: ignore[method-assign]

    def until_waiting(self, count: int) -> None:
        with self._room:
            assert self._room.wait_for(lambda: self._gatherer._waiting_count == count, PATIENCE_S)


def test_what_comes_while_a_call_is_in_flight_goes_together_in_the_next_one() -> None:
    gatherer = Gatherer(items_max=3)
    tickets = [gatherer.ticket(item(name)) for name in "abcdef"]
    assert gatherer.add(LANE, tickets[0])
    assert gatherer.take(LANE) == tickets[:1]
    assert not any(gatherer.add(LANE, ticket) for ticket in tickets[1:])
    assert gatherer.finish(LANE) is tickets[1]
    assert gatherer.take(LANE) == tickets[1:4]
    assert gatherer.finish(LANE) is tickets[4]
    assert gatherer.take(LANE) == tickets[4:]
    assert gatherer.finish(LANE) is None
    assert gatherer.add(LANE, gatherer.ticket(item("g"))), "an idle lane is led by whoever comes"


def test_lanes_do_not_wait_for_each_other() -> None:
    gatherer = Gatherer(items_max=3)
    assert gatherer.add(("a", False), gatherer.ticket(item("t")))
    assert gatherer.add(("b", False), gatherer.ticket(item("t")))
    assert gatherer.add(("a", True), gatherer.ticket(item("t")))


def test_a_call_is_bounded_in_bytes() -> None:
    gatherer = Gatherer(items_max=1_000)
    tickets = [gatherer.ticket(item("t", ENQUEUE_BYTES_MAX // 3)) for _ in range(3)]
    for ticket in tickets:
        gatherer.add(LANE, ticket)
    assert gatherer.take(LANE) == tickets[:2]


def test_an_item_that_no_call_can_carry_is_refused_at_once() -> None:
    with pytest.raises(TooLargeError):
        Gatherer(items_max=1).ticket(item("t", ENQUEUE_BYTES_MAX))


def test_room_ends_at_the_bound_of_items_and_at_that_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WAITING_ITEMS_MAX", 2)
    gatherer = Gatherer(items_max=10)
    ticket = gatherer.ticket(item("t"))
    for _ in range(2):
        assert gatherer.has_room(ticket)
        gatherer.add(LANE, gatherer.ticket(item("t")))
    assert not gatherer.has_room(ticket)
    gatherer.take(LANE)
    assert gatherer.has_room(ticket)
    monkeypatch.setattr(gathering, "WAITING_BYTES_MAX", ticket.bytes - 1)
    assert not gatherer.has_room(ticket)


def test_a_withdrawn_enqueue_is_in_no_call() -> None:
    gatherer = Gatherer(items_max=10)
    first, second = gatherer.ticket(item("a")), gatherer.ticket(item("b"))
    gatherer.add(LANE, first)
    gatherer.add(LANE, second)
    assert gatherer.withdraw(LANE, second)
    assert gatherer.take(LANE) == [first]
    assert not gatherer.withdraw(LANE, first)
    assert not gatherer.withdraw(LANE, second)


def test_each_ticket_gets_its_own_outcome() -> None:
    gatherer = Gatherer(items_max=10)
    tickets = [gatherer.ticket(item(name)) for name in "ab"]
    deliver(tickets, EnqueueResult(["1-1", ""], {1: TooLargeError("big")}))
    assert tickets[0].result() == "1-1"
    with pytest.raises(TooLargeError):
        tickets[1].result()
    deliver(tickets, RateLimitedError("busy", retry_after_ms=7))
    errors = [ticket.error for ticket in tickets]
    assert [type(error) for error in errors] == [RateLimitedError] * 2
    assert errors[0] is not errors[1]
    deliver(tickets, KeyboardInterrupt())
    assert all(isinstance(ticket.error, OutcomeUnknownError) for ticket in tickets)


def test_threads_share_calls_and_each_gets_its_id() -> None:
    calls = GatedCalls()
    gatherer = WatchedGatherer(1_000, 60_000, calls.run)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(gatherer.enqueue, LANE, item("first"))
        assert calls.began.acquire(timeout=PATIENCE_S)
        others = [threads.submit(gatherer.enqueue, LANE, item(f"n{n}")) for n in range(8)]
        gatherer.until_waiting(8)
        calls.permits.release(2)
        assert first.result(PATIENCE_S) == "id-first"
        assert [other.result(PATIENCE_S) for other in others] == [f"id-n{n}" for n in range(8)]
    assert [len(batch) for batch in calls.batches] == [1, 8]
    assert not gatherer._gatherer._lanes


def test_the_error_of_a_shared_call_reaches_every_thread_of_it() -> None:
    calls = GatedCalls()
    gatherer = WatchedGatherer(1_000, 60_000, calls.run)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(gatherer.enqueue, LANE, item("first"))
        assert calls.began.acquire(timeout=PATIENCE_S)
        others = [threads.submit(gatherer.enqueue, LANE, item("n")) for _ in range(2)]
        gatherer.until_waiting(2)

        def refuse(items: Sequence[NewItem]) -> EnqueueResult:
            raise RateLimitedError("busy")

        calls.outcome = refuse
        calls.permits.release(2)
        failures = [future.exception(PATIENCE_S) for future in [first, *others]]
    assert [type(failure) for failure in failures] == [RateLimitedError] * 3


def test_a_thread_whose_turn_does_not_come_in_time_gives_up_with_nothing_sent() -> None:
    calls = GatedCalls()
    gatherer = WatchedGatherer(1_000, 20, calls.run)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(gatherer.enqueue, LANE, item("first"))
        assert calls.began.acquire(timeout=PATIENCE_S)
        with pytest.raises(OverloadedError, match="turn"):
            gatherer.enqueue(LANE, item("late"))
        calls.permits.release()
        assert first.result(PATIENCE_S) == "id-first"
    assert calls.batches == [["first"]]


def test_a_full_waiting_room_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WAITING_ITEMS_MAX", 0)
    gatherer = WatchedGatherer(1_000, 1, GatedCalls().run)
    with pytest.raises(OverloadedError, match="too many"):
        gatherer.enqueue(LANE, item("a"))


def test_tasks_share_calls_and_each_gets_its_id() -> None:
    async def scenario() -> None:
        gate, began = asyncio.Event(), asyncio.Event()
        batches: list[int] = []

        async def run(lane: Lane, items: Sequence[NewItem]) -> EnqueueResult:
            batches.append(len(items))
            began.set()
            await gate.wait()
            return ids_of(items)

        gatherer = TaskGatherer(1_000, 60_000, run)
        first = asyncio.create_task(gatherer.enqueue(LANE, item("first")))
        await began.wait()
        others = [asyncio.create_task(gatherer.enqueue(LANE, item(f"n{n}"))) for n in range(5)]
        cancelled = others.pop()
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.set()
        assert await first == "id-first"
        assert await asyncio.gather(*others) == [f"id-n{n}" for n in range(4)]
        assert batches == [1, 4]
        await gatherer.close()

    asyncio.run(scenario())


def test_closing_ends_the_tasks_and_fails_what_waits() -> None:
    async def scenario() -> None:
        began = asyncio.Event()

        async def run(lane: Lane, items: Sequence[NewItem]) -> EnqueueResult:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

        gatherer = TaskGatherer(1_000, 60_000, run)
        first = asyncio.create_task(gatherer.enqueue(LANE, item("first")))
        await began.wait()
        second = asyncio.create_task(gatherer.enqueue(LANE, item("second")))
        await asyncio.sleep(0)
        await gatherer.close()
        with pytest.raises(OutcomeUnknownError):
            await first
        with pytest.raises(ClientClosedError):
            await second

    asyncio.run(scenario())


def test_the_lead_passes_on_when_the_heir_gave_up_waiting() -> None:
    """An interrupt reaches a waiting thread at the moment when the lead does."""
    calls = GatedCalls()
    gatherer = WatchedGatherer(1, 60_000, calls.run)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(gatherer.enqueue, LANE, item("first"))
        assert calls.began.acquire(timeout=PATIENCE_S)
        heir = gatherer._gatherer.ticket(item("interrupted"))
        with gatherer._room:
            gatherer._gatherer.add(LANE, heir)
            heir.wakeup = threading.Event()
        last: Future[str] = threads.submit(gatherer.enqueue, LANE, item("last"))
        gatherer.until_waiting(2)
        calls.permits.release(2)
        assert heir.wakeup.wait(PATIENCE_S)
        assert heir.leads
        assert gatherer._leave(LANE, heir)
        assert last.result(PATIENCE_S) == "id-last"
        assert first.result(PATIENCE_S) == "id-first"
    assert calls.batches == [["first"], ["last"]]
