"""One MySQL server, for the shards of this host that it has: when each may commit, and whether it answers."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

SLOT_MS_MAX = 50
"""A transaction that takes longer gives its slot away: its shard is sick or waits for a lock, or its server is slow."""
HEAVY_TRANSACTION_ROWS = 64
"""A transaction that reads or writes at least so many rows is heavy."""
HEAVY_TRANSACTIONS_MAX = 4
"""Heavy transactions that run without a slot at the same time; one more keeps its slot."""
COALESCE_TURNS_MAX = 8
"""Turns of the event loop between two transactions of a shard: callers that were answered come back."""
COALESCE_MS_MAX = 5
"""The time after which those turns end, however few they were."""
COALESCE_CALLS = 32
"""Where so many calls wait nobody is waited for: what a transaction costs beside its items is little to each."""
PLACEMENT_RUN_ITEMS = 2_000
"""Enqueued items in a row that go to one shard, times the shards that share a slot."""
PLACEMENT_RUN_ITEMS_MAX = 16_000
PULSE_MS = 200
"""A server that has said nothing for so long is asked for the time, by one of its shards that has nothing to do."""
LOOP_HELD_MS = 100
"""An event loop that has not turned for longer was held: the rest of that time is no server's silence."""


class TurningTime:
    """A clock in seconds that stops while the event loop is held. Where there are no ticks it is the loop's own.

    The host calls `tick` every limits.TICK_MS. A tick that comes more than LOOP_HELD_MS after the last one shows that
    the loop did not turn, or that the process did not run: answers may have been here, and nobody took them.
    """

    def __init__(self) -> None:
        self.stops_s = inf
        """The time of the loop's clock from which on it stands still, until the next tick."""
        self.held_s = 0.0
        """How long it has stood still in all."""

    def at(self, now_s: float) -> float:
        """The time that it shows when the loop's clock shows `now_s`."""
        return min(now_s, self.stops_s) - self.held_s

    def tick(self, now_s: float) -> float:
        """The loop turns. Returns what the clock shows."""
        shown_s = self.at(now_s)
        self.held_s = now_s - shown_s
        self.stops_s = now_s + LOOP_HELD_MS / 1000
        return shown_s


class MysqlServer:
    """One MySQL server, known by the address in the URLs of its shards, and what its shards have learnt of it.

    The host makes one for each address. The writers of its shards take their turns at `scheduler`. The keeper of each
    shard notes here when it asks the server something and when the server answers, so that the silence of a server is
    noticed for all of its shards at once, whichever of them asked.

    An address may lead to several machines, as a proxy does, or a fail-over for a while. So nothing that a promise
    rests on is known here: every shard asks for the time and for durability through its own session, and has a circuit
    breaker of its own (docs/decisions/0013-commit-scheduler.md).

    All times are seconds in which the event loop turned, as `turning` shows them.
    """

    def __init__(self, address: str, scheduler: CommitScheduler, turning: TurningTime) -> None:
        self.address = address
        self.scheduler = scheduler
        self.turning = turning
        """The turns of the event loop, which are one for the whole host."""
        self.heard_s = 0.0
        """When the server last answered a shard of this host. A lost session is no answer."""
        self.silent_since_s: float | None = None
        """When the first question was asked after that, all of which are unanswered; None while there is none."""
        self.pulsed_s = 0.0
        """When a shard was last told to ask it for the time because it had not been heard."""


