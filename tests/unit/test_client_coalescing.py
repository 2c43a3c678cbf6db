from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from foqs.client import coalescing
from foqs.client.addresses import Address, AddressBook
from foqs.client.aio.coalescer import AsyncEnqueueCoalescer
from foqs.client.client_errors import ClientClosedError, NotSentError, OutcomeUnknownError
from foqs.client.client_options import monotonic_ms
from foqs.client.coalescing import EnqueueQueues, Lane, PendingEnqueue, complete, deadline_of
from foqs.client.flows import Terms
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, NewItem
from foqs.client.retry import RetryPolicy
from foqs.client.shared_enqueue import CallOutcome
from foqs.client.sync.coalescer import EnqueueCoalescer, RunBatch
from foqs.client.sync.monitor import closed_gate
from foqs.model.errors import OverloadedError, RateLimitedError, TooLargeError
from tests.support.waiting import PATIENCE_S

A = Address("a", 1)
LANE: Lane = ("ns", False, None, -1, ())


def item(name: str, size: int = 0) -> NewItem:
    return NewItem(name, bytes(size))


def ids_of(items: Sequence[NewItem]) -> CallOutcome:
    return CallOutcome([f"id-{item.topic}" for item in items])


def terms_of(wait_ms_max: int, clock_ms: Callable[[], int] = monotonic_ms, deadline_ms: int = 0) -> Terms:
    """Those of a client that repeats nothing, and whose enqueues wait so long for their turn."""
    return Terms(RetryPolicy(deadline_ms=deadline_ms), wait_ms_max, clock_ms, lambda: 0.5, AddressBook([A], 0))


def queues_of(items_max: int, now_ms: int = 0, wait_ms_max: int = 60_000) -> EnqueueQueues:
    return EnqueueQueues(items_max, terms_of(wait_ms_max, lambda: now_ms))


def no_pause(pause_ms: int) -> None:
    raise AssertionError(pause_ms)


async def no_async_pause(pause_ms: int) -> None:
    raise AssertionError(pause_ms)


def pendings(queues: EnqueueQueues, names: str) -> list[PendingEnqueue]:
    return [queues.pending(item(name), None) for name in names]


