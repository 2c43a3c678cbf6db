"""What a shard's state is made of: parts that each bring their work into the next transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import Item, ItemEvent
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult


class ShardListener(Protocol):
    """Who hands items out."""

    def fresh_demand(self, namespace: int, topic: str, sort_keys: list[int]) -> int:
        """How many of the items at these sort keys, in order, are to be claimed as they are inserted."""

    def claims_started(self, topic: ShardTopic, count: int, last: int) -> None:
        """`count` claims are on the way, of items up to the sort key `last`."""

    def claims_ended(self, topic: ShardTopic, count: int, items: list[Item]) -> None:
        """`count` claims ended; `items` of them are claimed and may be handed out."""

    def withdrawn(self, item: Item) -> None:
        """The item is held, and not to be handed out any more."""

    def topic_changed(self, topic: ShardTopic) -> None:
        """The topic's ready or held items are others than before."""

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """The shard is served; `topics` are some of it, and the others come by `adopt`."""

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was opened, or whose breaker has opened or closed."""

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """What was claimed there is not ours to hand out any more; `topics` are some of it, the others by `disown`."""

    def disown(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was lost, before it is opened again."""

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Its breaker has opened or closed; `topics` are some of it, and the others come by `adopt`."""

    def topic_gone(self, topic: ShardTopic) -> None: ...

    def attempts_max(self, namespace: int) -> int: ...

    def happened(self, namespace: int, event: ItemEvent, count: int) -> None:
        """For the counts of operators."""

    def item_bytes_max(self, namespace: int) -> int:
        """The most that one item of the namespace may have, payload and metadata together."""


class Completion:
    """A caller's part of a transaction: told once, when all of it is durable or has failed."""

    __slots__ = ("errors", "failure", "on_done", "open_count")

    def __init__(self, on_done: Callable[[Completion], None]) -> None:
        self.on_done = on_done
        self.errors: dict[int, FoqsError] = {}
        self.failure: FoqsError | None = None
        self.open_count = 0

    def settle(self, count: int = 1) -> None:
        self.open_count -= count
        if self.open_count == 0:
            self.on_done(self)

    def fail(self, positions: list[int], error: FoqsError) -> None:
        for position in positions:
            self.errors[position] = error
        self.settle(len(positions))


class Part(Protocol):
    """One kind of work on a shard. At most one transaction is under way, and each part remembers its own share."""

    def take(self, transaction: Transaction, now: Now) -> None:
        """Move what waits into the next transaction."""

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None: ...

    def failed(self, error: FoqsError) -> None:
        """Certainly nothing of the transaction happened: all is as it was before `take`."""

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        """The shard is lost: `unknown` for what the last transaction took and its outcome is not known of.

        For what none has taken yet, and for what only reads, `undone`.
        """
