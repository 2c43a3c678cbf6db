"""One MySQL server and this host's shards on it: the turns of their commits, and the server's silence."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

SLOT_MS_MAX = 50
"""Time after which a transaction gives its slot away, because its shard is sick or locked, or its server is slow."""
HEAVY_TRANSACTION_ROWS = 64
"""Rows read or written from which on a transaction is heavy."""
HEAVY_TRANSACTIONS_MAX = 4
"""Heavy transactions that run without a slot at the same time; one more keeps its slot."""
COALESCE_TURNS_MAX = 8
"""Turns of the event loop between two transactions of a shard, in which answered callers come back."""
COALESCE_MS_MAX = 5
"""The time after which those turns end, even if fewer have passed."""
COALESCE_CALLS = 32
"""Waiting calls that end those turns, because a transaction's fixed cost is then small for each call."""
PLACEMENT_RUN_ITEMS = 2_000
"""Consecutive enqueued items that one shard gets, times the shards that share a slot."""
PLACEMENT_RUN_ITEMS_MAX = 16_000
PULSE_MS = 200
"""Silence after which one idle shard of the server asks it for the time."""
LOOP_HELD_MS = 100
"""A longer turn of the event loop means that the loop was blocked; the excess does not count as a server's silence."""


class TurningTime:
    """A clock in seconds that stops while the event loop is blocked. Without ticks it equals the loop's own clock.

    The host calls `tick` every limits.TICK_MS. A tick more than LOOP_HELD_MS after the last one shows that the loop was
    blocked or the process did not run, so that answers could have been waiting unread.
    """

    def __init__(self) -> None:
        self.stops_s = inf
        """The time of the loop's clock at which this clock stops, unless the next tick comes before."""
        self.held_s = 0.0
        """The total time for which it has been stopped."""

    def at(self, now_s: float) -> float:
        """Return its time when the loop's clock shows `now_s`."""
        return (now_s if now_s < self.stops_s else self.stops_s) - self.held_s

    def tick(self, now_s: float) -> float:
        """Note a turn of the loop, and return the clock's time."""
        shown_s = self.at(now_s)
        self.held_s = now_s - shown_s
        self.stops_s = now_s + LOOP_HELD_MS / 1000
        return shown_s


class MysqlServer:
    """One MySQL server, identified by the address in the URLs of its shards, and the shards' observations of it.

    The host makes one for each address. The writers of its shards take their turns at `scheduler`. The keeper of each
    shard notes its questions and the server's answers here, so that the silence of a server is noticed for all of its
    shards at once.

    An address can lead to several machines, through a proxy, or for a while during a fail-over. So no promise rests on
    anything here: every shard asks for the time and for durability through its own session, and has a circuit breaker
    of its own (docs/decisions/0013-commit-scheduler.md).

    All times are seconds in which the event loop turned, on the clock `turning`.
    """

    def __init__(self, address: str, scheduler: CommitScheduler, turning: TurningTime) -> None:
        self.address = address
        self.scheduler = scheduler
        self.turning = turning
        """The clock of the event loop's turns, shared by the whole host."""
        self.answered_s = 0.0
        """The time of the server's last answer to a shard of this host. A lost session is no answer."""
        self.silent_since_s: float | None = None
        """The time of the first unanswered question since then; None if all are answered."""
        self.pulsed_s = 0.0
        """The time at which a shard was last asked to break the silence with a question for the time."""


