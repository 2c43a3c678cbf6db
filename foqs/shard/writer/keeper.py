"""The owner's watch on its server: its health, its clock, and its durability.

A circuit breaker decides on the health, after FOQS, by the mean transaction time and the error rate over a rolling
window. pybreaker has the rules of the states: each judgement passes through its calls, which open it, refuse all but
probes, and close it, and its listener reports changes. It has neither a window nor a notion of a hanging call, and its
timer uses the wall clock, so those are here. The owner of the shard runs one transaction at a time, which makes it its
own gate for probes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Final

import pybreaker
import structlog

from foqs.background.lane import Lane
from foqs.model import limits
from foqs.model.clock import Now
from foqs.shard import mysql_server
from foqs.shard.mysql_server import MysqlServer
from foqs.shard.port import OwnershipLostError, ShardImage, Store
from foqs.shard.state.engine import ShardState

CLOCK_PROBE_MS = 10 * limits.SECOND_MS
"""How often a shard asks for the time. Its session is never silent for much longer."""
CLOCK_DOUBT_MS_MAX = 50
"""A probe that took longer is repeated, because a stalled machine might have delayed its answer."""
CLOCK_RETRY_MS = 500
"""The pause before a failed question to the clock is repeated."""
CLOCK_TRY_MS_MAX = 2_000
"""A shard that is opened waits this long for a good probe, and is then served with the clock it has."""
CLOCK_STEP_MS_MIN = 1 * limits.SECOND_MS
"""A server's clock that moved by more than this against the host's own has stepped."""
BREAKER_WINDOW_MS = 5 * limits.SECOND_MS
"""The window of the breaker: transactions that ended within this time count."""
BREAKER_SAMPLES_MIN = 5
"""The fewest transactions in the window that the breaker judges."""
BREAKER_MEAN_MS_MAX = 500
"""The mean time of transactions above which the breaker opens."""
BREAKER_ERRORS_MAX = 0.5
"""The fraction of failed transactions above which the breaker opens."""
BREAKER_STALL_MS = 700
"""The time of one transaction or question after which the breaker opens, before that ends."""
BREAKER_PROBE_MS = 500
"""The pause before an open breaker lets a probe through."""
BREAKER_PROBE_FACTOR_MAX = 4
"""The longest pause before a probe, in multiples. It doubles each time the breaker opens again soon after a probe."""

_NEVER_S: Final = 10 * 365 * 86_400
"""Longer than any host runs."""

assert 2 * CLOCK_PROBE_MS < limits.OWNER_SILENT_MS_MAX, "an owner with nothing to do must not look dead"
assert mysql_server.PULSE_MS + BREAKER_STALL_MS + 2 * limits.TICK_MS < limits.BREAKER_OPENS_MS_MAX, (
    "a server that hangs is noticed in time, whatever its shards are doing"
)

_log = structlog.get_logger(__name__)


class ShardClock:
    """The clocks of a shard, computed from the owner's own monotonic clock.

    One is the server's clock, as far as probes prove it. The other is the steady clock: it continues from the last
    owner's written value, so that after a take-over a lease has the time left that it had at the last transaction. A
    lease ends later than it would have, never earlier, regardless of the server's clock.
    """

    def __init__(self) -> None:
        self.steps_count = 0
        """The number of steps seen of the server's clock."""
        self._steady_offset_ms = 0.0
        self._server_offset_ms = 0.0
        self._proven_ms = (0.0, 0.0)
        """The bounds of the offset of the server's clock, by the last answer."""

    def at(self, monotonic_s: float) -> Now:
        own_ms = monotonic_s * 1000
        return Now(int(own_ms + self._server_offset_ms), int(own_ms + self._steady_offset_ms))

    def start(self, before_s: float, server_ms: int, steady_ms: int, after_s: float) -> None:
        """Begin at a take-over, which read both clocks between these times of the monotonic clock."""
        self._steady_offset_ms = steady_ms - after_s * 1000
        self._proven_ms = (server_ms - after_s * 1000, server_ms - before_s * 1000)
        self._server_offset_ms = self._proven_ms[0]

    def probed(self, before_s: float, server_ms: int, after_s: float) -> int:
        """Follow the server's clock, which showed `server_ms` between these times of the monotonic clock.

        A slow probe moves the clock no further than it proves. Returns the step of the server's clock in ms, 0 if the
        doubt of this probe and the last one explain it.
        """
        low_ms, high_ms = server_ms - after_s * 1000, server_ms - before_s * 1000
        self._server_offset_ms = min(max(self._server_offset_ms, low_ms), high_ms)
        (low_before_ms, high_before_ms), self._proven_ms = self._proven_ms, (low_ms, high_ms)
        step_ms = round(max(low_ms - high_before_ms, 0) or min(high_ms - low_before_ms, 0))
        if abs(step_ms) <= CLOCK_STEP_MS_MIN:
            return 0
        self.steps_count += 1
        return step_ms


