"""What callers hand to a shard's state, and what a transaction under way will mean once it has committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from foqs.core.errors import FoqsError
from foqs.core.item import Claim, Item
from foqs.core.topic import ShardTopic
from foqs.core.window import Window
from foqs.storage.transaction import ItemRow, Rewrite, Transaction


class ShardListener(Protocol):
    """Who hands items out."""

    def unmet_demand(self, namespace: int, topic: str) -> int:
        """How many more items of the topic consumers want than are ready or on the way."""

    def claims_started(self, topic: ShardTopic, count: int) -> None: ...

    def claims_ended(self, topic: ShardTopic, count: int, items: list[Item]) -> None:
        """`count` claims ended; `items` of them are claimed and may be handed out."""

    def became_ready(self, topic: ShardTopic) -> None: ...

    def topic_gone(self, topic: ShardTopic) -> None: ...

    def attempts_max(self, namespace: int) -> int: ...


class Ticket:
    """A caller's part of a transaction: told once, when all of it is durable or has failed."""

    __slots__ = ("errors", "failure", "on_done", "open_count")

    def __init__(self, on_done: Callable[[Ticket], None]) -> None:
        self.on_done = on_done
        self.errors: dict[int, FoqsError] = {}
        self.failure: FoqsError | None = None
        self.open_count = 0

    def settle(self, count: int = 1) -> None:
        self.open_count -= count
        if self.open_count == 0:
            self.on_done(self)


class Settlement:
    """One ack, nack or expiry on its way: `rewrite` None deletes the row."""

    __slots__ = ("item", "position", "rewrite", "ticket")

    def __init__(self, item: Item, rewrite: Rewrite | None, ticket: Ticket | None, position: int) -> None:
        self.item = item
        self.rewrite = rewrite
        self.ticket = ticket
        self.position = position


class Extension:
    """One lease that shall end `lease_ms` after now: a new claim of the same delivery."""

    __slots__ = ("item", "lease_ms", "position", "ticket")

    def __init__(self, item: Item, lease_ms: int, ticket: Ticket, position: int) -> None:
        self.item = item
        self.lease_ms = lease_ms
        self.ticket = ticket
        self.position = position


class LookUp:
    """Rows to read; `on_rows` is told what they are as soon as the state knows the same."""

    __slots__ = ("keys", "on_failed", "on_rows")

    def __init__(
        self,
        keys: list[int],
        on_rows: Callable[[dict[int, ItemRow]], None],
        on_failed: Callable[[FoqsError], None],
    ) -> None:
        self.keys = keys
        self.on_rows = on_rows
        self.on_failed = on_failed


class RowChange:
    """A change of a delayed or dead row; `rewrite` None deletes it."""

    __slots__ = ("position", "rewrite", "row", "ticket")

    def __init__(self, row: ItemRow, rewrite: Rewrite | None, ticket: Ticket, position: int) -> None:
        self.row = row
        self.rewrite = rewrite
        self.ticket = ticket
        self.position = position


class Flight:
    """What a transaction under way will mean once it has committed."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.enqueues: list[tuple[list[Item], Ticket]] = []
        self.refilled: list[tuple[Window, ShardTopic | None]] = []
        self.claimed: list[Item] = []
        self.settled: list[Settlement] = []
        self.extended: list[tuple[Extension, Claim]] = []
        self.woken: list[tuple[int, ShardTopic, int, int]] = []
        self.changed: list[RowChange] = []
        self.look_ups: list[LookUp] = []
