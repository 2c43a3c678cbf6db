# Generated from foqs/client/aio/client.py by scripts/generate_sync.py: edit that one.
"""The client of the queue. Verbs are defined in `foqs.client.verbs`; here they get names and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from foqs.client import slots, verbs
from foqs.client.amending import NackLimits, nack_limits
from foqs.client.bulk import Bulk
from foqs.client.checks import check_target, check_whole
from foqs.client.coalescing import Lane
from foqs.client.durations import duration_ms, duration_or
from foqs.client.errors import BatchError
from foqs.client.flows import Flow
from foqs.client.items import Item, Nack, NewItem, Receipts, Topics, check_new_item
from foqs.client.retry import NO_REPEATS, Repeat
from foqs.client.shared_enqueue import CallOutcome, enqueue_shared
from foqs.client.sync.base import BaseClient
from foqs.client.sync.coalescer import EnqueueCoalescer
from foqs.client.sync.concurrency import Monitor, run_copies
from foqs.client.sync.consumer import Consumer
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, EnqueueResult, PositionErrors, ShardMap, TopicStats
from foqs.model.errors import FoqsError, InvalidArgumentError


class Client(BaseClient):
    """A blocking client of the queue, safe for threads; close it, or use it in a `with` statement.

    addresses: "host:port", several of them comma-separated, or a sequence; connections are spread over them, and the
        next one is tried at once when one cannot be reached or certainly did nothing, as a standby does; that one is
        then tried last for 1 s, and up to 30 s when it goes on failing. The port is 7600 where none is given.
    timeout or timeout_ms (10 s): for one attempt of one call, from the wait for a free connection to the response; long
        polls get their wait on top. The connection of an attempt that timed out is closed.
    connect_timeout or connect_timeout_ms (2 s): for each address.
    connections_max (8): each of them has one call in flight; threads beyond that wait.
    retry (up to 15 s): see RetryPolicy; a call is only repeated where nothing can happen twice, as each verb says.
    batch_items_max (1,000): items per enqueue call; fewer where the namespace allows no more, by its batch_items_max
        or because more never fit its enqueues_per_minute_max.
    idempotent (False): each item without a dedup_id gets a random one, so that an enqueue is repeated after an unknown
        outcome and the item is stored once all the same. It costs the host more, see docs/python.md.
    to_owners (False): acks, nacks, extensions and enqueues with dedup ids go first to the host that has the shard of
        most of their items, by the shard map that a host tells. Take it where the addresses that hosts advertise can be
        reached from here. Any host does any call, but with a hop.
    clock_ms, random: a monotonic clock and numbers from 0 <= x < 1, for tests.

    A duration is a timedelta or, in the argument that ends with _ms, a whole number of milliseconds.
    deadline or deadline_ms of a verb: the call with all its repetitions ends within this time; without it, the client's
        RetryPolicy says when to give up. At the deadline a call raises what the last attempt came to: NotSentError
        when nothing was sent, OutcomeUnknownError when a response is missing.
    return_errors of a verb for many items: return the errors by position instead of raising BatchError.

    A dequeue that runs out of time ends at
    the host too, and items that are on their way then are given back at once, without a counted attempt.

    Errors are those of foqs.model.errors, whose `nothing_done` says that certainly nothing was done. Of the
    UnavailableErrors, OutcomeUnknownError says that nobody knows, NotSentError that no host got the call, and a plain
    one that a host answered and did nothing. After close() every call raises ClientClosedError.
    """

    def _prepare(self) -> None:
        self._coalescer = EnqueueCoalescer(
            self.options.batch_items_max, self._terms, self._enqueue_batch, self._pool.pause
        )

    def enqueue(
        self,
        namespace: str,
        topic: str,
        payload: bytes,
        *,
        priority: int = 0,
        deliver_after_ms: int | None = None,
        deliver_after: datetime | None = None,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        ttl_ms: int | None = None,
        ttl: timedelta | None = None,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        metadata: bytes | None = None,
        delivery: DeliveryPolicy | None = None,
        dedup_id: str | None = None,
        trace_context: str | None = None,
        retry_unknown: bool = False,
        job_id: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> str:
        """Store one item and return its id; it is durable then. The fields are those of NewItem.

        Enqueues that come while a call is in flight go together in the next one.
        dedup_id: repeated after an unknown outcome; where an item with this id was stored before, its id is returned.
        retry_unknown: repeat after an unknown outcome without a dedup_id too; the item may then exist twice.
        job_id: the job record that counts the item and whose rate holds, see `AdminClient.create_job`.
        Raises the item's error: InvalidArgumentError, TooLargeError, RateLimitedError, OutcomeUnknownError, ...;
        OverloadedError also when too many enqueues wait in this client.
        """
        item = NewItem(
            topic,
            payload,
            priority,
            deliver_after_ms,
            delay_ms,
            ttl_ms,
            lease_ms,
            metadata,
            delivery,
            dedup_id,
            trace_context=trace_context,
            deliver_after=deliver_after,
            delay=delay,
            ttl=ttl,
            lease=lease,
        )
        check_new_item(item)
        check_target(namespace, job_id, retry_unknown=retry_unknown)
        terms = self._within(deadline_ms, deadline)
        if dedup_id is None and self.options.idempotent:
            (item.dedup_id,) = slots.random_ids(1)
        lane: Lane = (namespace, retry_unknown, job_id, slots.NO_ID, ())
        if item.dedup_id is not None:
            groups = self._run(slots.groups_of(terms, namespace))
            lane = (namespace, True, job_id, groups.of([item])[0], ())
        return self._coalescer.enqueue(lane, item, terms.deadline_at_ms)

    def enqueue_many(
        self,
        namespace: str,
        items: Iterable[NewItem],
        *,
        retry_unknown: bool = False,
        bulk: bool = False,
        job_id: str | None = None,
        calls_in_flight: int = 1,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> EnqueueResult:
        """Store many items, in as many calls as the limits of batch and frame ask for; `items` may be lazy.

        The result has an id for each position. Raises BatchError when items failed: it has the ids of the others and
        the errors by position. Raises another error when no call was done. When a later call fails as a whole, its
        positions get the error, and those behind it (of a sequence; a lazy iterable is not read on) a NotSentError. An
        item that cannot be sent gets its error alone: the others go without it. Items that a host refuses for a while,
        such as those of a paused topic, are sent once more within the time of the RetryPolicy, and others go meanwhile.
        Items that have dedup ids, all of them: calls are repeated after an unknown outcome, one that fails leaves the
        others alone unless some fail one after the other, and each call has items of one shard, so that their order is
        kept within a shard only. `duplicates` of the result are positions that got the id of an item enqueued before,
        by an attempt of this call or earlier.
        retry_unknown: repeat after an unknown outcome without dedup ids too; items may then exist twice.
        bulk: tell the host that nobody waits for these items, so that it may serve interactive calls first.
        job_id: the job record that counts the items and whose rate holds, see `AdminClient.create_job`. Raises
            NotFoundError when the namespace has none of this id.
        calls_in_flight (1): this many threads. The order of items in different calls is then not kept.
        deadline: for all calls together; without it each has that of the client's RetryPolicy.
        """
        check_whole("calls_in_flight", calls_in_flight, 1, self._pool.calls_in_flight_max)
        check_target(namespace, job_id, retry_unknown=retry_unknown)
        terms = self._within(deadline_ms, deadline)
        work = Bulk(items, self.options.batch_items_max, makes_ids=self.options.idempotent, terms=terms)
        guard = Monitor()
        if work.begins_with_id():
            work.group_by(self._run(slots.groups_of(terms, namespace)))

        def send_batches() -> None:
            while True:
                with guard:
                    batch = work.next()
                    wait_ms = work.wait_ms() if batch is None else None
                if batch is None:
                    if wait_ms is None:
                        return
                    self._pool.pause(wait_ms)
                    continue
                repeat = batch.repeat(retry_unknown=retry_unknown)
                try:
                    flow = verbs.enqueue_limited(
                        terms, namespace, batch.items, repeat, bulk=bulk, job_id=job_id, defers=True
                    )
                    done = self._run(flow)
                except FoqsError as error:
                    with guard:
                        work.failed(batch, error)
                except BaseException as error:
                    stop(error)  # Otherwise the others would send all the rest.
                    raise
                else:
                    with guard:
                        work.done(batch, done)

        def stop(error: BaseException) -> None:
            with guard:
                work.stop(error)

        if calls_in_flight == 1:
            send_batches()
        else:
            run_copies(send_batches, calls_in_flight, "foqs-enqueue", stop)
        result = work.result()
        if result.errors and not return_errors:
            raise BatchError("enqueue_many", result.errors, len(result.ids), result.ids, result.duplicates)
        return result

    def dequeue(
        self,
        namespace: str,
        topics: Topics = (),
        count: int = 1,
        *,
        topic_prefix: str | None = None,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        wait_ms: int | None = None,
        wait: timedelta | None = None,
        want_why: bool = False,
        says_begun: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> list[Item]:
        """Take up to `count` of the most urgent ready items of each topic, under a lease; fewer or none if there are.

        topics: a topic; or a mapping or pairs of topic and count, at most 1,000 topics and 1,000 items in all.
        topic_prefix: instead of topics. Up to `count` items of any topics that begin with it ("" for all topics), which
            get turns by their weights.
        lease or lease_ms: 1 s to 12 h; without it, what the item, then the namespace says.
        wait or wait_ms (0): how long to wait for the first item, up to 30 s, and less than the deadline.
        want_why (False): the result is a foqs.Dequeued, a list whose `why_empty` has the reasons if there are no items:
            paused, capped, on a sick shard, delayed, under lease... It costs all hosts a look, so it is for people.
        says_begun: the caller says with `extend` (begun) on which items it begins to work; until then the end of a
            lease is no failed attempt. What may have ended a program comes alone, and says so by `suspect`.
        It is repeated after an unknown outcome: the items of a lost response are redelivered when their lease ends.
        """
        lease_ms = duration_ms("lease_ms", lease_ms, lease)
        wait_ms = duration_or("wait_ms", wait_ms, wait, 0)
        terms = self._within(deadline_ms, deadline)
        flow = verbs.dequeue(
            terms, namespace, topics, count, lease_ms, wait_ms, topic_prefix, want_why=want_why, says_begun=says_begun
        )
        return self._run(flow)

    def _take(
        self,
        namespace: str,
        topics: Topics,
        count: int,
        topic_prefix: str | None,
        lease_ms: int,
        wait_ms: int,
    ) -> list[Item]:
        """Do what `dequeue` does with says_begun, without repetitions: a worker or consumer goes on by itself."""
        terms = replace(self._within(None, None), retry=NO_REPEATS)
        return self._run(
            verbs.dequeue(terms, namespace, topics, count, lease_ms, wait_ms, topic_prefix, says_begun=True)
        )

    def _nack_limits(self, namespace: str) -> NackLimits:
        return self._run(nack_limits(self._within(None, None), namespace))

    def ack(
        self,
        namespace: str,
        receipts: Receipts,
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Delete items that are done; what is acked without an error is never redelivered.

        receipts: an Item, a receipt or a bare id, whose error is raised: StaleLeaseError when the lease was lost,
            NotFoundError when a bare id names nothing. Or many: then BatchError has the errors by position.
        After a lost response it is repeated and told the truth: done where the item is gone, StaleLeaseError only
        where it is there. OutcomeUnknownError when nobody can tell.
        """
        return self._run(verbs.ack(self._within(deadline_ms, deadline), namespace, receipts, return_errors))

    def nack(
        self,
        namespace: str,
        receipts: verbs.Nacks,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        metadata: bytes | None = None,
        dead_letter: bool = False,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Give deliveries back as failed attempts: they are ready again after the delay, up to 90 days.

        receipts: as with `ack`; an entry that is a Nack stands for itself, the arguments are for the others.
        metadata: replaces the item's.  dead_letter: the items become dead letters.
        It is never repeated after an unknown outcome: the item is then redelivered when its lease ends.
        """
        delay_ms = duration_ms("delay_ms", delay_ms, delay)
        terms = self._within(deadline_ms, deadline)

        def as_given(receipt: str) -> Nack:
            return Nack(receipt, delay_ms, metadata, dead_letter=dead_letter)

        return self._run(verbs.nack(terms, namespace, receipts, as_given, return_errors))

    def release(
        self,
        namespace: str,
        receipts: Receipts,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Give deliveries back unused: they are ready again, and no attempt is counted. Otherwise like `nack`."""
        delay_ms = duration_ms("delay_ms", delay_ms, delay)
        terms = self._within(deadline_ms, deadline)

        def as_given(receipt: str) -> Nack:
            return Nack(receipt, delay_ms, release=True)

        return self._run(verbs.nack(terms, namespace, receipts, as_given, return_errors))

    def extend(
        self,
        namespace: str,
        receipts: Receipts,
        lease_ms: int | None = None,
        *,
        lease: timedelta | None = None,
        begun: Receipts = (),
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Let leases end `lease` or lease_ms from now, 1 s to 12 h. receipts and errors as with `ack`.

        begun: deliveries of a dequeue with says_begun on which work begins; their leases stay as they are, and their
            errors have the positions behind those of receipts, which may be empty then.
        """
        lease_ms = duration_ms("lease_ms", lease_ms, lease)
        if lease_ms is None and receipts:
            raise InvalidArgumentError("extend needs to know how long the lease is: give lease or lease_ms")
        lease_ms = limits.LEASE_MS_MIN if lease_ms is None else lease_ms  # None is extended by it.
        terms = self._within(deadline_ms, deadline)
        return self._run(verbs.extend(terms, namespace, receipts, lease_ms, return_errors, begun))

    def topics(
        self,
        namespace: str,
        prefix: str = "",
        *,
        on_missing: Callable[[Sequence[str]], None] | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Iterator[TopicStats]:
        """Iterate over the topics that hold an item and start with the prefix, page by page.

        on_missing: is told, in words, of shards and hosts that do not respond, whose items are then not counted.
        Without it a page that is not complete raises UnavailableError. A deadline is for each page.
        """
        token, partial = "", on_missing is not None
        while True:
            terms = self._within(deadline_ms, deadline)
            page = self._run(verbs.topic_page(terms, namespace, prefix, token, partial))
            if page.missing and on_missing is not None:
                on_missing(page.missing)
            yield from page.topics
            token = page.next_page_token
            if not token:
                return

    def shard_map(
        self, namespace: str | None = None, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> ShardMap:
        """Return which shard takes the dedup ids of each slot, and what the namespace says of its ids.

        The client groups items by itself; this is for programs that look.
        """
        return self._run(slots.shard_map(self._within(deadline_ms, deadline), namespace))

    def consume(
        self,
        namespace: str,
        topics: Topics = (),
        *,
        topic_prefix: str | None = None,
        batch_count: int = 100,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        wait_ms: int | None = None,
        wait: timedelta | None = None,
    ) -> Consumer:
        """Iterate over deliveries as they come, with acks sent in the background. See `Consumer`."""
        return Consumer(
            self,
            namespace,
            topics,
            topic_prefix=topic_prefix,
            batch_count=batch_count,
            lease_ms=duration_or("lease_ms", lease_ms, lease, limits.LEASE_MS_DEFAULT),
            wait_ms=duration_or("wait_ms", wait_ms, wait, 5_000),
        )

    def close(self) -> None:
        """Close every connection. Calls in flight fail, later ones raise ClientClosedError. Safe to repeat."""
        super().close()
        self._coalescer.close()

    def _settle_now(
        self, verb: Callable[..., Flow[PositionErrors]], namespace: str, *arguments: object
    ) -> PositionErrors:
        """Settle for a consumer or worker, which repeats by itself what was certainly not done: others are to go on."""
        flow = verb(self._within(None, None), namespace, *arguments, return_errors=True, defers=True)
        return self._run(flow)

    def _enqueue_batch(self, lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        namespace, retry_unknown, job_id, _, avoided = lane
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        terms = self._terms.until(deadline_at_ms)
        return self._run(enqueue_shared(terms, namespace, items, repeat, job_id=job_id, avoided=avoided))
