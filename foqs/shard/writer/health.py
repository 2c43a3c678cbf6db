"""The circuit breaker of one shard, after FOQS: mean transaction time and error rate over a rolling window.

pybreaker keeps the states; it has neither a window nor a notion of a call that hangs, so both are here. The
owner of the shard runs one transaction at a time, which makes it its own gate for probes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pybreaker

from foqs.model import limits
from foqs.server import mysql_server

BREAKER_WINDOW_MS = 5 * limits.SECOND_MS
"""Transactions that ended so lately count."""
BREAKER_SAMPLES_MIN = 5
"""With fewer transactions in the window the breaker does not judge them."""
BREAKER_MEAN_MS_MAX = 500
"""It opens when they take longer on average."""
BREAKER_ERRORS_MAX = 0.5
"""It opens when a greater part of them fails."""
BREAKER_STALL_MS = 700
"""It opens for a transaction or a question that takes longer, before that ends."""
BREAKER_PROBE_MS = 500
"""After this time it lets a probe through."""
BREAKER_PROBE_FACTOR_MAX = 4
"""Each time that it opens again soon after a probe the next probe waits twice as long, up to so many times as long."""

assert mysql_server.PULSE_MS + BREAKER_STALL_MS + 2 * limits.TICK_MS < limits.BREAKER_OPENS_MS_MAX, (
    "a server that hangs is noticed in time, whatever its shards are doing"
)


class Health:
    """The circuit breaker of one shard: `Keeper` owns it, and others ask whether the shard is healthy.

    Times are seconds in which the event loop turned (`TurningTime`). `on_change(healthy, reason)` is told when the
    breaker opens and closes.
    """

    def __init__(self, name: str, on_change: Callable[[bool, str], None]) -> None:
        # Neither its count of failures nor its timer decide anything: the window below and `began` do.
        self._breaker = pybreaker.CircuitBreaker(fail_max=sys.maxsize, reset_timeout=sys.maxsize, name=name)
        self._on_change = on_change
        self._samples: deque[tuple[float, float, bool]] = deque()
        """(ended at, seconds, failed)."""
        self._seconds_sum = 0.0
        self._failed_count = 0
        self._failed_in_a_row_count = 0
        self._began_s: float | None = None
        self._is_probe = False
        """What is under way is to show whether the shard is well again."""
        self._opened_at_s = 0.0
        self._closed_at_s: float | None = None
        self._probe_pause_ms = BREAKER_PROBE_MS
        self.opened_count = 0
        """Over all take-overs."""
        self.reason = ""
        """Why the breaker opened last."""

    @property
    def healthy(self) -> bool:
        return bool(self._breaker.current_state == pybreaker.STATE_CLOSED)

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        return str(self._breaker.current_state)

    def wants_probe(self, now_s: float) -> bool:
        """The breaker is open, and long enough to try again."""
        return not self.healthy and now_s - self._opened_at_s >= self._probe_pause_ms / 1000

    def began(self, now_s: float) -> None:
        self._began_s = now_s
        self._is_probe = self.wants_probe(now_s)
        if self._is_probe:
            self._breaker.half_open()

    def ended(self, now_s: float, *, failed: bool) -> None:
        began_s, self._began_s = self._began_s, None
        assert began_s is not None
        if not self.healthy:
            if self._is_probe:
                self._judge_probe(began_s, now_s, failed)
            return
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
            return
        mean_ms = self._seconds_sum / len(samples) * 1000
        errors = self._failed_count / len(samples)
        if mean_ms > BREAKER_MEAN_MS_MAX:
            self.trip(now_s, f"its transactions take {mean_ms:.0f} ms on average")
        elif self._failed_in_a_row_count >= BREAKER_SAMPLES_MIN:
            # Those that went well before would keep the rate down for half of the window.
            self.trip(now_s, f"its last {self._failed_in_a_row_count} transactions failed")
        elif errors > BREAKER_ERRORS_MAX:
            self.trip(now_s, f"{errors:.0%} of its transactions fail")

    @contextmanager
    def watched(self, now_s: float) -> Iterator[None]:
        """Around a question that the next transaction waits for: `watch` opens when its answer does not come.

        It is no sample and no probe: a server that tells the time may yet be unable to write.
        """
        self._began_s = now_s
        try:
            yield
        finally:
            self._began_s = None

    def watch(self, now_s: float, silent_since_s: float | None = None) -> None:
        """Open for a transaction or a question that hangs; to be called a few times in BREAKER_STALL_MS.

        `silent_since_s`: since when the shard's server has left all questions unanswered, those of its neighbours too.
        """
        since_s = min([at_s for at_s in (self._began_s, silent_since_s) if at_s is not None], default=now_s)
        if self.healthy and now_s - since_s > BREAKER_STALL_MS / 1000:
            self.trip(now_s, f"it has not answered for {BREAKER_STALL_MS} ms")

    @property
    def retry_pause_s(self) -> float:
        """How long a shard whose breaker is open rests after a transaction that failed."""
        return BREAKER_PROBE_MS / 1000

    def reset(self) -> None:
        """Close without a word: the shard is opened anew, and what was before says nothing of that."""
        self._forget_samples()
        self._began_s, self._closed_at_s = None, None
        self._breaker.close()

    def trip(self, now_s: float, reason: str) -> None:
        """Open at once, unless it is open."""
        if self.healthy:
            self.opened_count += 1
            self.reason = reason
            self._opened_at_s = now_s
            self._probe_pause_ms = self._next_pause_ms(now_s)
            self._forget_samples()
            self._breaker.open()
            self._on_change(False, reason)

    def _forget_samples(self) -> None:
        self._samples.clear()
        self._seconds_sum, self._failed_count, self._failed_in_a_row_count = 0.0, 0, 0

    def _judge_probe(self, began_s: float, now_s: float, failed: bool) -> None:
        if failed or now_s - began_s > BREAKER_MEAN_MS_MAX / 1000:
            self._opened_at_s = now_s
            self._breaker.open()
        else:
            self._closed_at_s = now_s
            self._breaker.close()
            self._on_change(True, "a probe was answered in time")

    def _next_pause_ms(self, now_s: float) -> int:
        """Longer when it opens again at once: a full disk takes a probe, and not the rows that come after it."""
        if self._closed_at_s is None or now_s - self._closed_at_s > BREAKER_WINDOW_MS / 1000:
            return BREAKER_PROBE_MS
        return min(2 * self._probe_pause_ms, BREAKER_PROBE_FACTOR_MAX * BREAKER_PROBE_MS)
