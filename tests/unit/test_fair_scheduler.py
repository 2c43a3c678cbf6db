"""FairScheduler of the event loop: bounded, and shared by addresses before connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Any, cast

import pytest

from foqs.model import limits
from foqs.transport.fair_scheduler import FairScheduler, RecentWork, SchedulerLimits, StandingQueue, TurnTaker

A = ("a", True)


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(partial(callback, *arguments))

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.later.append((delay_s, partial(callback, *arguments)))

    def create_future(self) -> Waiter:
        return Waiter()

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class Waiter:
    """A future that may be asked for again and again."""

    is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: None) -> None:
        self.is_done = True

    def __await__(self) -> Generator[None, None, None]:
        try:
            while not self.is_done:
                yield
        finally:
            self.is_done = True


class Peer:
    """Has frames to give, and notes each."""

    def __init__(
        self, scheduler: FairScheduler, name: str, address: str, frames: int, taken: list[str], enqueues: bool = True
    ) -> None:
        self.scheduler, self.name, self.address, self.frames, self.taken = scheduler, name, address, frames, taken
        self.flow = (address, enqueues)

    def take_turn(self, frames_max: int) -> None:
        for _ in range(min(frames_max, self.frames)):
            if not self.scheduler.has_work_left(self.flow):
                break
            self.frames -= 1
            self.taken.append(self.name)
            self.scheduler.spend(self.address, 0, 100, 0.0)
        if self.frames:
            self.scheduler.wait(cast(TurnTaker, self), self.flow)


def make(work_max: int) -> tuple[Loop, FairScheduler, list[str]]:
    loop = Loop()
    return loop, FairScheduler(cast(Any, loop), SchedulerLimits(work_max, work_max, 100, 100, 100)), []


def wait(scheduler: FairScheduler, *peers: Peer) -> None:
    for peer in peers:
        scheduler.wait(cast(TurnTaker, peer), peer.flow)


def is_over(call: Coroutine[Any, Any, None]) -> bool:
    """Whether it has ended, or does so now that it is run until it waits."""
    try:
        call.send(None)
    except (StopIteration, RuntimeError):  # The second says that it had ended before.
        return True
    return False


def test_a_frame_is_overdue_that_waits_as_long_as_it_may_and_a_queue_of_short_waits_never_is() -> None:
    queue = StandingQueue(1_000)
    for now in range(5, 15):
        queue.began(float(now))
        queue.began(now + 0.5)
        assert not queue.is_overdue(now + 0.999)
        queue.ended()
    queue.began(20.0)
    assert queue.is_overdue(21.0)


def test_what_comes_at_once_after_an_overdue_frame_is_overdue_and_what_comes_later_is_not() -> None:
    queue, moment = StandingQueue(1_000), limits.TURN_CATCH_UP_MS / 1000
    queue.began(5.0)
    now = 6.0
    for _ in range(10):
        assert queue.is_overdue(now)
        queue.ended()
        queue.began(now + moment / 2)
        now += 2 * moment
    assert queue.is_overdue(now)
    queue.ended()
    queue.began(now + 1.5 * moment)
    assert not queue.is_overdue(now + 2 * moment)


def test_a_queue_is_flushed_no_longer_than_a_frame_may_wait_however_fast_they_come() -> None:
    queue, moment = StandingQueue(1_000), limits.TURN_CATCH_UP_MS / 1000
    queue.began(5.0)
    now = 6.0
    refused_until = taken_until = 0.0
    while now < 9.0:
        if queue.is_overdue(now):
            refused_until = now
        else:
            taken_until = now
        queue.ended()
        queue.began(now)
        now += moment / 4
    assert 7.0 - moment < refused_until < 7.0
    assert taken_until > 9.0 - moment, "each waits but briefly by then"


def test_a_turn_takes_no_more_than_its_bound_whoever_waits() -> None:
    loop, scheduler, taken = make(20)
    wait(scheduler, *[Peer(scheduler, f"p{n}", f"address {n % 3}", 1_000, taken) for n in range(9)])
    loop.turn()
    assert len(taken) == 20
    assert not scheduler.is_free(("address 0", True), 100)
    loop.turn()
    assert len(taken) == 40


def test_turns_are_shorter_while_more_than_one_address_sends_frames() -> None:
    loop, taken = Loop(), list[str]()
    scheduler = FairScheduler(cast(Any, loop), SchedulerLimits(40, 10, 100, 100, 100))
    wait(scheduler, *[Peer(scheduler, "p", "a", 1, taken) for _ in range(1_000)])
    counts = []
    for others, passed_ms in ("", 0), ("", 0), ("b", limits.TURN_MEMORY_MS), ("", 3 * limits.TURN_MEMORY_MS), ("", 0):
        for address in others:
            scheduler.spend(address, 0, 0, 0.0)
        turn_counts = []
        for _ in range(4):  # Some of them are rests.
            taken.clear()
            loop.turn()
            turn_counts.append(len(taken))
            for _, end_penalty in loop.later:
                end_penalty()
        loop.now_s += passed_ms / 1000
        counts.append(max(turn_counts))
    assert counts == [40, 40, 10, 10, 40]


def test_fewer_enqueues_of_an_address_run_at_once_while_more_than_one_sends_frames() -> None:
    loop, taken = Loop(), list[str]()
    scheduler = FairScheduler(cast(Any, loop), SchedulerLimits(100, 100, 100, 6, 2))
    for _ in range(2):
        scheduler.started(A)
    assert scheduler.is_free(A, 100)
    scheduler.spend("a", 0, 0, 0.0)
    scheduler.spend("b", 0, 0, 0.0)
    wait(scheduler, Peer(scheduler, "a", "a", 1, taken))
    loop.turn()
    assert taken == []
    assert not scheduler.is_free(A, 100)
    assert scheduler.is_free(("a", False), 100)
    scheduler.ended(A, 1)
    loop.turn()
    assert taken == ["a"]


def test_who_sends_little_is_ahead_of_those_who_wait_but_only_with_a_little_in_each_turn() -> None:
    loop, scheduler, taken = make(8)
    good = ("good", True)
    wait(scheduler, *[Peer(scheduler, "flood", "flood", 1_000, taken) for _ in range(9)])
    for _ in range(3):
        loop.turn()
        assert not scheduler.is_free(("flood", True), 100)
        assert not scheduler.is_free(good, limits.TURN_AHEAD_BYTES_MAX + 1)
        for _ in range(limits.TURN_WORK_AHEAD_MAX):
            assert scheduler.is_free(good, 100)
            scheduler.spend("good", 0, 100, 0.0)
        assert not scheduler.is_free(good, 100)
    for number in range(8):
        scheduler.spend(f"address {number}", 0, 100, 0.0)
    assert not scheduler.is_free(("one more", True), 100), "all who are ahead have a bound"


def test_one_large_frame_holds_nobody_up_who_sends_little_and_two_of_different_addresses_do() -> None:
    _, scheduler, _ = make(8)
    scheduler.spend("x", limits.BATCH_ITEMS_MAX, 0, 0.0)
    assert scheduler.is_free(("y", True), 100)
    scheduler.spend("y", limits.BATCH_ITEMS_MAX, 0, 0.0)
    assert not scheduler.is_free(("z", True), 100)


def test_many_connections_get_one_address_no_more_than_one() -> None:
    loop, scheduler, taken = make(8 * limits.TURN_FRAMES_PER_CONNECTION_MAX)
    flood = [Peer(scheduler, "flood", "address 1", 1_000, taken) for _ in range(500)]
    wait(scheduler, *flood, Peer(scheduler, "good", "address 2", 1_000, taken))
    for _ in range(10):
        loop.turn()
    assert taken.count("good") == taken.count("flood") == len(taken) // 2


def test_what_an_address_takes_and_settles_has_half_of_its_turns_however_much_it_enqueues() -> None:
    loop, scheduler, taken = make(8 * limits.TURN_FRAMES_PER_CONNECTION_MAX)
    wait(scheduler, *[Peer(scheduler, "enqueues", "address", 1_000, taken) for _ in range(500)])
    wait(scheduler, *[Peer(scheduler, "settles", "address", 1_000, taken, enqueues=False) for _ in range(2)])
    for _ in range(10):
        loop.turn()
    assert taken.count("settles") == taken.count("enqueues") == len(taken) // 2


def test_a_frame_that_comes_alone_is_behind_one_of_each_address_at_most() -> None:
    loop, scheduler, taken = make(10**6)
    wait(scheduler, *[Peer(scheduler, "flood", "address 1", 50, taken) for _ in range(100)])
    wait(scheduler, Peer(scheduler, "good", "address 2", 1, taken))
    loop.turn()
    assert taken.index("good") == limits.TURN_FRAMES_PER_CONNECTION_MAX
    assert len(taken) == 5_001


def test_a_turn_is_free_again_when_nobody_waits() -> None:
    loop, scheduler, _ = make(limits.TURN_WORK_AHEAD_MAX)
    for _ in range(limits.TURN_WORK_AHEAD_MAX):
        assert scheduler.is_free(A, 100)
        scheduler.spend("a", 0, 0, 0.0)
    assert not scheduler.is_free(A, 100)
    assert len(loop.soon) == 1
    loop.turn()
    assert scheduler.is_free(A, 100)
    assert loop.soon == []


@pytest.mark.parametrize("by_refusals", [False, True])
@pytest.mark.parametrize("others_ms", [None, 0, 9 * limits.TURN_MEMORY_MS])
def test_an_address_that_had_most_of_a_turn_rests_while_others_send_frames(
    others_ms: int | None, by_refusals: bool
) -> None:
    """`others_ms`: since the last call of another address."""
    loop, scheduler, taken = make(20)
    took_s = limits.TURN_PENALTY_MS_MAX / 4_000
    began_s = perf_counter() - took_s
    scheduler.spend("flood", 0, 0, began_s)
    if others_ms is not None:
        scheduler.spend("good", 4 * limits.TURN_WORK_ELEMENTS, 0, began_s)
        if others_ms:
            loop.turn()
        loop.now_s += others_ms / 1000
    if by_refusals:
        for _ in range(20 * limits.TURN_REFUSALS):
            scheduler.spend_on_refusal("flood", perf_counter())
    else:
        scheduler.spend("flood", 50 * limits.TURN_WORK_ELEMENTS, 0, perf_counter())
    loop.turn()
    wait(scheduler, Peer(scheduler, "heavy", "flood", 1, taken), Peer(scheduler, "light", "good", 1, taken))
    loop.turn()
    if others_ms != 0:
        assert sorted(taken) == ["heavy", "light"]
        return
    loop.turn()
    assert taken == ["light"], "the others go on"
    ((penalty_s, end_penalty),) = loop.later
    assert limits.TURN_PENALTY_FACTOR * took_s <= penalty_s <= limits.TURN_PENALTY_MS_MAX / 1000
    end_penalty()
    loop.turn()
    assert taken == ["light", "heavy"]


def test_large_calls_of_an_address_that_rests_are_done_one_after_each_rest() -> None:
    loop, scheduler, taken = make(20)
    scheduler.spend("good", 4 * limits.TURN_WORK_ELEMENTS, 0, perf_counter())
    work = scheduler.spend("flood", 50 * limits.TURN_WORK_ELEMENTS, 0, perf_counter())
    calls = [scheduler.after_penalty("flood", work) for _ in range(3)]
    loop.turn()
    assert [is_over(call) for call in calls] == [False, False, False]
    calls.pop(0).close()
    wait(scheduler, Peer(scheduler, "flood", "flood", 1, taken, enqueues=False))
    for over in [True, False], [True, True]:
        wait(scheduler, Peer(scheduler, "good", "good", 1, taken))
        loop.turn()
        loop.turn()
        assert taken.pop() == "good", "the others go on"
        ((_, end_penalty),) = loop.later
        assert not is_over(calls[-1])
        loop.later.clear()
        end_penalty()
        loop.turn()
        assert [is_over(call) for call in calls] == over
    loop.turn()
    loop.turn()
    assert taken == []
    loop.later.pop()[1]()
    loop.turn()
    assert taken == ["flood"], "nothing more is read before"


def test_a_large_call_of_an_address_that_does_not_rest_goes_on_at_once() -> None:
    loop, scheduler, _ = make(20)
    call = scheduler.after_penalty("flood", scheduler.spend("flood", 50 * limits.TURN_WORK_ELEMENTS, 0, perf_counter()))
    loop.turn()
    assert is_over(call)


def test_no_address_rests_while_two_do_about_as_much() -> None:
    loop, scheduler, _ = make(20)
    for number in range(20):
        scheduler.spend("ab"[number % 2], 50 * limits.TURN_WORK_ELEMENTS, 0, perf_counter())
        loop.turn()
        loop.now_s += 0.001
    assert scheduler.is_free(("a", True), 100)
    assert scheduler.is_free(("b", True), 100)
    loop.now_s += 9 * limits.TURN_MEMORY_MS / 1000
    for address in ("b", "a", "a"):
        scheduler.spend(address, 50 * limits.TURN_WORK_ELEMENTS * (address == "a"), 0, perf_counter())
        loop.turn()
    assert not scheduler.is_free(("a", True), 100)
    assert scheduler.is_free(("b", True), 100)


def test_half_of_what_was_done_is_forgotten_after_a_while_and_all_after_a_long_time() -> None:
    recent, memory_s = RecentWork(), 1.001 * limits.TURN_MEMORY_MS / 1000
    recent.add({"a": 8.0}, 5.0)
    assert not recent.is_shared
    assert not recent.has_most("a"), "there are no others"
    recent.add({"b": 2.0}, 5.0)
    assert recent.is_shared
    assert recent.has_most("a")
    assert not recent.has_most("b")
    recent.add({"b": 1.0}, 5.0 + memory_s)
    assert not recent.has_most("a"), "4 to 2"
    recent.add({"a": 20.0}, 5.0 + 2 * memory_s)
    assert recent.has_most("a"), "22 to 1"
    recent.add({"a": 1.0}, 5.0 + 4.5 * memory_s)
    assert not recent.is_shared
    recent.add({"b": 1.0}, 1e9)
    assert not recent.is_shared


def test_a_rest_has_an_end_however_long_the_process_stood_still() -> None:
    loop, scheduler, _ = make(20)
    scheduler.spend("good", 0, 0, perf_counter() - 60)
    scheduler.spend("flood", 50 * limits.TURN_WORK_ELEMENTS, 0, perf_counter())
    loop.turn()
    loop.turn()
    ((penalty_s, _),) = loop.later
    assert penalty_s == limits.TURN_PENALTY_MS_MAX / 1000


def test_what_waits_for_others_takes_nothing_of_a_turn() -> None:
    loop, scheduler, taken = make(20)
    for number in range(4):
        for _ in range(100):
            scheduler.started((f"full {number}", True))
        wait(scheduler, Peer(scheduler, "full", f"full {number}", 1, taken))
    wait(scheduler, *[Peer(scheduler, "good", "good", 1, taken) for _ in range(20)])
    loop.turn()
    assert taken == ["good"] * 20


def test_enqueues_that_run_hold_up_no_more_than_enqueues() -> None:
    loop, scheduler, taken = make(20)
    for _ in range(100):
        scheduler.started(("address", True))
    wait(
        scheduler,
        Peer(scheduler, "enqueue", "address", 1, taken),
        Peer(scheduler, "ack", "address", 1, taken, enqueues=False),
    )
    loop.turn()
    assert taken == ["ack"]
    scheduler.ended(("address", True), 1)
    loop.turn()
    assert taken == ["ack", "enqueue"]


def test_elements_and_bytes_count_as_work() -> None:
    for element_count, size_bytes in ((limits.BATCH_ITEMS_MAX, 0), (0, 2 * limits.MIB)):
        _, scheduler, _ = make(100)
        scheduler.spend("a", element_count, size_bytes, 0.0)
        assert not scheduler.is_free(A, 100)


def test_a_guest_of_no_use_does_not_hold_up_the_others() -> None:
    loop, scheduler, taken = make(4)

    class Gone(Peer):
        def take_turn(self, frames_max: int) -> None:
            return None

    wait(
        scheduler,
        Gone(scheduler, "gone", "a", 1, taken),
        Peer(scheduler, "good", "b", 9, taken),
        Gone(scheduler, "gone", "a", 1, taken),
    )
    for _ in range(3):
        loop.turn()
    assert taken == ["good"] * 9
    assert scheduler.is_free(A, 100) or loop.soon


def test_an_address_with_too_many_calls_running_waits_for_one_to_end_and_the_others_do_not() -> None:
    loop, scheduler, taken = make(1_000)
    for _ in range(100):
        scheduler.started(("busy", True))
    assert not scheduler.is_free(("busy", True), 100)
    assert scheduler.is_free(("other", True), 100)
    wait(scheduler, Peer(scheduler, "busy", "busy", 1, taken), Peer(scheduler, "good", "other", 6, taken))
    for _ in range(3):
        loop.turn()
    assert taken == ["good"] * 6
    assert loop.soon == []
    scheduler.ended(("busy", True), 1)
    loop.turn()
    assert taken[6:] == ["busy"]


def test_turns_run_on_a_real_loop() -> None:
    async def main() -> list[str]:
        taken: list[str] = []
        scheduler = FairScheduler(asyncio.get_running_loop(), SchedulerLimits(3, 3, 100, 100, 100))
        wait(scheduler, Peer(scheduler, "p", "a", 10, taken))
        for _ in range(5):
            await asyncio.sleep(0)
        return taken

    assert asyncio.run(main()) == ["p"] * 10
