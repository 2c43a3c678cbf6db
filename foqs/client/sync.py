"""The blocking clients. Verbs are defined in `verbs` and `admin_verbs`; here they get names and types."""

from __future__ import annotations

import random as random_module
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from foqs.client import admin_verbs, options, verbs
from foqs.client.bulk import Bulk
from foqs.client.checks import check_whole
from foqs.client.flows import Flow
from foqs.client.gathering import Lane
from foqs.client.items import Item, NewItem, Receipts, Topics, check_new_item
from foqs.client.options import Options
from foqs.client.retry import Repeat, RetryPolicy
from foqs.client.sync_gathering import ThreadGatherer
from foqs.client.sync_io import Pool, run_flow
from foqs.model import limits
from foqs.model.calls import (
    DeadLettersResult,
    DeliveryPolicy,
    EnqueueResult,
    HostStatus,
    PositionErrors,
    StoredItem,
    StoredItemPage,
    TopicStats,
)
from foqs.model.errors import FoqsError
from foqs.model.namespace import Namespace

if TYPE_CHECKING:
    from foqs.client.consumer import Consumer

T = TypeVar("T")


class _BlockingShell:
    """What both blocking clients share: the pool and the way verbs run on it."""

    def __init__(
        self,
        addresses: str | Sequence[str] = "127.0.0.1:7600",
        *,
        timeout_ms: int = options.TIMEOUT_MS,
        connect_timeout_ms: int = options.CONNECT_TIMEOUT_MS,
        connections_max: int = options.CONNECTIONS_MAX,
        retry: RetryPolicy | None = None,
        batch_items_max: int = limits.BATCH_ITEMS_MAX,
        clock_ms: Callable[[], int] = options.monotonic_ms,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.options = Options(
            addresses=addresses,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            connections_max=connections_max,
            retry=retry or RetryPolicy(),
            batch_items_max=batch_items_max,
            clock_ms=clock_ms,
            random=random,
        )
        self._terms = self.options.terms()
        self._pool = Pool(self.options, self._terms.book)

    def _run(self, flow: Flow[T]) -> T:
        return run_flow(self._pool, flow)

    def close(self) -> None:
        """Close every connection: calls in flight fail, later ones raise ClientClosedError. Repeatable."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_BlockingShell):
    """A blocking client of the queue, safe for threads; close it, or use it as a context manager.

    addresses: "host:port", several separated by commas, or a sequence; connections are spread over them,
        and the next one is tried at once when one cannot be reached or certainly did nothing, as a standby does;
        that one then rests for 1 s, and up to 30 s when it goes on. The port is 7600 where none is given.
    timeout_ms (10,000): for one attempt of one call, from the wait for a free connection to the answer; long
        polls get their wait_ms on top. The connection of an attempt that timed out is closed.
    connect_timeout_ms (2,000): for each address.
    connections_max (8): threads beyond it wait for a free connection.
    retry (up to 15 s): see RetryPolicy; repetitions only where nothing can happen twice, as each verb says.
    batch_items_max (1,000): items per enqueue call; fewer where the namespace allows no more, by its batch_items_max
        or because more never fit its enqueues_per_minute_max.
    clock_ms, random: a monotonic clock and numbers from 0 <= x < 1, for tests.

    Errors are those of foqs.model.errors, whose `nothing_done` says that certainly nothing was done. Of the
    UnavailableErrors, OutcomeUnknownError says that nobody knows, NotSentError that no host got the call, and
    a plain one that a host answered and did nothing. ClientClosedError after close().
    """

    def __init__(self, addresses: str | Sequence[str] = "127.0.0.1:7600", **settings: Any) -> None:
        super().__init__(addresses, **settings)
        wait_ms_max = self.options.retry.deadline_ms + self.options.timeout_ms
        self._gatherer = ThreadGatherer(self.options.batch_items_max, wait_ms_max, self._enqueue_batch)

    def enqueue(
        self,
        namespace: str,
        topic: str,
        payload: bytes,
        *,
        priority: int = 0,
        deliver_after_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        lease_ms: int | None = None,
        metadata: bytes | None = None,
        delivery: DeliveryPolicy | None = None,
        trace_context: str | None = None,
        retry_unknown: bool = False,
    ) -> str:
        """Store one item and return its id; it is durable then. The fields are those of NewItem.

        Enqueues of several threads that meet go together in one call.
        retry_unknown: repeat after an unknown outcome too; the item may then exist twice.
        Raises the item's error: InvalidArgumentError, TooLargeError, RateLimitedError, OutcomeUnknownError,
        ...; OverloadedError also when too many enqueues wait in this client.
        """
        item = NewItem(
            topic, payload, priority, deliver_after_ms, delay_ms, ttl_ms, lease_ms, metadata, delivery,
            trace_context=trace_context,
        )  # fmt: skip
        check_new_item(item)
        return self._gatherer.enqueue((namespace, retry_unknown), item)

    def enqueue_many(
        self,
        namespace: str,
        items: Iterable[NewItem],
        *,
        retry_unknown: bool = False,
        bulk: bool = False,
        calls_in_flight: int = 1,
        deadline_ms: int | None = None,
    ) -> EnqueueResult:
        """Store many items, in as many calls as the limits of batch and frame ask for; `items` may be lazy.

        The result has an id for each position, "" where the item failed, and the errors by position. Raises
        when no call went through. When a later one fails as a whole, its positions get the error, and those
        behind it (of a sequence; a lazy iterable is not read on) a NotSentError.
        retry_unknown: repeat after an unknown outcome too; items may then exist twice.
        bulk: tell the host that nobody waits for these items, so that it may serve interactive calls first.
        calls_in_flight (1): this many calls at a time, each on a thread and a connection of its own; the order
            of the items of different calls is then not kept.
        deadline_ms: all calls with all their repetitions end within this time; by default each call has the
            deadline of the client's RetryPolicy.
        """
        check_whole("calls_in_flight", calls_in_flight, 1, self.options.connections_max)
        terms = self._terms.within(deadline_ms)
        work = Bulk(items, self.options.batch_items_max)
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        lock = threading.Lock()

        def carry() -> None:
            while True:
                with lock:
                    taken = work.next()
                if taken is None:
                    return
                offset, batch = taken
                try:
                    done = self._run(verbs.enqueue_limited(terms, namespace, batch, repeat, bulk=bulk))
                except FoqsError as error:
                    with lock:
                        work.failed(offset, batch, error)
                except BaseException as error:
                    with lock:
                        work.stop(error)  # The other threads would send all the rest.
                else:
                    with lock:
                        work.done(offset, done)

        if calls_in_flight == 1:
            carry()
        else:
            with ThreadPoolExecutor(calls_in_flight, thread_name_prefix="foqs-enqueue") as threads:
                carriers = [threads.submit(carry) for _ in range(calls_in_flight)]
                try:
                    for carrier in carriers:
                        carrier.result()
                except BaseException as error:  # Of this thread, such as Ctrl-C.
                    with lock:
                        work.stop(error)
                    raise
        return work.result()

    def dequeue(
        self,
        namespace: str,
        topics: Topics,
        count: int = 1,
        *,
        lease_ms: int | None = None,
        wait_ms: int = 0,
    ) -> list[Item]:
        """Up to `count` of the most urgent ready items of each topic, under a lease; fewer or none when
        there are.

        topics: a topic; or a mapping or pairs of topic and count, at most 1,000 topics and 1,000 items in
            all.
        lease_ms: 1 s to 12 h; None: what the item, then the namespace says.
        wait_ms: how long to wait for the first item, up to 30 s.
        Repeated after an unknown outcome: the items of a lost answer come back when their lease ends.
        """
        return self._run(verbs.dequeue(self._terms, namespace, topics, count, lease_ms, wait_ms))

    def ack(self, namespace: str, receipts: Receipts) -> PositionErrors:
        """Delete items that are done; what is answered without error never comes back.

        receipts: an Item, a receipt or a bare id, whose error is raised; or many, whose errors are returned
            by position: StaleLeaseError when the lease was lost, NotFoundError when a bare id names nothing.
        After a lost answer it is repeated and told the truth: done where the item is gone, StaleLeaseError only
        where it is there. OutcomeUnknownError when nobody can tell.
        """
        return self._run(verbs.ack(self._terms, namespace, receipts))

    def nack(
        self,
        namespace: str,
        receipts: verbs.Nacks,
        *,
        delay_ms: int = 0,
        metadata: bytes | None = None,
        dead_letter: bool = False,
    ) -> PositionErrors:
        """Give deliveries back as failed attempts: ready again after delay_ms, up to 90 days.

        receipts: as with `ack`; an entry that is a Nack stands for itself, the arguments are for the others.
        metadata: replaces the item's.  dead_letter: straight to the dead letters.
        Never repeated after an unknown outcome: the item then comes back when its lease ends.
        """
        flow = verbs.nack(self._terms, namespace, receipts, delay_ms, metadata, False, dead_letter)
        return self._run(flow)

    def release(self, namespace: str, receipts: Receipts, *, delay_ms: int = 0) -> PositionErrors:
        """Give deliveries back unused: ready again, and not counted as an attempt. Otherwise like `nack`."""
        return self._run(verbs.nack(self._terms, namespace, receipts, delay_ms, None, True, False))

    def extend(self, namespace: str, receipts: Receipts, lease_ms: int) -> PositionErrors:
        """Let leases end lease_ms from now, 1 s to 12 h. receipts and errors as with `ack`."""
        return self._run(verbs.extend(self._terms, namespace, receipts, lease_ms))

    def topics(self, namespace: str, prefix: str = "") -> Iterator[TopicStats]:
        """Every topic that holds an item, page by page."""
        token = ""
        while True:
            page = self._run(verbs.topic_page(self._terms, namespace, prefix, token))
            yield from page.topics
            token = page.next_page_token
            if not token:
                return

    def consume(
        self,
        namespace: str,
        topics: Topics,
        *,
        batch_count: int = 100,
        lease_ms: int = limits.LEASE_MS_DEFAULT,
        wait_ms: int = 5_000,
    ) -> Consumer:
        """Iterate over deliveries as they come, with acks sent in the background. See `Consumer`."""
        from foqs.client.consumer import Consumer

        return Consumer(self, namespace, topics, batch_count=batch_count, lease_ms=lease_ms, wait_ms=wait_ms)

    def _enqueue_batch(self, lane: Lane, items: Sequence[NewItem]) -> EnqueueResult:
        namespace, retry_unknown = lane
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        return self._run(verbs.enqueue_limited(self._terms, namespace, items, repeat))


class AdminClient(_BlockingShell):
    """A blocking client of service FoqsAdmin; arguments and errors as with `Client`."""

    def create_namespace(self, name: str, **settings: Any) -> Namespace:
        """Create a namespace; the settings are the fields of NamespaceSettings. AlreadyExistsError."""
        return self._run(admin_verbs.create_namespace(self._terms, name, settings))

    def update_namespace(self, name: str, **settings: Any) -> Namespace:
        """Change the given settings, leave the others. UnknownNamespaceError."""
        return self._run(admin_verbs.update_namespace(self._terms, name, settings))

    def get_namespace(self, name: str) -> Namespace:
        """The namespace (its `number` is 0: it does not travel). UnknownNamespaceError."""
        return self._run(admin_verbs.get_namespace(self._terms, name))

    def list_namespaces(self, prefix: str = "") -> Iterator[Namespace]:
        """Every namespace whose name starts so, page by page."""
        token = ""
        while True:
            page = self._run(admin_verbs.namespace_page(self._terms, prefix, token))
            yield from page.namespaces
            token = page.next_page_token
            if not token:
                return

    def delete_namespace(self, name: str) -> None:
        """Delete an empty namespace; refused while it holds items."""
        self._run(admin_verbs.delete_namespace(self._terms, name))

    def recover_namespace(self, number: int, name: str | None = None) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        With its old name, or `name`, and default settings. Raises NotFoundError when no shard of this host knows it.
        """
        return self._run(admin_verbs.recover_namespace(self._terms, number, name))

    def peek_items(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's ready and leased items, most urgent first. Leases nothing."""
        return self._run(admin_verbs.peek_items(self._terms, namespace, topic, limit, page_token))

    def get_item(self, namespace: str, id: str) -> StoredItem:
        """One item in whatever state. NotFoundError."""
        return self._run(admin_verbs.get_item(self._terms, namespace, id))

    def delete_items(self, namespace: str, ids: str | Iterable[str]) -> PositionErrors:
        """Delete items in whatever state; errors by position. A holder's later ack gets StaleLeaseError."""
        return self._run(admin_verbs.delete_items(self._terms, namespace, ids))

    def list_dead_letters(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's dead letters, oldest first."""
        return self._run(admin_verbs.list_dead_letters(self._terms, namespace, topic, limit, page_token))

    def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Make dead letters ready again, as never tried: the given ones, or up to `limit` of the oldest."""
        return self._run(admin_verbs.redrive_dead_letters(self._terms, namespace, topic, ids, limit))

    def purge_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest."""
        return self._run(admin_verbs.purge_dead_letters(self._terms, namespace, topic, ids, limit))

    def host_status(self) -> HostStatus:
        """The host that answers, and its shards."""
        return self._run(admin_verbs.host_status(self._terms))