class _UnwellError(Exception):
    """A failure for pybreaker: the judgement on the last transactions, or on a probe."""


class _Listener(pybreaker.CircuitBreakerListener):
    """Reports changes of the breaker's state."""

    def __init__(self, changed: Callable[[str, str], None]) -> None:
        self._changed = changed

    def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
        """Report a change. pybreaker calls it whenever the state is set, even to the same state."""
        self._changed(old_state.name, new_state.name)


class Health:
    """The circuit breaker of one shard, which `Keeper` owns; other parts ask if the shard is healthy.

    Times are seconds in which the event loop turned (`TurningTime`). `on_change(healthy, reason)` is called when the
    breaker opens and closes.
    """

    def __init__(self, name: str, on_change: Callable[[bool, str], None]) -> None:
        self.healthy = True
        """True if the breaker is closed."""
        self.opened_count = 0
        """The count over all take-overs."""
        self.reason = ""
        """The reason for the last opening of the breaker."""
        # A failure is a judgement on many transactions. Its timer never lets a probe through: `began` does.
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=1, reset_timeout=_NEVER_S, name=name, listeners=[_Listener(self._state_changed)]
        )
        self._on_change = on_change
        self._now_s = 0.0
        """The time of the breaker's last judgement."""
        self._samples: deque[tuple[float, float, bool]] = deque()
        """The end, the duration and the failure of each transaction."""
        self._seconds_sum = 0.0
        self._failed_count = 0
        self._failed_in_a_row_count = 0
        self._began_s: float | None = None
        self._problem = ""
        """The breaker's last judgement."""
        self._is_resetting = False
        self._opened_at_s = 0.0
        self._closed_at_s: float | None = None
        self._probe_pause_ms = BREAKER_PROBE_MS

    @property
    def state(self) -> str:
        """The state of the breaker: closed, open or half-open."""
        return str(self._breaker.current_state)

    def wants_probe(self, now_s: float) -> bool:
        """Return True if the breaker has been open for long enough to try again."""
        return not self.healthy and now_s - self._opened_at_s >= self._probe_pause_ms / 1000

    def began(self, now_s: float) -> None:
        self._began_s = now_s
        if self.wants_probe(now_s):
            self._breaker.half_open()

    def ended(self, now_s: float, *, failed: bool) -> None:
        """Note the end of a transaction. While the breaker is open, only a probe counts, because pybreaker refuses
        others.
        """
        began_s, self._began_s = self._began_s, None
        assert began_s is not None
        if self.healthy:
            self._report(now_s, self._problem_with(began_s, now_s, failed))
        else:
            is_bad = failed or now_s - began_s > BREAKER_MEAN_MS_MAX / 1000
            self._report(now_s, "a probe failed" if is_bad else "")

    def _report(self, now_s: float, problem: str) -> None:
        """Pass the judgement on the shard to pybreaker, whose state decides on the effect."""

        def judge() -> None:
            if problem:
                raise _UnwellError(problem)

        self._now_s, self._problem = now_s, problem
        with suppress(pybreaker.CircuitBreakerError, _UnwellError):
            self._breaker.call(judge)

    def _state_changed(self, before: str, after: str) -> None:
        if after == pybreaker.STATE_OPEN:
            self._opened_at_s = self._now_s
            if before == pybreaker.STATE_CLOSED:
                self.healthy, self.reason = False, self._problem
                self.opened_count += 1
                self._probe_pause_ms = self._next_pause_ms(self._now_s)
                self._forget_samples()
                self._on_change(False, self.reason)
        elif after == pybreaker.STATE_CLOSED:
            self.healthy = True
            if before == pybreaker.STATE_HALF_OPEN and not self._is_resetting:
                self._closed_at_s = self._now_s
                self._on_change(True, "a probe was answered in time")

    def _problem_with(self, began_s: float, now_s: float, failed: bool) -> str:
        """Return the problem that the window shows, with this transaction in it, or an empty text."""
        samples = self._samples
        samples.append((now_s, now_s - began_s, failed))
        self._seconds_sum += now_s - began_s
        self._failed_count += failed
        self._failed_in_a_row_count = self._failed_in_a_row_count + 1 if failed else 0
        while samples[0][0] < now_s - BREAKER_WINDOW_MS / 1000:
            _, seconds, was_failed = samples.popleft()
            self._seconds_sum -= seconds
            self._failed_count -= was_failed
        if len(samples) < BREAKER_SAMPLES_MIN:
            return ""
        mean_ms = self._seconds_sum / len(samples) * 1000
        errors = self._failed_count / len(samples)
        if mean_ms > BREAKER_MEAN_MS_MAX:
            return f"its transactions take {mean_ms:.0f} ms on average"
        if self._failed_in_a_row_count >= BREAKER_SAMPLES_MIN:
            # Earlier successes would keep the rate down for half of the window.
            return f"its last {self._failed_in_a_row_count} transactions failed"
        return f"{errors:.0%} of its transactions fail" if errors > BREAKER_ERRORS_MAX else ""

    @contextmanager
    def watched(self, now_s: float) -> Iterator[None]:
        """Cover a question that the next transaction waits for: `watch` opens the breaker if its answer does not come.

        It is no sample and no probe, because a server that returns the time can still be unable to write.
        """
        self._began_s = now_s
        try:
            yield
        finally:
            self._began_s = None

    def watch(self, now_s: float, silent_since_s: float | None = None) -> None:
        """Open the breaker if a transaction or a question hangs; call it a few times in BREAKER_STALL_MS.

        `silent_since_s`: the time since which the server has left all questions unanswered, of all its shards.
        """
        if self._began_s is None and silent_since_s is None:
            return
        if self.healthy and self.hangs(now_s, silent_since_s):
            self.trip(now_s, f"it has not answered for {BREAKER_STALL_MS} ms")

    def hangs(self, now_s: float, silent_since_s: float | None = None) -> bool:
        """True if a question has had no answer for BREAKER_STALL_MS."""
        since_s = min([at_s for at_s in (self._began_s, silent_since_s) if at_s is not None], default=now_s)
        return now_s - since_s > BREAKER_STALL_MS / 1000

    @property
    def retry_pause_s(self) -> float:
        """The pause of a shard with an open breaker after a failed transaction."""
        return BREAKER_PROBE_MS / 1000

    def reset(self) -> None:
        """Close without a report. The shard is opened anew, and its past does not count for the new session."""
        self._forget_samples()
        self._began_s, self._closed_at_s = None, None
        self._is_resetting = True
        self._breaker.close()
        self._is_resetting = False

    def trip(self, now_s: float, reason: str) -> None:
        """Open at once. pybreaker ignores it if the breaker is open."""
        self._report(now_s, reason)

    def _forget_samples(self) -> None:
        self._samples.clear()
        self._seconds_sum, self._failed_count, self._failed_in_a_row_count = 0.0, 0, 0

    def _next_pause_ms(self, now_s: float) -> int:
        """Return the pause before a probe, longer if it opens again at once: a full disk admits a probe, but not later
        rows.
        """
        if self._closed_at_s is None or now_s - self._closed_at_s > BREAKER_WINDOW_MS / 1000:
            return BREAKER_PROBE_MS
        return min(2 * self._probe_pause_ms, BREAKER_PROBE_FACTOR_MAX * BREAKER_PROBE_MS)


