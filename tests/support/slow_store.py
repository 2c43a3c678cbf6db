"""A shard's store that takes its time or fails, as a test says, and the writer of such a shard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

from foqs.model import ids, limits
from foqs.model.namespace import SettingsTable
from foqs.model.shard_place import Tenure
from foqs.shard.mysql_server import CommitScheduler, MysqlServer, TurningTime
from foqs.shard.port import (
    LaneCounts,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionResult,
)
from foqs.shard.state.events import Events, LookUp
from foqs.shard.writer.shard_listener import ShardListener, TransactionMeter
from foqs.shard.writer.shard_writer import ShardWriter
from tests.support.waiting import PATIENCE_S

BOOTED_MS = 1_700_000_000_000
SLOW_READ_MS = 5_000
"""As long as the take-over of many topics, a slow network or a stopped host takes after the time was asked for."""


class SlowStore:
    """A store whose image is old when it is complete, which may take until `answers` is set. It stores a number."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.server = "here"
        self.answers = threading.Event()
        self.answers.set()
        self.tells_time = asyncio.Event()
        self.tells_time.set()
        self.answers_runs = asyncio.Event()
        self.answers_runs.set()
        self.holds_time: list[asyncio.Event] = []
        """What the next answers wait for, after the time was read."""
        self.asked_count = 0
        self.errors: list[Exception] = []
        """What the next transactions meet, one each."""
        self.numbers_run: list[int] = []
        self.number_stored = 0
        self.wants_count = 0
        """Transactions that the store wants for itself."""
        self.opened_count = self.reopened_count = self.closed_count = 0
        self.tenures: list[Tenure | None] = []
        """What was known at each opening."""
        self.open_errors: list[Exception] = []
        self.waited_count = 0
        """For a living owner."""
        self.epoch = 1
        self.epoch_errors: list[Exception] = []
        self.counts = threading.Event()
        self.counts.set()
        self.count_errors: list[Exception] = []
        self.is_lost = False
        self.reopen_errors: list[Exception] = []
        """What the next tries to reopen meet, one each."""
        self.stepped_ms = 0

    def wall_ms(self) -> int:
        """The server's clock, which goes as the event loop's but for steps."""
        return BOOTED_MS + int(self.loop.time() * 1000) + self.stepped_ms

    def open(self, tenure: Tenure | None = None) -> ShardImage:
        assert self.answers.wait(PATIENCE_S)
        self.opened_count += 1
        self.tenures.append(tenure)
        self.is_lost = False
        if self.open_errors:
            raise self.open_errors.pop(0)
        now_ms = self.wall_ms() - SLOW_READ_MS
        last_key = tenure.last_key if tenure is not None else self.epoch << ids.SEQUENCE_BITS
        return ShardImage(self.epoch, last_key, self.number_stored, 0, 0, now_ms, 0, [], [], self.count, [], {})

    def wait_for_owner(self, *, stay: bool = False) -> bool:
        self.waited_count += 1
        return False

    def retry_now(self) -> None:
        return None

    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None:
        return None

    def renew_epoch(self) -> int:
        if self.epoch_errors:
            raise self.epoch_errors.pop(0)
        self.epoch += 1
        return self.epoch

    def count(self) -> LaneCounts:
        assert self.counts.wait(PATIENCE_S)
        if self.count_errors:
            raise self.count_errors.pop(0)
        return LaneCounts([], [])

    def reopen(self) -> int:
        assert self.answers.wait(PATIENCE_S)
        if self.reopen_errors:
            raise self.reopen_errors.pop(0)
        self.reopened_count += 1
        self.is_lost = False
        return self.number_stored

    def close(self) -> None:
        self.closed_count += 1

    def interrupt(self) -> None:
        return

    def is_session_lost(self) -> bool:
        return self.is_lost

    def check(self) -> list[str]:
        return []

    async def now_ms(self) -> int:
        self.asked_count += 1
        if self.is_lost:
            raise SessionLostError("somebody killed it")
        await self.tells_time.wait()
        told_ms = self.wall_ms()
        if self.holds_time:
            await self.holds_time.pop().wait()
        return told_ms

    def wants_transaction(self, steady_ms: int) -> bool:
        return self.wants_count > 0

    def rows_count(self, transaction: Transaction) -> int:
        return sum([refill.limit for refill in transaction.refills])

    def outcome(self, transaction: Transaction) -> TransactionResult | None:
        has_happened = self.number_stored >= transaction.number
        return TransactionResult(refilled=[[] for _ in transaction.refills]) if has_happened else None

    async def run(self, transaction: Transaction) -> TransactionResult:
        self.numbers_run.append(transaction.number)
        await self.answers_runs.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.number_stored = transaction.number
        self.wants_count = max(0, self.wants_count - 1)
        return TransactionResult(refilled=[[] for _ in transaction.refills], looked_up={})