class CommitScheduler:
    """Decides when each shard of one MySQL server begins its next transaction.

    The writer of a shard asks for its permit before it composes a transaction, and keeps it until the transaction has
    ended. Calls that arrive while the shard waits join that transaction. These are the rules:

    1. A shard waits for a slot. The server has `transactions_max` slots, which are granted in the order of asking. A
    sick shard takes no slot and waits for none, because its tries fail and must not delay its neighbours. 2. A shard
    whose last transaction has just ended coalesces, within its slot: it lets the event loop turn, so that the answered
    callers come back. That ends after COALESCE_TURNS_MAX turns or COALESCE_MS_MAX, and as soon as COALESCE_CALLS calls
    wait. A shard that was idle begins at once. 3. A slot is free again when its transaction ends, or SLOT_MS_MAX after
    it was taken. 4. A heavy transaction leaves its slot as soon as it begins, unless HEAVY_TRANSACTIONS_MAX others have
    done so. 5. Enqueued items are placed on a shard in runs of `placement_run_items`, so that the number of shards that
    take items at a time matches the number of slots to write them.

    The reasons and the figures are in docs/decisions/0013-commit-scheduler.md.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transactions_max: int) -> None:
        self.loop = loop
        self.free_slots_count = transactions_max
        self.waiting: deque[Permit] = deque()
        """Shards that wait for a slot, in the order of asking; empty while a slot is free."""
        self.heavy_count = 0
        """Heavy transactions that run without a slot now."""
        self._transactions_max = transactions_max
        self._shards_count = 0

    def join(self) -> Permit:
        """Add a writing shard of the server, and return its permit, used for one transaction after the other."""
        self._shards_count += 1
        return Permit(self)

    def leave(self) -> None:
        """Note that a shard of the server has stopped writing."""
        self._shards_count -= 1

    @property
    def placement_run_items(self) -> int:
        """Return the number of consecutive enqueued items that a shard of this server gets in its turn.

        Items enqueued together are delivered and acked together. So the run determines how many shards write at the
        same time, and smaller transactions cost each shard more.
        """
        shards_per_slot = max(1, self._shards_count // self._transactions_max)
        return min(PLACEMENT_RUN_ITEMS * shards_per_slot, PLACEMENT_RUN_ITEMS_MAX)


class Permit:
    """Lets one shard compose its next transaction and run it.

    The shard's writer calls `ask`, awaits the result, runs the transaction, and always calls `end`, even after a
    failure. It calls `leave_slot` for a heavy transaction, and `stop_coalescing` when enough calls wait.
    """

    __slots__ = (
        "_asked_s", "_coalesce_until_s", "_granted", "_is_beside", "_is_waiting", "_scheduler", "_slot_timer", "_turn",
        "_turns_left", "is_coalescing", "waited_s",
    )  # fmt: skip

    def __init__(self, scheduler: CommitScheduler) -> None:
        self.waited_s = 0.0
        """Wait for the last slot, in seconds."""
        self.is_coalescing = False
        """True if it was asked for right after a transaction, and is not granted yet, so that more calls can join."""
        self._scheduler = scheduler
        self._granted: asyncio.Future[None] | None = None
        """Done when the transaction can begin; None before `ask` and after `end`."""
        self._asked_s = self._coalesce_until_s = 0.0
        self._is_waiting = False
        self._slot_timer: asyncio.TimerHandle | None = None
        """The timer that ends the hold of the slot; None without a slot."""
        self._turn: asyncio.Handle | None = None
        """The work for the next turn of the event loop."""
        self._turns_left = 0
        self._is_beside = False
        """True if the transaction is a heavy one that has left its slot."""

    def ask(self, last_rows_count: int | None, *, is_sick: bool) -> asyncio.Future[None]:
        """Return a future that is done when the shard can compose its next transaction.

        `last_rows_count` belongs to the shard's transaction that has just ended; None if the shard was idle.
        """
        loop = self._scheduler.loop
        self._granted = granted = loop.create_future()
        self._asked_s, self.waited_s = loop.time(), 0.0
        self.is_coalescing = last_rows_count is not None
        if is_sick:
            self._coalesce()
        elif last_rows_count is not None and last_rows_count >= HEAVY_TRANSACTION_ROWS:
            # The end of a heavy transaction and the begin of the next take long enough each.
            self._turn = loop.call_soon(self._ask_for_slot)
        else:
            self._ask_for_slot()
        return granted

    def stop_coalescing(self) -> None:
        """Begin the transaction as soon as the shard has its slot, because COALESCE_CALLS calls wait."""
        self.is_coalescing = False
        if self._turns_left and self._turn is not None:
            self._turn.cancel()
            self._grant()

    def leave_slot(self) -> None:
        """Leave the slot to others, because the transaction that begins now is heavy.

        The host has work of its own for each of many rows, before and after the transaction. With only one such
        transaction at a time, server and host would wait for each other in turns.
        """
        if self._slot_timer is not None and self._scheduler.heavy_count < HEAVY_TRANSACTIONS_MAX:
            self._scheduler.heavy_count += 1
            self._is_beside = True
            self._release_slot()

    def end(self) -> None:
        """Note that the transaction has ended, or was not needed. The writer can then ask for the next one."""
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
        """Give the slot to the shard."""
        loop = self._scheduler.loop
        self._is_waiting = False
        self.waited_s = loop.time() - self._asked_s
        self._slot_timer = loop.call_later(SLOT_MS_MAX / 1000, self._release_slot)
        self._coalesce()

    def _coalesce(self) -> None:
        """Wait like PostgreSQL's commit_delay, which counts the other active sessions."""
        if not self.is_coalescing:
            self._grant()
            return
        self._coalesce_until_s = self._scheduler.loop.time() + COALESCE_MS_MAX / 1000
        self._turns_left = COALESCE_TURNS_MAX
        self._next_turn()

    def _next_turn(self) -> None:
        """Count one turn of the event loop. The writer is woken in the last one."""
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
