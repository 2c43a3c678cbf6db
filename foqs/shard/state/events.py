"""The values that go into a shard from its host, and that come out: plain ones, so that the shard calls nobody.

As with the Ready of etcd's raft: demand comes in before a transaction is planned, and whoever called the shard takes
the events afterwards, when all of the call is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from foqs.model.errors import FoqsError
from foqs.model.item import ItemEvent, Outcome, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import ItemRow


class Demand(NamedTuple):
    """The items of one topic that are to be claimed of those that are ready, at most `items_max` of them.

    What is short, and whatever stands before an item that is prefetched for the demand: as a ready item it would hold
    that one back.
    """

    items_max: int
    shortage: int
    before: int
    """The sort key before which all are to be claimed."""

    def count_of(self, sort_keys: list[int]) -> int:
        """How many of what stands at these sort keys, which are in order."""
        return min(self.items_max, max(self.shortage, bisect_left(sort_keys, self.before)))


class Completion:
    """A caller's part of transactions, over as soon as all of it is durable or has failed.

    `on_done` is the caller's own address, for the host to tell it: the shard never calls it.
    """

    __slots__ = ("errors", "failure", "on_done", "open_count")

    def __init__(self, on_done: Callable[[Completion], None]) -> None:
        self.on_done = on_done
        self.errors: dict[int, FoqsError] = {}
        """The errors of items that failed alone, by position in the call."""
        self.failure: FoqsError | None = None
        """Why the whole call failed."""
        self.open_count = 0
        """How many of its items and other parts have not ended: whoever takes one on counts it here."""


class OnceOutcome:
    """The outcome of one `insert_once`, by the keys of its items. An item in none of these is still on its way."""

    __slots__ = ("errors", "firsts", "made", "refusal")

    def __init__(self, refusal: FoqsError | None = None) -> None:
        """`refusal`: the error of what is no repeat; nothing is made then."""
        self.refusal = refusal
        self.made: list[int] = []
        """The keys of items that are durable, and the first ones with their dedup ids."""
        self.firsts: dict[int, tuple[int, int]] = {}
        """Shard and key of the item that was made before with the same dedup id, by the one that was not made."""
        self.errors: dict[int, FoqsError] = {}
        """Why they were not made; of an error that is not `nothing_done`, nobody knows whether they were."""


class LookUp:
    """Rows to read, for `on_rows` to be told as soon as the state knows the same; or `on_failed` is told why not.

    Both are the caller's own addresses, for the host to tell it: the shard calls neither.
    `with_payload`: with metadata and payload, which a thousand rows may have a gigabyte of; without they are empty.
    """

    __slots__ = ("keys", "on_failed", "on_rows", "with_payload")

    def __init__(
        self,
        keys: list[int],
        on_rows: Callable[[dict[int, ItemRow]], None],
        on_failed: Callable[[FoqsError], None],
        *,
        with_payload: bool = False,
    ) -> None:
        self.keys = keys
        self.with_payload = with_payload
        self.on_rows = on_rows
        self.on_failed = on_failed


class LookedUp(NamedTuple):
    """The outcome of a look-up: its rows by key, as they are when the state knows the same, or the error."""

    look_up: LookUp
    rows: dict[int, ItemRow]
    error: FoqsError | None = None


class ClaimsStarted(NamedTuple):
    """Claims that are made with the inserts of a transaction: the least urgent one is of the item at `last`."""

    topic: ShardTopic
    claims_count: int
    last: int


class ClaimsEnded:
    """Claims of one topic that are not on the way any more; `items` of them are prefetched now."""

    __slots__ = ("count", "items")

    def __init__(self) -> None:
        self.count = 0
        self.items: list[ShardItem] = []


class Ends(NamedTuple):
    """Deliveries, or lives without one, of which it is durable since `at_ms` that they ended, all in the same way.

    Nobody changes the items any more, and they have no contents.
    """

    outcome: Outcome
    at_ms: int
    """The time by the server's clock."""
    items: dict[ShardTopic, list[ShardItem]]


class Enqueued(NamedTuple):
    """Items of one topic that are durable since `at_ms`, by the server's clock."""

    topic: ShardTopic
    at_ms: int
    priorities: list[int]


class Events:
    """The events since they were taken last, in the order in which they are to be told."""

    __slots__ = (
        "claims_ended", "claims_started", "completed", "counted", "ends", "enqueued", "looked_up", "topics_changed",
        "topics_gone", "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.completed: list[Completion] = []
        self.withdrawn: list[ShardItem] = []
        """Items that were prefetched, and are not to be handed out any more."""
        self.claims_started: list[ClaimsStarted] = []
        self.claims_ended: dict[ShardTopic, ClaimsEnded] = {}
        self.counted: dict[tuple[int, ItemEvent], int] = {}
        """Items for the counts of operators, by namespace and event."""
        self.ends: list[Ends] = []
        """These and what was enqueued are for the event log, and there only if the host has one."""
        self.enqueued: list[Enqueued] = []
        self.looked_up: list[LookedUp] = []
        self.topics_changed: dict[ShardTopic, None] = {}
        """Their ready or prefetched items are others than before."""
        self.topics_gone: list[ShardTopic] = []

    def done(self, completion: Completion, count: int = 1) -> None:
        """Note that so many parts of the call are durable."""
        completion.open_count -= count
        if not completion.open_count:
            self.completed.append(completion)

    def fail(self, completion: Completion, positions: list[int], error: FoqsError) -> None:
        """Note that the parts of the call at these positions were not done."""
        completion.errors.update(dict.fromkeys(positions, error))
        self.done(completion, len(positions))

    def refuse(self, completion: Completion, error: FoqsError) -> None:
        """All of it was not done."""
        completion.failure = error
        self.done(completion)

    def end_claims(self, topic: ShardTopic, count: int, prefetched: list[ShardItem]) -> None:
        ended = self.claims_ended.get(topic)
        if ended is None:
            ended = self.claims_ended[topic] = ClaimsEnded()
        ended.count += count
        ended.items += prefetched

    def count(self, namespace: int, event: ItemEvent, count: int) -> None:
        self.counted[namespace, event] = self.counted.get((namespace, event), 0) + count

    def forget_items(self) -> None:
        """The shard is lost: of its items there is nothing to hand out, and only callers are left to be told."""
        self.withdrawn, self.claims_started, self.claims_ended = [], [], {}
        self.topics_changed, self.topics_gone = {}, []
