"""Which faults when: all of it by the seed, before anything begins."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from loadtest.chaos.fault import Fault
from loadtest.chaos.host_faults import HostClockMoved, HostKilled, HostRestarted, HostStopped, MetaKilled, MetaStopped
from loadtest.chaos.network_faults import (
    ClientNetworkCut,
    ClientNetworkGone,
    ClientNetworkSlow,
    ServerNetworkCut,
    ServerNetworkGone,
    ServerNetworkSlow,
)
from loadtest.chaos.room import Room
from loadtest.chaos.server_faults import (
    DiskFull,
    ServerKilled,
    ServerReadOnly,
    ServerRestarted,
    ServerStopped,
    SessionsKilled,
)
from loadtest.chaos.session_faults import Deadlocks, PurgeBlocked, RowsLocked, TablesLocked

K = TypeVar("K", bound=Callable[[random.Random], Fault[Any]])

KINDS: dict[type[Fault[Room]], int] = {
    HostKilled: 3,
    HostRestarted: 2,
    HostStopped: 2,
    HostClockMoved: 2,
    MetaKilled: 1,
    MetaStopped: 1,
    ServerKilled: 3,
    ServerRestarted: 1,
    ServerStopped: 2,
    ServerReadOnly: 2,
    SessionsKilled: 2,
    DiskFull: 2,
    RowsLocked: 2,
    TablesLocked: 1,
    PurgeBlocked: 1,
    Deadlocks: 2,
    ServerNetworkSlow: 2,
    ServerNetworkCut: 2,
    ServerNetworkGone: 2,
    ClientNetworkSlow: 1,
    ClientNetworkCut: 2,
    ClientNetworkGone: 1,
}
"""With how many of all faults are of each kind, in proportion."""
AT_ONCE_MAX = 3
GAP_MS_MEAN = 2_500
_REST_MS = 1_000
"""After a fault its targets are left alone for so long at least."""


@dataclass(frozen=True, slots=True)
class Planned:
    """`start_ms` and `end_ms` since the begin of the round."""

    fault: Fault[Any]
    start_ms: int
    end_ms: int


def plan(rng: random.Random, length_ms: int, kinds: Mapping[K, int], gap_ms_mean: int = GAP_MS_MEAN) -> list[Planned]:
    """Faults that begin within the time, by their start; none on a target that another one has."""
    planned: list[Planned] = []
    free_at_ms: dict[str, int] = {}
    now_ms = rng.randrange(gap_ms_mean)
    while now_ms < length_ms:
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        fault = kind(rng)
        first, last = (math.log(bound) for bound in fault.length_ms)
        end_ms = now_ms + round(math.exp(rng.uniform(first, last)))
        active = sum(now_ms < other.end_ms for other in planned)
        if active < AT_ONCE_MAX and all(free_at_ms.get(target, 0) <= now_ms for target in fault.targets):
            planned.append(Planned(fault, now_ms, end_ms))
            free_at_ms |= dict.fromkeys(fault.targets, end_ms + _REST_MS)
        now_ms += round(rng.expovariate(1 / gap_ms_mean)) + 1
    return planned
