"""Whose frames are taken next, and whose are refused because they waited too long."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Protocol

from foqs.model import limits

Flow = tuple[str, bool | None]
"""In the round: an address, and whether it is for its enqueues or for all else; None: for a call that was put off."""


_WORK_KEPT_MIN = 0.3
"""Less than this is forgotten whole: a frame after 100 to 150 ms."""


class TurnTaker(Protocol):
    """A connection that has frames waiting."""

    def take_turn(self, frames_max: int) -> None: ...


class _LargeCall:
    """It was read in one turn, and is done in another."""

    def __init__(self, its_turn: asyncio.Future[None], spend: Callable[[float], None]) -> None:
        self._its_turn = its_turn
        self._spend = spend

    def take_turn(self, frames_max: int) -> None:
        if not self._its_turn.done():
            self._spend(perf_counter())
            self._its_turn.set_result(None)


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


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What a turn takes, and how many calls of a flow may run; `shared`: while more than one address sends frames."""

    work_max: int = limits.TURN_WORK_MAX
    work_shared_max: int = limits.TURN_WORK_SHARED_MAX
    running_max: int = limits.CALLS_RUNNING_PER_ADDRESS_MAX
    enqueues_running_max: int = limits.ENQUEUES_RUNNING_PER_ADDRESS_MAX
    enqueues_running_shared_max: int = limits.ENQUEUES_RUNNING_SHARED_MAX


class RecentWork:
    """What addresses had of late: of their work half is forgotten every TURN_MEMORY_MS. Times are in seconds."""

    def __init__(self) -> None:
        self._work: dict[str, float] = {}
        self._total = 0.0
        self._forgotten_at = -inf

    def add(self, work_by_address: Mapping[str, float], now: float) -> None:
        """Count a turn."""
        if now - self._forgotten_at >= limits.TURN_MEMORY_MS / 1000:
            self._forget(now)
        for address, work in work_by_address.items():
            self._work[address] = self._work.get(address, 0.0) + work
            self._total += work

    @property
    def is_shared(self) -> bool:
        """Whether more than one address had any."""
        return len(self._work) > 1

    def has_most(self, address: str) -> bool:
        """Whether others had some, but little next to this one."""
        return self._total > self._work.get(address, 0.0) > self._total * limits.TURN_MOST_SHARE

    def _forget(self, now: float) -> None:
        times = (now - self._forgotten_at) * 1000 // limits.TURN_MEMORY_MS
        left = 0.5 ** min(times, 60.0)
        self._work = {address: work * left for address, work in self._work.items() if work * left >= _WORK_KEPT_MIN}
        self._total = sum(self._work.values())
        self._forgotten_at = now


