"""Whose frames are taken next, and whose are refused because they waited too long."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from math import inf
from time import perf_counter
from typing import Protocol

from foqs.core import limits

Place = tuple[str, bool]
"""In the round: an address, and whether it is for its enqueues or for all else."""


class TurnTaker(Protocol):
    """A connection that has frames waiting."""

    def take_turn(self, frames_max: int) -> None: ...


class StandingQueue:
    """How long the frames of a connection have waited for their turn; times are in seconds.

    The host sees but the head of a queue that is longer than the buffers of the two systems. So once a frame has waited
    too long, what comes at once after the last one has as well: the queue is flushed until there is a moment without a
    frame, however old it is (a queue that stands is overload: CoDel, Nichols and Jacobson 2012). But no longer than a
    frame may wait: by then the queue is gone, and what comes is new.
    """

    def __init__(self, wait_ms_max: int) -> None:
        self._wait_s_max = wait_ms_max / 1000
        self._since: float | None = None
        """Since when a frame has waited; None when none does."""
        self._flush_began_at = self._flushed_at = -inf
        """When the last flush began, and when a frame was looked at in it, last."""

    def began(self, now: float) -> None:
        """A frame waits; no matter if others do."""
        if self._since is None:
            self._since = now

    def ended(self) -> None:
        """No frame waits."""
        self._since = None

    def is_overdue(self, now: float) -> bool:
        """Whether what waits is refused now."""
        since = now if self._since is None else self._since
        is_next = since - self._flushed_at <= limits.TURN_CATCH_UP_MS / 1000
        is_flushed = is_next and now - self._flush_began_at < self._wait_s_max
        if not is_flushed and now - since >= self._wait_s_max:
            self._flush_began_at = now
            is_flushed = True
        if is_flushed:
            self._flushed_at = now
        return is_flushed


class Turns:
    """Who may start work in this turn of the event loop, so that no turn is long.

    Round robin over the addresses that have frames waiting, and over the connections of each: many connections
    get one address no more than one does. What an address enqueues and all else of it have a place each in the round:
    what it takes and settles, which makes the load less, is not behind all that it wants to add.

    A place with too many calls running has no turn until some end. An address that had most of a turn, while others
    have calls running, has none for as long as that took: these go on meanwhile.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work_max: int,
        work_shared_max: int,
        running_max: int,
        enqueues_running_max: int,
    ) -> None:
        self._loop = loop
        self._work_maxima = (work_max, min(work_max, work_shared_max))
        self._work_max = work_max
        """Of this turn."""
        self._running_max = {False: running_max, True: enqueues_running_max}
        self._work = 0.0
        self._work_by_address: Counter[str] = Counter()
        self._began_s = 0.0
        """Since when there is work in this turn, by `perf_counter`."""
        self._is_scheduled = False
        self._waiting: dict[Place, deque[TurnTaker]] = {}
        self._running: Counter[Place] = Counter()
        self._resting: set[str] = set()

    def is_free(self, place: Place) -> bool:
        """Whether work may start at once: nobody waits, and the turn and the place have some left."""
        return not self._waiting and self.has_work_left(place)

    def has_work_left(self, place: Place) -> bool:
        return self._work < self._work_max and self._may_start(place)

    def spend(self, address: str, element_count: int, size_bytes: int, began_s: float) -> None:
        """Count a frame; it was begun to be read at that time of `perf_counter`."""
        work = 1 + element_count // limits.TURN_WORK_ELEMENTS + size_bytes // limits.TURN_WORK_BYTES
        if not self._work_by_address:
            self._began_s = began_s
        self._work += work
        self._work_by_address[address] += work
        self._begin_soon()

    def spend_on_refusal(self) -> None:
        """Count a frame that was refused unread."""
        self._work += 1 / limits.TURN_REFUSALS
        self._begin_soon()

    def started(self, place: Place) -> None:
        self._running[place] += 1

    def ended(self, place: Place, count: int) -> None:
        """Calls ended, or take so long that others need not wait for them."""
        left = self._running[place] - count
        if left:
            self._running[place] = left
        else:
            del self._running[place]
        if self._waiting:
            self._begin_soon()

    def wait(self, taker: TurnTaker, place: Place) -> None:
        """Let `take_turn` be called when it is the taker's turn; `place`: that of its first frame."""
        self._waiting.setdefault(place, deque()).append(taker)
        self._begin_soon()

    def _may_start(self, place: Place) -> bool:
        return self._running[place] < self._running_max[place[1]] and place[0] not in self._resting

    def _is_shared(self) -> bool:
        """Whether more than one address has calls running."""
        addresses = (address for address, _ in self._running)
        first = next(addresses, None)
        return any(address != first for address in addresses)

    def _begin_rests(self) -> None:
        for address, work in self._work_by_address.items():
            is_most = work > max(self._work, self._work_max) / 2
            if is_most and any(other != address for other, _ in self._running):
                self._resting.add(address)
                self._loop.call_soon(self._rest, address, self._began_s)

    def _rest(self, address: str, began_s: float) -> None:
        """After a turn that was its, and the first steps of the calls that were started, which are most of the work."""
        rest_s = min(perf_counter() - began_s, limits.TURN_REST_MS_MAX / 1000)
        self._loop.call_later(rest_s, self._end_rest, address)

    def _end_rest(self, address: str) -> None:
        self._resting.discard(address)
        if self._waiting:
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._begin_rests()
        self._work = 0.0
        self._work_by_address.clear()
        self._work_max = self._work_maxima[self._is_shared()]
        passed_over = 0
        while len(self._waiting) > passed_over and self._work < self._work_max:
            place, takers = next(iter(self._waiting.items()))
            # It goes to the end of the round, unless this was the last of its takers.
            del self._waiting[place]
            if not self._may_start(place):
                self._waiting[place] = takers
                passed_over += 1
                continue
            taker = takers.popleft()
            if takers:
                self._waiting[place] = takers
            taker.take_turn(limits.TURN_FRAMES_PER_CONNECTION_MAX)
            passed_over = 0  # Those that were are before it in the round now.
        if any(map(self._may_start, self._waiting)):
            self._begin_soon()
