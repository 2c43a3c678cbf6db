# Generated from foqs/client/aio/worker.py by scripts/generate_sync.py: edit that one.
"""A worker: concurrent handlers, extended leases, batched acks, and an orderly stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from foqs.client.beginning import was_delivered_before
from foqs.client.checks import check_text
from foqs.client.consumer_names import consumer_name
from foqs.client.describing import Describe, check_describe, describe_error, reason_of
from foqs.client.durations import duration_or
from foqs.client.settling import NackBackoff, SettleStats, log, settlement_of
from foqs.client.sync.client import Client
from foqs.client.sync.concurrency import (
    Background,
    Monitor,
    Queue,
    QueueEmpty,
    finish,
    is_cancelled,
    is_fatal,
    run_to_the_end,
    stop_on_signals,
)
from foqs.client.sync.settler import LeasedItem, LeaseKeeper, Settler
from foqs.client.worker_core import (
    DRAIN_MS,
    CutOffError,
    HandlerKindError,
    IdleTime,
    Rests,
    WorkerSettings,
    check_client,
    check_handler,
    count_of_each,
    description,
    may_go_on,
    named,
    runs_of,
    topic_names,
)
from foqs.model import limits
from foqs.model.errors import FoqsError


class Worker:
    """Calls handler(item) for the items of one or more topics, `concurrency` of them at a time, each in a thread.

    If the handler returns, the item is acked. If it raises, the item is retried after the backoff, or as Retry,
    DeadLetter or Release request. The handler can also settle the item itself. The lease of an item in hand is
    extended. If that fails for good, item.lease_lost becomes True, which long handlers should check, and the item
    counts as lease_lost. Delivery is at least once: handlers must be idempotent.

    run() works until stop() is called or, on the main thread, SIGTERM or SIGINT arrives. Then running handlers finish
    (within `drain`), other items are released, and settlements are flushed. Handlers that run longer are left behind,
    and their items are redelivered when the leases end. A worker runs once.

    An item counts as tried once its handler has begun. The worker reports that to the host: before the handler begins
    if the item was delivered before, otherwise after 50 ms of work. So an item that crashes the program costs no
    attempt of the items that were only in hand. All items in work at that time become suspects. A worker handles a
    suspect alone, with no other item in work.

    Items of an ordering key that come together (`key_batch`) are handled one after the other, and those behind one that
    failed are released. The worker does not know which topics are serial: set no `key_batch` for these.

    topic_prefix: instead of topics; items of all topics with this prefix ("" for all topics), including new ones.
    group: a consumer group of the topics, or of those with the prefix; by default their own items.
    name: by which operators see the worker and its leases, as "NAME@HOSTNAME/PID"; by default the name of the program.
    concurrency (8): number of handlers at a time, 1 to 1,000.
    prefetch_count (same as concurrency): items taken beyond those in work, up to 1,000, so that no handler waits for
        the network. Use 0 for handlers that take minutes, because another worker might be free meanwhile.
    lease or lease_ms (30 s): of every delivery, 1 s to 12 h; extended at half its length while the item waits or is in
        work.
    wait or wait_ms (2 s): longest wait of one call for items, up to 30 s; a stop can take as long.
    backoff (1 s, doubled up to 10 min): delay of an item whose handler failed, see NackBackoff.
    drain or drain_ms (30 s): after a stop, the longest time for handlers, and again for settlements.
    describe (describe_error): called with the exception of a handler, returns the reason of the failed attempt that
        operators see with the item, or None. Messages can have secrets: give a function of your own, or None to send
        no reasons.

    Logger "foqs.client" reports the settings at the start and the item counts at the end with level INFO, and failed
    handlers, dead letters and lost leases with level WARNING.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        topics: str | Sequence[str] = (),
        handler: Callable[[LeasedItem], None] | None = None,
        *,
        topic_prefix: str | None = None,
        group: str | None = None,
        name: str | None = None,
        concurrency: int = 8,
        prefetch_count: int | None = None,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        wait_ms: int | None = None,
        wait: timedelta | None = None,
        backoff: NackBackoff | None = None,
        drain_ms: int | None = None,
        drain: timedelta | None = None,
        describe: Describe | None = describe_error,
    ) -> None:
        check_client(client)
        check_text("namespace", namespace)
        check_handler(handler)
        assert handler is not None, "it was checked"
        self._client = client
        self._namespace = namespace
        self._topics = topic_names(topics, topic_prefix, group)
        self._topic_prefix = topic_prefix
        self._group = group
        self._name = consumer_name(name)
        self._handler = handler
        self._describe = check_describe(describe)
        self._settings = WorkerSettings(
            concurrency=concurrency,
            prefetch_count=prefetch_count,
            lease_ms=duration_or("lease_ms", lease_ms, lease, limits.LEASE_MS_DEFAULT),
            wait_ms=duration_or("wait_ms", wait_ms, wait, 2_000),
            backoff=NackBackoff() if backoff is None else backoff,
            drain_ms=duration_or("drain_ms", drain_ms, drain, DRAIN_MS),
        )
        self._keeper = LeaseKeeper(client, namespace, self._settings.lease_ms, self._name)
        self._settler = Settler(client, namespace, self._keeper.extended)
        self._control: Queue[BaseException | None] = Queue()
        self._inbox: Queue[list[LeasedItem] | None] = Queue()
        """Items to be handled; those that stand together are of one key, and are handled one after the other."""
        self._changed = Monitor()
        self._rests = Rests()
        self._idle = IdleTime()
        self._in_hand_count = 0
        self._at_work: dict[str, LeasedItem] = {}
        """Items in work, by receipt."""
        self._suspects_count = 0
        """Suspects that wait to be handled alone or are in work."""
        self._stopping = False
        self._has_run = False

    @property
    def stats(self) -> SettleStats:
        """Items so far, counted by outcome."""
        return self._settler.stats

    def stop(self) -> None:
        """Ask run() to end, from any thread or a signal handler. Returns at once. Safe to repeat."""
        self._stopping = True  # Set before run() wakes, so that no handler begins another item.
        self._control.put_nowait(None)

    def run(self) -> None:
        """Work until stopped, see the class.

        Raises errors that prevent all work, such as UnknownNamespaceError; TypeError for a handler of the wrong kind;
        and exceptions of handlers that are not an Exception, such as SystemExit, except for CancelledError, which is a
        failed attempt. Raises CutOffError with the ids of the items if handlers were still running after `drain`.
        """
        if self._has_run:
            raise RuntimeError("the worker has run before, and a worker runs once: make another one")
        self._has_run = True
        log.info("worker started: %s", self._description())
        with stop_on_signals(self.stop):
            self._settler.start()
            self._keeper.start()
            fetcher = Background(self._fetch, f"foqs-fetch-{self._namespace}")
            handlers = [
                Background(self._handle, f"foqs-handler-{number}-{self._namespace}")
                for number in range(self._settings.concurrency)
            ]
            cut_off: list[str] = []
            try:
                failure = self._control.get()
            except GeneratorExit:
                raise  # The event loop has ended, so nothing can be awaited.
            except BaseException:
                run_to_the_end(lambda: self._shut_down(fetcher, handlers, cut_off))
                raise
            run_to_the_end(lambda: self._shut_down(fetcher, handlers, cut_off))
        log.info(
            "worker stopped: namespace %s, topics %s: %s",
            self._namespace,
            named(self._topics, self._topic_prefix),
            self.stats,
        )
        if failure is not None:
            raise failure
        if cut_off:
            raise CutOffError(cut_off, self._settings.drain_ms)

    def _description(self) -> str:
        topics = named(self._topics, self._topic_prefix)
        return description(self._namespace, topics, self._settings, self._client.options.addresses)

    def _shut_down(self, fetcher: Background, handlers: Sequence[Background], cut_off: list[str]) -> None:
        """Add the ids of items whose handlers did not end in time to `cut_off`."""
        clock_ms = self._client.options.clock_ms
        deadline_at_ms = clock_ms() + self._settings.drain_ms
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        fetcher.join()
        self._release_inbox()
        for _ in handlers:
            self._inbox.put_nowait(None)
        late = [handler for handler in handlers if not handler.join(max(0, deadline_at_ms - clock_ms()) / 1000)]
        with self._changed:
            cut_off += [item.id for item in self._at_work.values()]
        for handler in late:
            log.error("%s is still at work %d ms after the stop", handler.name, self._settings.drain_ms)
            handler.cancel()
        self._keeper.close()
        self._settler.close(self._settings.drain_ms)

    def _release_inbox(self) -> None:
        while True:
            try:
                run = self._inbox.get_nowait()
            except QueueEmpty:
                return
            if run is not None:
                self._release_all(run)

    def _release(self, item: LeasedItem) -> None:
        """Release an item that was not begun or not finished."""
        self._let_go(item)
        if item.lease_lost:
            self._settler.lost([item])
        elif not item.settled:
            item.release()

    def _release_all(self, run: list[LeasedItem]) -> None:
        """Release the items of a run, the last one first: an item that comes back takes those behind it along."""
        while run:
            self._release(run.pop())

    def _let_go(self, item: LeasedItem) -> None:
        self._keeper.drop(item)
        with self._changed:
            self._in_hand_count -= 1
            self._changed.notify_all()

    # --- fetching ---

    def _fetch(self) -> None:
        try:
            while not self._stopping:
                self._fetch_or_rest()
        except Exception as error:
            self._control.put_nowait(error)

    def _fetch_or_rest(self) -> None:
        try:
            self._fetch_once()
        except FoqsError as error:
            if not may_go_on(error):
                raise
            rest_ms = self._rests.after_failure(self._namespace, error)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, rest_ms / 1000)
        else:
            self._rests.after_success()

    def _fetch_once(self) -> None:
        settings, clock_ms = self._settings, self._client.options.clock_ms
        self._settler.wait_for_room()
        with self._changed:
            self._changed.wait_for(lambda: self._in_hand_count < settings.capacity or self._stopping)
            free_count = settings.capacity - self._in_hand_count
        if self._stopping:
            return
        items = self._client._take(
            self._namespace,
            self._topics,
            count_of_each(free_count, self._topics),
            self._topic_prefix,
            self._group,
            settings.lease_ms,
            settings.wait_ms,
            self._name,
            want_why=self._idle.wants_why(clock_ms()),
        )
        self._idle.note(self._namespace, items, clock_ms())
        leased = self._settler.lease(items, settings.lease_ms)
        self._keeper.hold(leased, clock_ms())
        with self._changed:
            self._in_hand_count += len(leased)
        for run in runs_of(leased):
            self._inbox.put_nowait(run)

    # --- handling ---

    def _handle(self) -> None:
        while (run := self._inbox.get()) is not None:
            try:
                while run:
                    self._work_on(run.pop(0), run)
            finally:
                self._release_all(run)

    def _work_on(self, item: LeasedItem, behind: list[LeasedItem]) -> None:
        """Handle the item. Unless it is done then, the items `behind` it in its run are released before."""
        try:
            may_begin = self._begin(item)
        except BaseException:  # The handler was cut off.
            self._release_all(behind)
            self._release(item)
            raise
        if not may_begin:
            self._release_all(behind)
            self._release(item)
            return
        error: BaseException | None = None
        try:
            finish(self._handler(item))
        except HandlerKindError as wrong:
            error = wrong
            self._control.put_nowait(wrong)
        except Exception as raised:
            error = raised
        except BaseException as raised:
            if is_cancelled():
                self._end_work(item)
                self._release_all(behind)
                self._release(item)
                raise
            error = raised
            if is_fatal(raised):
                self._control.put_nowait(raised)
        self._end_work(item)
        if item.given_back or item.lease_lost or (error is not None and not item.settled):
            self._release_all(behind)
        self._conclude(item, error)

    def _begin(self, item: LeasedItem) -> bool:
        """Return True if the item is to be handled, once it is its turn and the host has the report."""
        if not self._take_turn(item):
            return False
        try:
            if not was_delivered_before(item):
                self._keeper.begin_later(item)
            elif not item.lease_lost:
                self._keeper.begin(item)
        except BaseException:
            self._end_work(item)
            raise
        if self._stopping or item.lease_lost:
            self._end_work(item)
            return False
        return True

    def _take_turn(self, item: LeasedItem) -> bool:
        """Return True once the item is in work, False if the worker stops. A suspect waits to be alone in work."""
        has_turn = False
        with self._changed:
            self._suspects_count += item.suspect
            try:
                self._changed.wait_for(lambda: self._stopping or self._has_turn(item))
                has_turn = not self._stopping
            finally:
                if has_turn:
                    self._at_work[item.receipt] = item
                else:
                    self._suspects_count -= item.suspect
                    self._changed.notify_all()
        return has_turn

    def _has_turn(self, item: LeasedItem) -> bool:
        return not self._at_work if item.suspect else not self._suspects_count

    def _end_work(self, item: LeasedItem) -> None:
        with self._changed:
            if self._at_work.pop(item.receipt, None) is not None:
                self._suspects_count -= item.suspect
                self._changed.notify_all()

    def _conclude(self, item: LeasedItem, error: BaseException | None) -> None:
        self._let_go(item)
        if item.settled:
            return
        item.settled = True
        reason = None if error is None else reason_of(error, self._describe)
        nack = settlement_of(item, error, reason, self._settings.backoff, self._client.options.random)
        if item.lease_lost:
            self._settler.lost([item])
        elif nack is None:
            self._settler.ack(item)
        else:
            self._settler.nack(item, nack)
