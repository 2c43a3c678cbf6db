# Generated from foqs/client/aio/client.py by scripts/generate_sync.py: edit that one.
"""The client of the queue. Verbs are defined in `foqs.client.verbs`; here they get names and types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from foqs.client import verbs
from foqs.client.bulk import Bulk
from foqs.client.checks import check_whole
from foqs.client.coalescing import Lane
from foqs.client.items import Item, NewItem, Receipts, Topics, check_new_item
from foqs.client.retry import Repeat
from foqs.client.sync.base import BaseClient
from foqs.client.sync.coalescer import EnqueueCoalescer
from foqs.client.sync.concurrency import Monitor, run_copies
from foqs.client.sync.consumer import Consumer
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, EnqueueResult, PositionErrors, TopicStats
from foqs.model.errors import FoqsError


class Client(BaseClient):
    """A blocking client of the queue, safe for threads; close it, or use it in a `with` statement.

    addresses: "host:port", several of them comma-separated, or a sequence; connections are spread over them, and the
        next one is tried at once when one cannot be reached or certainly did nothing, as a standby does; that one is
        then tried last for 1 s, and up to 30 s when it goes on failing. The port is 7600 where none is given.
    timeout_ms (10,000): for one attempt of one call, from the wait for a free connection to the response; long polls
        get their wait_ms on top. The connection of an attempt that timed out is closed.
    connect_timeout_ms (2,000): for each address.
    connections_max (8): each of them has one call in flight; threads beyond that wait.
    retry (up to 15 s): see RetryPolicy; a call is only repeated where nothing can happen twice, as each verb says.
    batch_items_max (1,000): items per enqueue call; fewer where the namespace allows no more, by its batch_items_max
        or because more never fit its enqueues_per_minute_max.
    clock_ms, random: a monotonic clock and numbers from 0 <= x < 1, for tests.

    Errors are those of foqs.model.errors, whose `nothing_done` says that certainly nothing was done. Of the
    UnavailableErrors, OutcomeUnknownError says that nobody knows, NotSentError that no host got the call, and a plain
    one that a host answered and did nothing. After close() every call raises ClientClosedError.
    """

    def _prepare(self) -> None:
        wait_ms_max = self.options.retry.deadline_ms + self.options.timeout_ms
        self._coalescer = EnqueueCoalescer(
            self.options.batch_items_max, wait_ms_max, self.options.clock_ms, self._enqueue_batch
        )

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
        retry_unknown: bool = False,
    ) -> str:
        """Store one item and return its id; it is durable then. The fields are those of NewItem.

        Enqueues that come while a call is in flight go together in the next one.
        retry_unknown: repeat after an unknown outcome too; the item may then exist twice.
        Raises the item's error: InvalidArgumentError, TooLargeError, RateLimitedError, OutcomeUnknownError, ...;
        OverloadedError also when too many enqueues wait in this client.
        """
        item = NewItem(topic, payload, priority, deliver_after_ms, delay_ms, ttl_ms, lease_ms, metadata, delivery)
        check_new_item(item)
        return self._coalescer.enqueue((namespace, retry_unknown), item)

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
        calls_in_flight (1): this many threads. The order of items in different calls is then not kept.
        deadline_ms: all calls with all their repetitions end within this time; by default each call has the
            deadline of the client's RetryPolicy.
        """
        check_whole("calls_in_flight", calls_in_flight, 1, self._pool.calls_in_flight_max)
        terms = self._terms.within(deadline_ms)
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        work, guard = Bulk(items, self.options.batch_items_max), Monitor()

        def send_batches() -> None:
            while True:
                with guard:
                    taken = work.next()
                if taken is None:
                    return
                offset, batch = taken
                try:
                    done = self._run(verbs.enqueue_limited(terms, namespace, batch, repeat, bulk=bulk))
                except FoqsError as error:
                    with guard:
                        work.failed(offset, batch, error)
                except BaseException as error:
                    with guard:
                        work.stop(error)  # Otherwise the others would send all the rest.
                    raise
                else:
                    with guard:
                        work.done(offset, done)

        def stop(error: BaseException) -> None:
            with guard:
                work.stop(error)

        if calls_in_flight == 1:
            send_batches()
        else:
            run_copies(send_batches, calls_in_flight, "foqs-enqueue", stop)
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
        """Take up to `count` of the most urgent ready items of each topic, under a lease; fewer or none when
        there are.

        topics: a topic; or a mapping or pairs of topic and count, at most 1,000 topics and 1,000 items in
            all.
        lease_ms: 1 s to 12 h; None: what the item, then the namespace says.
        wait_ms: how long to wait for the first item, up to 30 s.
        It is repeated after an unknown outcome: the items of a lost response are redelivered when their lease ends.
        """
        return self._run(verbs.dequeue(self._terms, namespace, topics, count, lease_ms, wait_ms))

    def ack(self, namespace: str, receipts: Receipts) -> PositionErrors:
        """Delete items that are done; what is answered without error never comes back.

        receipts: an Item, a receipt or a bare id, whose error is raised; or many, whose errors are returned
            by position: StaleLeaseError when the lease was lost, NotFoundError when a bare id names nothing.
        After a lost response it is repeated and told the truth: done where the item is gone, StaleLeaseError only
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
        metadata: replaces the item's.  dead_letter: the items become dead letters.
        It is never repeated after an unknown outcome: the item is then redelivered when its lease ends.
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
        return Consumer(self, namespace, topics, batch_count=batch_count, lease_ms=lease_ms, wait_ms=wait_ms)

    def close(self) -> None:
        """Close every connection. Calls in flight fail, later ones raise ClientClosedError. Safe to repeat."""
        super().close()
        self._coalescer.close()

    def _enqueue_batch(self, lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> EnqueueResult:
        namespace, retry_unknown = lane
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        return self._run(verbs.enqueue_limited(self._terms.until(deadline_at_ms), namespace, items, repeat))
