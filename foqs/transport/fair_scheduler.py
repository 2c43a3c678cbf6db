"""The order in which calls start: deficit round robin over flows, and over the callers within each flow.

A flow is one kind of a tenant's calls: its enqueues, or all its other calls. A tenant is a namespace that this host
knows. All calls that name no known namespace form one tenant, so that invented names make no flows. Within a flow each
caller, an address, has a queue of its own, and the callers are served in turn too.

A caller gets a penalty if it did most of the recent work while others did little, a little at a time. It is then not
served for a while.

Enqueues marked as bulk belong to separate tenants for all this, with a smaller part of each round. They do not count as
work of other callers, and all together get a penalty as soon as there is any other caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from foqs.model import limits
from foqs.transport.deficit_round import BULK_QUANTUM, QUANTUM, DeficitRound, Member

TURN_WORK_MAX = 64
"""Work that one turn of the event loop takes from all connections. A call counts 1, plus some for its elements and
bytes (ELEMENTS_PER_WORK, BYTES_PER_WORK).
"""
TURN_WORK_SHARED_MAX = 16
"""The same while several callers have calls in flight, so that each is served sooner."""
ENQUEUES_RUNNING_PER_CALLER_MAX = 128
"""Running enqueues of one client address in one namespace. Further ones wait, because all end with one commit, in one
turn. Enqueues that have run for a while do not count, because their shard is possibly sick.
"""
CALLS_RUNNING_PER_CALLER_MAX = 512
"""Running calls of one client address in one namespace, without enqueues and long polls."""
BULK_RUNNING_PER_CALLER_MAX = 32
"""Running bulk enqueues of one client address in one namespace."""
SHARE_MEMORY_MS = 50
"""The half-life of a caller's remembered work. Callers share the event loop while the work of several is remembered."""
PENALTY_FACTOR = 2
"""A penalty, as a multiple of the length of the turn in which the caller did most of the work."""
BULK_PENALTY_FACTOR = 3
"""The same for bulk calls, for any amount of work, while other callers are active."""
PENALTY_MS_MAX = 100

ELEMENTS_PER_WORK: Final = 8
BYTES_PER_WORK: Final = 16 * limits.KIB
"""A call is one unit of work, plus one for each ELEMENTS_PER_WORK of its batch and each BYTES_PER_WORK of its frame."""
REFUSALS_PER_WORK: Final = 16
"""Calls refused unread that together cost as much as one processed call of their size."""
QUEUES_KEPT: Final = 256
"""Number of queues up to which idle ones are kept."""

SHARE_MOST: Final = 0.75
"""The part of all recent work above which a caller did most of it, while others did some."""
SMALL_WORK_MAX: Final = QUANTUM
"""The average piece of work above which a caller wants much at a time, so that nobody is penalised for its sake."""
SHARE_KEPT_MIN: Final = 0.3
"""Less recent work than this is forgotten, such as that of one call after two halvings."""

Tenant = int
"""The number of a namespace; NO_TENANT for calls that name no namespace known to this host."""
NO_TENANT: Final = 0
BULK: Final = -(1 << 62)
"""All tenants of bulk calls together, for their penalty."""
Caller = tuple[Tenant, str]
"""An address, separate for each tenant that it calls for."""
OF_PEER: Final = "/"
"""The mark in the address of a caller whose calls another host forwards; no client's address has it."""

K = TypeVar("K")


