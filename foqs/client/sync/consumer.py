# Generated from foqs/client/aio/consumer.py by scripts/generate_sync.py: edit that one.
"""Iterate over a queue: `for item in client.consume("orders", "paid"): ...; item.ack()`."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from foqs.client.beginning import was_delivered_before
from foqs.client.consumer_names import consumer_name
from foqs.client.leases import TakenItems
from foqs.client.queue_items import Topics
from foqs.client.settling import SettleStats
from foqs.client.sync.concurrency import Monitor
from foqs.client.sync.settler import LeasedItem, LeaseKeeper, Settler
from foqs.client.worker_core import Rests, may_go_on
from foqs.model import limits
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.sync.client import Client


class Consumer:
    """Deliveries one by one, taken in batches, with acks sent in the background; `Client.consume` makes it.

    name: by which operators see the consumer, as "NAME@HOSTNAME/PID"; by default the name of the program.
    batch_count (100): items of each topic per batch (a mapping of topics has its own counts), or of the topic_prefix in
        total.
    group: a consumer group of the topics, or of those with the prefix; by default their own items.
    lease or lease_ms (30 s): of every delivery. An item is yielded with at least half of it left, because the rest of a
        batch that waited longer is extended first; items with lost leases are skipped. The lease of a yielded item is
        not extended automatically.
    wait or wait_ms (5 s): longest wait of one call for items; `stop` from another thread can take as long.

    When the loop is left, items that are not settled and items that were taken but not yielded are released, and all
    settlements are flushed. Use a `with` statement to ensure that, however the loop is left.
    Iterate once, in one thread; items can be settled in any.
    It continues through an outage as workers do. Raises the persistent errors of dequeue, such as
    UnknownNamespaceError.

    An item counts as tried once it is yielded. The consumer reports that to the host: before it yields an item that was
    delivered before, otherwise after a moment if the item is not settled by then. So a crash of the program costs no
    attempt of the items behind.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        topics: Topics,
        *,
        topic_prefix: str | None,
        group: str | None,
        name: str | None,
        batch_count: int,
        lease_ms: int,
        wait_ms: int,
        flush_ms_max: int = limits.DRAIN_MS_MAX,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._topics = topics
        self._topic_prefix = topic_prefix
        self._group = group
        self._name = consumer_name(name)
        self._batch_count = batch_count
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._flush_ms_max = flush_ms_max
        self._taken = TakenItems[LeasedItem](lease_ms)
        self._settler = Settler(client, namespace)
        self._keeper = LeaseKeeper(client, namespace, lease_ms, self._name)
        self._rests = Rests()
        self._changed = Monitor()
        self._has_begun = False
        self._ending = False
        self._closed = False

    @property
    def stats(self) -> SettleStats:
        """Items so far, counted by outcome."""
        return self._settler.stats

    def __iter__(self) -> Iterator[LeasedItem]:
        if self._has_begun:
            raise RuntimeError("the consumer was iterated before, and one is iterated once: make another one")
        self._has_begun = True
        self._settler.start()
        self._keeper.start()
        try:
            while not self._ending:
                self._settler.wait_for_room()
                self._take_or_rest()
                while not self._ending and (item := self._next()) is not None:
                    if self._begin(item):
                        yield item
        finally:
            self.close()

    def _take_or_rest(self) -> None:
        try:
            self._take_batch()
        except FoqsError as error:
            if not may_go_on(error):
                raise
            rest_ms = self._rests.after_failure(self._namespace, error)
            with self._changed:
                self._changed.wait_for(lambda: self._ending, rest_ms / 1000)
        else:
            self._rests.after_success()

    def _begin(self, item: LeasedItem) -> bool:
        """Report to the host that work on the item begins. False if its lease is lost."""
        if not was_delivered_before(item):
            self._keeper.begin_later(item)
            return True
        self._keeper.begin(item)
        if item.lease_lost:
            self._settler.lost([item])
        return not item.lease_lost

    def _take_batch(self) -> None:
        items = self._client._take(
            self._namespace,
            self._topics,
            self._batch_count,
            self._topic_prefix,
            self._group,
            self._lease_ms,
            self._wait_ms,
            self._name,
        )
        self._taken.take(self._settler.lease(items, self._lease_ms), self._client.options.clock_ms())

    def _next(self) -> LeasedItem | None:
        clock_ms = self._client.options.clock_ms
        if due := self._taken.due(clock_ms()):
            asked_at_ms = clock_ms()
            errors = self._client.extend(self._namespace, due, self._lease_ms, consumer=self._name, return_errors=True)
            self._settler.lost(self._taken.extended(due, errors, asked_at_ms))
        return self._taken.next()

    def stop(self) -> None:
        """End the iteration before its next item. The iterator cleans up."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def close(self) -> None:
        """Release the unsettled items and flush. Safe to repeat."""
        self._ending = True
        if not self._closed:
            self._closed = True
            for item in self._taken.unsettled():
                item.release()
            self._keeper.close()
            self._settler.close(self._flush_ms_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
