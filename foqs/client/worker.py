"""A worker: handlers in threads, leases kept alive, acks in batches, an orderly end."""

from __future__ import annotations

import inspect
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from foqs.client.settling import SettleStats, log, settlement_of
from foqs.client.sync import Client
from foqs.client.sync_settler import LeasedItem, ThreadLeaseKeeper, ThreadSettler
from foqs.client.worker_core import REST_MS, WorkerSettings, count_of_each, is_async, may_go_on, topic_names
from foqs.model.errors import FoqsError, InvalidArgumentError

Handler = Callable[[LeasedItem], object]


class Worker:
    """Runs handler(item) for the items of one or more topics, `concurrency` at once, each in a thread.

    handler returns: acked. It raises: a failed attempt, delivered again after the backoff; or Retry,
    DeadLetter or Release. It may settle the item itself. While an item is in hand its lease is extended;
    where that fails for good, item.lease_lost is True, long handlers should look at it, and the item counts
    as lease_lost. At-least-once: handlers must stand being called again for the same item.

    run() blocks until stop() is called or, on the main thread, SIGTERM or SIGINT comes; then items in work
    are finished (up to drain_ms), items not begun are released, settlements flushed. It raises what keeps
    the worker from working at all, such as UnknownNamespaceError. Settings are those of WorkerSettings. A
    worker runs once.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        topics: str | Sequence[str],
        handler: Handler,
        **settings: Any,
    ) -> None:
        if not callable(handler) or is_async(handler):
            raise InvalidArgumentError(f"handler {handler!r} is no plain function; an async one needs AsyncWorker")
        self._client = client
        self._namespace = namespace
        self._topics = topic_names(topics)
        self._handler = handler
        self._settings = WorkerSettings(**settings)
        self._control: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[LeasedItem | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._in_hand_count = 0
        self._stopping = threading.Event()
        self._settler: ThreadSettler | None = None
        self._stats = SettleStats()

    @property
    def stats(self) -> SettleStats:
        """What became of the items so far."""
        return self._settler.stats if self._settler else self._stats

    def stop(self) -> None:
        """Ask run() to end; from any thread, or a signal handler. Returns at once. Safe to repeat."""
        self._control.put(None)

    def run(self) -> None:
        """Work until stopped, see the class."""
        with _signals(self.stop):
            self._settler = ThreadSettler(self._client, self._namespace)
            keeper = ThreadLeaseKeeper(self._client, self._namespace, self._settings.lease_ms)
            fetcher = self._thread("fetch", self._fetch, keeper)
            handlers = [
                self._thread(f"handler-{number}", self._handle, keeper) for number in range(self._settings.concurrency)
            ]
            try:
                failure = self._control.get()
            finally:
                self._shut_down(fetcher, handlers, keeper)
        if failure is not None:
            raise failure

    def _thread(self, role: str, target: Callable[..., None], *args: object) -> threading.Thread:
        name = f"foqs-{role}-{self._namespace}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _shut_down(
        self, fetcher: threading.Thread, handlers: Sequence[threading.Thread], keeper: ThreadLeaseKeeper
    ) -> None:
        assert self._settler is not None
        clock_ms = self._client.options.clock_ms
        deadline_at_ms = clock_ms() + self._settings.drain_ms
        self._stopping.set()
        with self._room:
            self._room.notify_all()
        fetcher.join()
        self._release_inbox(keeper)
        for _ in handlers:
            self._inbox.put(None)
        for thread in handlers:
            thread.join(max(0, deadline_at_ms - clock_ms()) / 1000)
            if thread.is_alive():
                log.error("%s is still at work after %d ms", thread.name, self._settings.drain_ms)
        keeper.close()
        self._settler.close(self._settings.drain_ms)

    def _release_inbox(self, keeper: ThreadLeaseKeeper) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self._give_back(item, keeper)

    @staticmethod
    def _give_back(item: LeasedItem, keeper: ThreadLeaseKeeper) -> None:
        keeper.drop(item)
        item.release()

    # --- the fetching thread ---

    def _fetch(self, keeper: ThreadLeaseKeeper) -> None:
        while not self._stopping.is_set():
            try:
                self._fetch_once(keeper)
            except FoqsError as error:
                if not may_go_on(error):
                    self._control.put(error)
                    return
                log.warning("no items from %s: %s", self._namespace, error)
                self._stopping.wait(REST_MS / 1000)
            except Exception as error:
                self._control.put(error)
                return

    def _fetch_once(self, keeper: ThreadLeaseKeeper) -> None:
        settler, settings = self._settler, self._settings
        assert settler is not None
        settler.wait_for_room()
        with self._room:
            self._room.wait_for(lambda: self._in_hand_count < settings.capacity or self._stopping.is_set())
            free_count = settings.capacity - self._in_hand_count
        if self._stopping.is_set():
            return
        items = self._client.dequeue(
            self._namespace,
            self._topics,
            count_of_each(free_count, self._topics),
            lease_ms=settings.lease_ms,
            wait_ms=settings.wait_ms,
        )
        leased = settler.lease(items, settings.lease_ms)
        keeper.hold(leased, self._client.options.clock_ms())
        with self._room:
            self._in_hand_count += len(leased)
        for item in leased:
            self._inbox.put(item)

    # --- the handler threads ---

    def _handle(self, keeper: ThreadLeaseKeeper) -> None:
        while (item := self._inbox.get()) is not None:
            if self._stopping.is_set():
                self._give_back(item, keeper)
                continue
            error: BaseException | None = None
            try:
                result = self._handler(item)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the handler returned a coroutine, which nobody runs here: use AsyncWorker")
            except BaseException as raised:
                error = raised
                if not isinstance(raised, Exception):
                    self._control.put(raised)
            self._conclude(item, error, keeper)

    def _conclude(self, item: LeasedItem, error: BaseException | None, keeper: ThreadLeaseKeeper) -> None:
        assert self._settler is not None
        keeper.drop(item)
        with self._room:
            self._in_hand_count -= 1
            self._room.notify_all()
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


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, on the main thread; elsewhere Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
