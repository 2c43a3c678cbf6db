"""A blocking client that writes down what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from foqs.client.client_errors import ClientClosedError, NotSentError, OutcomeUnknownError
from foqs.client.queue_items import Item, Nack, NewItem
from foqs.client.sync import Client
from foqs.model.calls import DeliveryPolicy, PositionErrors
from foqs.model.errors import FoqsError
from tests.histories.history import Call, History, Outcome, Put, Settled, Taken, Verb, make_payload, uid_of

_Done = tuple[Sequence[str], PositionErrors, Sequence[int]]
"""Ids, errors by position, and the positions of repeats."""


class RecordedClient:
    """The verbs of one client in one namespace; what fails is returned as the outcome, not raised.

    `client` must not repeat calls by itself (RetryPolicy(deadline_ms=0)): the record is of single attempts.
    `name` is unique in the history.
    """

    def __init__(
        self,
        client: Client,
        history: History,
        name: str,
        namespace: str,
        payload_bytes: int = 100,
        group: str | None = None,
    ) -> None:
        """`group`: the consumer group of all its dequeues."""
        self.name = name
        self._group = group
        self._client = client
        self._history = history
        self._namespace = namespace
        self._payload_bytes = payload_bytes

    def enqueue(self, puts: Sequence[Put]) -> Call:
        """One item by the single verb (which several threads' clients may batch), more in one call.

        Items with dedup ids go by the verb of many, which alone says which of them are repeats.
        """
        news = [self._new_item(put) for put in puts]
        call = self._history.begin(self.name, Verb.ENQUEUE, puts)
        if len(news) == 1 and not puts[0].dedup_id:
            self._record(call, lambda: ([self._enqueue_one(news[0])], {}, ()))
        else:
            self._record(call, lambda: self._enqueue_many(news))
        return call

    def dequeue(self, topics: Sequence[str], count: int, *, lease_ms: int | None = None, wait_ms: int = 0) -> Call:
        call = self._history.begin(self.name, Verb.DEQUEUE, topics)
        try:
            items = self._client.dequeue(
                self._namespace, topics, count, group=self._group, lease_ms=lease_ms, wait_ms=wait_ms
            )
        except (FoqsError, ClientClosedError) as error:
            self._history.end(call, outcome_of(error), error=name_of(error))
        else:
            self._history.end(call, Outcome.OK, taken=[_taken(item) for item in items])
        return call

    def ack(self, receipts: Sequence[str]) -> Call:
        call = self._history.begin(self.name, Verb.ACK, [Settled(receipt) for receipt in receipts])
        self._record(call, lambda: ((), self._client.ack(self._namespace, receipts, return_errors=True), ()))
        return call

    def nack(self, nacks: Sequence[Nack]) -> Call:
        settled = [
            Settled(n.receipt, n.delay_ms, None if n.metadata is None else n.metadata.hex(), n.release, n.dead_letter)
            for n in nacks
        ]
        call = self._history.begin(self.name, Verb.NACK, settled)
        self._record(call, lambda: ((), self._client.nack(self._namespace, nacks, return_errors=True), ()))
        return call

    def extend(self, receipts: Sequence[str], lease_ms: int) -> Call:
        settled = [Settled(receipt, lease_ms=lease_ms) for receipt in receipts]
        call = self._history.begin(self.name, Verb.EXTEND, settled)
        extend = partial(self._client.extend, self._namespace, receipts, lease_ms, return_errors=True)
        self._record(call, lambda: ((), extend(), ()))
        return call

    def stored_count(self) -> int | None:
        """Of items that are not dead, as the topics say; not recorded, and None without an answer."""
        try:
            return sum(topic.ready + topic.delayed + topic.leased for topic in self._client.topics(self._namespace))
        except (FoqsError, ClientClosedError):
            return None

    def _record(self, call: Call, work: Callable[[], _Done]) -> None:
        try:
            ids, errors, duplicates = work()
        except (FoqsError, ClientClosedError) as error:
            self._history.end(call, outcome_of(error), error=name_of(error))
        else:
            others = {position: outcome_of(error) for position, error in errors.items()}
            self._history.end(call, Outcome.OK, ids=ids, others=others, duplicates=duplicates)

    def _enqueue_one(self, new: NewItem) -> str:
        return self._client.enqueue(
            self._namespace,
            new.topic,
            new.payload,
            priority=new.priority,
            deliver_after_ms=new.deliver_after_ms,
            delay_ms=new.delay_ms,
            ttl_ms=new.ttl_ms,
            metadata=new.metadata,
            delivery=new.delivery,
            ordering_key=new.ordering_key,
        )

    def _enqueue_many(self, news: Sequence[NewItem]) -> _Done:
        result = self._client.enqueue_many(self._namespace, news, return_errors=True)
        return result.ids, result.errors, result.duplicates

    def _new_item(self, put: Put) -> NewItem:
        return NewItem(
            put.topic,
            make_payload(put.uid, self._payload_bytes),
            put.priority,
            put.deliver_after_ms,
            put.delay_ms,
            put.ttl_ms,
            metadata=bytes.fromhex(put.metadata),
            delivery=DeliveryPolicy.AT_MOST_ONCE if put.at_most_once else None,
            dedup_id=put.dedup_id or None,
            ordering_key=put.ordering_key or None,
        )


def outcome_of(error: Exception) -> Outcome:
    """What the failure says of the call: who says that nothing was done is held to it."""
    return Outcome.FAIL if isinstance(error, FoqsError) and error.nothing_done else Outcome.INFO


def name_of(error: Exception) -> str:
    """The name of its code, or that the call was never sent or never answered."""
    if isinstance(error, FoqsError) and not isinstance(error, NotSentError | OutcomeUnknownError):
        return error.code.name
    return type(error).__name__.removesuffix("Error")


def _taken(item: Item) -> Taken:
    return Taken(
        item.receipt,
        uid_of(item.payload),
        item.topic,
        item.priority,
        item.deliver_after_ms,
        item.lease_expires_at_ms,
        item.attempt,
        item.metadata.hex(),
        item.ordering_key or "",
    )