class Keeper:
    """Watches the server of one shard, through the shard's own session, because an address can lead to several
    machines.

    `ShardWriter` calls `tick` all the time and `keep` between two transactions, and reports every transaction.
    `Ownership` calls `begin` and `settle` while it opens the shard, and asks its own questions here. The keeper owns
    the shard's clock and its circuit breaker, and records in `MysqlServer` its findings for the server's other shards.
    """

    def __init__(
        self,
        shard_id: int,
        store: Store,
        server: MysqlServer,
        lane: Lane,
        health_changed: Callable[[bool, str], None],
    ) -> None:
        """The store blocks on `lane`; `health_changed(healthy, reason)` reports the breaker."""
        self.clock = ShardClock()
        self.health = Health(f"shard-{shard_id}", health_changed)
        self.is_due = False
        """True if `keep` has a question."""
        self._shard_id = shard_id
        self._store = store
        self._server = server
        self._lane = lane
        self._loop = asyncio.get_running_loop()
        self._clock_probed_s = self._durable_s = -inf
        """The last times at which the server was asked for the time, and for its durability."""

    # ---- the server's answers ----

    def tick(self, *, is_owned: bool, is_idle: bool) -> bool:
        """Open the breaker of a shard whose server hangs. Returns True if `keep` or a probe has a question.

        `is_idle`: the shard is owned, and its session has nothing to do.
        """
        now_s, health = self._loop.time(), self.health
        turned_s = self._server.turning.at(now_s)
        health.watch(turned_s, self._server.silent_since_s if is_owned else None)
        if is_idle and (self._store.is_session_lost() or (health.healthy and self._claim_pulse(turned_s))):
            # The probe detects a loss, so that the shard is reopened before a transaction needs it.
            self.ask_soon()
        self.is_due = self.is_due or self._is_clock_due(now_s) or self._is_durability_due(now_s)
        return self.is_due or (not health.healthy and health.wants_probe(turned_s))

    @property
    def hangs(self) -> bool:
        """True if the breaker is open and the server gives no answer, so that calls would wait for long.

        A shard that is sick otherwise, as with a full disk, might still do much of its work.
        """
        return not self.health.healthy and self.health.hangs(self._turned_s(), self._server.silent_since_s)

    @property
    def wants_probe(self) -> bool:
        """True if the next transaction must show that the shard is well again."""
        return self.health.wants_probe(self._turned_s())

    def began(self) -> None:
        """Note that a transaction is sent."""
        turned_s = self._turned_s()
        self._asked(turned_s)
        self.health.began(turned_s)

    def ended(self, outcome: str) -> None:
        """Note that a transaction is committed, failed or unknown; an unknown one has had no answer."""
        turned_s = self._turned_s()
        if outcome != "unknown":
            self._answered(turned_s)
        self.health.ended(turned_s, failed=outcome != "committed")

    @contextmanager
    def question(self) -> Iterator[None]:
        """Cover a question that the next transaction waits for: the breaker opens if its answer does not come."""
        with self._asking(), self.health.watched(self._turned_s()):
            yield

    def trip(self, reason: str) -> None:
        """Open the breaker at once."""
        self.health.trip(self._turned_s(), reason)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Cover a question, which is answered unless the body raises an error."""
        self._asked(self._turned_s())
        yield
        self._answered(self._turned_s())

    def _asked(self, turned_s: float) -> None:
        if self._server.silent_since_s is None:
            self._server.silent_since_s = turned_s

    def _answered(self, turned_s: float) -> None:
        """Note an answer of the server with any content. A lost session is no answer."""
        self._server.answered_s, self._server.silent_since_s = turned_s, None

    def _claim_pulse(self, turned_s: float) -> bool:
        """Return True if this shard must ask for the time now, because the server has not answered for a while.

        Of several shards one gets True, and another after the same time if the first has no answer, because only that
        session might hang.
        """
        server = self._server
        if turned_s - max(server.answered_s, server.pulsed_s) <= mysql_server.PULSE_MS / 1000:
            return False
        server.pulsed_s = turned_s
        return True

    def _turned_s(self) -> float:
        """Return the present time, as `TurningTime.at` has it."""
        turning = self._server.turning
        return min(self._loop.time(), turning.stops_s) - turning.held_s

    # ---- while the shard is opened ----

    def begin(self, asked_s: float, image: ShardImage) -> None:
        """Set the clock by a new owner's reads, which began at `asked_s` of the event loop."""
        self.clock.start(asked_s, image.now_ms, image.steady_ms, self._loop.time())

    async def settle(self) -> None:
        """Improve the clock, whose reading the later reads have made old, and mark the shard as well.

        Raises SessionLostError.
        """
        until_s = self._loop.time() + CLOCK_TRY_MS_MAX / 1000
        doubt_ms = inf
        while doubt_ms > CLOCK_DOUBT_MS_MAX and self._loop.time() < until_s:
            with self._asking():
                doubt_ms, _ = await self._probe_clock()
        self._durable_s = self._loop.time()
        self.health.reset()

    # ---- while it is owned ----

    def ask_soon(self) -> None:
        """Let the next `keep` ask for the time, regardless of the last answer."""
        self._clock_probed_s = -inf
        self.is_due = True

    async def keep(self, shard: ShardState) -> None:
        """Ask the due questions. Raises OwnershipLostError if the server can lose acknowledged items, and
        SessionLostError.
        """
        self.is_due = False
        if self._is_clock_due(self._loop.time()):
            with self.question():
                _, step_ms = await self._probe_clock()
            if step_ms:
                shard.index.expires_first_ms = 0  # After a step, the first expiry can be long before it.
        if self._is_durability_due(self._loop.time()):
            self._durable_s = self._loop.time()
            with self.question():
                problems = await self._lane.run(self._store.check)
            if problems:
                await self._lane.run(self._store.close)
                raise OwnershipLostError("; ".join(problems))

    async def _probe_clock(self) -> tuple[float, int]:
        """Return the possible error of the clock now, in ms, and the step of the server's clock, in ms.

        A probe with much doubt is soon followed by another one.
        """
        before_s = self._loop.time()
        now_ms = await self._store.now_ms()
        after_s = self._loop.time()
        doubt_ms = (after_s - before_s) * 1000
        is_good = doubt_ms <= CLOCK_DOUBT_MS_MAX
        self._clock_probed_s = after_s if is_good else after_s - (CLOCK_PROBE_MS - CLOCK_RETRY_MS) / 1000
        step_ms = self.clock.probed(before_s, now_ms, after_s)
        if step_ms:
            direction = "forward" if step_ms > 0 else "backward"
            _log.warning("server_clock_stepped", shard=self._shard_id, step_ms=step_ms, direction=direction)
        return doubt_ms, step_ms

    def _is_clock_due(self, now_s: float) -> bool:
        return now_s - self._clock_probed_s > CLOCK_PROBE_MS / 1000

    def _is_durability_due(self, now_s: float) -> bool:
        return now_s - self._durable_s > limits.DURABILITY_CHECK_MS / 1000
