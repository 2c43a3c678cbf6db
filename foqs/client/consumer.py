"""Iterate over a queue: `for item in client.consume("orders", "paid"): ...; item.ack()`."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from foqs.client.items import Topics
from foqs.client.leases import Hand
from foqs.client.settling import SettleStats
from foqs.client.sync import Client
from foqs.client.sync_settler import LeasedItem, ThreadSettler
from foqs.model import limits


class Consumer:
    """Deliveries one by one, taken in batches, with acks sent in the background.

    batch_count: items of each topic taken at once (a mapping of topics brings its own counts).
    lease_ms: of every delivery. An item is yielded with at least half of it left: the rest of a batch that
        waited longer is extended, and what was lost meanwhile is left out. A yielded item is not extended
        by itself.
    wait_ms: how long one call waits for items; `stop` from another thread takes as long to be heard.

    An item that is neither acked, nacked nor released when the loop is left is released, like those that were
    taken but not yielded; then all settlements are flushed. `break` does it at once on CPython; a `with`
    statement does it everywhere. Iterate once, in one thread; items may be settled in any.
    Raises what dequeue raises, after its retries.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        topics: Topics,
        *,
        batch_count: int,
        lease_ms: int,
        wait_ms: int,
        flush_ms_max: int = limits.DRAIN_MS_MAX,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._topics = topics
        self._batch_count = batch_count
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._flush_ms_max = flush_ms_max
        self._hand = Hand[LeasedItem](lease_ms)
        self._settler = ThreadSettler(client, namespace)
        self._ending = False
        self._closed = False

    @property
    def stats(self) -> SettleStats:
        """What became of the items so far."""
        return self._settler.stats

    def __iter__(self) -> Iterator[LeasedItem]:
        try:
            while not self._ending:
                self._settler.wait_for_room()
                yield from self._batch()
        finally:
            self.close()

    def _batch(self) -> Iterator[LeasedItem]:
        clock_ms = self._client.options.clock_ms
        items = self._client.dequeue(
            self._namespace, self._topics, self._batch_count, lease_ms=self._lease_ms, wait_ms=self._wait_ms
        )
        self._hand.take(self._settler.lease(items, self._lease_ms), clock_ms())
        while not self._ending:
            if due := self._hand.due(clock_ms()):
                asked_at_ms = clock_ms()
                errors = self._client.extend(self._namespace, due, self._lease_ms)
                self._settler.lost(self._hand.extended(due, errors, asked_at_ms))
            item = self._hand.next()
            if item is None:
                return
            yield item

    def stop(self) -> None:
        """End the iteration before its next item, from any thread; the iterating one cleans up."""
        self._ending = True

    def close(self) -> None:
        """Release what is not settled and flush, in the iterating thread. Safe to repeat."""
        self._ending = True
        if not self._closed:
            self._closed = True
            for item in self._hand.unsettled():
                item.release()
            self._settler.close(self._flush_ms_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