class GatedCalls:
    """Stands for the wire: every call waits for its permit."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.deadlines: list[int | None] = []
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def run(self, lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        self.batches.append([item.topic for item in items])
        self.deadlines.append(deadline_at_ms)
        self.began.release()
        assert self.permits.acquire(timeout=PATIENCE_S)
        return ids_of(items)


class WatchedCoalescer(EnqueueCoalescer):
    """Lets a test wait until so many enqueues wait."""

    def __init__(self, items_max: int, wait_ms_max: int, run_batch: RunBatch) -> None:
        super().__init__(items_max, terms_of(wait_ms_max), run_batch, no_pause)
        add = self._queues.add

        def announced(lane: Lane, pending: PendingEnqueue) -> bool:
            self._room.notify_all()
            return add(lane, pending)

        self._queues.add = announced  # type: ignore[method-assign]

    def until_waiting(self, count: int) -> None:
        with self._room:
            assert self._room.wait_for(lambda: self._queues._waiting_count == count, PATIENCE_S)


@contextmanager
def behind_first(calls: GatedCalls, coalescer: EnqueueCoalescer) -> Iterator[ThreadPoolExecutor]:
    """Threads for enqueues that come while the call of a first one is in flight, which ends well."""
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(coalescer.enqueue, LANE, item("first"))
        assert calls.began.acquire(timeout=PATIENCE_S)
        yield threads
        assert first.result(PATIENCE_S) == "id-first"


def test_what_comes_while_a_call_is_in_flight_goes_together_in_the_next_one() -> None:
    queues = queues_of(3)
    waiting = pendings(queues, "abcdef")
    assert queues.add(LANE, waiting[0])
    assert queues.take(LANE) == waiting[:1]
    assert not any(queues.add(LANE, pending) for pending in waiting[1:])
    assert queues.finish(LANE)
    assert queues.leads(LANE, waiting[1])
    assert queues.take(LANE) == waiting[1:4]
    assert queues.finish(LANE)
    assert queues.take(LANE) == waiting[4:]
    assert not queues.finish(LANE)
    assert queues.add(LANE, queues.pending(item("g"), None)), "an idle lane is led by whoever comes"


def test_lanes_do_not_wait_for_each_other() -> None:
    queues = queues_of(3)
    for lane in (LANE, ("b", *LANE[1:]), (LANE[0], True, *LANE[2:]), (*LANE[:4], (A,))):
        assert queues.add(lane, queues.pending(item("t"), None))


def test_a_call_is_bounded_in_bytes() -> None:
    queues = queues_of(1_000)
    waiting = [queues.pending(item("t", ENQUEUE_BYTES_MAX // 3), None) for _ in range(3)]
    for pending in waiting:
        queues.add(LANE, pending)
    assert queues.take(LANE) == waiting[:2]


def test_an_item_that_no_call_can_carry_is_refused_at_once() -> None:
    with pytest.raises(TooLargeError):
        queues_of(1).pending(item("t", ENQUEUE_BYTES_MAX), None)


def test_room_ends_at_the_bound_of_items_and_at_that_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "WAITING_ITEMS_MAX", 2)
    queues = queues_of(10)
    pending = queues.pending(item("t"), None)
    for _ in range(2):
        assert queues.has_room(pending)
        queues.add(LANE, queues.pending(item("t"), None))
    assert not queues.has_room(pending)
    queues.take(LANE)
    assert queues.has_room(pending)
    monkeypatch.setattr(coalescing, "WAITING_BYTES_MAX", pending.bytes - 1)
    assert not queues.has_room(pending)


def test_a_withdrawn_enqueue_is_in_no_call() -> None:
    queues = queues_of(10)
    first, second = pendings(queues, "ab")
    queues.add(LANE, first)
    queues.add(LANE, second)
    assert queues.cancel(LANE, second)
    assert queues.take(LANE) == [first]
    assert not queues.cancel(LANE, first)
    assert not queues.cancel(LANE, second)


def test_each_enqueue_gets_its_own_outcome() -> None:
    waiting = pendings(queues_of(10), "ab")
    complete(waiting, CallOutcome(["1-1", ""], {1: TooLargeError("big")}))
    assert waiting[0].result() == "1-1"
    with pytest.raises(TooLargeError):
        waiting[1].result()
    complete(waiting, RateLimitedError("busy", retry_after_ms=7))
    errors = [pending.error for pending in waiting]
    assert [type(error) for error in errors] == [RateLimitedError] * 2
    assert errors[0] is not errors[1]
    complete(waiting, KeyboardInterrupt())
    assert all(isinstance(pending.error, OutcomeUnknownError) for pending in waiting)


def with_deadlines(queues: EnqueueQueues, *deadlines_ms: int | None) -> list[PendingEnqueue]:
    waiting = [queues.pending(item("t"), deadline_ms) for deadline_ms in deadlines_ms]
    for pending in waiting:
        queues.add(LANE, pending)
    return waiting


def test_the_heir_is_who_has_the_most_time_of_those_that_go_together() -> None:
    queues = queues_of(3, wait_ms_max=500)
    waiting = with_deadlines(queues, 100, 400, 300, 900)
    assert queues.heir(LANE) is waiting[1], "the fourth does not fit into the call"
    assert queues.take(LANE, waiting[1]) == waiting[:3]
    assert queues.heir(LANE) is waiting[3]


def test_a_leader_carries_none_that_has_more_time_than_itself() -> None:
    queues = queues_of(10, wait_ms_max=500)
    waiting = with_deadlines(queues, 100, 200, None, 150)
    assert queues.take(LANE, waiting[1]) == waiting[:2]
    assert queues.take(LANE, waiting[2]) == waiting[2:]


def test_a_call_ends_at_the_last_deadline_of_what_it_carries_where_that_one_was_named() -> None:
    queues = queues_of(10, wait_ms_max=500)
    assert deadline_of(with_deadlines(queues, 100, 300, 200)) == 300
    assert deadline_of(with_deadlines(queues, 100, None)) is None
    assert deadline_of(with_deadlines(queues, 900, None)) == 900


def test_threads_share_calls_and_each_gets_its_id() -> None:
    calls = GatedCalls()
    coalescer = WatchedCoalescer(1_000, 60_000, calls.run)
    with behind_first(calls, coalescer) as threads:
        others = [threads.submit(coalescer.enqueue, LANE, item(f"n{n}")) for n in range(8)]
        coalescer.until_waiting(8)
        calls.permits.release(2)
        assert [other.result(PATIENCE_S) for other in others] == [f"id-n{n}" for n in range(8)]
    assert [len(batch) for batch in calls.batches] == [1, 8]
    assert not coalescer._queues._lanes


@pytest.mark.parametrize(
    ("wait_ms_max", "deadline_ms", "error"), [(20, None, OverloadedError), (60_000, 20, NotSentError)]
)
def test_a_thread_whose_turn_does_not_come_in_time_gives_up_with_nothing_sent(
    wait_ms_max: int, deadline_ms: int | None, error: type[Exception]
) -> None:
    calls = GatedCalls()
    coalescer = WatchedCoalescer(1_000, wait_ms_max, calls.run)
    with behind_first(calls, coalescer):
        with pytest.raises(error, match="turn" if deadline_ms is None else "deadline"):
            coalescer.enqueue(LANE, item("late"), deadline_ms and monotonic_ms() + deadline_ms)
        calls.permits.release()
    assert calls.batches == [["first"]]


def test_a_full_waiting_room_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "WAITING_ITEMS_MAX", 0)
    coalescer = WatchedCoalescer(1_000, 1, GatedCalls().run)
    with pytest.raises(OverloadedError, match="too many"):
        coalescer.enqueue(LANE, item("a"))


async def test_tasks_share_calls_and_each_gets_its_id() -> None:
    gate, began = asyncio.Event(), asyncio.Event()
    batches: list[int] = []

    async def run(lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        batches.append(len(items))
        began.set()
        await gate.wait()
        return ids_of(items)

    coalescer = AsyncEnqueueCoalescer(1_000, terms_of(60_000), run, no_async_pause)
    first = asyncio.create_task(coalescer.enqueue(LANE, item("first")))
    await began.wait()
    others = [asyncio.create_task(coalescer.enqueue(LANE, item(f"n{n}"))) for n in range(5)]
    cancelled = others.pop()
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    gate.set()
    assert await first == "id-first"
    assert await asyncio.gather(*others) == [f"id-n{n}" for n in range(4)]
    assert batches == [1, 4]
    await coalescer.close()


async def test_closing_ends_the_tasks_and_fails_what_waits() -> None:
    began = asyncio.Event()

    async def run(lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    coalescer = AsyncEnqueueCoalescer(1_000, terms_of(60_000), run, no_async_pause)
    first = asyncio.create_task(coalescer.enqueue(LANE, item("first")))
    await began.wait()
    second = asyncio.create_task(coalescer.enqueue(LANE, item("second")))
    await asyncio.sleep(0)
    await coalescer.close()
    with pytest.raises(OutcomeUnknownError):
        await first
    with pytest.raises(ClientClosedError):
        await second


def test_the_lead_passes_on_when_the_heir_gave_up_waiting() -> None:
    """An interrupt reaches a waiting thread at the moment when the lead does."""
    calls = GatedCalls()
    coalescer = WatchedCoalescer(1, 60_000, calls.run)
    with behind_first(calls, coalescer) as threads:
        heir = coalescer._queues.pending(item("interrupted"), None)
        with coalescer._room:
            coalescer._queues.add(LANE, heir)
            heir.wakeup = closed_gate()
        last: Future[str] = threads.submit(coalescer.enqueue, LANE, item("last"))
        coalescer.until_waiting(2)
        calls.permits.release(2)
        assert heir.wakeup.acquire(timeout=PATIENCE_S)
        assert coalescer._queues.leads(LANE, heir)
        coalescer._let_go(LANE, heir, KeyboardInterrupt())
        assert last.result(PATIENCE_S) == "id-last"
    assert calls.batches == [["first"], ["last"]]


def test_what_a_signal_raises_in_a_leader_reaches_it_as_it_is_and_the_others_have_an_unknown_outcome() -> None:
    class TimeLimitError(Exception):
        """As task queues raise it in the middle of anything."""

    calls = GatedCalls()

    def run(lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        result = calls.run(lane, items, deadline_at_ms)
        if items[0].topic == "second":
            raise TimeLimitError
        return result

    coalescer = WatchedCoalescer(1_000, 60_000, run)
    with behind_first(calls, coalescer) as threads:
        second = threads.submit(coalescer.enqueue, LANE, item("second"), monotonic_ms() + 60_000)
        coalescer.until_waiting(1)
        third = threads.submit(coalescer.enqueue, LANE, item("third"), monotonic_ms() + 50_000)
        coalescer.until_waiting(2)
        calls.permits.release(2)
        assert isinstance(second.exception(PATIENCE_S), TimeLimitError)
        assert isinstance(third.exception(PATIENCE_S), OutcomeUnknownError)
        calls.permits.release()
        assert threads.submit(coalescer.enqueue, LANE, item("last")).result(PATIENCE_S) == "id-last"


def test_threads_with_deadlines_share_calls_and_each_waits_no_longer_than_its_own() -> None:
    calls = GatedCalls()
    coalescer = WatchedCoalescer(1_000, 60_000, calls.run)
    now_ms = monotonic_ms()
    with behind_first(calls, coalescer) as threads:
        short = threads.submit(coalescer.enqueue, LANE, item("short"), now_ms + 500)
        coalescer.until_waiting(1)
        long = threads.submit(coalescer.enqueue, LANE, item("long"), now_ms + 50_000)
        coalescer.until_waiting(2)
        calls.permits.release()
        assert calls.began.acquire(timeout=PATIENCE_S)
        failure = short.exception(PATIENCE_S)
        calls.permits.release()
        assert long.result(PATIENCE_S) == "id-long"
    assert isinstance(failure, OutcomeUnknownError)
    assert calls.batches == [["first"], ["short", "long"]]
    assert calls.deadlines == [None, now_ms + 50_000]


async def test_a_task_waits_no_longer_than_its_deadline_and_disturbs_no_other() -> None:
    gate, began = asyncio.Event(), asyncio.Event()
    deadlines = []

    async def run(lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        deadlines.append(deadline_at_ms)
        began.set()
        await gate.wait()
        return ids_of(items)

    coalescer = AsyncEnqueueCoalescer(1_000, terms_of(60_000), run, no_async_pause)
    first = asyncio.create_task(coalescer.enqueue(LANE, item("first"), monotonic_ms() + 200))
    await began.wait()
    with pytest.raises(NotSentError, match="deadline"):
        await coalescer.enqueue(LANE, item("late"), monotonic_ms() + 20)
    patient = asyncio.create_task(coalescer.enqueue(LANE, item("patient")))
    with pytest.raises(OutcomeUnknownError, match="deadline"):
        await first
    gate.set()
    assert await patient == "id-patient"
    assert deadlines[0] is not None
    assert deadlines[1:] == [None]
    await coalescer.close()