class EventLoop(Protocol):
    """An asyncio event loop, as schedulers use it."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


class WaitingCall(Protocol):
    """A call that waits until the scheduler starts or refuses it."""

    since_s: float
    """The time at which it began to wait, in the loop's time; `math.inf` if it can wait forever."""
    size_bytes: int

    def start(self) -> None: ...

    def refuse(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyLimits:
    """The length of a penalty, by the time of its turn and at most, and the half-life of remembered work."""

    factor: float = PENALTY_FACTOR
    bulk_factor: float = BULK_PENALTY_FACTOR
    ms_max: int = PENALTY_MS_MAX
    memory_ms: int = SHARE_MEMORY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The bounds of a scheduler; `turn_work_shared_max` applies while more than one caller has work done."""

    turn_work_max: int = TURN_WORK_MAX
    turn_work_shared_max: int = TURN_WORK_SHARED_MAX
    calls_running_max: int = CALLS_RUNNING_PER_CALLER_MAX
    enqueues_running_max: int = ENQUEUES_RUNNING_PER_CALLER_MAX
    bulk_running_max: int = BULK_RUNNING_PER_CALLER_MAX
    calls_waiting_max: int = limits.CALLS_WAITING_MAX
    enqueue_wait_ms_max: int = limits.ENQUEUE_WAIT_MS_MAX
    penalties: PenaltyLimits = field(default_factory=PenaltyLimits)


class CallerQueue(Member):
    """The calls of one caller in one flow: the waiting ones, the oldest first, and the number of running ones."""

    __slots__ = ("_scheduler", "caller", "flow", "running_count", "running_max", "waiting")

    def __init__(self, scheduler: FairScheduler, flow: Flow, address: str, running_max: int) -> None:
        super().__init__()
        self._scheduler = scheduler
        self.flow = flow
        self.caller: Caller = (flow.tenant, address)
        self.waiting: deque[WaitingCall] = deque()
        self.running_count = 0
        self.running_max = running_max

    def is_ready(self) -> bool:
        return bool(self.waiting) and not self._scheduler.is_blocked(self)

    def is_idle(self) -> bool:
        """True if no call waits, runs, or still has to be paid for."""
        return not (self.waiting or self.running_count or self.is_in_round)


class Flow(Member):
    """The calls of one kind of one tenant, with a queue for each of its callers."""

    __slots__ = ("callers", "is_enqueue", "queues", "tenant")

    def __init__(self, tenant: Tenant, is_enqueue: bool) -> None:
        super().__init__(QUANTUM if tenant >= 0 else BULK_QUANTUM)
        self.tenant = tenant
        self.is_enqueue = is_enqueue
        self.queues: dict[str, CallerQueue] = {}
        """The queue of each address; idle ones are dropped from time to time."""
        self.callers: DeficitRound[CallerQueue] = DeficitRound()

    def is_ready(self) -> bool:
        return self.callers.head() is not None


class RecentWork(Generic[K]):
    """The recent work by key, halved at regular intervals. Times are in seconds."""

    def __init__(self, memory_ms: int) -> None:
        """Half of the work is forgotten after `memory_ms`."""
        self._memory_ms = memory_ms
        self.work: dict[K, float] = {}
        self._pieces: dict[K, float] = {}
        """The pieces in which the work was done: calls, and pages of their results."""
        self._total = 0.0
        self._halved_at_s = -inf
        self.halve_at_s = -inf

    def add(self, key: K, work: float, pieces: float = 1.0) -> None:
        self.work[key] = self.work.get(key, 0.0) + work
        self._pieces[key] = self._pieces.get(key, 0.0) + pieces
        self._total += work

    def forget(self, now_s: float) -> None:
        """Forget old work. Call it before the first work after a pause is added."""
        halvings = min((now_s - self._halved_at_s) * 1000 / self._memory_ms, 60.0) // 1
        if halvings:
            left = 0.5**halvings
            self.work = {key: work * left for key, work in self.work.items() if work * left >= SHARE_KEPT_MIN}
            self._pieces = {key: self._pieces[key] * left for key in self.work}
            self._total = sum(self.work.values())
            self._halved_at_s = now_s
            self.halve_at_s = now_s + self._memory_ms / 1000

    def did_most(self, key: K) -> bool:
        """True if this key did far more than all others, and some of the others want little at a time."""
        if not self._total > self.work[key] > self._total * SHARE_MOST:
            return False
        pieces = self._pieces
        return any(work <= pieces[other] * SMALL_WORK_MAX for other, work in self.work.items() if other != key)


class Penalties:
    """Counts the work of callers and tenants, and penalises the caller that did most of a turn and of the recent work.

    That is one caller, or a tenant if no caller alone did that much. The penalty lasts PENALTY_FACTOR times as long as
    the turn, including the first steps of the calls that the turn started, which are most of their work. So others, who
    want little, find the loop free most of the time. They need that, because a call takes a dozen turns and must not
    meet another caller's work in each.
    """

    def __init__(
        self,
        loop: EventLoop,
        clock: Callable[[], float],
        bounds: PenaltyLimits,
        ended: Callable[[Caller | Tenant], None],
    ) -> None:
        """`clock` is monotonic, in seconds, and finer than event loops' own; `ended` is called when a penalty ends."""
        self._loop = loop
        self._clock = clock
        self._bounds = bounds
        self._ended = ended
        self._by_caller: RecentWork[Caller] = RecentWork(bounds.memory_ms)
        self._by_client: RecentWork[Caller] = RecentWork(bounds.memory_ms)
        """Recent work without calls forwarded by other hosts, which are no reason to penalise a client of its own
        tenant.
        """
        self._by_tenant: RecentWork[Tenant] = RecentWork(bounds.memory_ms)
        self._of_bulk: RecentWork[Tenant] = RecentWork(bounds.memory_ms)
        self.penalised: set[Caller | Tenant] = set()

    def is_shared(self, in_turn: Mapping[Caller, float]) -> bool:
        """True if more than one caller had work done recently, or in this turn."""
        recent = self._by_caller.work
        return len(recent) > 1 or len(in_turn) > 1 or (bool(in_turn) and not recent.keys() <= in_turn.keys())

    def has(self, caller: Caller) -> bool:
        """True if the caller or its tenant has a penalty now."""
        penalised = self.penalised
        return caller in penalised or caller[0] in penalised or (caller[0] < 0 and BULK in penalised)

    def count(self, in_turn: Mapping[Caller, float], pieces: Mapping[Caller, int], now_s: float) -> bool:
        """Count the callers' work and pieces in a turn. Returns True if more than one caller had work done recently."""
        by_caller, by_tenant = self._by_caller, self._by_tenant
        if now_s >= by_caller.halve_at_s:
            by_caller.forget(now_s)
            self._by_client.forget(now_s)
            by_tenant.forget(now_s)
            self._of_bulk.forget(now_s)
        for caller, work in in_turn.items():
            if caller[0] < 0:
                self._of_bulk.add(BULK, work)
            else:
                count = pieces[caller]
                by_caller.add(caller, work, count)
                if OF_PEER not in caller[1]:
                    self._by_client.add(caller, work, count)
                elif caller[0] == NO_TENANT:
                    continue  # These are calls between hosts.
                by_tenant.add(caller[0], work, count)
        return len(by_caller.work) + len(self._of_bulk.work) > 1

    def decide(self, in_turn: Mapping[Caller, float], began_s: float, work_min: float) -> None:
        """Penalise those who did most of a counted turn, which began at `began_s` of the clock.

        A caller or tenant needs more than `work_min` in the turn for a penalty.
        """
        tenants: dict[Tenant, float] = {}
        greedy = False
        bulk_work = 0.0
        for caller, work in in_turn.items():
            if caller[0] < 0:
                bulk_work += work
                continue
            of_peer = OF_PEER in caller[1]
            if not (of_peer and caller[0] == NO_TENANT):
                tenants[caller[0]] = tenants.get(caller[0], 0.0) + work
            if work > work_min and (self._by_caller if of_peer else self._by_client).did_most(caller):
                greedy = True
                self._penalise(caller, began_s)
        for tenant, work in tenants.items():
            if not greedy and work > work_min and self._by_tenant.did_most(tenant):
                self._penalise(tenant, began_s)
        if bulk_work > work_min and self._by_caller.work:
            self._penalise(BULK, began_s)

    def _penalise(self, key: Caller | Tenant, began_s: float) -> None:
        if key not in self.penalised:
            self.penalised.add(key)
            self._loop.call_soon(self._time, key, began_s)

    def _time(self, key: Caller | Tenant, began_s: float) -> None:
        factor = self._bounds.bulk_factor if key == BULK else self._bounds.factor
        penalty_s = factor * (self._clock() - began_s)
        self._loop.call_later(min(penalty_s, self._bounds.ms_max / 1000), self._end, key)

    def _end(self, key: Caller | Tenant) -> None:
        self.penalised.discard(key)
        self._ended(key)


class FairScheduler:
    """Starts the calls of all connections of a server, a bounded amount of work in each turn of its event loop.

    A connection that has read a call asks `may_start`, and otherwise lets it `wait`. It reports each call as `started`
    and `ended`, and charges for its cost. A caller with too many running calls has no call started until some end,
    because all end together, with one commit. A caller with a penalty has no call started until the penalty ends (see
    Penalties).
    """

    def __init__(self, loop: EventLoop, bounds: SchedulerLimits, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds, and finer than event loops' own."""
        self._loop = loop
        self._bounds = bounds
        self._clock = clock
        self._enqueue_wait_s_max = bounds.enqueue_wait_ms_max / 1000
        self._flows: dict[tuple[Tenant, bool], Flow] = {}
        self._queue_count = 0
        self._queue_count_max = QUEUES_KEPT
        """The number of queues at which idle ones are dropped."""
        self._round: DeficitRound[Flow] = DeficitRound()
        self._waiting_count = 0
        self._work = 0.0
        """The work done in this turn, which began with it."""
        self._work_of: dict[Caller, float] = {}
        self._pieces_of: dict[Caller, int] = {}
        self._began_s = 0.0
        self._work_max = bounds.turn_work_max
        """The current limit on a turn's work."""
        self._is_scheduled = False
        self._penalties = Penalties(loop, clock, bounds.penalties, self._penalty_ended)

    # --- queues ---

    def queue_of(self, tenant: Tenant, address: str, is_enqueue: bool, is_bulk: bool = False) -> CallerQueue:
        """Return the queue of a call. Ask anew for each call, because idle queues are dropped."""
        if is_bulk:
            tenant = ~tenant
        flow = self._flows.get((tenant, is_enqueue))
        queue = flow.queues.get(address) if flow is not None else None
        return queue if queue is not None else self._new_queue(tenant, address, is_enqueue)

    def _new_queue(self, tenant: Tenant, address: str, is_enqueue: bool) -> CallerQueue:
        if self._queue_count >= self._queue_count_max:
            self._forget_idle_queues()
        flow = self._flows.setdefault((tenant, is_enqueue), Flow(tenant, is_enqueue))
        bounds = self._bounds
        of_enqueue = bounds.enqueues_running_max if tenant >= 0 else bounds.bulk_running_max
        running_max = of_enqueue if is_enqueue else bounds.calls_running_max
        queue = flow.queues[address] = CallerQueue(self, flow, address, running_max)
        self._queue_count += 1
        return queue

    def _forget_idle_queues(self) -> None:
        """Drop idle queues, seldom enough to cost little: at twice the number of queues last in use."""
        for flow in self._flows.values():
            flow.queues = {address: queue for address, queue in flow.queues.items() if not queue.is_idle()}
        self._flows = {key: flow for key, flow in self._flows.items() if flow.queues or flow.is_in_round}
        self._queue_count = sum(len(flow.queues) for flow in self._flows.values())
        self._queue_count_max = max(QUEUES_KEPT, 2 * self._queue_count)

    # --- waiting calls ---

    def may_start(self, queue: CallerQueue) -> bool:
        """True if a call can start at once: no other call waits, and this turn has room for it."""
        return (
            not self._waiting_count
            and self._work < self._work_max
            and queue.running_count < queue.running_max
            and not (self._penalties.penalised and self._penalties.has(queue.caller))
        )

    @property
    def is_full(self) -> bool:
        """True if the waiting calls are too many for more than one per connection."""
        return self._waiting_count >= self._bounds.calls_waiting_max

    def wait(self, queue: CallerQueue, call: WaitingCall) -> None:
        """Start or refuse a call in a later turn."""
        queue.waiting.append(call)
        self._began_to_wait(queue)

    def put_off(self, queue: CallerQueue, call: WaitingCall) -> None:
        """Do the rest of a call that was read in a later turn, before the other calls of its queue."""
        queue.waiting.appendleft(call)
        self._began_to_wait(queue)

    # --- running calls ---

    def started(self, queue: CallerQueue) -> None:
        """Count a running call."""
        queue.running_count += 1

    def ended(self, queue: CallerQueue) -> None:
        """Stop counting a call that ended, or has run for too long for others to wait for it."""
        queue.running_count -= 1
        if queue.waiting:
            self._join(queue)

    def is_blocked(self, queue: CallerQueue) -> bool:
        """True if no call of the queue is allowed to start now."""
        penalties = self._penalties
        return queue.running_count >= queue.running_max or (bool(penalties.penalised) and penalties.has(queue.caller))

    # --- costs ---

    def charge(self, queue: CallerQueue, element_count: int, size_bytes: int, began_s: float) -> int:
        """Charge for a call or a page on which work began at `began_s` of the clock. Returns its units of work."""
        work = 1 + element_count // ELEMENTS_PER_WORK + size_bytes // BYTES_PER_WORK
        self._charge(queue, work, began_s)
        return work

    def charge_turn(self, queue: CallerQueue) -> None:
        """Charge the work limit of a shared turn for the rest of a large call."""
        self._charge(queue, self._bounds.turn_work_shared_max, self._clock())

    def is_large(self, work: int) -> bool:
        """True if the rest of a call with this work, once it was read, should be `put_off`.

        Nobody needs to wait for both the reading of a thousand items and their processing.
        """
        return work > self._bounds.turn_work_shared_max and self._penalties.is_shared(self._work_of)

    # --- turns of the event loop ---

    def _turn(self) -> None:
        self._is_scheduled = False
        bounds = self._bounds
        work = self._work
        if work:
            now_s = self._loop.time()
            is_shared = self._penalties.count(self._work_of, self._pieces_of, now_s)
            if work > bounds.turn_work_shared_max / 2:
                self._penalties.decide(self._work_of, self._began_s, max(work, bounds.turn_work_shared_max) / 2)
            self._work_max = bounds.turn_work_shared_max if is_shared else bounds.turn_work_max
            self._work = 0.0
            self._work_of.clear()
            self._pieces_of.clear()
        if self._round.is_empty:
            return
        now_s = self._loop.time()
        while self._work < self._work_max:
            flow = self._round.head()
            if flow is None:
                return
            queue = flow.callers.head()
            assert queue is not None, "the flow is ready"
            self._serve(queue, now_s)
        self._turn_soon()

    def _serve(self, queue: CallerQueue, now_s: float) -> None:
        """Start or refuse the oldest call of a queue."""
        call = queue.waiting.popleft()
        self._waiting_count -= 1
        if queue.flow.is_enqueue and now_s - call.since_s >= self._enqueue_wait_s_max:
            self._charge(queue, (1 + call.size_bytes // BYTES_PER_WORK) / REFUSALS_PER_WORK, self._clock())
            call.refuse()
        else:
            call.start()

    def _turn_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    # --- inside ---

    def _began_to_wait(self, queue: CallerQueue) -> None:
        self._waiting_count += 1
        self._join(queue)

    def _join(self, queue: CallerQueue) -> None:
        if not self.is_blocked(queue):
            queue.flow.callers.join(queue)
            self._round.join(queue.flow)
            self._turn_soon()

    def _penalty_ended(self, key: Caller | Tenant) -> None:
        tenant, address = key if isinstance(key, tuple) else (key, None)
        if tenant == BULK:
            flows = [flow for flow in self._flows.values() if flow.tenant < 0]
        else:
            found = [self._flows.get((tenant, is_enqueue)) for is_enqueue in (False, True)]
            flows = [flow for flow in found if flow is not None]
        for flow in flows:
            queues = flow.queues
            for queue in list(queues.values()) if address is None else [queues.get(address)]:
                if queue is not None and queue.waiting:
                    self._join(queue)

    def _charge(self, queue: CallerQueue, work: float, began_s: float) -> None:
        work_of, caller = self._work_of, queue.caller
        if not work_of:
            self._began_s = began_s
        self._work += work
        work_of[caller] = work_of.get(caller, 0.0) + work
        self._pieces_of[caller] = self._pieces_of.get(caller, 0) + 1
        queue.deficit -= work
        queue.flow.deficit -= work
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
