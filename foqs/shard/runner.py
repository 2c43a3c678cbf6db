"""The writer of one shard: opens it, runs its transactions one after the other, opens it again when it is lost.

While one transaction commits, the next one collects: the busier the shard, the bigger the batch, and there
is no timer to tune.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from foqs.core import limits
from foqs.core.errors import FoqsError
from foqs.core.service import Service
from foqs.shard.flight import Flight, ShardListener
from foqs.shard.state import ShardState
from foqs.storage.transaction import (
    OwnershipLostError,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)

_log = structlog.get_logger(__name__)
_REOPEN_MS = 500

T = TypeVar("T")


class Store(Protocol):
    """What the runner needs of a shard's storage; foqs.storage.shard_store.ShardStore is the real one."""

    def open(self) -> ShardImage: ...
    def reopen(self) -> int: ...
    def close(self) -> None: ...
    def now_ms(self) -> int: ...
    def run(self, transaction: Transaction) -> TransactionResult: ...


class ShardRunner(Service):
    """`state` is None while the shard is not owned."""

    def __init__(self, shard_id: int, store: Store, listener: ShardListener, on_lost: Callable[[int], None]) -> None:
        super().__init__(f"shard-{shard_id}")
        self.shard_id = shard_id
        self.shard: ShardState | None = None
        self.detail = "not opened yet"
        self._store = store
        self._listener = listener
        self._on_lost = on_lost
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._clock_offset_ms = 0.0
        self._clock_probed_s = 0.0

    def now_ms(self) -> int:
        """The shard server's clock."""
        return int(time.monotonic() * 1000 + self._clock_offset_ms)

    def wake(self) -> None:
        """There is something for the next transaction."""
        self._work.set()

    async def _start(self) -> None:
        try:
            await self._open()
        except (OwnershipLostError, SessionLostError, FoqsError, OSError) as error:
            self._lost(error)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _drain(self) -> None:
        """Write all that was accepted."""
        deadline_s = time.monotonic() + limits.DRAIN_MS_MAX / 1000
        while self.shard is not None and time.monotonic() < deadline_s:
            self._idle.clear()
            self.wake()
            try:
                await asyncio.wait_for(self._idle.wait(), max(0.01, deadline_s - time.monotonic()))
            except TimeoutError:
                _log.warning("drain_bound_reached", shard=self.shard_id)
            return

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.shard is not None:
            self.shard.abandon("the host stops")
            self.shard = None
        await self._on_thread(self._store.close)
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        while True:
            try:
                if self.shard is None:
                    await asyncio.sleep(_REOPEN_MS / 1000)
                    await self._open()
                await self._serve()
            except (OwnershipLostError, SessionLostError, FoqsError, OSError) as error:
                self._lost(error)

    def _lost(self, error: BaseException) -> None:
        self.detail = str(error)
        _log.warning("shard_lost", shard=self.shard_id, error=str(error))
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.abandon(str(error))
            self._on_lost(self.shard_id)

    async def _open(self) -> None:
        image = await self._on_thread(self._store.open)
        self._set_clock(image.now_ms, time.monotonic())
        self.shard = ShardState(self.shard_id, image, self._listener)
        self.detail = "owned"
        self.wake()
        _log.info("shard_opened", shard=self.shard_id, epoch=image.epoch)

    async def _serve(self) -> None:
        """Run transactions until the shard is lost."""
        shard = self.shard
        assert shard is not None
        while True:
            await self._keep_clock()
            shard.tick(self.now_ms())
            flight = shard.take(self.now_ms())
            if flight is not None:
                await self._execute(shard, flight)
                continue
            self._idle.set()
            self._work.clear()
            try:
                await asyncio.wait_for(self._work.wait(), limits.TICK_MS / 1000)
            except TimeoutError:
                continue

    async def _execute(self, shard: ShardState, flight: Flight) -> None:
        try:
            result = await self._on_thread(lambda: self._store.run(flight.transaction))
        except TransactionFailedError as error:
            _log.warning("transaction_failed", shard=self.shard_id, error=str(error))
            shard.failed(str(error))
            return
        except SessionLostError as error:
            last_number = await self._reopen()
            if last_number < flight.transaction.number:
                shard.failed(str(error))
                return
            result = error.args[0]
        shard.committed(result, self.now_ms())

    async def _reopen(self) -> int:
        """The number of the last transaction that happened; waits while the server is away."""
        self.detail = "its session is lost; reconnecting"
        for _ in range(limits.REOPEN_TRIES_MAX):
            try:
                number = await self._on_thread(self._store.reopen)
            except OwnershipLostError as error:
                self.detail = str(error)
                await asyncio.sleep(_REOPEN_MS / 1000)
                continue
            self.detail = "owned"
            self._clock_probed_s = 0.0
            return number
        raise OwnershipLostError(self.detail)

    async def _keep_clock(self) -> None:
        if time.monotonic() - self._clock_probed_s > limits.CLOCK_PROBE_MS / 1000:
            before_s = time.monotonic()
            try:
                now_ms = await self._on_thread(self._store.now_ms)
            except SessionLostError:
                await self._reopen()
                return
            self._set_clock(now_ms, (before_s + time.monotonic()) / 2)

    def _set_clock(self, server_now_ms: int, at_s: float) -> None:
        self._clock_probed_s = at_s
        self._clock_offset_ms = server_now_ms - at_s * 1000

    def _on_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)
