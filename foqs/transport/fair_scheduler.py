"""The order in which calls start: deficit round robin over flows, and over the callers within each flow.

A flow is what one tenant sends of one kind: its enqueues, or all its other calls. A tenant is a namespace that this
host knows; calls that name none, or one that it does not know, are one tenant together, so that invented names make no
flows. Within a flow each caller, an address, has a queue of its own, and the callers are served in turn as well.

Penalties are for whoever did most of the work of late, while others did little, a little at a time: they are not served
for a while.

Enqueues that say that they are bulk are another tenant's for all this, with a smaller part of each round. To others
they do not count as work of somebody, and all of them together have a penalty as soon as there is anybody else.
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
"""Work that one turn of the event loop takes from all connections. A call counts 1, and 1 more for some number of
elements or bytes.
"""
TURN_WORK_SHARED_MAX = 16
"""The same while several callers have calls in flight, so that each is served sooner."""
ENQUEUES_RUNNING_PER_CALLER_MAX = 128
"""Running enqueues of one client address in one namespace. Further ones wait, because all of them end with one commit,
in one turn. Those that have run for a while do not count: their shard may be sick.
"""
CALLS_RUNNING_PER_CALLER_MAX = 512
"""Running calls of one client address in one namespace, without enqueues and long polls."""
BULK_RUNNING_PER_CALLER_MAX = 32
"""Running bulk enqueues of one client address in one namespace."""
SHARE_MEMORY_MS = 50
"""The half-life of a caller's remembered work. Callers share the event loop while the work of several is remembered."""
PENALTY_FACTOR = 2
"""A caller that did most of a turn, while others did little, is not served for this many times the length of that turn.
"""
BULK_PENALTY_FACTOR = 3
"""The same for bulk calls, whatever they did, while there are others."""
PENALTY_MS_MAX = 100
"""The longest such penalty."""

ELEMENTS_PER_WORK: Final = 8
BYTES_PER_WORK: Final = 16 * limits.KIB
"""A call is one unit of work, and one more for so many elements of its batch or bytes of its frame."""
REFUSALS_PER_WORK: Final = 16
"""Calls that are refused unread and cost together as much as one of their size that is done."""
QUEUES_KEPT: Final = 256
"""Queues that are known though they may be idle."""

SHARE_MOST: Final = 0.75
"""The part of all recent work above which a caller did most of it, while others did some."""
SMALL_WORK_MAX: Final = QUANTUM
"""The average piece of work above which a caller wants much at a time, and nobody is penalised for that."""
SHARE_KEPT_MIN: Final = 0.3
"""Less recent work than this is forgotten at once: that of one call after it was halved twice."""

Tenant = int
"""The number of a namespace; NO_TENANT for calls that name none which this host knows."""
NO_TENANT: Final = 0
BULK: Final = -(1 << 62)
"""All tenants of bulk calls together, for their penalty."""
Caller = tuple[Tenant, str]
"""An address, apart for each tenant that it calls for."""
OF_PEER: Final = "/"
"""The mark in the address of each caller whose calls another host hands on, and in no client's."""

K = TypeVar("K")