class CommitScheduler:
    """Decides when each shard of one MySQL server begins its next transaction.

    The writer of a shard asks for its permit before it puts a transaction together, and keeps it until the transaction
    has ended. What comes while the shard waits is in that transaction. These are the rules:

    1. A shard waits for a slot. The server has `transactions_max` of them, which go round in the order of asking.
       A sick shard takes no slot and waits for none: it tries in vain, and its neighbours shall not wait for that.
    2. A shard whose last transaction has just ended coalesces, within its slot: it lets the event loop turn, so that
       the callers that were answered come back. That ends after COALESCE_TURNS_MAX turns or COALESCE_MS_MAX, and as
       soon as COALESCE_CALLS calls wait. A shard that was idle begins at once.
    3. A slot is free again when its transaction ends, or SLOT_MS_MAX after it was taken.
    4. A heavy transaction leaves its slot as soon as it begins, unless HEAVY_TRANSACTIONS_MAX others have done so.
    5. Enqueued items go to a shard in runs of `placement_run_items`, so that as many shards take items at a time as
       have a slot to write them.

    The reasons and the figures are in docs/decisions/0013-commit-scheduler.md.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transactions_max: int) -> None:
        self.loop = loop
        self.free_slots_count = transactions_max
        self.waiting: deque[Permit] = deque()
        """Shards that wait for a slot, in the order of asking; there are none while a slot is free."""
        self.heavy_count = 0
        """Heavy transactions that run without a slot now."""
        self._transactions_max = transactions_max
        self._shards_count = 0

    def join(self) -> Permit:
        """Let one more shard of the server write; it asks for this permit, one transaction after the other."""
        self._shards_count += 1
        return Permit(self)

    def leave(self) -> None:
        """A shard of the server writes here no more."""
        self._shards_count -= 1

    @property
    def placement_run_items(self) -> int:
        """How many enqueued items in a row a shard of this server takes, when it is its turn.

        What is enqueued together is delivered and acked together, so the run decides how many shards have something
        to write at the same time, and a transaction of few items costs each of them more.
        """
        shards_per_slot = max(1, self._shards_count // self._transactions_max)
        return min(PLACEMENT_RUN_ITEMS * shards_per_slot, PLACEMENT_RUN_ITEMS_MAX)


class Permit:
    """Lets one shard put its next transaction together and run it.

    The shard's writer calls `ask`, awaits what that returns, runs the transaction, and calls `end` whatever has become
    of it. It says by `leave_slot` that the transaction is heavy, and by `stop_coalescing` that enough calls wait.
    """

    __slots__ = (
        "_asked_s", "_coalesce_until_s", "_granted", "_is_beside", "_is_waiting", "_scheduler", "_slot_timer", "_turn",
        "_turns_left", "is_coalescing", "waited_s",
    )  # fmt: skip

    def __init__(self, scheduler: CommitScheduler) -> None:
        self.waited_s = 0.0
        """How long the shard waited for its slot."""
        self.is_coalescing = False
        """Whether it was asked for right after a transaction, and is not granted yet: more calls may come."""
        self._scheduler = scheduler
        self._granted: asyncio.Future[None] | None = None
        """Done when the transaction may begin; None before it is asked for and after the end."""
        self._asked_s = self._coalesce_until_s = 0.0
        self._is_waiting = False
        """Whether it stands among those that wait for a slot."""
        self._slot_timer: asyncio.TimerHandle | None = None
        """Ends the time for which the slot is held; None without a slot."""
        self._turn: asyncio.Handle | None = None
        """The work for the next turn of the event loop."""
        self._turns_left = 0
        self._is_beside = False
        """The transaction is a heavy one that has left its slot."""

    def ask(self, last_rows_count: int | None, *, is_sick: bool) -> asyncio.Future[None]:
        """Return what is done when the shard may put its next transaction together.

        `last_rows_count` is of the shard's transaction that has just ended; it is None when the shard was idle.
        """
        loop = self._scheduler.loop
        self._granted = granted = loop.create_future()
        self._asked_s, self.waited_s = loop.time(), 0.0
        self.is_coalescing = last_rows_count is not None
        if is_sick:
            self._coalesce()
        elif last_rows_count is not None and last_rows_count >= HEAVY_TRANSACTION_ROWS:
            # To end a heavy one and to begin the next are long enough each.
            self._turn = loop.call_soon(self._ask_for_slot)
        else:
            self._ask_for_slot()
        return granted

    def stop_coalescing(self) -> None:
        """COALESCE_CALLS calls wait: the transaction begins as soon as the shard has its slot."""
        self.is_coalescing = False
        if self._turns_left and self._turn is not None:
            self._turn.cancel()
            self._grant()

    def leave_slot(self) -> None:
        """The transaction that begins now is a heavy one: it leaves its slot to others.

        The host has work of its own with each of many rows, before and after it: with one such transaction at a time
        server and host would wait for each other by turns.
        """
        if self._slot_timer is not None and self._scheduler.heavy_count < HEAVY_TRANSACTIONS_MAX:
            self._scheduler.heavy_count += 1
            self._is_beside = True
            self._release_slot()

    def end(self) -> None:
        """The transaction has ended, or there is none. The writer may ask for the next one."""
        if self._turn is not None:
            self._turn.cancel()
        if self._is_waiting:
            self._scheduler.waiting.remove(self)
        self._scheduler.heavy_count -= self._is_beside
        self._granted, self._turn, self._turns_left = None, None, 0
        self.is_coalescing = self._is_waiting = self._is_beside = False
        self._release_slot()

    def _ask_for_slot(self) -> None:
        self._turn = None
        if self._scheduler.free_slots_count:
            self._scheduler.free_slots_count -= 1
            self._take_slot()
        else:
            self._scheduler.waiting.append(self)
            self._is_waiting = True

    def _take_slot(self) -> None:
        """The slot is the shard's from now on."""
        loop = self._scheduler.loop
        self._is_waiting = False
        self.waited_s = loop.time() - self._asked_s
        self._slot_timer = loop.call_later(SLOT_MS_MAX / 1000, self._release_slot)
        self._coalesce()

    def _coalesce(self) -> None:
        """Wait as PostgreSQL's commit_delay does, which counts the other sessions that are active."""
        if not self.is_coalescing:
            self._grant()
            return
        self._coalesce_until_s = self._scheduler.loop.time() + COALESCE_MS_MAX / 1000
        self._turns_left = COALESCE_TURNS_MAX
        self._next_turn()

    def _next_turn(self) -> None:
        """End one turn of the event loop. The last one is that in which the writer is woken."""
        self._turns_left -= 1
        if self._turns_left <= 0 or self._scheduler.loop.time() >= self._coalesce_until_s:
            self._grant()
        else:
            self._turn = self._scheduler.loop.call_soon(self._next_turn)

    def _grant(self) -> None:
        self._turns_left, self._turn, self.is_coalescing = 0, None, False
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    def _release_slot(self) -> None:
        timer, self._slot_timer = self._slot_timer, None
        if timer is None:
            return
        timer.cancel()
        waiting = self._scheduler.waiting
        if waiting:
            waiting.popleft()._take_slot()
        else:
            self._scheduler.free_slots_count += 1
