"""What the owner of a shard knows of its server: whether it answers, what time it has, and that it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import structlog

from foqs.model import limits
from foqs.server.mysql_server import MysqlServer
from foqs.shard.port import OwnershipLostError, ShardImage, Store
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.clock import ShardClock
from foqs.shard.writer.health import Health
from foqs.shard.writer.worker_thread import WorkerThread

CLOCK_PROBE_MS = 10 * limits.SECOND_MS
"""A shard asks for the time so often, and its session is never silent for much longer."""
CLOCK_DOUBT_MS_MAX = 50
"""A probe that took longer is repeated: its answer may have waited on a stalled machine."""
CLOCK_RETRY_MS = 500
"""It is repeated so soon."""
CLOCK_TRY_MS_MAX = 2_000
"""A shard that is opened waits so long for a good probe; then it is served with the clock that there is."""

assert 2 * CLOCK_PROBE_MS < limits.OWNER_SILENT_MS_MAX, "an owner with nothing to do must not look dead"

_log = structlog.get_logger(__name__)


class Keeper:
    """Watches the server of one shard, through the shard's own session: an address may lead to several machines.

    `ShardWriter` calls `tick` all the time, `keep` between two transactions, and tells it of every transaction.
    `Ownership` calls `begin` and `settle` while it opens the shard, and asks its own questions here. The keeper owns
    the shard's clock and its circuit breaker.
    """

    def __init__(
        self,
        shard_id: int,
        store: Store,
        server: MysqlServer,
        thread: WorkerThread,
        health_changed: Callable[[bool, str], None],
    ) -> None:
        """`thread` is the one on which the store blocks; `health_changed(healthy, reason)` is told of the breaker."""
        self.clock = ShardClock()
        self.health = Health(f"shard-{shard_id}", health_changed)
        self._shard_id = shard_id
        self._store = store
        self._server = server
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._clock_probed_s = self._durable_s = -inf
        """When the server was last asked for the time, and whether it is durable."""

    # ---- whether the server answers ----

    def tick(self, *, is_owned: bool, is_idle: bool) -> bool:
        """Open the breaker of a shard whose server hangs; True when `keep` or a probe has something to ask.

        `is_idle`: the shard is owned, and its session has nothing to do.
        """
        now_s, turned_s = self._loop.time(), self._server.turned_s()
        self.health.watch(turned_s, self._server.silent_since_s if is_owned else None)
        if is_idle and (self._store.is_session_lost() or (self.health.healthy and self._server.claim_pulse())):
            # The probe meets a loss, and the shard is reopened before a transaction has to meet it.
            self.ask_soon()
        wants_probe = self.health.wants_probe(turned_s)
        return wants_probe or self._is_clock_due(now_s) or self._is_durability_due(now_s)

    @property
    def wants_probe(self) -> bool:
        """The next transaction is to show whether the shard is well again."""
        return self.health.wants_probe(self._server.turned_s())

    def began(self) -> None:
        """A transaction is sent."""
        self._server.asked()
        self.health.began(self._server.turned_s())

    def ended(self, outcome: str) -> None:
        """A transaction is committed, failed or unknown; of an unknown one there is no answer."""
        if outcome != "unknown":
            self._server.answered()
        self.health.ended(self._server.turned_s(), failed=outcome != "committed")

    @contextmanager
    def question(self) -> Iterator[None]:
        """Around a question that the next transaction waits for: the breaker opens when its answer does not come."""
        with self._server.question(), self.health.watched(self._server.turned_s()):
            yield

    def trip(self, reason: str) -> None:
        """Open the breaker at once."""
        self.health.trip(self._server.turned_s(), reason)

    # ---- while the shard is opened ----

    def begin(self, asked_s: float, image: ShardImage) -> None:
        """Set the clock by what a new owner has read, which it asked for at `asked_s` of the event loop."""
        self.clock.start(asked_s, image.now_ms, image.steady_ms, self._loop.time())

    async def settle(self) -> None:
        """Make the clock a good one, which all that was read after the time has made an old one. The shard is well.

        Raises SessionLostError.
        """
        until_s = self._loop.time() + CLOCK_TRY_MS_MAX / 1000
        doubt_ms = inf
        while doubt_ms > CLOCK_DOUBT_MS_MAX and self._loop.time() < until_s:
            with self._server.question():
                doubt_ms, _ = await self._probe_clock()
        self._durable_s = self._loop.time()
        self.health.reset()

    # ---- while it is owned ----

    def ask_soon(self) -> None:
        """Let the next `keep` ask for the time, however lately it was told."""
        self._clock_probed_s = -inf

    async def keep(self, shard: ShardState) -> None:
        """Ask what is due. Raises OwnershipLostError when the server can lose acknowledged items, SessionLostError."""
        if self._is_clock_due(self._loop.time()):
            with self.question():
                _, step_ms = await self._probe_clock()
            if step_ms:
                shard.index.expires_first_ms = 0  # What it says may be long after what expires first now.
        if self._is_durability_due(self._loop.time()):
            self._durable_s = self._loop.time()
            with self.question():
                problems = await self._thread.run(self._store.check)
            if problems:
                await self._thread.run(self._store.close)
                raise OwnershipLostError("; ".join(problems))

    async def _probe_clock(self) -> tuple[float, int]:
        """Return by how many ms the clock may be wrong now, and by how many the server's was seen to step.

        A probe that leaves much doubt is soon followed by another one.
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