def new_listener() -> Mock:
    """One that hands nothing out, and tells callers what became of their calls."""

    def on_events(events: Events) -> None:
        for completion in events.completed:
            completion.on_done(completion)
        for look_up, rows, error in events.looked_up:
            if error is None:
                look_up.on_rows(rows)
            else:
                look_up.on_failed(error)

    listener = Mock(spec=ShardListener, settings=SettingsTable())
    listener.demand.return_value = {}
    listener.on_events.side_effect = on_events
    return listener


class TickedWriter(ShardWriter):
    """The writer of a shard; to tick it is to say that the event loop turns, as a host does.

    Its server has no other shard, unless it is made `beside` a writer of another one.
    """

    def __init__(self, store: SlowStore, beside: TickedWriter | None = None, tenure: Tenure | None = None) -> None:
        if beside is None:
            self.turning = TurningTime()
            scheduler = CommitScheduler(store.loop, limits.TRANSACTIONS_PER_SERVER_MAX)
            self.server = MysqlServer("here", scheduler, self.turning)
        else:
            self.turning, self.server = beside.turning, beside.server
        self.listener = new_listener()
        shard_id = 0 if beside is None else beside.shard_id + 1
        super().__init__(shard_id, store, self.server, self.listener, Mock(spec=TransactionMeter), tenure=tenure)

    def tick(self) -> None:
        self.turning.tick(self._loop.time())
        super().tick()


@asynccontextmanager
async def writer_of(
    store: SlowStore, beside: TickedWriter | None = None, tenure: Tenure | None = None
) -> AsyncIterator[TickedWriter]:
    writer = TickedWriter(store, beside, tenure)
    yield writer
    store.answers.set()
    store.tells_time.set()
    store.answers_runs.set()
    store.counts.set()
    await writer.stop()


async def run_one(writer: TickedWriter, store: SlowStore, *errors: Exception) -> str:
    """Let a look-up be in a transaction that meets these errors; what became of it."""
    assert writer.shard is not None
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    store.errors, store.numbers_run = list(errors), []
    on_rows, on_failed = (lambda _: ended.set_result("done")), (lambda error: ended.set_result(error.message))
    writer.shard.look_up(LookUp([1], on_rows, on_failed))
    writer.wake()
    async with asyncio.timeout(PATIENCE_S):
        return await ended


async def start(writer: TickedWriter, store: SlowStore) -> None:
    """And run what every new owner reads first."""
    await writer.start()
    # A busy machine can take its pause for a server that does not answer; the shard is opened again then.
    async with asyncio.timeout(PATIENCE_S):
        while writer.shard is None:
            writer.wake()
            await asyncio.sleep(0.001)
    assert await run_one(writer, store) == "done"


async def tick_for(writer: TickedWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while True:
        writer.tick()
        await asyncio.sleep(0.001)
        if loop.time() >= until_s:
            return


async def until_health(writer: TickedWriter, *, healthy: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while writer.health.healthy is not healthy:
            writer.wake()
            writer.tick()
            await asyncio.sleep(limits.TICK_MS / 1000)
