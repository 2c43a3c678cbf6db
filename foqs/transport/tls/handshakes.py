"""The turns of TLS handshakes: a step of one takes up to some milliseconds of the event loop, and anybody can ask."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

SHARE_OF_LOOP_MAX = 0.25
"""The part of the event loop's time that handshakes take while others wait for it."""
AHEAD_S_MAX = 0.01
"""Time of the first handshakes after a pause, which do not wait for a turn."""
WAITING_MAX = 1_000
"""Handshakes that wait for a turn. A further one takes a place of the address that has the most, or is refused."""
STEP_COUNTED_S_MAX = 0.1
"""The most that one step counts, in seconds. The process stood still in a longer one, which owes others no time."""
_ROUNDING_S = 1e-6


class Shaker(Protocol):
    """A connection in its handshake."""

    @property
    def address(self) -> str:
        """The address of the peer. Addresses have turns."""

    def shake(self) -> None:
        """Do the next step of the handshake."""

    def turn_away(self) -> None:
        """Give the handshake up, because it has lost its place to another address."""


class Handshakes:
    """Bounds the part of the event loop's time that handshakes take.

    Each step is measured, and the next ones wait until its time is SHARE_OF_LOOP_MAX of the time since. Those that wait
    have turns by address, so a flood of one address delays the others by one step each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, perf_s: Callable[[], float]) -> None:
        """`perf_s` measures steps. It need not be the clock of the loop."""
        self._loop = loop
        self._perf_s = perf_s
        self._by_address: dict[str, deque[Shaker]] = {}
        """Waiting handshakes by address, in the order of their turns."""
        self._left_s = AHEAD_S_MAX
        """Time that handshakes may take now; negative after a step that took longer."""
        self._counted_at_s = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting_count = 0

    def ask(self, shaker: Shaker) -> bool:
        """Have the next step of a handshake done, now or in its turn. False if too many wait, of this address as well.

        A shaker does not ask again before that.
        """
        if not self.waiting_count and self._time_left_s() > 0:
            self._step(shaker)
            return True
        if self.waiting_count >= WAITING_MAX and not self._has_made_room(shaker.address):
            return False
        self._by_address.setdefault(shaker.address, deque()).append(shaker)
        self.waiting_count += 1
        self._set_timer()
        return True

    def _has_made_room(self, address: str) -> bool:
        """Turn the newest handshake of the address with the most away. False if that would leave it with fewer."""
        most = max(self._by_address, key=lambda one: len(self._by_address[one]))
        if len(self._by_address[most]) <= len(self._by_address.get(address, ())) + 1:
            return False
        last = self._by_address[most].pop()
        self.waiting_count -= 1
        last.turn_away()
        return True

    def leave(self, shaker: Shaker) -> None:
        """Let a shaker that is lost have no turn."""
        waiting = self._by_address.get(shaker.address)
        if waiting is not None and shaker in waiting:
            waiting.remove(shaker)
            self.waiting_count -= 1
            if not waiting:
                del self._by_address[shaker.address]

    def _set_timer(self) -> None:
        if self._timer is None and self.waiting_count:
            pause_s = max(0.0, -self._time_left_s() / SHARE_OF_LOOP_MAX)
            self._timer = self._loop.call_later(pause_s, self._turn)

    def _turn(self) -> None:
        """Do one step in a turn of the event loop."""
        self._timer = None
        try:
            if self.waiting_count and self._time_left_s() > -_ROUNDING_S:
                self._step(self._next())
        finally:
            self._set_timer()

    def _next(self) -> Shaker:
        """Take the first handshake of the address whose turn it is, and put the address behind all others."""
        address = next(iter(self._by_address))
        waiting = self._by_address.pop(address)
        shaker = waiting.popleft()
        if waiting:
            self._by_address[address] = waiting
        self.waiting_count -= 1
        return shaker

    def _step(self, shaker: Shaker) -> None:
        began_s = self._perf_s()
        try:
            shaker.shake()
        finally:
            self._left_s -= min(STEP_COUNTED_S_MAX, self._perf_s() - began_s)

    def _time_left_s(self) -> float:
        now_s = self._loop.time()
        self._left_s = min(AHEAD_S_MAX, self._left_s + (now_s - self._counted_at_s) * SHARE_OF_LOOP_MAX)
        self._counted_at_s = now_s
        return self._left_s