class FairScheduler:
    """Who may start work in this turn of the event loop, so that no turn is long.

    Round robin over the addresses that have frames waiting, and over the connections of each: many connections get
    one address no more than one does. What an address enqueues and all else of it have a flow each in the round:
    what it takes and settles, which makes the load less, is not behind all that it wants to add. A large call that
    was read and then put off (`after_penalty`) has a third, and no frame of its address is taken before it. Who sends
    little does not wait at all (the new flows of FQ-CoDel, RFC 8290).

    A flow with too many calls running has no turn until some end. An address that had most of a turn, and of all that
    was done of late, has none for some time: the others, who want little, go on meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bounds: SchedulerLimits) -> None:
        self._loop = loop
        self._work_maxima = (bounds.work_max, min(bounds.work_max, bounds.work_shared_max))
        enqueues_shared_max = min(bounds.enqueues_running_max, bounds.enqueues_running_shared_max)
        self._running_maxima = (
            {False: bounds.running_max, True: bounds.enqueues_running_max, None: 1},
            {False: bounds.running_max, True: enqueues_shared_max, None: 1},
        )
        self._work_max = self._work_maxima[False]
        """Of this turn."""
        self._running_max = self._running_maxima[False]
        self._work = 0.0
        self._work_by_address: defaultdict[str, float] = defaultdict(float)
        self._began_s = 0.0
        """Since when there is work in this turn, by `perf_counter`."""
        self._is_scheduled = False
        self._waiting: dict[Flow, deque[TurnTaker]] = {}
        self._running: Counter[Flow] = Counter()
        self._penalised: set[str] = set()
        self._recent = RecentWork()

    def is_free(self, flow: Flow, size_bytes: int) -> bool:
        """Whether such a frame may be taken at once: nobody waits, or it is small and its address had little."""
        if not self._may_start(flow):
            return False
        if not self._waiting and self._work < self._work_max:
            return True
        return (
            size_bytes <= limits.TURN_AHEAD_BYTES_MAX
            and flow not in self._waiting
            and self._work_by_address.get(flow[0], 0.0) < limits.TURN_WORK_AHEAD_MAX
            # All but the one who does most have a bound together as well.
            and self._work - max(self._work_by_address.values(), default=0.0) < self._work_max
        )

    def has_work_left(self, flow: Flow) -> bool:
        return self._work < self._work_max and self._may_start(flow)

    def spend(self, address: str, element_count: int, size_bytes: int, began_s: float) -> int:
        """Count a frame, and return as what; it was begun to be read at that time of `perf_counter`.

        What a page holds counts as well, once it is known: who asks for many of them has fewer turns after it.
        """
        work = 1 + element_count // limits.TURN_WORK_ELEMENTS + size_bytes // limits.TURN_WORK_BYTES
        self._spend(address, work, began_s)
        return work

    async def after_penalty(self, address: str, work: int) -> None:
        """Return when the address has a turn again, if it rests, for what is left of a large call that was read before.

        Nobody needs to wait for both the reading of a thousand items and what is done with them. Nothing more of the
        address is read meanwhile. Its work was counted when it was read; it has a whole turn all the same.
        """
        if work > self._work_maxima[True] and address in self._penalised:
            its_turn = self._loop.create_future()
            self.wait(_LargeCall(its_turn, partial(self._spend, address, self._work_maxima[True])), (address, None))
            await its_turn

    def spend_on_refusal(self, address: str, began_s: float) -> None:
        """Count a frame that was refused unread."""
        self._spend(address, 1 / limits.TURN_REFUSALS, began_s)

    def started(self, flow: Flow) -> None:
        self._running[flow] += 1

    def ended(self, flow: Flow, count: int) -> None:
        """Calls ended, or take so long that others need not wait for them."""
        left = self._running[flow] - count
        if left:
            self._running[flow] = left
        else:
            del self._running[flow]
        if self._waiting:
            self._begin_soon()

    def wait(self, taker: TurnTaker, flow: Flow) -> None:
        """Let `take_turn` be called when it is the taker's turn; `flow`: that of its first frame."""
        self._waiting.setdefault(flow, deque()).append(taker)
        self._begin_soon()

    def _spend(self, address: str, work: float, began_s: float) -> None:
        if not self._work_by_address:
            self._began_s = began_s
        self._work += work
        self._work_by_address[address] += work
        self._begin_soon()

    def _may_start(self, flow: Flow) -> bool:
        address, part = flow
        return (
            self._running[flow] < self._running_max[part]
            and address not in self._penalised
            and (part is None or (address, None) not in self._waiting)
        )

    def _penalise(self) -> None:
        for address, work in self._work_by_address.items():
            if work > max(self._work, self._work_max) / 2 and self._recent.has_most(address):
                self._penalised.add(address)
                self._loop.call_soon(self._time_penalty, address, self._began_s)

    def _time_penalty(self, address: str, began_s: float) -> None:
        """After a turn that was its, and the first steps of the calls that were started, which are most of the work."""
        penalty_s = limits.TURN_PENALTY_FACTOR * (perf_counter() - began_s)
        self._loop.call_later(min(penalty_s, limits.TURN_PENALTY_MS_MAX / 1000), self._end_penalty, address)

    def _end_penalty(self, address: str) -> None:
        self._penalised.discard(address)
        if self._waiting:
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._recent.add(self._work_by_address, self._loop.time())
        self._penalise()
        self._work = 0.0
        self._work_by_address.clear()
        is_shared = self._recent.is_shared
        self._work_max = self._work_maxima[is_shared]
        self._running_max = self._running_maxima[is_shared]
        passed_over = 0
        while len(self._waiting) > passed_over and self._work < self._work_max:
            flow, takers = next(iter(self._waiting.items()))
            # It goes to the end of the round, unless this was the last of its takers.
            del self._waiting[flow]
            if not self._may_start(flow):
                self._waiting[flow] = takers
                passed_over += 1
                continue
            taker = takers.popleft()
            if takers:
                self._waiting[flow] = takers
            taker.take_turn(limits.TURN_FRAMES_PER_CONNECTION_MAX)
            passed_over = 0  # Those that were are before it in the round now.
        if any(map(self._may_start, self._waiting)):
            self._begin_soon()
