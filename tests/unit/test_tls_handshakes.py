"""The turns of handshakes: how much of the loop's time they take, and whose is next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foqs.transport.tls import handshakes as module
from foqs.transport.tls.handshakes import AHEAD_S_MAX, SHARE_OF_LOOP_MAX, WAITING_MAX, Handshakes


class Loop:
    """Runs timers at their times, and takes no time itself."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        self._timers.append((self.now_s + delay_s, call))
        return call

    def run(self, until_s: float) -> None:
        while self._timers and min(self._timers, key=lambda one: one[0])[0] <= until_s:
            due = min(self._timers, key=lambda one: one[0])
            self._timers.remove(due)
            self.now_s = max(self.now_s, due[0])
            due[1]()
        self.now_s = max(self.now_s, until_s)


@dataclass(eq=False)
class Caller:
    loop: Loop
    address: str
    takes_s: float = 0.002
    steps_at_s: list[float] = field(default_factory=list)
    is_turned_away: bool = False

    def turn_away(self) -> None:
        self.is_turned_away = True

    def shake(self) -> None:
        self.steps_at_s.append(self.loop.now_s)
        self.loop.now_s += self.takes_s


def made() -> tuple[Loop, Handshakes]:
    loop: Any = Loop()
    return loop, Handshakes(loop, loop.time)


def test_a_lone_handshake_does_not_wait() -> None:
    loop, handshakes = made()
    caller = Caller(loop, "a")
    assert handshakes.ask(caller)
    assert caller.steps_at_s == [100.0]
    assert handshakes.waiting_count == 0


def test_a_flood_takes_a_quarter_of_the_loop_s_time() -> None:
    loop, handshakes = made()
    callers = [Caller(loop, f"{at % 7}") for at in range(WAITING_MAX)]
    assert [caller for caller in callers if not handshakes.ask(caller)] == []
    loop.run(102.0)
    done_count = sum(len(caller.steps_at_s) for caller in callers)
    assert done_count * 0.002 <= 2.0 * SHARE_OF_LOOP_MAX + AHEAD_S_MAX + 0.002
    assert done_count * 0.002 >= 2.0 * SHARE_OF_LOOP_MAX * 0.9
    assert handshakes.waiting_count == WAITING_MAX - done_count


def test_addresses_have_turns_so_a_flood_of_one_delays_another_by_one_step() -> None:
    loop, handshakes = made()
    flood = [Caller(loop, "flood", takes_s=0.02) for _ in range(500)]
    for caller in flood:
        handshakes.ask(caller)
    other = Caller(loop, "other", takes_s=0.001)
    assert handshakes.ask(other)
    loop.run(101.0)
    assert len(other.steps_at_s) == 1
    at_s = other.steps_at_s[0]
    assert sum(step_s < at_s for caller in flood for step_s in caller.steps_at_s) <= 2


def test_one_that_is_lost_has_no_turn_and_leaves_its_place() -> None:
    loop, handshakes = made()
    callers = [Caller(loop, "a", takes_s=0.1) for _ in range(3)]
    for caller in callers:
        handshakes.ask(caller)
    handshakes.leave(callers[1])
    handshakes.leave(callers[1])
    assert handshakes.waiting_count == 1
    loop.run(110.0)
    assert [len(caller.steps_at_s) for caller in callers] == [1, 0, 1]
    assert handshakes.waiting_count == 0


def test_beyond_the_bound_a_handshake_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    loop, handshakes = made()
    assert [handshakes.ask(Caller(loop, "a", takes_s=0.1)) for _ in range(4)] == [True, True, True, False]


def test_an_address_that_fills_all_places_gives_one_to_another(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    loop, handshakes = made()
    flood = [Caller(loop, "flood", takes_s=0.1) for _ in range(4)]
    assert all(handshakes.ask(caller) for caller in flood)
    others = [Caller(loop, "other"), Caller(loop, "third")]
    assert [handshakes.ask(caller) for caller in others] == [True, True]
    assert [caller.is_turned_away for caller in flood] == [False, False, True, True], "its newest ones give way"
    assert handshakes.waiting_count == 3
    assert not handshakes.ask(Caller(loop, "fourth")), "no address has more than one"
    assert not handshakes.ask(Caller(loop, "flood"))
    loop.run(110.0)
    assert [len(caller.steps_at_s) for caller in [*flood, *others]] == [1, 1, 0, 0, 1, 1]
    assert handshakes.waiting_count == 0


def test_a_process_that_stood_still_within_a_step_serves_handshakes_again_at_once() -> None:
    loop, handshakes = made()
    handshakes.ask(Caller(loop, "a", takes_s=60.0))
    other = Caller(loop, "b")
    assert handshakes.ask(other)
    began_s = loop.now_s
    loop.run(began_s + 1.0)
    assert len(other.steps_at_s) == 1


def test_a_step_that_fails_does_not_end_the_turns() -> None:
    loop, handshakes = made()

    class Broken(Caller):
        def shake(self) -> None:
            super().shake()
            raise ValueError("broken")

    first, last = Caller(loop, "a", takes_s=0.1), Caller(loop, "c")
    handshakes.ask(first)
    handshakes.ask(Broken(loop, "b"))
    handshakes.ask(last)
    for _ in range(2):
        try:
            loop.run(110.0)
        except ValueError:
            continue
    assert len(last.steps_at_s) == 1
