"""The client of the queue. It adds names and types to the verbs of `foqs.client.queue_verbs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from foqs.client import queue_verbs, slot_groups
from foqs.client.aio.base import AsyncBaseClient
from foqs.client.aio.coalescer import AsyncEnqueueCoalescer
from foqs.client.aio.concurrency import AsyncMonitor, run_copies
from foqs.client.aio.consumer import AsyncConsumer
from foqs.client.amending import NackLimits, nack_limits
from foqs.client.bulk import Bulk
from foqs.client.checks import check_target, check_whole
from foqs.client.client_errors import BatchError
from foqs.client.coalescing import Lane
from foqs.client.durations import duration_ms, duration_or
from foqs.client.flows import Flow
from foqs.client.queue_items import Item, Nack, NewItem, Receipts, Topics, check_new_item
from foqs.client.retry import NO_REPEATS, Repeat
from foqs.client.shared_enqueue import CallOutcome, enqueue_shared
from foqs.model import limits
from foqs.model.calls import DedupUntil, DeliveryPolicy, EnqueueResult, PositionErrors, ShardMap, TopicStats
from foqs.model.errors import FoqsError, InvalidArgumentError


class AsyncClient(AsyncBaseClient):
    """A client of the queue for the tasks of one event loop; close it, or use it in an `async with` statement.

    addresses: "host:port", several comma-separated ones, or a sequence. Connections are spread over them. If a host is
        unreachable or certainly did nothing, as a standby does, the next one is tried at once; the failed one is then
        tried last for 1 s, and for up to 30 s if it keeps failing. The default port is 7600.
    timeout or timeout_ms (10 s): for one attempt of one call, from the wait for a free connection to the response; long
        polls get their wait on top. No new call is sent on the connection of an attempt that timed out.
    connect_timeout or connect_timeout_ms (2 s): for each address.
    connections_max (4): each one has up to 64 calls in flight; further tasks wait.
    retry (up to 15 s): see RetryPolicy. A call is only repeated if a double effect is impossible, as described at each
        verb.
    batch_items_max (1,000): items per enqueue call; fewer if the namespace allows fewer by its batch_items_max or its
        enqueues_per_minute_max.
    idempotent (False): True to give each item without a dedup_id a random one. An enqueue is then repeated after an
        unknown outcome, and the item is still stored once. It costs the host more, see docs/python.md.
    to_owners (False): True to send acks, nacks, extensions and enqueues with dedup ids first to the host that owns the
        shard of most of their items, by the shard map of a host. Use it if the advertised addresses of the hosts are
        reachable from here. Otherwise any host serves the call, with a hop.
    token or token_file: the token by which hosts know the caller, or the file that has it, which is read for each new
        connection. PermissionDeniedError, which is not repeated, says that a host refuses the token.
    tokens_without_tls (False): True to send the token over plain connections to other machines, too, where others
        can read it.
    tls (False): True to speak TLS with all hosts, never plain. The certificate of a host must be for the name, or the
        address, at which it is called, and that is always verified.
    ca_file: the PEM file with the certificates of the CAs that are trusted, instead of those of the system.
    server_name: the name that certificates of hosts must be for, at any address.
    cert_file, key_file: PEM files with the client's certificate, by which hosts know the caller, and with its key,
        which has no pass phrase. A replaced file is read anew for the next connection.
    clock_ms, random: a monotonic clock and numbers from 0 <= x < 1, for tests.

    A duration is a timedelta or, in the argument that ends with _ms, a whole number of milliseconds.
    deadline or deadline_ms of a verb: longest time of the call with all its repetitions; by default the client's
        RetryPolicy decides. At the deadline a call raises the outcome of the last attempt: NotSentError if nothing was
        sent, OutcomeUnknownError if a response is missing.
    return_errors of a verb for many items: True to return the errors by position instead of raising BatchError.

    A call that is cancelled might have been done.
    A dequeue that is cancelled or runs out of time ends at the host too. Items that arrive too late are given back
    at once, and no attempt is counted.

    Errors are those of foqs.model.errors; `nothing_done` is True if certainly nothing was done. Subclasses of
    UnavailableError: OutcomeUnknownError for an unknown outcome, NotSentError for a call that no host received. A plain
    UnavailableError comes from a host that did nothing. After close() every call raises ClientClosedError.
    """

    def _prepare(self) -> None:
        self._coalescer = AsyncEnqueueCoalescer(
            self.options.batch_items_max, self._terms, self._enqueue_batch, self._pool.pause
        )

    async def enqueue(
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
        dedup_until: DedupUntil | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        trace_context: str | None = None,
        retry_unknown: bool = False,
        job_id: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> str:
        """Store one item and return its id; the item is durable then. The fields are those of NewItem.

        Enqueues that arrive during a call are sent together in the next one.
        dedup_id: repeat after an unknown outcome; if an item with this id was stored before, its id is returned.
        dedup_until: DedupUntil.ACKED to take the dedup_id as long as the item lives, see NewItem.
        ordering_key: items of the topic with the same key are delivered one at a time, in order, see NewItem.
        fairness_key: the keys of the topic take turns, see NewItem.
        retry_unknown: True to repeat after an unknown outcome even without a dedup_id; the item might then exist twice.
        job_id: the job whose record counts the item and whose rate applies, see `AsyncAdminClient.create_job`.
        Raises the item's error: InvalidArgumentError, TooLargeError, RateLimitedError, OutcomeUnknownError, ...;
        OverloadedError also if too many enqueues wait in this client.
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
            ordering_key,
            trace_context,
            deliver_after=deliver_after,
            delay=delay,
            ttl=ttl,
            lease=lease,
            dedup_until=dedup_until,
            fairness_key=fairness_key,
        )
        check_new_item(item)
        check_target(namespace, job_id, retry_unknown=retry_unknown)
        terms = self._within(deadline_ms, deadline)
        if dedup_id is None and self.options.idempotent:
            (item.dedup_id,) = slot_groups.random_ids(1)
        lane: Lane = (namespace, retry_unknown, job_id, slot_groups.NO_ID, ())
        if item.dedup_id is not None:
            groups = await self._run(slot_groups.groups_of(terms, namespace))
            lane = (namespace, True, job_id, groups.of([item])[0], ())
        return await self._coalescer.enqueue(lane, item, terms.deadline_at_ms)

    async def enqueue_many(
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
        """Store many items, in several calls if the limits of batch and frame require it; `items` can be lazy.

        The result has an id for each position. Raises BatchError if items failed; it has the ids of the others and the
        errors by position. Raises any other error if no call succeeded. If a later call fails as a whole, its positions
        get the error, and later positions get a NotSentError; a lazy iterable is not read further. An item that cannot
        be sent gets its own error, and the others are sent without it. Items that a host refuses for a while, such as
        those of a paused topic, are repeated within the time of the RetryPolicy while others continue.
        If all items have dedup ids, calls are repeated after an unknown outcome, and a failed call does not affect the
        others unless several fail in a row. Each call then has the items of one shard, so order is kept only within a
        shard. `duplicates` of the result are the positions that got the id of an item enqueued before, by an attempt of
        this call or earlier.
        retry_unknown: True to repeat after an unknown outcome even without dedup ids; items might then exist twice.
        bulk: True if no user waits for these items, so that the host can serve interactive calls first.
        job_id: the job whose record counts the items and whose rate applies, see `AsyncAdminClient.create_job`. Raises
            NotFoundError if the namespace has no such job.
        calls_in_flight (1): this many calls at a time. With several, the order of items in different calls is not kept.
        deadline: for all calls together; by default each call has that of the client's RetryPolicy.
        """
        check_whole("calls_in_flight", calls_in_flight, 1, self._pool.calls_in_flight_max)
        check_target(namespace, job_id, retry_unknown=retry_unknown)
        terms = self._within(deadline_ms, deadline)
        work = Bulk(items, self.options.batch_items_max, makes_ids=self.options.idempotent, terms=terms)
        guard = AsyncMonitor()
        if work.begins_with_id():
            work.group_by(await self._run(slot_groups.groups_of(terms, namespace)))

        async def send_batches() -> None:
            while True:
                with guard:
                    batch = work.next()
                    wait_ms = work.wait_ms() if batch is None else None
                if batch is None:
                    if wait_ms is None:
                        return
                    await self._pool.pause(wait_ms)
                    continue
                repeat = batch.repeat(retry_unknown=retry_unknown)
                try:
                    flow = queue_verbs.enqueue_limited(
                        terms, namespace, batch.items, repeat, bulk=bulk, job_id=job_id, defers=True
                    )
                    done = await self._run(flow)
                except FoqsError as error:
                    with guard:
                        work.failed(batch, error)
                except BaseException as error:
                    stop(error)  # Otherwise the other copies would send the rest.
                    raise
                else:
                    with guard:
                        work.done(batch, done)

        def stop(error: BaseException) -> None:
            with guard:
                work.stop(error)

        if calls_in_flight == 1:
            await send_batches()
        else:
            await run_copies(send_batches, calls_in_flight, "foqs-enqueue", stop)
        result = work.result()
        if result.errors and not return_errors:
            raise BatchError("enqueue_many", result.errors, len(result.ids), result.ids, result.duplicates)
        return result

    async def dequeue(
        self,
        namespace: str,
        topics: Topics = (),
        count: int = 1,
        *,
        topic_prefix: str | None = None,
        group: str | None = None,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        wait_ms: int | None = None,
        wait: timedelta | None = None,
        want_why: bool = False,
        says_begun: bool = False,
        consumer: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> list[Item]:
        """Take up to `count` of the most urgent ready items of each topic under a lease; fewer if fewer are ready.

        topics: a topic; or a mapping or pairs of topic and count, at most 1,000 topics and 1,000 items in all.
        topic_prefix: instead of topics; up to `count` items of all topics with this prefix ("" for all topics), which
            take turns by weight.
        group: a consumer group of the topics, or of those with the prefix, see `AdminClient.create_group`; by default
            their own items.
        lease or lease_ms: 1 s to 12 h; by default the lease of the item, then that of the namespace.
        wait or wait_ms (0): longest wait for the first item, up to 30 s and less than the deadline.
        want_why (False): True to return a foqs.Dequeued, a list whose `why_empty` has the reasons for an empty result:
            paused, capped, on a sick shard, delayed, under lease... It is meant for people, because all hosts are
            asked.
        says_begun: True if the caller reports with `extend` (begun) each item on which it begins to work. Until then an
            expired lease does not count as a failed attempt. An item that possibly crashed a program is delivered
            alone, with `suspect` True.
        consumer: the name of the caller, by which operators see its leases; by default its address.
        It is repeated after an unknown outcome: the items of a lost response are redelivered when their lease ends.
        """
        lease_ms = duration_ms("lease_ms", lease_ms, lease)
        wait_ms = duration_or("wait_ms", wait_ms, wait, 0)
        terms = self._within(deadline_ms, deadline)
        flow = queue_verbs.dequeue(
            terms,
            namespace,
            topics,
            count,
            lease_ms,
            wait_ms,
            topic_prefix,
            group=group,
            want_why=want_why,
            says_begun=says_begun,
            consumer=consumer,
        )
        return await self._run(flow)

    async def _take(
        self,
        namespace: str,
        topics: Topics,
        count: int,
        topic_prefix: str | None,
        group: str | None,
        lease_ms: int,
        wait_ms: int,
        consumer: str,
        *,
        want_why: bool = False,
    ) -> list[Item]:
        """Dequeue with says_begun and without repetitions, because a worker or consumer repeats by itself."""
        terms = replace(self._within(None, None), retry=NO_REPEATS)
        flow = queue_verbs.dequeue(
            terms, namespace, topics, count, lease_ms, wait_ms, topic_prefix, group=group, says_begun=True,
            consumer=consumer, want_why=want_why,
        )  # fmt: skip
        return await self._run(flow)

    async def _nack_limits(self, namespace: str) -> NackLimits:
        return await self._run(nack_limits(self._within(None, None), namespace))

    async def ack(
        self,
        namespace: str,
        receipts: Receipts,
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Delete finished items; an item acked without an error is never redelivered.

        receipts: an Item, a receipt or (with ALTER) a bare id, whose error is raised: StaleLeaseError if the lease was
            lost, NotFoundError if no item has the bare id. Or many: then BatchError has the errors by position.
        After a lost response it is repeated and gets the true outcome: success if the item is deleted, StaleLeaseError
        only if it still exists. OutcomeUnknownError if the outcome stays unknown.
        """
        return await self._run(queue_verbs.ack(self._within(deadline_ms, deadline), namespace, receipts, return_errors))

    async def nack(
        self,
        namespace: str,
        receipts: queue_verbs.Nacks,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        metadata: bytes | None = None,
        dead_letter: bool = False,
        reason: str | None = None,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Give deliveries back as failed attempts; they are ready again after the delay, up to 90 days.

        receipts: as with `ack`; a Nack entry is used as it is, and the arguments apply to the other entries.
        metadata: replaces the item's metadata.  dead_letter: True to make the items dead letters.
        reason: why the attempt failed, for operators; a text of any length, of which one line of 500 bytes is kept.
        It is never repeated after an unknown outcome: the item is then redelivered when its lease ends.
        """
        delay_ms = duration_ms("delay_ms", delay_ms, delay)
        terms = self._within(deadline_ms, deadline)

        def as_given(receipt: str) -> Nack:
            return Nack(receipt, delay_ms, metadata, dead_letter=dead_letter, reason=reason)

        return await self._run(queue_verbs.nack(terms, namespace, receipts, as_given, return_errors))

    async def release(
        self,
        namespace: str,
        receipts: Receipts,
        *,
        delay_ms: int | None = None,
        delay: timedelta | None = None,
        reason: str | None = None,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Give deliveries back unused; they are ready again, and no attempt is counted. Otherwise like `nack`."""
        delay_ms = duration_ms("delay_ms", delay_ms, delay)
        terms = self._within(deadline_ms, deadline)

        def as_given(receipt: str) -> Nack:
            return Nack(receipt, delay_ms, release=True, reason=reason)

        return await self._run(queue_verbs.nack(terms, namespace, receipts, as_given, return_errors))

    async def extend(
        self,
        namespace: str,
        receipts: Receipts,
        lease_ms: int | None = None,
        *,
        lease: timedelta | None = None,
        begun: Receipts = (),
        consumer: str | None = None,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Set leases to end `lease` or lease_ms from now, 1 s to 12 h. receipts and errors as with `ack`.

        begun: deliveries of a dequeue with says_begun on which work begins. Their leases are unchanged, and their
            errors have the positions behind those of receipts, which can then be empty.
        consumer: the name of who has these leases, as with `dequeue`; by default they keep theirs.
        """
        lease_ms = duration_ms("lease_ms", lease_ms, lease)
        if lease_ms is None and receipts:
            raise InvalidArgumentError("extend needs to know how long the lease is: give lease or lease_ms")
        lease_ms = limits.LEASE_MS_MIN if lease_ms is None else lease_ms  # Without receipts, no lease is extended.
        terms = self._within(deadline_ms, deadline)
        flow = queue_verbs.extend(terms, namespace, receipts, lease_ms, return_errors, begun, consumer)
        return await self._run(flow)

    async def topics(
        self,
        namespace: str,
        prefix: str = "",
        *,
        on_missing: Callable[[Sequence[str]], None] | None = None,
        with_rates: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AsyncIterator[TopicStats]:
        """Iterate over the topics that hold an item and start with the prefix, page by page.

        on_missing: called with descriptions of shards and hosts that do not respond and whose items are not counted.
        Without it an incomplete page raises UnavailableError. A deadline applies to each page.
        with_rates (False): True for the `rates` of each topic.
        """
        token, partial = "", on_missing is not None
        while True:
            terms = self._within(deadline_ms, deadline)
            page = await self._run(queue_verbs.topic_page(terms, namespace, prefix, token, partial, with_rates))
            if page.missing and on_missing is not None:
                on_missing(page.missing)
            for stats in page.topics:
                yield stats
            token = page.next_page_token
            if not token:
                return

    async def shard_map(
        self, namespace: str | None = None, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> ShardMap:
        """Return the shard for the dedup ids of each slot, and the namespace's settings for these ids.

        It is meant for inspection, because the client groups items by itself.
        """
        return await self._run(slot_groups.shard_map(self._within(deadline_ms, deadline), namespace))

    def consume(
        self,
        namespace: str,
        topics: Topics = (),
        *,
        topic_prefix: str | None = None,
        group: str | None = None,
        name: str | None = None,
        batch_count: int = 100,
        lease_ms: int | None = None,
        lease: timedelta | None = None,
        wait_ms: int | None = None,
        wait: timedelta | None = None,
    ) -> AsyncConsumer:
        """Iterate over deliveries as they arrive, with acks sent in the background. See `AsyncConsumer`."""
        return AsyncConsumer(
            self,
            namespace,
            topics,
            topic_prefix=topic_prefix,
            group=group,
            name=name,
            batch_count=batch_count,
            lease_ms=duration_or("lease_ms", lease_ms, lease, limits.LEASE_MS_DEFAULT),
            wait_ms=duration_or("wait_ms", wait_ms, wait, 5_000),
        )

    async def close(self) -> None:
        """Close every connection. Calls in flight fail, later ones raise ClientClosedError. Safe to repeat."""
        await super().close()
        await self._coalescer.close()

    async def _settle_now(
        self, verb: Callable[..., Flow[PositionErrors]], namespace: str, *arguments: object
    ) -> PositionErrors:
        """Settle for a consumer or worker, which itself repeats the settlements that were certainly not done."""
        flow = verb(self._within(None, None), namespace, *arguments, return_errors=True, defers=True)
        return await self._run(flow)

    async def _enqueue_batch(self, lane: Lane, items: Sequence[NewItem], deadline_at_ms: int | None) -> CallOutcome:
        namespace, retry_unknown, job_id, _, avoided = lane
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        terms = self._terms.until(deadline_at_ms)
        return await self._run(enqueue_shared(terms, namespace, items, repeat, job_id=job_id, avoided=avoided))
