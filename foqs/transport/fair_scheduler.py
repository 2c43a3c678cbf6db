"""Whose call is started next: deficit round robin over flows, and over the callers within each flow.

A flow is what one tenant sends of one kind: its enqueues, or all its other calls. A tenant is a namespace that this
host knows; calls that name none, or one that it does not know, are one tenant together, so that invented names make no
flows. Within a flow each caller, an address, has a queue of its own, and the callers are served in turn as well.

In deficit round robin (Shreedhar and Varghese, 1995) each member of the round may have a quantum of work when it is its
turn. What a call costs is known once it was read. So it is charged then: a member is served while its deficit is above
zero, and one that had more than its quantum pays with its next turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from foqs.model import limits
from foqs.transport.penalties import Caller, EventLoop, Penalties, PenaltyLimits, Tenant

QUANTUM: Final = 8
"""Work that a flow, and a caller within its flow, may have in each round."""
ELEMENTS_PER_WORK: Final = 8
BYTES_PER_WORK: Final = 16 * limits.KIB
"""A call is one unit of work, and one more for so many elements of its batch or bytes of its frame."""
REFUSALS_PER_WORK: Final = 16
"""So many calls that are refused unread cost as much as one of their size that is done."""
QUEUES_KEPT: Final = 256
"""Queues that are known though they may be idle."""


class WaitingCall(Protocol):
    """A call that waits until the scheduler has it started or refused."""

    since_s: float
    """When it began to wait, in the loop's time; `math.inf` for one that may wait for ever."""
    size_bytes: int

    def start(self) -> None: ...

    def refuse(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The bounds of a scheduler; `turn_work_shared_max` holds while more than one caller has work done."""

    turn_work_max: int = limits.TURN_WORK_MAX
    turn_work_shared_max: int = limits.TURN_WORK_SHARED_MAX
    calls_running_max: int = limits.CALLS_RUNNING_PER_CALLER_MAX
    enqueues_running_max: int = limits.ENQUEUES_RUNNING_PER_CALLER_MAX
    calls_waiting_max: int = limits.CALLS_WAITING_MAX
    enqueue_wait_ms_max: int = limits.ENQUEUE_WAIT_MS_MAX
    penalties: PenaltyLimits = field(default_factory=PenaltyLimits)


class Member:
    """Who takes part in a round. The round alone sets `is_in_round`."""

    __slots__ = ("deficit", "is_in_round")

    def __init__(self) -> None:
        self.deficit = 0.0
        self.is_in_round = False

    def is_ready(self) -> bool:
        """Whether it has a call that may be started now."""
        raise NotImplementedError


M = TypeVar("M", bound=Member)


class DeficitRound(Generic[M]):
    """Deficit round robin over members that have calls to start."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: deque[M] = deque()

    def join(self, member: M) -> None:
        """Let a member have its turns, the first one after those of all others."""
        if not member.is_in_round:
            member.is_in_round = True
            member.deficit = float(QUANTUM)
            self._members.append(member)

    def head(self) -> M | None:
        """The member whose turn it is; None when none is ready.

        A member that is not ready leaves once it has paid for what it had.
        """
        members = self._members
        while members:
            member = members[0]
            if member.deficit <= 0:
                member.deficit += float(QUANTUM)
                members.rotate(-1)
            elif member.is_ready():
                return member
            else:
                member.is_in_round = False
                members.popleft()
        return None


class CallerQueue(Member):
    """The calls of one caller in one flow: those that wait, the oldest first, and how many of them run."""

    __slots__ = ("_scheduler", "caller", "flow", "running_count", "waiting")

    def __init__(self, scheduler: FairScheduler, flow: Flow, address: str) -> None:
        super().__init__()
        self._scheduler = scheduler
        self.flow = flow
        self.caller: Caller = (flow.tenant, address)
        self.waiting: deque[WaitingCall] = deque()
        self.running_count = 0

    def is_ready(self) -> bool:
        return bool(self.waiting) and not self._scheduler.is_blocked(self)

    def is_idle(self) -> bool:
        """Whether none of its calls waits, runs, or is still to be paid for."""
        return not (self.waiting or self.running_count or self.is_in_round)


class Flow(Member):
    """The calls of one kind of one tenant, with a queue for each of its callers."""

    __slots__ = ("callers", "is_enqueue", "queues", "tenant")

    def __init__(self, tenant: Tenant, is_enqueue: bool) -> None:
        super().__init__()
        self.tenant = tenant
        self.is_enqueue = is_enqueue
        self.queues: dict[str, CallerQueue] = {}
        """By address; those that are idle are forgotten from time to time."""
        self.callers: DeficitRound[CallerQueue] = DeficitRound()

    def is_ready(self) -> bool:
        return self.callers.head() is not None


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
        """With so many queues known, those that are idle are forgotten."""
        self._round: DeficitRound[Flow] = DeficitRound()
        self._waiting_count = 0
        self._work = 0.0
        """What was done in this turn, which began with it."""
        self._work_of: dict[Caller, float] = {}
        self._began_s = 0.0
        self._work_max = bounds.turn_work_max
        """What a turn may do, now."""
        self._is_scheduled = False
        self._penalties = Penalties(loop, clock, bounds.penalties, self._penalty_ended)

    # --- queues ---

    def queue_of(self, tenant: Tenant, address: str, is_enqueue: bool) -> CallerQueue:
        """The queue that a call belongs to. To be asked for each call anew: idle queues are forgotten."""
        flow = self._flows.get((tenant, is_enqueue))
        queue = flow.queues.get(address) if flow is not None else None
        return queue if queue is not None else self._new_queue(tenant, address, is_enqueue)

    def _new_queue(self, tenant: Tenant, address: str, is_enqueue: bool) -> CallerQueue:
        if self._queue_count >= self._queue_count_max:
            self._forget_idle_queues()
        flow = self._flows.setdefault((tenant, is_enqueue), Flow(tenant, is_enqueue))
        queue = flow.queues[address] = CallerQueue(self, flow, address)
        self._queue_count += 1
        return queue

    def _forget_idle_queues(self) -> None:
        """So seldom that it costs little beside what made the queues: when twice as many are there as were in use."""
        for flow in self._flows.values():
            flow.queues = {address: queue for address, queue in flow.queues.items() if not queue.is_idle()}
        self._flows = {key: flow for key, flow in self._flows.items() if flow.queues or flow.is_in_round}
        self._queue_count = sum(len(flow.queues) for flow in self._flows.values())
        self._queue_count_max = max(QUEUES_KEPT, 2 * self._queue_count)

    # --- what waits ---

    def may_start(self, queue: CallerQueue) -> bool:
        """Whether a call may be started at once: no other waits, and this turn has room for it."""
        return not self._waiting_count and self._work < self._work_max and not self.is_blocked(queue)

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
        bounds = self._bounds
        running_max = bounds.enqueues_running_max if queue.flow.is_enqueue else bounds.calls_running_max
        return queue.running_count >= running_max or (
            bool(self._penalties.penalised) and self._penalties.has(queue.caller)
        )

    # --- what it costs ---

    def charge(self, queue: CallerQueue, element_count: int, size_bytes: int, began_s: float) -> int:
        """Charge for a call or a page on which work began at `began_s` of the clock. Returns its units of work."""
        work = _work(element_count, size_bytes)
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
        if self._work_of:
            self._penalties.turn_ended(self._work_of, self._began_s, max(self._work, bounds.turn_work_shared_max) / 2)
        is_shared = self._penalties.is_shared({})
        self._work_max = bounds.turn_work_shared_max if is_shared else bounds.turn_work_max
        self._work = 0.0
        self._work_of.clear()
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
            self._charge(queue, _work(0, call.size_bytes) / REFUSALS_PER_WORK, self._clock())
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
        for is_enqueue in (False, True):
            flow = self._flows.get((tenant, is_enqueue))
            queues = flow.queues if flow is not None else {}
            for queue in list(queues.values()) if address is None else [queues.get(address)]:
                if queue is not None and queue.waiting:
                    self._join(queue)

    def _charge(self, queue: CallerQueue, work: float, began_s: float) -> None:
        if not self._work_of:
            self._began_s = began_s
        self._work += work
        self._work_of[queue.caller] = self._work_of.get(queue.caller, 0.0) + work
        queue.deficit -= work
        queue.flow.deficit -= work
        self._turn_soon()


def _work(element_count: int, size_bytes: int) -> int:
    return 1 + element_count // ELEMENTS_PER_WORK + size_bytes // BYTES_PER_WORK
