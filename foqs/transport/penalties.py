"""Who did most of the work of late, while others did little, and is therefore not served for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from foqs.model import limits

SHARE_MOST: Final = 0.75
"""Who did more than this part of all recent work, while others did some, did most of it."""
SHARE_KEPT_MIN: Final = 0.3
"""Less recent work than this is forgotten at once: that of one call after it was halved twice."""

Tenant = int
"""The number of a namespace; NO_TENANT for calls that name none which this host knows."""
NO_TENANT: Final = 0
Caller = tuple[Tenant, str]
"""An address, apart for each tenant that it calls for."""


class EventLoop(Protocol):
    """What schedulers ask of an asyncio event loop."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyLimits:
    """How long a penalty lasts, by the time that the turn took and at most, and how long work is remembered."""

    factor: float = limits.PENALTY_FACTOR
    ms_max: int = limits.PENALTY_MS_MAX
    memory_ms: int = limits.SHARE_MEMORY_MS


K = TypeVar("K")


class RecentWork(Generic[K]):
    """How much work each one did of late: half of it is forgotten again and again. Times are in seconds."""

    def __init__(self, memory_ms: int) -> None:
        """Half of what was done is forgotten after `memory_ms`."""
        self._memory_ms = memory_ms
        self.work: dict[K, float] = {}
        self._total = 0.0
        self._halved_at_s = -inf

    def add(self, key: K, work: float) -> None:
        self.work[key] = self.work.get(key, 0.0) + work
        self._total += work

    def forget(self, now_s: float) -> None:
        """Forget what was done long ago. To be called before the first work after a pause is added."""
        halvings = min((now_s - self._halved_at_s) * 1000 / self._memory_ms, 60.0) // 1
        if halvings:
            left = 0.5**halvings
            self.work = {key: work * left for key, work in self.work.items() if work * left >= SHARE_KEPT_MIN}
            self._total = sum(self.work.values())
            self._halved_at_s = now_s

    def did_most(self, key: K) -> bool:
        """Whether others did some work, but this one far more than all of them."""
        return self._total > self.work[key] > self._total * SHARE_MOST


class Penalties:
    """Counts the work of callers and tenants, and penalises whoever did most of a turn and of late.

    That is one caller, or a tenant where none of its callers did so much alone. Its penalty lasts twice as long as the
    turn took, with the first steps of the calls that the turn started, which are most of their work. So others, who
    want little, find a loop that is free most of the time: a call needs a dozen turns, and shall not meet somebody
    else's work in each of them.
    """

    def __init__(
        self,
        loop: EventLoop,
        clock: Callable[[], float],
        bounds: PenaltyLimits,
        ended: Callable[[Caller | Tenant], None],
    ) -> None:
        """`clock` is monotonic, in seconds, and finer than event loops' own; `ended` is told of each penalty's end."""
        self._loop = loop
        self._clock = clock
        self._bounds = bounds
        self._ended = ended
        self._by_caller: RecentWork[Caller] = RecentWork(bounds.memory_ms)
        self._by_tenant: RecentWork[Tenant] = RecentWork(bounds.memory_ms)
        self.penalised: set[Caller | Tenant] = set()
        """Those who have a penalty now."""

    def is_shared(self, in_turn: Mapping[Caller, float]) -> bool:
        """Whether more than one caller had work done of late, or in this turn."""
        recent = self._by_caller.work
        return len(recent) > 1 or len(in_turn) > 1 or (bool(in_turn) and not recent.keys() <= in_turn.keys())

    def has(self, caller: Caller) -> bool:
        """Whether the caller or its tenant has a penalty now."""
        return caller in self.penalised or caller[0] in self.penalised

    def turn_ended(self, in_turn: Mapping[Caller, float], began_s: float, work_min: float) -> None:
        """Count what callers did in a turn that began at `began_s` of the clock, and decide on penalties.

        Only who did more than `work_min` in the turn gets one.
        """
        now_s = self._loop.time()
        self._by_caller.forget(now_s)
        self._by_tenant.forget(now_s)
        tenants: dict[Tenant, float] = {}
        for caller, work in in_turn.items():
            self._by_caller.add(caller, work)
            self._by_tenant.add(caller[0], work)
            tenants[caller[0]] = tenants.get(caller[0], 0.0) + work
        greedy = False
        for caller, work in in_turn.items():
            if work > work_min and self._by_caller.did_most(caller):
                greedy = True
                self._penalise(caller, began_s)
        for tenant, work in tenants.items():
            if not greedy and work > work_min and self._by_tenant.did_most(tenant):
                self._penalise(tenant, began_s)

    def _penalise(self, key: Caller | Tenant, began_s: float) -> None:
        if key not in self.penalised:
            self.penalised.add(key)
            self._loop.call_soon(self._time, key, began_s)

    def _time(self, key: Caller | Tenant, began_s: float) -> None:
        penalty_s = self._bounds.factor * (self._clock() - began_s)
        self._loop.call_later(min(penalty_s, self._bounds.ms_max / 1000), self._end, key)

    def _end(self, key: Caller | Tenant) -> None:
        self.penalised.discard(key)
        self._ended(key)
