"""A worker for one event loop: handlers are tasks, otherwise like the threaded `Worker`."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

from foqs.client.aio import AsyncClient
from foqs.client.aio_settler import AsyncLeasedItem, TaskLeaseKeeper, TaskSettler
from foqs.client.settling import SettleStats, log, settlement_of
from foqs.client.worker_core import REST_MS, WorkerSettings, count_of_each, may_go_on, topic_names
from foqs.model.errors import FoqsError, InvalidArgumentError

AsyncHandler = Callable[[AsyncLeasedItem], Awaitable[object]]


class AsyncWorker:
    """Runs handler(item) for the items of one or more topics, `concurrency` at once, each in a task.

    What a handler's end means, the settings and the end of run() are those of `Worker`. Handlers still at
    work drain_ms after the stop are cancelled and their items released. Cancelling run() ends it the same
    way.
    """

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        topics: str | Sequence[str],
        handler: AsyncHandler,
        **settings: Any,
    ) -> None:
        if not callable(handler):
            raise InvalidArgumentError(f"handler {handler!r} is no function")
        self._client = client
        self._namespace = namespace
        self._topics = topic_names(topics)
        self._handler = handler
        self._settings = WorkerSettings(**settings)
        self._settler = TaskSettler(client, namespace)
        self._inbox: asyncio.Queue[AsyncLeasedItem | None] = asyncio.Queue()
        self._in_hand_count = 0
        self._room = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def stats(self) -> SettleStats:
        """What became of the items so far."""
        return self._settler.stats

    def stop(self) -> None:
        """Ask run() to end; from the worker's loop. Safe to repeat."""
        self._stopped.set()
        self._room.set()

    async def run(self) -> None:
        """Work until stopped, see the class."""
        self._settler.start()
        keeper = TaskLeaseKeeper(self._client, self._namespace, self._settings.lease_ms)
        fetcher = self._task("fetch", self._fetch(keeper))
        handlers = [self._task(f"handler-{n}", self._handle(keeper)) for n in range(self._settings.concurrency)]
        stopped = self._task("stop", self._stopped.wait())
        try:
            with _signals(self.stop):
                await asyncio.wait([fetcher, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await asyncio.shield(self._task("drain", self._shut_down(fetcher, stopped, handlers, keeper)))
        await fetcher

    def _task(self, role: str, work: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=f"foqs-{role}-{self._namespace}")

    async def _shut_down(
        self,
        fetcher: asyncio.Task[None],
        stopped: asyncio.Task[None],
        handlers: Sequence[asyncio.Task[None]],
        keeper: TaskLeaseKeeper,
    ) -> None:
        self.stop()
        await asyncio.wait([fetcher, stopped])
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if item is not None:
                self._give_back(item, keeper)
        for _ in handlers:
            self._inbox.put_nowait(None)
        _, running = await asyncio.wait(handlers, timeout=self._settings.drain_ms / 1000)
        for task in running:
            log.error("%s is still at work after %d ms: cancelled", task.get_name(), self._settings.drain_ms)
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await keeper.close()
        await self._settler.close(self._settings.drain_ms)

    @staticmethod
    def _give_back(item: AsyncLeasedItem, keeper: TaskLeaseKeeper) -> None:
        keeper.drop(item)
        if not (item.settled or item.lease_lost):
            item.release()

    # --- the fetching task ---

    async def _fetch(self, keeper: TaskLeaseKeeper) -> None:
        while not self._stopped.is_set():
            try:
                await self._fetch_once(keeper)
            except FoqsError as error:
                if not may_go_on(error):
                    raise
                log.warning("no items from %s: %s", self._namespace, error)
                await self._rest()

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), REST_MS / 1000)
        except TimeoutError:
            return

    async def _fetch_once(self, keeper: TaskLeaseKeeper) -> None:
        settings = self._settings
        await self._settler.wait_for_room()
        while self._in_hand_count >= settings.capacity and not self._stopped.is_set():
            self._room.clear()
            await self._room.wait()
        if self._stopped.is_set():
            return
        items = await self._client.dequeue(
            self._namespace,
            self._topics,
            count_of_each(settings.capacity - self._in_hand_count, self._topics),
            lease_ms=settings.lease_ms,
            wait_ms=settings.wait_ms,
        )
        leased = self._settler.lease(items, settings.lease_ms)
        keeper.hold(leased, self._client.options.clock_ms())
        self._in_hand_count += len(leased)
        for item in leased:
            self._inbox.put_nowait(item)

    # --- the handler tasks ---

    async def _handle(self, keeper: TaskLeaseKeeper) -> None:
        while (item := await self._inbox.get()) is not None:
            if self._stopped.is_set():
                self._give_back(item, keeper)
                continue
            error: BaseException | None = None
            try:
                work = self._handler(item)
                if not isawaitable(work):
                    raise TypeError(f"the handler returned {type(work).__name__}, nothing to await: use Worker")
                await work
            except Exception as raised:
                error = raised
            except asyncio.CancelledError as cancelled:
                if not _is_cancelled():
                    self._conclude(item, cancelled, keeper)
                    continue
                self._give_back(item, keeper)
                raise
            self._conclude(item, error, keeper)

    def _conclude(self, item: AsyncLeasedItem, error: BaseException | None, keeper: TaskLeaseKeeper) -> None:
        keeper.drop(item)
        self._in_hand_count -= 1
        self._room.set()
        if item.settled:
            return
        item.settled = True
        nack = settlement_of(item, error, self._settings.backoff, self._client.options.random)
        if item.lease_lost:
            self._settler.lost([item])
        elif nack is None:
            self._settler.ack(item)
        else:
            self._settler.nack(item, nack)


def _is_cancelled() -> bool:
    """Whether this task is, and not only something that its handler waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, on the main thread; elsewhere Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