class EventLoop(Protocol):
    """An asyncio event loop, as schedulers use it."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


class WaitingCall(Protocol):
    """A call that waits until the scheduler has it started or refused."""

    since_s: float
    """When it began to wait, in the loop's time; `math.inf` for one that may wait for ever."""
    size_bytes: int

    def start(self) -> None: ...

    def refuse(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyLimits:
    """How long a penalty lasts, by the time that the turn took and at most, and how long work is remembered."""

    factor: float = PENALTY_FACTOR
    bulk_factor: float = BULK_PENALTY_FACTOR
    ms_max: int = PENALTY_MS_MAX
    memory_ms: int = SHARE_MEMORY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The bounds of a scheduler; `turn_work_shared_max` holds while more than one caller has work done."""

    turn_work_max: int = TURN_WORK_MAX
    turn_work_shared_max: int = TURN_WORK_SHARED_MAX
    calls_running_max: int = CALLS_RUNNING_PER_CALLER_MAX
    enqueues_running_max: int = ENQUEUES_RUNNING_PER_CALLER_MAX
    bulk_running_max: int = BULK_RUNNING_PER_CALLER_MAX
    calls_waiting_max: int = limits.CALLS_WAITING_MAX
    enqueue_wait_ms_max: int = limits.ENQUEUE_WAIT_MS_MAX
    penalties: PenaltyLimits = field(default_factory=PenaltyLimits)


class CallerQueue(Member):
    """The calls of one caller in one flow: those that wait, the oldest first, and how many of them run."""

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
        """Whether none of its calls waits, runs, or is still to be paid for."""
        return not (self.waiting or self.running_count or self.is_in_round)


class Flow(Member):
    """The calls of one kind of one tenant, with a queue for each of its callers."""

    __slots__ = ("callers", "is_enqueue", "queues", "tenant")

    def __init__(self, tenant: Tenant, is_enqueue: bool) -> None:
        super().__init__(QUANTUM if tenant >= 0 else BULK_QUANTUM)
        self.tenant = tenant
        self.is_enqueue = is_enqueue
        self.queues: dict[str, CallerQueue] = {}
        """Each address has one; those that are idle are forgotten from time to time."""
        self.callers: DeficitRound[CallerQueue] = DeficitRound()

    def is_ready(self) -> bool:
        return self.callers.head() is not None


class RecentWork(Generic[K]):
    """How much work each one did of late: half of it is forgotten again and again. Times are in seconds."""

    def __init__(self, memory_ms: int) -> None:
        """Half of what was done is forgotten after `memory_ms`."""
        self._memory_ms = memory_ms
        self.work: dict[K, float] = {}
        self._pieces: dict[K, float] = {}
        """The count of pieces that it was done in: calls, and pages of what they brought."""
        self._total = 0.0
        self._halved_at_s = -inf
        self.halve_at_s = -inf
        """When half of it is to be forgotten next."""

    def add(self, key: K, work: float, pieces: float = 1.0) -> None:
        self.work[key] = self.work.get(key, 0.0) + work
        self._pieces[key] = self._pieces.get(key, 0.0) + pieces
        self._total += work

    def forget(self, now_s: float) -> None:
        """Forget what was done long ago. To be called before the first work after a pause is added."""
        halvings = min((now_s - self._halved_at_s) * 1000 / self._memory_ms, 60.0) // 1
        if halvings:
            left = 0.5**halvings
            self.work = {key: work * left for key, work in self.work.items() if work * left >= SHARE_KEPT_MIN}
            self._pieces = {key: self._pieces[key] * left for key in self.work}
            self._total = sum(self.work.values())
            self._halved_at_s = now_s
            self.halve_at_s = now_s + self._memory_ms / 1000

    def did_most(self, key: K) -> bool:
        """Whether this one did far more than all others, and some of them want little at a time."""
        if not self._total > self.work[key] > self._total * SHARE_MOST:
            return False
        pieces = self._pieces
        return any(work <= pieces[other] * SMALL_WORK_MAX for other, work in self.work.items() if other != key)


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
        self._by_client: RecentWork[Caller] = RecentWork(bounds.memory_ms)
        """Recent work without the calls that other hosts hand on: those are no reason to penalise a client of its own
        tenant.
        """
        self._by_tenant: RecentWork[Tenant] = RecentWork(bounds.memory_ms)
        self._of_bulk: RecentWork[Tenant] = RecentWork(bounds.memory_ms)
        self.penalised: set[Caller | Tenant] = set()
        """The callers and tenants that have a penalty now."""

    def is_shared(self, in_turn: Mapping[Caller, float]) -> bool:
        """Whether more than one caller had work done of late, or in this turn."""
        recent = self._by_caller.work
        return len(recent) > 1 or len(in_turn) > 1 or (bool(in_turn) and not recent.keys() <= in_turn.keys())

    def has(self, caller: Caller) -> bool:
        """Whether the caller or its tenant has a penalty now."""
        penalised = self.penalised
        return caller in penalised or caller[0] in penalised or (caller[0] < 0 and BULK in penalised)

    def count(self, in_turn: Mapping[Caller, float], pieces: Mapping[Caller, int], now_s: float) -> bool:
        """Count what callers did in a turn, in so many pieces. Returns whether more than one had work done of late."""
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
                    continue  # What hosts tell each other.
                by_tenant.add(caller[0], work, count)
        return len(by_caller.work) + len(self._of_bulk.work) > 1

    def decide(self, in_turn: Mapping[Caller, float], began_s: float, work_min: float) -> None:
        """Penalise who did most of a turn that was counted and began at `began_s` of the clock.

        Only who did more than `work_min` in the turn gets a penalty.
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

    A connection that has read a call asks `may_start`, and else lets it `wait`. It says what was `started` and what
    `ended`, and charges for each call what it cost. A caller with too many calls running has none started until some
    end, as they all end together, with one commit. One with a penalty has none started until that ends (see Penalties).
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
        """Once so many queues are known, those that are idle are forgotten."""
        self._round: DeficitRound[Flow] = DeficitRound()
        self._waiting_count = 0
        self._work = 0.0
        """The work done in this turn, which began with it."""
        self._work_of: dict[Caller, float] = {}
        self._pieces_of: dict[Caller, int] = {}
        self._began_s = 0.0
        self._work_max = bounds.turn_work_max
        """The work that a turn may do, now."""
        self._is_scheduled = False
        self._penalties = Penalties(loop, clock, bounds.penalties, self._penalty_ended)

    # --- queues ---

    def queue_of(self, tenant: Tenant, address: str, is_enqueue: bool, is_bulk: bool = False) -> CallerQueue:
        """The queue that a call belongs to. To be asked for each call anew: idle queues are forgotten."""
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
        """Forget idle queues, so seldom that it costs little: when twice as many are there as were in use."""
        for flow in self._flows.values():
            flow.queues = {address: queue for address, queue in flow.queues.items() if not queue.is_idle()}
        self._flows = {key: flow for key, flow in self._flows.items() if flow.queues or flow.is_in_round}
        self._queue_count = sum(len(flow.queues) for flow in self._flows.values())
        self._queue_count_max = max(QUEUES_KEPT, 2 * self._queue_count)

    # --- what waits ---

    def may_start(self, queue: CallerQueue) -> bool:
        """Whether a call may be started at once: no other waits, and this turn has room for it."""
        return (
            not self._waiting_count
            and self._work < self._work_max
            and queue.running_count < queue.running_max
            and not (self._penalties.penalised and self._penalties.has(queue.caller))
        )

    @property
    def is_full(self) -> bool:
        """Whether so many calls wait that each connection shall have only one of them."""
        return self._waiting_count >= self._bounds.calls_waiting_max

    def wait(self, queue: CallerQueue, call: WaitingCall) -> None:
        """Have a call started, or refused, in a later turn."""
        queue.waiting.append(call)
        self._began_to_wait(queue)

    def put_off(self, queue: CallerQueue, call: WaitingCall) -> None:
        """Have the rest of a call that was read done in a later turn, before the other calls of its queue."""
        queue.waiting.appendleft(call)
        self._began_to_wait(queue)

    # --- what runs ---

    def started(self, queue: CallerQueue) -> None:
        """A call runs."""
        queue.running_count += 1

    def ended(self, queue: CallerQueue) -> None:
        """A call ended, or has run for so long that others need not wait for it."""
        queue.running_count -= 1
        if queue.waiting:
            self._join(queue)

    def is_blocked(self, queue: CallerQueue) -> bool:
        """Whether none of its calls may be started now."""
        penalties = self._penalties
        return queue.running_count >= queue.running_max or (bool(penalties.penalised) and penalties.has(queue.caller))

    # --- what it costs ---

    def charge(self, queue: CallerQueue, element_count: int, size_bytes: int, began_s: float) -> int:
        """Charge for a call or a page on which work began at `began_s` of the clock. Returns its units of work."""
        work = 1 + element_count // ELEMENTS_PER_WORK + size_bytes // BYTES_PER_WORK
        self._charge(queue, work, began_s)
        return work

    def charge_turn(self, queue: CallerQueue) -> None:
        """Charge for the rest of a large call as much as a shared turn may do."""
        self._charge(queue, self._bounds.turn_work_shared_max, self._clock())

    def is_large(self, work: int) -> bool:
        """Whether what is left of a call of so much work, once it was read, shall be `put_off`.

        Nobody needs to wait for both the reading of a thousand items and what is done with them.
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
